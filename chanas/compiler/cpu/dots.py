"""Arithmetic of bytes on vectors of 32-bit words: dot products of four, and float32 to bytes.

    dot(sum, four(a₀ … a₃, w))   sum + a₀·w₀ + … + a₃·w₃, sums int32
    dot(sum, four(a, w))         the same of words of four
    quad(a₀ … a₃)                such a word of numbers that lie one vector apart, in one load
    byte(value)                  the whole number of 0 … 255 that is nearest to a float32, ties to even

a₀ … a₃ are neighbours in a buffer of uint8, the same for all lanes; w is a word of four int8, a float32 that holds no
number. The operations stay calls until the last pass, like those of bfloat16 (`arithmetic`); what they call is written
for the target: one instruction for a dot product where the processor has it (VNNI, ARM's i8mm), one of numbers with a
sign where it has that alone (ARM's dotprod), else sums of two products in 16 bits (`vpmaddubsw`), in which the weights
are so small that none is cut off (`chanas.operators.quantised`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
from tvm import te, tirx

from chanas.compiler.expressions import Intrinsic, address_of_first
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError

_WORD_BITS = 32
_WIDEST, _LONGEST = 8, 16
"""Words of the longest vectors that AVX2 has, and AVX-512."""
_NAMES = {
    8: ("avx2.pmadd.ub.sw", "avx2.pmadd.wd", "avx.cvt.ps2dq.256"),
    4: ("ssse3.pmadd.ub.sw.128", "sse2.pmadd.wd", "sse2.cvtps2dq"),
}
"""LLVM's names, by the words of a vector: sums of two products, of bytes and of 16 bits; float32 to whole numbers."""


def _lower_dot(call: Any) -> Any:
    total, term = call.args
    *values, weights = term.args
    lanes = tvm.DataType(str(call.ty)).lanes
    dtype = f"int32x{lanes}"
    if len(values) == 1:
        words = tirx.reinterpret(dtype, values[0])
    else:
        first = values[0].value  # the same for all lanes
        together = tirx.BufferLoad(first.source, [tirx.Ramp(first.indices[0], 1, len(values))])
        words = tirx.Broadcast(tirx.reinterpret("int32", together), lanes)
    return tirx.call_pure_extern(dtype, f"chanas_dot_{lanes}", total, words, tirx.reinterpret(dtype, weights))


def _lower_quad(call: Any) -> Any:
    lanes = tvm.DataType(str(call.ty)).lanes
    return tirx.call_pure_extern(call.ty, f"chanas_quad_{lanes}", address_of_first(call.args[0]))


def _lower_byte(call: Any) -> Any:
    (value,) = call.args
    lanes = tvm.DataType(str(call.ty)).lanes
    if lanes in (*_NAMES, _LONGEST):
        return tirx.call_pure_extern(call.ty, f"chanas_byte_{lanes}", value)
    suffix = f"x{lanes}" if lanes > 1 else ""
    limited = tirx.max(tirx.min(value, tirx.const(255.0, value.ty)), tirx.const(0.0, value.ty))
    return tirx.Cast(f"uint8{suffix}", tirx.Cast(f"int32{suffix}", tirx.nearbyint(limited)))


_dot = Intrinsic("tirx.chanas_dot", {"llvm": _lower_dot}, "int32")
four = Intrinsic("tirx.chanas_four", {}, "int32")
"""Four products, as a term of `dot_sum`: four neighbouring numbers of a buffer, or a word of them for each lane, and a
word of weights for each lane."""
quad = Intrinsic("tirx.chanas_quad", {"llvm": _lower_quad})
"""A word of an element of a uint8 buffer and the three that lie one, two and three vectors further."""
dot_sum = te.comm_reducer(lambda total, term: _dot(total, term), lambda dtype: tirx.const(0, dtype), name="dot_sum")
"""A reducer like `te.sum`, of terms that are `four`s."""
byte = Intrinsic("tirx.chanas_byte", {"llvm": _lower_byte}, "uint8")
"""uint8 of a float32."""


# ---- what the operations call ----------------------------------------------------------------------------------------
def byte_instructions(target: HardwareTarget) -> str:
    """LLVM's text of the operations on a target's vectors."""
    lanes = target.vector_lanes
    features = target.llvm_features()
    if "neon" in features:
        if lanes != _NEON_LANES:
            raise ScheduleError(f"int8 on ARM has vectors of {_NEON_LANES} words, got {lanes}")
        dot, declared = (_dot_by_usdot if "i8mm" in features else _dot_by_sdot)()
        in_bytes = _NEON_BYTES
    else:
        dot, declared = (_dot_by_instruction if target.has_dots else _dot_by_pairs)(lanes)
        in_bytes = _bytes_of(lanes) if lanes in _NAMES else _bytes_of_longest("avx512f" in features)
    if target.has_dots:
        in_bytes += _quads(lanes)
    signature = f"@chanas_dot_{lanes}(<{lanes} x i32> %sum, <{lanes} x i32> %a, <{lanes} x i32> %b)"
    return _function(f"<{lanes} x i32> {signature}", dot) + "".join(f"declare {line}\n" for line in declared) + in_bytes


