"""Linking for another processor, with the linker that the wheel `ziglang` (extra `cross`) carries."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from chanas.errors import TargetError

_TIMEOUT_S = 120.0
_SYSTEMS = ("linux-gnu", "linux-musl")


@dataclass(frozen=True)
class CrossLinker:
    """Makes shared libraries for a platform (`aarch64-linux-gnu`) out of object files."""

    name: str
    command: tuple[str, ...]

    def link(self, object_path: Path, library_path: Path) -> None:
        """Raises TargetError: the linker refuses the object, with its first line."""
        arguments = ["-shared", "-s", "-nostdlib", "-o", str(library_path), str(object_path)]
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S)
        if done.returncode:
            first = (done.stderr.strip() or "no message").splitlines()[0]
            raise TargetError(f"{self.name} cannot link {object_path.name}: {first}")


def find_cross_linker(triple: str) -> CrossLinker | None:
    """A linker for a platform as LLVM calls it; None where none is installed that knows it."""
    machine, _, system = triple.partition("-")
    if importlib.util.find_spec("ziglang") is None or system not in _SYSTEMS:
        return None
    return CrossLinker("ziglang", (sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-{system}"))


def no_cross_linker(triple: str) -> str:
    """What to do where `find_cross_linker` found none."""
    remedy = "; `pip install ziglang` brings one" if triple.partition("-")[2] in _SYSTEMS else ""
    return f"no cross linker for {triple} was found{remedy}"
