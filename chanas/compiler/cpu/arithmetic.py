"""The arithmetic of each precision in tensor expressions: how numbers are loaded and stored, and what a term of a sum
is. All sums are float32.

bfloat16 in TVM: values are kept as their bits in uint16 buffers, and a few operations of ours stand for what
AVX512_BF16 does with them. The compiler rewrites everything of type bfloat16 to float32 early on. These operations pass
through that as they are, are vectorised like any other, and become instructions in the last pass (`LowerIntrin`).

    dot(sum, pair(a, b))   sum + a₀·b₀ + a₁·b₁, sums float32
    round(value)           bits of the nearest bfloat16, ties to even
    round_pair(low, high)  a word of two float32, each rounded
    neighbours(low, high)  a word of two bits that lie one vector apart, in one load

a and b are words: a float32 that holds no number but the bits of two bfloat16, the first one in its lower half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from chanas.compiler.cpu.dots import byte, byte_instructions, four
from chanas.compiler.cpu.dots import dot_sum as sum_of_dots
from chanas.compiler.expressions import Intrinsic, address_of_first
from chanas.core.target import HardwareTarget
from chanas.operators.precision import BFLOAT16, FLOAT32, INT8, Precision

_LANES = 16
_INTERLEAVED = ", ".join(f"i32 {i}, i32 {i + _LANES}" for i in range(_LANES))

# The compiler has no type for vectors of bfloat16, so these two have none in their signatures.
_LLVM = f"""
define linkonce_odr <16 x float> @chanas_bf16_dot(<16 x float> %sum, <16 x i32> %a, <16 x i32> %b) alwaysinline {{
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sum, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}}
define linkonce_odr <16 x i16> @chanas_bf16_round(<16 x float> %value) alwaysinline {{
  %x = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %value)
  %r = bitcast <16 x bfloat> %x to <16 x i16>
  ret <16 x i16> %r
}}
define linkonce_odr <16 x float> @chanas_bf16_round_pair(<16 x float> %low, <16 x float> %high) alwaysinline {{
  %x = call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float> %high, <16 x float> %low)
  %y = bitcast <32 x bfloat> %x to <32 x i16>
  %z = shufflevector <32 x i16> %y, <32 x i16> poison, <32 x i32> <{_INTERLEAVED}>
  %r = bitcast <32 x i16> %z to <16 x float>
  ret <16 x float> %r
}}
define linkonce_odr <16 x float> @chanas_bf16_neighbours(ptr %low) alwaysinline {{
  %both = load <32 x i16>, ptr %low, align {2 * _LANES}
  %z = shufflevector <32 x i16> %both, <32 x i16> poison, <32 x i32> <{_INTERLEAVED}>
  %r = bitcast <32 x i16> %z to <16 x float>
  ret <16 x float> %r
}}
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)
declare <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float>, <16 x float>)
"""


# ---- the operations, and what becomes of them in the last pass -------------------------------------------------------
def _as_integers(words: Any) -> Any:
    return tirx.reinterpret(f"int32x{_LANES}", words)


def _lower_dot(call: Any) -> Any:
    total, term = call.args
    *values, weights = term.args
    if len(values) == 1:
        words = _as_integers(values[0])
    else:  # one load of all values
        low, bits = values[0].value, 16 * len(values)
        together = tirx.BufferLoad(low.source, [tirx.Ramp(low.indices[0], 1, len(values))])
        words = _as_integers(tirx.Broadcast(tirx.reinterpret(f"int{bits}", together), 32 * _LANES // bits))
    return tirx.call_pure_extern(f"float32x{_LANES}", "chanas_bf16_dot", total, words, _as_integers(weights))


def _lower_round_pair(call: Any) -> Any:
    return tirx.call_pure_extern(f"float32x{_LANES}", "chanas_bf16_round_pair", *call.args)


def _lower_neighbours(call: Any) -> Any:
    return tirx.call_pure_extern(f"float32x{_LANES}", "chanas_bf16_neighbours", address_of_first(call.args[0]))


def _lower_round(call: Any) -> Any:
    return tirx.call_pure_extern(f"uint16x{_LANES}", "chanas_bf16_round", call.args[0])


_dot = Intrinsic("tirx.chanas_bf16_dot", {"llvm": _lower_dot})
pair = Intrinsic("tirx.chanas_bf16_pair", {})
"""Two products, as a term of `dot_sum`, of words, one for each lane. Instead of the first word there may be the same
values for all lanes: two that follow one another in a buffer; or four, the first two for even lanes, the others for odd
ones."""
round_bits = Intrinsic("tirx.chanas_bf16_round", {"llvm": _lower_round}, "uint16")
"""uint16 bits of the bfloat16 nearest to a float32."""
round_pair = Intrinsic("tirx.chanas_bf16_round_pair", {"llvm": _lower_round_pair})
"""A word of the bfloat16 numbers nearest to two float32."""
neighbours = Intrinsic("tirx.chanas_bf16_neighbours", {"llvm": _lower_neighbours})
"""A word of an element of a uint16 buffer and the one 16 further, of 16 elements each as a vector."""


def join(low: Any, high: Any) -> Any:
    """A word of the bits of two bfloat16 numbers."""
    upper = tirx.shift_left(high.astype("uint32"), tirx.const(16, "uint32"))
    return tirx.reinterpret("float32", low.astype("uint32") | upper)


def halves(word: Any) -> tuple[Any, Any]:
    """The two numbers of a word as float32."""
    bits = tirx.reinterpret("uint32", word)
    low, high = tirx.shift_left(bits, tirx.const(16, "uint32")), bits & tirx.const(0xFFFF0000, "uint32")
    return tirx.reinterpret("float32", low), tirx.reinterpret("float32", high)


def half_of(word: Any, place: Any) -> Any:
    """The number of a word at a place, 0 or 1, as float32."""
    sixteen = tirx.const(16, "uint32")
    bits = tirx.shift_right(tirx.reinterpret("uint32", word), place.astype("uint32") * sixteen)
    return tirx.reinterpret("float32", tirx.shift_left(bits, sixteen))


def rounded_bits(value: Any) -> Any:
    """The same as `round_bits` in operations of whole numbers, which vectors of any length have."""
    bits, sixteen = tirx.reinterpret("uint32", value), tirx.const(16, "uint32")
    odd = tirx.shift_right(bits, sixteen) & tirx.const(1, "uint32")
    rounded = tirx.shift_right(bits + tirx.const(0x7FFF, "uint32") + odd, sixteen)
    is_number = (bits & tirx.const(0x7FFFFFFF, "uint32")) <= tirx.const(0x7F800000, "uint32")
    return tirx.Select(is_number, rounded.astype("uint16"), tirx.const(0x7FC0, "uint16"))


def widen(bits: Any) -> Any:
    """The float32 of bfloat16 bits, exactly."""
    return tirx.reinterpret("float32", tirx.shift_left(bits.astype("uint32"), tirx.const(16, "uint32")))


def narrow(value: Any) -> Any:
    """The bfloat16 bits of a float32 that is such a number."""
    return tirx.shift_right(tirx.reinterpret("uint32", value), tirx.const(16, "uint32")).astype("uint16")


dot_sum = te.comm_reducer(lambda total, term: _dot(total, term), lambda dtype: tirx.const(0, dtype), name="dot_sum")
"""A reducer like `te.sum`, of terms that are `pair`s."""


def _scaled_word(word: Any, gates: Sequence[Any]) -> Any:
    """A word of two weights, each times its gate."""
    low, high = (half * widen(gate) for half, gate in zip(halves(word), gates, strict=True))
    return round_pair(low, high)


# ---- of each precision -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of a precision.

    load          a number in memory as a float32
    store         a float32 as a number in memory, the nearest one
    products      a term of sums: as many values as a word has numbers, the same for all lanes, times a word of weights
    sum           add terms over reduction axes
    scaled        a word of weights, each times its gate in memory
    instructions  LLVM's text of what the operations call on a target; empty if they call nothing
    """

    load: Callable[[Any], Any]
    store: Callable[[Any], Any]
    products: Callable[[Sequence[Any], Any], Any]
    sum: Callable[..., Any]
    scaled: Callable[[Any, Sequence[Any]], Any]
    instructions: Callable[[HardwareTarget], str] = lambda _: ""


