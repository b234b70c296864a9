"""The instruction sets that a network's code needs, and C code that asks a processor for them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from chanas.core.processor import flags_of
from chanas.core.target import HardwareTarget, this_machine

# Where CPUID tells of a flag: leaf, subleaf, word (eax, ebx, ecx, edx), bit. Linux, arch/x86/include/asm/cpufeatures.h.
CPUID = {
    "sse3": (0x1, 0, 2, 0),
    "ssse3": (0x1, 0, 2, 9),
    "fma": (0x1, 0, 2, 12),
    "sse4_1": (0x1, 0, 2, 19),
    "sse4_2": (0x1, 0, 2, 20),
    "movbe": (0x1, 0, 2, 22),
    "popcnt": (0x1, 0, 2, 23),
    "avx": (0x1, 0, 2, 28),
    "f16c": (0x1, 0, 2, 29),
    "bmi1": (0x7, 0, 1, 3),
    "avx2": (0x7, 0, 1, 5),
    "bmi2": (0x7, 0, 1, 8),
    "avx512f": (0x7, 0, 1, 16),
    "avx512dq": (0x7, 0, 1, 17),
    "avx512ifma": (0x7, 0, 1, 21),
    "avx512cd": (0x7, 0, 1, 28),
    "avx512bw": (0x7, 0, 1, 30),
    "avx512vl": (0x7, 0, 1, 31),
    "avx512vbmi": (0x7, 0, 2, 1),
    "avx512_vbmi2": (0x7, 0, 2, 6),
    "gfni": (0x7, 0, 2, 8),
    "avx512_vnni": (0x7, 0, 2, 11),
    "avx512_bitalg": (0x7, 0, 2, 12),
    "avx512_vpopcntdq": (0x7, 0, 2, 14),
    "amx_bf16": (0x7, 0, 3, 22),
    "avx512_fp16": (0x7, 0, 3, 23),
    "amx_tile": (0x7, 0, 3, 24),
    "amx_int8": (0x7, 0, 3, 25),
    "avx_vnni": (0x7, 1, 0, 4),
    "avx512_bf16": (0x7, 1, 0, 5),
    "avx_ifma": (0x7, 1, 0, 23),
    "avx_vnni_int8": (0x7, 1, 3, 4),
    "avx_ne_convert": (0x7, 1, 3, 5),
    "avx_vnni_int16": (0x7, 1, 3, 10),
    "abm": (0x80000001, 0, 2, 5),
    "sse4a": (0x80000001, 0, 2, 6),
    "xop": (0x80000001, 0, 2, 11),
    "fma4": (0x80000001, 0, 2, 16),
    "tbm": (0x80000001, 0, 2, 21),
}
_REGISTERS = {"avx": 0x6, "avx512f": 0xE6, "amx_tile": 0x60000}
"""Bits of XCR0: the state that the system keeps for vectors of 256 and of 512 bits and for matrices; other flags come
with these."""
# Word and bit of AT_HWCAP: Linux, arch/arm64/include/uapi/asm/hwcap.h.
_HWCAP = {
    "atomics": (0, 8),
    "asimdhp": (0, 10),
    "asimdrdm": (0, 12),
    "jscvt": (0, 13),
    "fcma": (0, 14),
    "lrcpc": (0, 15),
    "asimddp": (0, 20),
    "sve": (0, 22),
    "asimdfhm": (0, 23),
    "uscat": (0, 25),
    "ilrcpc": (0, 26),
    "flagm": (0, 27),
    "sve2": (1, 1),
    "flagm2": (1, 7),
    "frint": (1, 8),
    "i8mm": (1, 13),
    "bf16": (1, 14),
    "cssc": (1, 34),
    "mops": (1, 43),
}


_ALL = range(256)


def _vector(form: str, map_: int, prefixes: Iterable[int], opcodes: Iterable[int]) -> bytes:
    """A pattern of instructions with vectors: VEX or EVEX, map, prefixes (0: none, 1: 66, 2: F3, 3: F2), opcodes.
    Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, sections 2.3 and 2.7."""
    taken = set(prefixes)
    if form == "vex":
        first, second = (b for b in _ALL if b & 31 == map_), (b for b in _ALL if b & 3 in taken)
        return rb"\xc4" + _any(first) + _any(second) + _any(opcodes)
    first, second = (b for b in _ALL if b & 15 == map_), (b for b in _ALL if b & 4 and b & 3 in taken)
    return rb"\x62" + _any(first) + _any(second) + b"." + _any(opcodes)


def _any(values: Iterable[int]) -> bytes:
    return b"[" + b"".join(rb"\x%02x" % v for v in values) + b"]"


# Newer and rarer instructions: bytes that each of them has. Code without them does not need the flag; code with them
# may have them by chance.
_BYTES = {
    "sse4a": [rb"[\x66\xf2][\x40-\x4f]?\x0f[\x78\x79]|[\xf2\xf3][\x40-\x4f]?\x0f\x2b"],
    "movbe": [rb"\x0f\x38[\xf0\xf1]"],
    "gfni": [rb"\x0f\x38\xcf|\x0f\x3a[\xce\xcf]"]
    + [_vector(f, m, [1], [0xCE, 0xCF]) for f, m in itertools.product(("vex", "evex"), (2, 3))],
    "avx_vnni": [_vector("vex", 2, [1], range(0x50, 0x54))],
    "avx_vnni_int8": [_vector("vex", 2, [0, 2, 3], [0x50, 0x51])],
    "avx_vnni_int16": [_vector("vex", 2, [0, 1, 2], [0xD2, 0xD3])],
    "avx_ifma": [_vector("vex", 2, [1], [0xB4, 0xB5])],
    "avx_ne_convert": [_vector("vex", 2, _ALL, [0x72, 0xB0, 0xB1])],
    "avx512ifma": [_vector("evex", 2, [1], [0xB4, 0xB5])],
    "avx512vbmi": [_vector("evex", 2, [1], [0x75, 0x7D, 0x83, 0x8D])],
    "avx512_vbmi2": [_vector("evex", 2, [1], [0x62, 0x63])]
    + [_vector("evex", m, [1], range(0x70, 0x74)) for m in (2, 3)],
    "avx512_vnni": [_vector("evex", 2, [1], range(0x50, 0x54))],
    "avx512_bitalg": [_vector("evex", 2, [1], [0x54, 0x8F])],
    "avx512_vpopcntdq": [_vector("evex", 2, [1], [0x55])],
    "avx512_bf16": [_vector("evex", 2, [2, 3], [0x52, 0x72])],
    "avx512_fp16": [_vector("evex", m, _ALL, _ALL) for m in (5, 6)] + [_vector("evex", 3, [0, 2], _ALL)],
    "amx_tile": [_vector("vex", 2, [0, 1, 2, 3], [0x49, 0x4B])],
    "amx_bf16": [_vector("vex", 2, [2], [0x5C])],
    "amx_int8": [_vector("vex", 2, [0, 1, 2, 3], [0x5E])],
}


def code_flags(target: HardwareTarget, features: Collection[str]) -> list[str]:
    """The flags of /proc/cpuinfo of which LLVM's features of a target are some."""
    return flags_of(_family(target), features)


