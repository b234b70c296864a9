"""Work for worker processes: in a module that needs nothing, as each process imports it."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def die_once(mark: Path) -> str:
    """Die as a compiler does that runs out of memory; where there is a mark that it has, do not."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "built"
