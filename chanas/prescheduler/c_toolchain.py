"""Compilers of C: one for each platform that static libraries are made for, on the path or in the wheel `ziglang`."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chanas.errors import TargetError

# Zig's compiler makes a platform's C library when it is first asked for a program: minutes on a busy core.
_TIMEOUT_S = 600.0
_C_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class CToolchain:
    """What makes object files, static libraries and programs for one platform.

    name       what people call it
    compiler   the command, as a build line names it
    archiver   the command that makes libraries
    static     whether its programs are linked statically, so that they run without the platform's libraries
    """

    name: str
    compiler: tuple[str, ...]
    archiver: tuple[str, ...]
    static: bool

    def program_arguments(self, sources: Sequence[str], program: str) -> tuple[str, ...]:
        """The arguments of the compiler that make a program of sources and libraries."""
        return ("-O2", *(("-static",) if self.static else ()), "-o", program, *sources, "-lm")

    def compile(self, source: str, object_name: str, folder: Path) -> str:
        """One C or assembly file of `folder` to an object file beside it; returns its name.

        Raises:
            TargetError: the compiler refuses it, with its first line.
        """
        flags = _C_FLAGS if source.endswith(".c") else ()
        self._run([*self.compiler, *flags, "-c", source, "-o", object_name], folder)
        return object_name

    def archive(self, objects: Sequence[str], library: str, folder: Path) -> None:
        """Object files of `folder` to a static library beside them.

        Raises:
            TargetError: the archiver refuses them, with its first line.
        """
        self._run([*self.archiver, "rcs", library, *objects], folder)

    def build_program(self, sources: Sequence[str], program: str, folder: Path) -> None:
        """Sources and libraries of `folder` to a program beside them.

        Raises:
            TargetError: the compiler refuses them, with its first line.
        """
        self._run([*self.compiler, *self.program_arguments(sources, program)], folder)

    def _run(self, command: Sequence[str], folder: Path) -> None:
        try:
            done = subprocess.run(
                command, cwd=folder, env=search_path(), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise TargetError(f"{self.name} took over {_TIMEOUT_S:.0f} s at `{shlex.join(command)}`") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
            first = next((line for line in lines if "error" in line), lines[0])
            raise TargetError(f"{self.name} failed at `{shlex.join(command)}`: {first.strip()}")


def search_path() -> Mapping[str, str]:
    """The environment with this interpreter's folder first on the path, whose `python` has the wheels."""
    return {**os.environ, "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))}


def is_native(triple: str) -> bool:
    """Whether programs of a platform (`aarch64-linux-gnu`; empty: this machine's) are those of this machine."""
    machine = platform.machine().lower().replace("amd64", "x86_64").replace("arm64", "aarch64")
    return triple in ("", f"{machine}-linux-gnu")


def find_c_toolchain(triple: str) -> CToolchain:
    """The toolchain of a platform as LLVM calls it; empty for this machine's own.

    Raises:
        TargetError: none is installed; the message says which would do.
    """
    native = is_native(triple)
    pairs = [("cc", "ar"), ("gcc", "ar"), ("clang", "llvm-ar")] if native else []
    pairs += [(f"{triple}-gcc", f"{triple}-ar"), (f"{triple}-clang", "llvm-ar")] if triple else []
    for compiler, archiver in pairs:
        if shutil.which(compiler) and shutil.which(archiver):
            return CToolchain(compiler, (compiler,), (archiver,), static=not native)
    machine, _, system = (triple or f"{platform.machine().lower()}-linux-gnu").partition("-")
    if importlib.util.find_spec("ziglang") is not None and system in ("linux-gnu", "linux-musl"):
        zig = ("python", "-m", "ziglang")
        return CToolchain("ziglang", (*zig, "cc", "-target", f"{machine}-linux-musl"), (*zig, "ar"), static=True)
    wanted = "gcc" if native else f"gcc for {triple} ({triple}-gcc, in Debian's package gcc-{triple.replace('_', '-')})"
    remedy = ", or `pip install ziglang`, which brings one" if system in ("linux-gnu", "linux-musl") else ""
    raise TargetError(f"no C compiler for {triple or 'this machine'} was found; install {wanted}{remedy}")


def emulator(triple: str) -> str | None:
    """The program that runs another platform's static programs here, QEMU's user mode; None where there is none."""
    machine, _, system = triple.partition("-")
    if not system.startswith("linux"):
        return None
    return next((name for name in (f"qemu-{machine}-static", f"qemu-{machine}") if shutil.which(name)), None)
