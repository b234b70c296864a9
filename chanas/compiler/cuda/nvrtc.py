"""CUDA text to machine code with NVRTC, NVIDIA's compiler as a library, and what the code uses. Neither a GPU nor a
driver is needed.

torch brings a copy of it. Releases of CUDA drop old GPUs (13 starts at sm_75), so that an older copy may be installed
too, and a kernel is compiled by the newest that knows its architecture. The library is called through ctypes: Python's
own bindings hold one copy at a time.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chanas.compiler.elf import section_sizes
from chanas.errors import ChanasError, TargetError

_SYSTEM_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
"""The library's names in a CUDA toolkit, for the dynamic loader."""
OLDER = "nvidia-cuda-nvrtc-cu12>=12.4,<13"
"""The package with NVRTC 12: the extra `pascal` of pyproject.toml."""
OLDER_ARCHS = ("sm_50", "sm_52", "sm_53", "sm_60", "sm_61", "sm_62", "sm_70", "sm_72")
"""Architectures that NVRTC 12.9 knows and 13.0 doesn't (asked of both)."""
NO_NVRTC = "NVRTC, NVIDIA's compiler, is not there; `pip install nvidia-cuda-nvrtc` (torch for CUDA brings it)"
_FIRST_LINE = 200
# Leaves out what kernels need nothing of and the compiler would read before each: textures, CUDA's runtime (CUDA 12.4
# release notes, "NVRTC").
_MINIMAL, _MINIMAL_SINCE = "--minimal", (12, 4)


# ---- copies of the library -------------------------------------------------------------------------------------------
class NVRTCError(RuntimeError):
    """The library takes a call no better than it takes the program; `log` is what it says of the program."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class NVRTCLibrary:
    """One copy of the library: where it lies, its version, and the architectures it compiles for (sm_75, …)."""

    path: str
    version: tuple[int, int]
    archs: tuple[str, ...]
    handle: Any = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return "NVRTC " + ".".join(map(str, self.version))

    def compile(self, source: str, options: Sequence[str]) -> tuple[bytes, str]:
        """The cubin of a program and the compiler's log.

        Raises:
            NVRTCError: the compiler does not take the program or an option.
        """
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
        try:
            given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
            status = self.handle.nvrtcCompileProgram(program, len(options), given)
            log = self._text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                raise NVRTCError(self._said(status), log)
            return self._text(program, "CUBIN"), log
        finally:
            self.handle.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self.handle, function)(*arguments)
        if status:
            raise NVRTCError(f"{function}: {self._said(status)}")

    def _said(self, status: int) -> str:
        self.handle.nvrtcGetErrorString.restype = ctypes.c_char_p
        return str(self.handle.nvrtcGetErrorString(status).decode())


def open_library(path: str) -> NVRTCLibrary:
    """The library in a file, or under a name that the dynamic loader finds.

    Raises:
        OSError: there is none, or it cannot be loaded.
        AttributeError: it is too old to say which architectures it knows (before CUDA 11.2).
    """
    handle = ctypes.CDLL(path)
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    handle.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    handle.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    archs = (ctypes.c_int * count.value)()
    handle.nvrtcGetSupportedArchs(archs)
    return NVRTCLibrary(path, (major.value, minor.value), tuple(f"sm_{a}" for a in archs), handle)


def _wheel_files() -> list[str]:
    """List the libraries of NVIDIA's wheels: in nvidia/cu13/lib since CUDA 13, in nvidia/cuda_nvrtc/lib before."""
    package = importlib.util.find_spec("nvidia")
    roots = package.submodule_search_locations if package is not None else None
    files = (file for root in roots or () for file in Path(root).glob("*/lib/libnvrtc.so.*"))
    return sorted(str(file) for file in files if re.fullmatch(r"libnvrtc\.so\.\d+", file.name))


def newest_first(paths: Iterable[str]) -> tuple[NVRTCLibrary, ...]:
    """The libraries that can be loaded, one of each version."""
    found: dict[tuple[int, int], NVRTCLibrary] = {}
    for path in paths:
        try:
            library = open_library(path)
        except (OSError, AttributeError):
            continue
        found.setdefault(library.version, library)
    return tuple(found[version] for version in sorted(found, reverse=True))


@functools.cache
def installed() -> tuple[NVRTCLibrary, ...]:
    """The copies that are installed, the newest first: those of wheels, then those that the dynamic loader knows."""
    return newest_first([*_wheel_files(), *_SYSTEM_NAMES])


def library_for(arch: str | None = None) -> NVRTCLibrary:
    """The newest copy, or the newest that compiles for an architecture.

    Raises:
        TargetError: none does; the message says what each has, and what to install where that helps.
    """
    libraries = installed()
    if not libraries:
        raise TargetError(NO_NVRTC)
    for library in libraries:
        if arch is None or arch in library.archs:
            return library
    lists = "; ".join(f"{library.name} has {', '.join(library.archs)}" for library in libraries)
    help_ = f"; `pip install '{OLDER}'` brings one that has it" if arch in OLDER_ARCHS else ""
    raise TargetError(f"no compiler here has architecture '{arch}': {lists}{help_}")


# ---- compiled kernels ------------------------------------------------------------------------------------------------
class GPUCompileError(ChanasError):
    """A kernel that is against the GPU's limits, or that the compiler does not take."""


@dataclass(frozen=True)
class KernelFigures:
    """Resources of a compiled kernel: registers and spilled bytes of a thread, shared bytes of a block, code bytes."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int
    code_bytes: int


def why_no_nvrtc(arch: str | None = None) -> str | None:
    """Return the reason that nothing can be compiled (for `arch`); None if it can."""
    try:
        library_for(arch)
    except TargetError as missing:
        return str(missing)
    return None


def compile_cubin(source: str, arch: str) -> tuple[bytes, KernelFigures]:
    """Machine code of one kernel for an architecture, and what it uses.

    Raises:
        TargetError: no compiler here has the architecture.
        GPUCompileError: the compiler does not take the text; its first error.
    """
    library = library_for(arch)
    options = [f"--gpu-architecture={arch}", "-default-device", "--ptxas-options=-v"]
    if library.version >= _MINIMAL_SINCE:
        options.append(_MINIMAL)
    try:
        cubin, log = library.compile(source, options)
    except NVRTCError as error:
        first = next((line for line in error.log.splitlines() if "error" in line), error.log or str(error))
        raise GPUCompileError(f"NVRTC for {arch}: {first.strip()[:_FIRST_LINE]}") from None
    return cubin, read_figures(cubin, log)


def read_figures(cubin: bytes, log: str) -> KernelFigures:
    """Figures of a kernel from its cubin (an ELF file) and from what the assembler said of it."""

    def said(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found[1]) if found else 0

    sections = dict(section_sizes(cubin))
    code = sum(size for name, size in sections.items() if name.startswith(".text."))
    shared = sum(size for name, size in sections.items() if name.startswith(".nv.shared."))
    return KernelFigures(
        registers=said(r"Used (\d+) registers"),
        spill_store_bytes=said(r"(\d+) bytes spill stores"),
        spill_load_bytes=said(r"(\d+) bytes spill loads"),
        shared_bytes=said(r"(\d+) bytes smem") or shared,
        code_bytes=code,
    )