def needed_flags(target: HardwareTarget, features: Collection[str], objects: Sequence[Path]) -> list[str]:
    """The flags of /proc/cpuinfo without which object code of a target may not run: those of LLVM's features that it
    was compiled for, without those that its bytes show not to be used."""
    known: Collection[str] = {"x86_64": tuple(CPUID), "aarch64": tuple(_HWCAP)}.get(_family(target), ())
    code = [path.read_bytes() for path in objects]

    def may_have(flag: str) -> bool:
        pattern = re.compile(b"|".join(_BYTES[flag]), re.DOTALL)
        return any(pattern.search(content) for content in code)

    needed = [flag for flag in code_flags(target, features) if flag in known]
    return [flag for flag in needed if flag not in _BYTES or may_have(flag)]


def describe_needs(target: HardwareTarget, flags: Sequence[str]) -> str:
    """`x86_64 with avx2, fma`"""
    return f"{_family(target)}{' with ' if flags else ''}{', '.join(flags)}"


def check_in_c(target: HardwareTarget, flags: Sequence[str]) -> tuple[str, str]:
    """The template of the C code that looks for flags, and the value of its placeholder."""
    if not flags:
        return "processor-any.c", ""
    if _family(target) == "x86_64":
        rows = ((", ".join(map(hex, (*CPUID[flag], _REGISTERS.get(flag, 0)))), flag) for flag in flags)
        return "processor-x86.c", "\n".join(f"    {{{row}}}, /* {flag} */" for row, flag in rows)
    words = [sum(1 << bit for word, bit in map(_HWCAP.__getitem__, flags) if word == i) for i in (0, 1)]
    return "processor-arm.c", ", ".join(f"0x{word:x}" for word in words)


def _family(target: HardwareTarget) -> str:
    return target.mtriple.partition("-")[0] or this_machine()
