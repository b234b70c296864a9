"""Compilers of C: one for each platform that static libraries are made for: on the path, in the wheel `ziglang`, in
an Android NDK."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chanas.compiler.linkers import LINUX, TOOLS, Platform, Tools, android_clang, failure, is_native, no_ndk
from chanas.errors import TargetError

# Zig's compiler makes a platform's C library when it is first asked for a program: minutes on a busy core.
_TIMEOUT_S = 600.0
_C_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class CToolchain:
    """The commands that make object files, static libraries and programs for one platform.

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
        """Compile one C or assembly file of `folder` to an object file beside it; returns its name.

        Raises:
            TargetError: the compiler refuses it, with its reason.
        """
        flags = _C_FLAGS if source.endswith(".c") else ()
        self._run([*self.compiler, *flags, "-c", source, "-o", object_name], folder)
        return object_name

    def archive(self, objects: Sequence[str], library: str, folder: Path) -> None:
        """Object files of `folder` to a static library beside them.

        Raises:
            TargetError: the archiver refuses them, with its reason.
        """
        self._run([*self.archiver, "rcs", library, *objects], folder)

    def build_program(self, sources: Sequence[str], program: str, folder: Path) -> None:
        """Sources and libraries of `folder` to a program beside them.

        Raises:
            TargetError: the compiler refuses them, with its reason.
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
            reason = failure(done.stderr, done.returncode)
            raise TargetError(f"{self.name} failed at `{shlex.join(command)}`: {reason}")


def search_path() -> Mapping[str, str]:
    """The environment with this interpreter's folder first on the path, whose `python` has the wheels."""
    return {**os.environ, "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))}


def find_c_toolchain(triple: str, tools: Tools = TOOLS) -> CToolchain:
    """The toolchain of a platform as LLVM calls it; empty for this machine's own.

    Raises:
        TargetError: none is installed; the message says which would do.
    """
    native, platform = is_native(triple, tools), Platform.of(triple or f"{tools.machine()}-linux-gnu")
    if platform.system == "linux-android":
        command = android_clang(platform, tools.environment)
        if command is None:
            raise TargetError(f"no C compiler for {triple} was found; {no_ndk(tools)}")
        return CToolchain("the NDK's clang", command, (str(Path(command[0]).with_name("llvm-ar")),), static=True)
    name = f"{platform.machine}-{platform.system}"
    pairs = [("cc", "ar"), ("gcc", "ar"), ("clang", "llvm-ar")] if native else []
    pairs += [(f"{name}-gcc", f"{name}-ar"), (f"{name}-clang", "llvm-ar")]
    for compiler, archiver in pairs:
        if tools.which(compiler) and tools.which(archiver):
            return CToolchain(compiler, (compiler,), (archiver,), static=not native)
    is_linux = platform.system in LINUX
    if is_linux and tools.zig() is not None:
        zig = ("python", "-m", "ziglang")  # not its path: build lines are for other machines too
        static = f"{platform.machine}-linux-musl"
        return CToolchain("ziglang", (*zig, "cc", "-target", static), (*zig, "ar"), static=True)
    package = f", in Debian's package gcc-{name.replace('_', '-')}" if is_linux else ""
    wanted = "gcc and binutils" if native else f"gcc for {name} ({name}-gcc and {name}-ar{package})"
    remedy = ", or `pip install ziglang`, which brings one" if is_linux else ""
    raise TargetError(f"no C compiler for {triple or 'this machine'} was found; install {wanted}{remedy}")
