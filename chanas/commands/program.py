"""The words that a user starts chanas with, for command lines that are printed to be pasted."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path


def program() -> list[str]:
    """The words that started this program, before its arguments: `chanas`, `python -m chanas`, `torchrun …`."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode().split("\0")[:-1]
            return [_found(words[0]), *words[1:]]
    script = Path(sys.argv[0])
    if script.name == "__main__.py":
        return [_found(sys.executable), "-m", "chanas"]
    return [_found(sys.argv[0])]


def _found(path: str) -> str:
    """A program by its name alone, where the shell finds the same one by it."""
    name = Path(path).name
    return name if shutil.which(name) == path else path
