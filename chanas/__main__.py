"""`chanas`, `python -m chanas`, and `torchrun -m chanas`."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing takes time in which Ctrl-C is a traceback
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; Ctrl-C is answered before the commands are known, which takes a moment."""
    try:
        from chanas.commands.process import main as run
    except KeyboardInterrupt:
        print("chanas: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
