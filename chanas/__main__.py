"""`python -m chanas`, and `torchrun -m chanas`."""

from chanas.cli import main

main()