def _quads(lanes: int) -> str:
    """Four vectors of bytes as words: one load and, on processors with AVX512_VBMI, one instruction."""
    in_bytes = f"<{4 * lanes} x i8>"
    places = ", ".join(f"i32 {vector * lanes + lane}" for lane in range(lanes) for vector in range(4))
    lines = [
        f"%vectors = load {in_bytes}, ptr %first, align {lanes}",
        f"%words = shufflevector {in_bytes} %vectors, {in_bytes} poison, <{4 * lanes} x i32> <{places}>",
        f"%r = bitcast {in_bytes} %words to <{lanes} x float>",
        f"ret <{lanes} x float> %r",
    ]
    return _function(f"<{lanes} x float> @chanas_quad_{lanes}(ptr %first)", lines)


def _function(signature: str, lines: Iterable[str]) -> str:
    return f"define linkonce_odr {signature} alwaysinline {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def _places(first: int, num: int) -> str:
    return f"<{num} x i32> <{', '.join(f'i32 {first + i}' for i in range(num))}>"


def _dot_by_instruction(lanes: int) -> tuple[list[str], list[str]]:
    """`vpdpbusd`, as LLVM 22 declares it: of vectors of bytes."""
    words, in_bytes = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    name = f"@llvm.x86.avx512.vpdpbusd.{_WORD_BITS * lanes}"
    lines = [
        f"%x = bitcast {words} %a to {in_bytes}",
        f"%y = bitcast {words} %b to {in_bytes}",
        f"%r = call {words} {name}({words} %sum, {in_bytes} %x, {in_bytes} %y)",
        f"ret {words} %r",
    ]
    return lines, [f"{words} {name}({words}, {in_bytes}, {in_bytes})"]


_NEON_LANES = 4
_NEON_DOT = "@llvm.aarch64.neon.{}.v4i32.v16i8(<4 x i32>, <16 x i8>, <16 x i8>)"
_NEON_OPERANDS = ["%x = bitcast <4 x i32> %a to <16 x i8>", "%y = bitcast <4 x i32> %b to <16 x i8>"]


def _neon_dot(instruction: str, result: str, total: str, x: str, y: str) -> str:
    name = _NEON_DOT.partition("(")[0].format(instruction)
    return f"{result} = call <4 x i32> {name}(<4 x i32> {total}, <16 x i8> {x}, <16 x i8> {y})"


def _dot_by_usdot() -> tuple[list[str], list[str]]:
    """ARM's i8mm: numbers without a sign times numbers that have one."""
    lines = [*_NEON_OPERANDS, _neon_dot("usdot", "%r", "%sum", "%x", "%y"), "ret <4 x i32> %r"]
    return lines, [f"<4 x i32> {_NEON_DOT.format('usdot')}"]


def _dot_by_sdot() -> tuple[list[str], list[str]]:
    """ARM's dotprod, of numbers that have a sign: a is 128 less, and 128 times the weights is added, twice 64 times.
    What is added depends on the weights alone, so that the pixels of a tile share it."""
    less, times = (f"<{', '.join([f'i8 {number}'] * 16)}>" for number in (-128, 64))
    lines = [
        *_NEON_OPERANDS,
        f"%less = xor <16 x i8> %x, {less}",
        _neon_dot("sdot", "%half", "zeroinitializer", "%y", times),
        _neon_dot("sdot", "%whole", "%half", "%y", times),
        "%begun = add <4 x i32> %sum, %whole",
        _neon_dot("sdot", "%r", "%begun", "%less", "%y"),
        "ret <4 x i32> %r",
    ]
    return lines, [f"<4 x i32> {_NEON_DOT.format('sdot')}"]


