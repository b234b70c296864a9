"""bfloat16 arithmetic in TVM: values are kept as their bits in uint16 buffers, and three operations of ours stand for
what AVX512_BF16 does with them.

The compiler rewrites everything of type bfloat16 to float32 early on. These operations pass through that as they are,
are vectorised like any other, and become instructions in the last pass (`LowerIntrin`).

    dot(sum, pair(a, b))  sum + a₀·b₀ + a₁·b₁, sums float32
    round(value)          bits of the nearest bfloat16, ties to even

a and b are words: a float32 that holds no number but the bits of two bfloat16, the first one in its lower half.
"""

from __future__ import annotations

import functools
from typing import Any

import tvm
from tvm import te, tirx

_DOT, _PAIR, _ROUND = "tirx.chanas_bf16_dot", "tirx.chanas_bf16_pair", "tirx.chanas_bf16_round"
_LANES = 16

# The compiler has no type for vectors of bfloat16, so these two have none in their signatures.
_LLVM = """
define linkonce_odr <16 x float> @chanas_bf16_dot(<16 x float> %sum, <16 x i32> %a, <16 x i32> %b) alwaysinline {
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sum, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}
define linkonce_odr <16 x i16> @chanas_bf16_round(<16 x float> %value) alwaysinline {
  %x = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %value)
  %r = bitcast <16 x bfloat> %x to <16 x i16>
  ret <16 x i16> %r
}
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)
"""


@functools.cache
def _register() -> None:
    """Make the operations known to the compiler, once in a process."""
    from tvm.ir import _ffi_api

    for name in (_DOT, _PAIR, _ROUND):
        _ffi_api.RegisterOp(name, "bfloat16 arithmetic on bits")
        tvm.ir.register_op_attr(name, "TCallEffectKind", int(tirx.CallEffectKind.Pure.value))
        tvm.ir.register_op_attr(name, "TVectorizable", True)
    tirx.op.register_intrin_lowering(_DOT, target="llvm", f=_lower_dot, level=10)
    tirx.op.register_intrin_lowering(_ROUND, target="llvm", f=_lower_round, level=10)


def pair(values: Any, weights: Any) -> Any:
    """Two products, as a term of `dot_sum`; both arguments are words, one for each lane."""
    _register()
    return tirx.call_intrin("float32", _PAIR, values, weights)


def broadcast_pair(low: Any, high: Any, weights: Any) -> Any:
    """The same with two values for all lanes: bits in a buffer, where `high` is the element after `low`."""
    _register()
    return tirx.call_intrin("float32", _PAIR, low, high, weights)


def join(low: Any, high: Any) -> Any:
    """A word of the bits of two bfloat16 numbers."""
    upper = tirx.shift_left(high.astype("uint32"), tirx.const(16, "uint32"))
    return tirx.reinterpret("float32", low.astype("uint32") | upper)


def round_bits(value: Any) -> Any:
    """uint16 bits of the bfloat16 nearest to a float32."""
    _register()
    return tirx.call_intrin("uint16", _ROUND, value)


def widen(bits: Any) -> Any:
    """The float32 of bfloat16 bits, exactly."""
    return tirx.reinterpret("float32", tirx.shift_left(bits.astype("uint32"), tirx.const(16, "uint32")))


@functools.cache
def dot_reducer() -> Any:
    """A reducer like `te.sum`, of terms that are `pair`s or `broadcast_pair`s."""
    _register()
    return te.comm_reducer(
        lambda total, term: tirx.call_intrin("float32", _DOT, total, term),
        lambda dtype: tirx.const(0, dtype),
        name="dot_sum",
    )


def import_instructions(sch: Any, loop: Any) -> None:
    """Let the code in and around a loop of a schedule use the operations."""
    sch.annotate(loop, "pragma_import_llvm", _LLVM)


# ---- the last pass ---------------------------------------------------------------------------------------------------
def _as_integers(words: Any) -> Any:
    return tirx.reinterpret(f"int32x{_LANES}", words)


def _lower_dot(call: Any) -> Any:
    total, term = call.args
    *values, weights = term.args
    if len(values) == 1:
        words = _as_integers(values[0])
    else:  # one load of both halves
        low = values[0].value
        both = tirx.BufferLoad(low.source, [tirx.Ramp(low.indices[0], 1, 2)])
        words = tirx.Broadcast(tirx.reinterpret("int32", both), _LANES)
    return tirx.call_pure_extern(f"float32x{_LANES}", "chanas_bf16_dot", total, words, _as_integers(weights))


def _lower_round(call: Any) -> Any:
    return tirx.call_pure_extern(f"uint16x{_LANES}", "chanas_bf16_round", call.args[0])
