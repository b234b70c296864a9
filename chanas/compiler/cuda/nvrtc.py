"""CUDA text to machine code with NVRTC, NVIDIA's compiler as a library (it comes with torch), and what the code uses.
Neither a GPU nor a driver is needed. Which of the installed copies compiles: `nvrtc_libraries.py`."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from chanas.compiler.cuda.nvrtc_libraries import NO_NVRTC, NVRTCError, installed, library_for
from chanas.errors import ChanasError, TargetError

_FIRST_LINE = 200
# Leaves out what kernels need nothing of and the compiler would read before each: textures, CUDA's runtime (CUDA 12.4
# release notes, "NVRTC").
_MINIMAL, _MINIMAL_SINCE = "--minimal", (12, 4)


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

    def to_json(self) -> dict[str, int]:
        return asdict(self)


def why_no_nvrtc(arch: str | None = None) -> str | None:
    """Return the reason that nothing can be compiled (for `arch`); None if it can."""
    if not installed():
        return NO_NVRTC
    try:
        if arch is not None:
            library_for(arch)
    except TargetError as missing:
        return str(missing)
    return None


def compiler_name(arch: str | None = None) -> str:
    """NVRTC and the version that compiles for an architecture, by default the newest: the code depends on it.

    Raises:
        TargetError: there is none.
    """
    if arch is not None:
        return library_for(arch).name
    if not installed():
        raise TargetError(NO_NVRTC)
    return installed()[0].name


def supported_archs() -> tuple[str, ...]:
    """The architectures that the installed compilers have between them: sm_75, sm_80, …"""
    archs = {arch for library in installed() for arch in library.archs}
    return tuple(sorted(archs, key=lambda arch: int(arch.removeprefix("sm_"))))


def check_arch(arch: str) -> None:
    """
    Raises:
        TargetError: no NVRTC is there, or none that has the architecture; the message lists what each has.
    """
    library_for(arch)


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

    sections = dict(elf_sections(cubin))
    code = sum(size for name, size in sections.items() if name.startswith(".text."))
    shared = sum(size for name, size in sections.items() if name.startswith(".nv.shared."))
    return KernelFigures(
        registers=said(r"Used (\d+) registers"),
        spill_store_bytes=said(r"(\d+) bytes spill stores"),
        spill_load_bytes=said(r"(\d+) bytes spill loads"),
        shared_bytes=said(r"(\d+) bytes smem") or shared,
        code_bytes=code,
    )


def elf_sections(data: bytes) -> Iterator[tuple[str, int]]:
    """Name and size in bytes of each section of a 64-bit ELF file (System V ABI)."""
    (table,) = struct.unpack_from("<Q", data, 40)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * entry_bytes) for i in range(count)]
    names_at = headers[names_index][4]
    for name_at, _, _, _, _, size in headers:
        start = names_at + name_at
        yield data[start : data.index(b"\0", start)].decode(), size
