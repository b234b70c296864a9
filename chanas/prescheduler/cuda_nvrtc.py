"""CUDA text to machine code with NVRTC, NVIDIA's compiler as a library (it comes with torch), and what the code uses.
Neither a GPU nor a driver is needed."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from chanas.errors import ChanasError, TargetError

_FIRST_LINE = 200


class GPUCompileError(ChanasError):
    """A kernel that is against the GPU's limits, or that the compiler does not take."""


@dataclass(frozen=True)
class KernelFigures:
    """What a compiled kernel uses: registers and spilled bytes of a thread, shared bytes of a block, bytes of code."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int
    code_bytes: int

    def to_json(self) -> dict[str, int]:
        return asdict(self)


def why_no_nvrtc() -> str | None:
    """Why NVRTC cannot be used; None where it can."""
    try:
        _version()
    except (ImportError, RuntimeError, OSError) as error:
        return (
            f"NVRTC is not there ({' '.join(str(error).split())[:_FIRST_LINE]}); `pip install cuda-bindings` and torch"
        )
    return None


def _nvrtc() -> Any:
    from cuda.bindings import nvrtc

    return nvrtc


def _version() -> tuple[int, int]:
    _, major, minor = _nvrtc().nvrtcVersion()
    return major, minor


def compiler_name() -> str:
    """NVRTC and its version: the code depends on it."""
    return "NVRTC " + ".".join(map(str, _version()))


def supported_archs() -> tuple[str, ...]:
    """The architectures that it has: sm_75, sm_80, …"""
    nvrtc = _nvrtc()
    _, archs = _done(nvrtc, nvrtc.nvrtcGetSupportedArchs())
    return tuple(f"sm_{a}" for a in archs)


def check_arch(arch: str) -> None:
    """
    Raises:
        TargetError: NVRTC cannot be used, or does not have the architecture; the message lists those that it has.
    """
    reason = why_no_nvrtc()
    if reason is not None:
        raise TargetError(reason)
    if arch not in supported_archs():
        raise TargetError(
            f"{compiler_name()} does not compile for architecture '{arch}'; it has: {', '.join(supported_archs())}"
        )


def _done(nvrtc: Any, answer: tuple[Any, ...]) -> tuple[Any, ...]:
    if answer[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise GPUCompileError(f"NVRTC: {nvrtc.nvrtcGetErrorString(answer[0])[1].decode()}")
    return answer


def compile_cubin(source: str, arch: str) -> tuple[bytes, KernelFigures]:
    """Machine code of one kernel for an architecture, and what it uses.

    Raises:
        GPUCompileError: the compiler does not take the text; its first error.
    """
    nvrtc = _nvrtc()
    _, program = _done(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, None, None))
    options = [f"--gpu-architecture={arch}".encode(), b"-default-device", b"--ptxas-options=-v"]
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _log(nvrtc, program)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            first = next((line for line in log.splitlines() if "error" in line), log[:_FIRST_LINE] or str(result))
            raise GPUCompileError(f"NVRTC for {arch}: {first.strip()[:_FIRST_LINE]}")
        _, size = _done(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        cubin = bytearray(size)
        _done(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return bytes(cubin), read_figures(bytes(cubin), log)


def _log(nvrtc: Any, program: Any) -> str:
    _, size = _done(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
    text = bytearray(size)
    _done(nvrtc, nvrtc.nvrtcGetProgramLog(program, text))
    return bytes(text).rstrip(b"\0").decode(errors="replace")


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