def _dot_by_pairs(lanes: int) -> tuple[list[str], list[str]]:
    """Sums of two products in 16 bits, then of two of these; vectors that AVX2 does not have are two that it has."""
    own = min(lanes, _WIDEST)
    words, halves, in_bytes, whole = f"<{own} x i32>", f"<{2 * own} x i16>", f"<{4 * own} x i8>", f"<{lanes} x i32>"
    of_bytes, of_halves = (f"@llvm.x86.{name}" for name in _NAMES[own][:2])
    ones = ", ".join(["i16 1"] * 2 * own)
    lines: list[str] = []
    for part in range(lanes // own):
        for name in ("sum", "a", "b"):
            taken = f"{whole} %{name}, {whole} poison, {_places(part * own, own)}"
            lines.append(f"%{name}{part} = shufflevector {taken}")
        lines += [
            f"%x{part} = bitcast {words} %a{part} to {in_bytes}",
            f"%y{part} = bitcast {words} %b{part} to {in_bytes}",
            f"%p{part} = call {halves} {of_bytes}({in_bytes} %x{part}, {in_bytes} %y{part})",
            f"%q{part} = call {words} {of_halves}({halves} %p{part}, {halves} <{ones}>)",
            f"%r{part} = add {words} %sum{part}, %q{part}",
        ]
    if lanes == own:
        lines.append(f"ret {words} %r0")
    else:
        lines += [f"%r = shufflevector {words} %r0, {words} %r1, {_places(0, lanes)}", f"ret {whole} %r"]
    return lines, [f"{halves} {of_bytes}({in_bytes}, {in_bytes})", f"{words} {of_halves}({halves}, {halves})"]


_NEON_BYTES = """define linkonce_odr <4 x i8> @chanas_byte_4(<4 x float> %value) alwaysinline {
  %limited = call <4 x float> @llvm.minnum.v4f32(<4 x float> %value, <4 x float> splat (float 255.0))
  %whole = call <4 x i32> @llvm.aarch64.neon.fcvtnu.v4i32.v4f32(<4 x float> %limited)
  %r = trunc <4 x i32> %whole to <4 x i8>
  ret <4 x i8> %r
}
declare <4 x float> @llvm.minnum.v4f32(<4 x float>, <4 x float>)
declare <4 x i32> @llvm.aarch64.neon.fcvtnu.v4i32.v4f32(<4 x float>)
"""
"""Whole numbers by a conversion that rounds ties to even and makes zero of what is below."""


def _bytes_of_longest(has_conversion: bool) -> str:
    """The same of 16 numbers: a conversion that rounds, where the processor has it (AVX-512). What is beyond 32 bits is
    negative after it, which is the largest of numbers without a sign."""
    values, words = "<16 x float>", "<16 x i32>"
    if has_conversion:
        name = "@llvm.x86.avx512.mask.cvtps2dq.512"
        lines = [f"%whole = call {words} {name}({values} %least, {words} zeroinitializer, i16 -1, i32 4)"]
        declared = [f"{words} {name}({values}, {words}, i16, i32)"]
    else:
        lines = [
            f"%limited = call {values} @llvm.minnum.v16f32({values} %least, {values} splat (float 255.0))",
            f"%near = call {values} @llvm.rint.v16f32({values} %limited)",
            f"%whole = fptosi {values} %near to {words}",
        ]
        declared = [f"{values} @llvm.minnum.v16f32({values}, {values})", f"{values} @llvm.rint.v16f32({values})"]
    least, most = "@llvm.maxnum.v16f32", "@llvm.umin.v16i32"
    lines = [
        f"%least = call {values} {least}({values} %value, {values} zeroinitializer)",
        *lines,
        f"%most = call {words} {most}({words} %whole, {words} splat (i32 255))",
        f"%r = trunc {words} %most to <16 x i8>",
        "ret <16 x i8> %r",
    ]
    declared += [f"{values} {least}({values}, {values})", f"{words} {most}({words}, {words})"]
    function = _function(f"<16 x i8> @chanas_byte_16({values} %value)", lines)
    return function + "".join(f"declare {line}\n" for line in declared)


def _bytes_of(lanes: int) -> str:
    """Whole numbers by the rounding of the conversion, which packing keeps within 0 … 255; above what 32 bits hold it
    would be the lowest number."""
    values, words, name = f"<{lanes} x float>", f"<{lanes} x i32>", f"@llvm.x86.{_NAMES[lanes][2]}"
    least, pack16, pack8 = f"@llvm.minnum.v{lanes}f32", "@llvm.x86.sse2.packssdw.128", "@llvm.x86.sse2.packuswb.128"
    most = ", ".join(["float 255.0"] * lanes)
    second = "%low" if lanes == 4 else "%high"
    lines = [
        f"%limited = call {values} {least}({values} %value, {values} <{most}>)",
        f"%whole = call {words} {name}({values} %limited)",
        f"%low = shufflevector {words} %whole, {words} poison, {_places(0, 4)}",
        *([] if lanes == 4 else [f"%high = shufflevector {words} %whole, {words} poison, {_places(4, 4)}"]),
        f"%halves = call <8 x i16> {pack16}(<4 x i32> %low, <4 x i32> {second})",
        f"%bytes = call <16 x i8> {pack8}(<8 x i16> %halves, <8 x i16> %halves)",
        f"%r = shufflevector <16 x i8> %bytes, <16 x i8> poison, {_places(0, lanes)}",
        f"ret <{lanes} x i8> %r",
    ]
    return _function(f"<{lanes} x i8> @chanas_byte_{lanes}({values} %value)", lines) + (
        f"declare {values} {least}({values}, {values})\n"
        f"declare {words} {name}({values})\n"
        f"declare <8 x i16> {pack16}(<4 x i32>, <4 x i32>)\n"
        f"declare <16 x i8> {pack8}(<8 x i16>, <8 x i16>)\n"
    )
