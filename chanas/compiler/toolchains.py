"""Linkers and compilers of C, for this machine and for processors of other kinds: shared libraries, static ones and
programs.

For another Linux the system's cross binutils or gcc (`aarch64-linux-gnu-ld`), else the linker and the compiler in the
wheel `ziglang` (extra `cross`). For Android the clang of an NDK, whose folder the variable ANDROID_NDK names.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chanas.core.target import this_machine
from chanas.errors import TargetError

_TIMEOUT_S = 120.0
# Zig's compiler makes a platform's C library when it is first asked for a program: minutes on a busy core.
_COMPILING_TIMEOUT_S = 600.0
_C_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror")
_ANDROID_NDK = "ANDROID_NDK"
LINUX = ("linux-gnu", "linux-musl")
# The lowest API level that the NDK builds for since r26 (its changelog). Our code calls nothing of Android.
_LOWEST_API_LEVEL = 21
# Pages of 16 KiB, which devices from Android 15 on may have ("Support 16 KB page sizes", developer.android.com).
_ANDROID_PAGES = "-Wl,-z,max-page-size=16384"


@dataclass(frozen=True)
class Platform:
    """The parts of a triple: `aarch64-linux-gnu`, `aarch64-unknown-linux-gnu`, `aarch64-linux-android29`."""

    machine: str
    system: str
    api_level: int | None = None

    @classmethod
    def of(cls, triple: str) -> Platform:
        machine, _, rest = triple.partition("-")
        system = "-".join(rest.split("-")[-2:])  # without a vendor
        android = re.fullmatch(r"linux-android(\d*)", system)
        if android is None:
            return cls(machine, system)
        return cls(machine, "linux-android", int(android[1] or _LOWEST_API_LEVEL))


# What a compiler says of its linker's failure, and lines that only lead up to a reason or are none.
_SUMMARY = re.compile(r"(ld|linker).*(returned \d+|exit status|command failed)|\d+ (errors?|warnings?).* generated")
_NO_REASON = re.compile(r"[Ii]n function |[Ii]ncluded from |\b(warning|note): |^\s")


def failure(stderr: str, code: int) -> str:
    """The reason that a compiler, linker or archiver gave, in one line: its first error, the linker's before what the
    compiler says of the linker."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if not _SUMMARY.search(line)] or lines
    telling = [line for line in telling if not _NO_REASON.search(line)] or telling
    ended = f"signal {-code} ended it" if code < 0 else f"code {code}, no message"
    return next((line for line in telling if "error" in line), telling[0] if telling else ended).strip()


def _run(command: Sequence[str], timeout_s: float, name: str, doing: str, refuses: str, **options: Any) -> None:
    """
    Raises:
        TargetError: the tool does not end in time at what it is `doing`, or `refuses` it, with its reason.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, **options)
    except subprocess.TimeoutExpired:
        raise TargetError(f"{name} took over {timeout_s:.0f} s {doing}") from None
    if done.returncode:
        raise TargetError(f"{name} {refuses}: {failure(done.stderr, done.returncode)}")


@dataclass(frozen=True)
class CrossLinker:
    """Makes shared libraries for a platform out of object files. What they call is found when they are loaded."""

    name: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ("-nostdlib",)

    def link(self, objects: Sequence[Path], library_path: Path) -> None:
        """Raises TargetError: the linker refuses an object, with its reason, or does not end."""
        arguments = ["-shared", "-s", *self.options, "-o", str(library_path), *map(str, objects)]
        what = objects[0].name
        _run([*self.command, *arguments], _TIMEOUT_S, self.name, f"to link {what}", f"cannot link {what}")


@functools.cache
def zig_command() -> tuple[str, ...] | None:
    """Return the command of the wheel `ziglang`: its program, without Python around it."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).with_name("zig")
    return (str(program),) if program.is_file() else (sys.executable, "-m", "ziglang")


@dataclass(frozen=True)
class Tools:
    """Functions that tell what is installed; on this machine unless others are given.

    which        path of a program, None where it is not there
    zig          command of the wheel `ziglang`, None where it is not there
    machine      the kind of processor, as triples call it
    environment  variables; one names the NDK
    """

    which: Callable[[str], str | None] = lambda name: shutil.which(name)
    zig: Callable[[], tuple[str, ...] | None] = zig_command
    machine: Callable[[], str] = this_machine
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)


TOOLS = Tools()


def is_native(triple: str, tools: Tools = TOOLS) -> bool:
    """True if the machine's own linker serves the platform; an empty triple is the machine."""
    return not triple or Platform.of(triple) == Platform(tools.machine(), "linux-gnu")


def find_linker(triple: str, tools: Tools = TOOLS) -> CrossLinker | None:
    """A linker for a platform as LLVM calls it, this machine's or another's; None where none is installed that knows
    it."""
    if is_native(triple, tools):
        return next((CrossLinker(name, (name,), ()) for name in ("ld", "cc", "gcc") if tools.which(name)), None)
    platform = Platform.of(triple)
    if platform.system == "linux-android":
        command = android_clang(platform, tools.environment)
        return None if command is None else CrossLinker("the NDK's clang", command, ("-nostdlib", _ANDROID_PAGES))
    if platform.system not in LINUX:
        return None
    for tool, options in (("ld", ()), ("gcc", ("-nostdlib",))):
        name = f"{platform.machine}-{platform.system}-{tool}"
        if tools.which(name) is not None:
            return CrossLinker(name, (name,), options)
    zig = tools.zig()
    return None if zig is None else CrossLinker("ziglang", (*zig, "ld.lld"), ())


def android_clang(platform: Platform, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The compiler of the NDK that the environment names, with the option that says the platform; it lies in a folder
    named after the kind of machine that it runs on."""
    folder = environment.get(_ANDROID_NDK)
    found = sorted(Path(folder).glob("toolchains/llvm/prebuilt/*/bin/clang")) if folder else []
    system = f"{platform.machine}-{platform.system}{platform.api_level}"
    return (str(found[0]), f"--target={system}") if found else None


def no_ndk(tools: Tools = TOOLS) -> str:
    """Return the remedy for a missing NDK."""
    folder = tools.environment.get(_ANDROID_NDK)
    found = f"there is no toolchains/llvm/prebuilt/*/bin/clang in {_ANDROID_NDK}={folder}; " if folder else ""
    return f"{found}install the Android NDK and let the variable {_ANDROID_NDK} name its folder"


def no_cross_linker(triple: str, tools: Tools = TOOLS) -> str:
    """Return the remedy if `find_linker` found none for another machine."""
    platform = Platform.of(triple)
    remedy = ""
    if platform.system in LINUX:
        package = f"binutils-{platform.machine.replace('_', '-')}-{platform.system}"
        remedy = f"; `pip install ziglang` brings one, and so does the system's package {package}"
    if platform.system == "linux-android":
        remedy = f"; {no_ndk(tools)}"
    return f"no cross linker for {triple} was found{remedy}"


def required_linker(triple: str, tools: Tools = TOOLS) -> CrossLinker:
    """Raises TargetError: there is none; says what to install."""
    linker = find_linker(triple, tools)
    if linker is not None:
        return linker
    if is_native(triple, tools):
        raise TargetError("no linker found: expected ld, cc or gcc on the path; install binutils or gcc")
    raise TargetError(no_cross_linker(triple, tools))


# ---- compilers of C --------------------------------------------------------------------------------------------------
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
        what = f"at `{shlex.join(command)}`"
        _run(command, _COMPILING_TIMEOUT_S, self.name, what, f"failed {what}", cwd=folder, env=search_path())


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