def _as_it_is(value: Any) -> Any:
    return value


def _as_whole_number(number: Any) -> Any:
    return number.astype("float32")


def _product(values: Sequence[Any], weight: Any) -> Any:
    (value,) = values
    return value * weight


def _scaled(weight: Any, gates: Sequence[Any]) -> Any:
    (gate,) = gates
    return weight * gate


ARITHMETICS = {
    FLOAT32: Arithmetic(_as_it_is, _as_it_is, _product, te.sum, _scaled),
    BFLOAT16: Arithmetic(
        widen, round_bits, lambda values, weights: pair(*values, weights), dot_sum, _scaled_word, lambda _: _LLVM
    ),
    INT8: Arithmetic(
        _as_whole_number,
        byte,
        lambda values, weights: four(*values, weights),
        sum_of_dots,
        _scaled,
        byte_instructions,
    ),
}


def arithmetic_of(precision: Precision) -> Arithmetic:
    """The arithmetic of a precision that processors have."""
    return ARITHMETICS[precision]


def import_instructions(sch: Any, loop: Any, target: HardwareTarget, *precisions: Precision) -> None:
    """Let the code in and around a loop of a schedule use the operations of these precisions. Such a loop is not fused
    any more."""
    text = "".join(arithmetic_of(precision).instructions(target) for precision in dict.fromkeys(precisions))
    if text:
        sch.annotate(loop, "pragma_import_llvm", text)
