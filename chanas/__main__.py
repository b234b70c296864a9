"""`python -m chanas`, and `torchrun -m chanas`."""

from chanas.commands.main import main

main()
