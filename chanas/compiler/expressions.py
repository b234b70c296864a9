"""Parts of tensor expressions that every processor's operators share: epilogues, and the bounds that they are made of.

The compiler turns its own exp into a call for each value of a vector, so exponentials are written out here, in
operations that vectors have. NaN and infinity come out as they do in PyTorch.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import _ffi_api

from chanas.operators.epilogues import Epilogue, check_epilogue, leaky_slope

# The lower end of what e^x is computed of, where it is 0 already: 2^n with n = −127 is stored as that. The upper end of
# x / log(2) + 127.5, of which the whole part is at most what finite powers of two are stored with.
_EXP_LOW, _EXPONENT_HIGH = -88.0, 254.5
# log 2 in two parts, of which the first has few enough bits that its products with whole numbers are exact, and
# (e^r − 1 − r) / r² for |r| ≤ log(2) / 2, the highest power first (Cephes, expf.c; relative error 1e-7).
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -2.12194440e-4
_EXP_TERMS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# How float32 stores powers of two.
_MANTISSA_BITS, _EXPONENT_BIAS = 23, 127
# Φ(−u), the normal distribution's function, as a polynomial in t = u · 2 / _GELU_END − 1 for 0 ≤ u ≤ _GELU_END, the
# highest power first; fitted by linear programming so that the largest error of u · Φ(−u) is as small as it can be,
# 1.4e-7. Beyond its end u · Φ(−u) is at most 1e-7.
_GELU_END = 5.5
_GELU_TERMS = (
    *(-0.00601653123, 0.00597403564, 0.0311483233, -0.0452947656, -0.0498412907, 0.135087982, -0.0347933369),
    *(-0.164006796, 0.218515882, -0.0511630303, -0.177200849, 0.271863721, -0.206803881, 0.0945589416),
    *(-0.0250081801, 0.00297976843),
)


class Intrinsic:
    """A call of ours, without effects, that may be of vectors; it stays one until the last pass. The compiler knows it
    from when its module is imported, which comes before a program that has it is read.

    Args:
        name: begins with `tirx.`.
        lowerings: what becomes of a call, by the kind of target; `default` is for all others.
        dtype: of what it gives.
    """

    def __init__(self, name: str, lowerings: Mapping[str, Callable[[Any], Any]], dtype: str = "float32") -> None:
        self.name, self.dtype = name, dtype
        _ffi_api.RegisterOp(name, "an operation on vectors")
        tvm.ir.register_op_attr(name, "TCallEffectKind", int(tirx.CallEffectKind.Pure.value))
        tvm.ir.register_op_attr(name, "TVectorizable", True)
        tvm.ir.register_op_attr(name, "TScriptPrinterName", name.removeprefix("tirx."))
        for target, lower in lowerings.items():
            tirx.op.register_intrin_lowering(name, target=target, f=lower)

    def __call__(self, *arguments: Any) -> Any:
        return tirx.call_intrin(self.dtype, self.name, *arguments)


def _lower_fused(call: Any) -> Any:
    return tirx.call_llvm_pure_intrin(call.ty, "llvm.fma", *call.args)


fused_multiply_add = Intrinsic("tirx.chanas_fused", {"llvm": _lower_fused})
"""a · b + c of float32, rounded once."""


def address_of_first(loaded: Any) -> Any:
    """A pointer to the first element of what is loaded of a buffer, whose elements may be vectors in the last pass."""
    index = tvm.sym.Analyzer().simplify(loaded.indices[0])
    return tirx.address_of(tirx.BufferLoad(loaded.source, [getattr(index, "base", index)]))


def float32(value: float) -> Any:
    """A constant of a program."""
    return tirx.const(value, "float32")


def combined(coefficients: Sequence[Fraction], terms: Sequence[Any]) -> Any:
    """Σ coefficient · term, without the zeros and ones."""
    factors = [(c, x) for c, x in zip(coefficients, terms, strict=True) if c]
    products = [x if c == 1 else x * float32(float(c)) for c, x in factors]
    return functools.reduce(operator.add, products)


def chosen(index: Any, values: Sequence[Any]) -> Any:
    """The value of a number that is a constant once its loop is unrolled."""
    found = values[-1]
    for i in reversed(range(len(values) - 1)):
        found = tirx.Select(index == i, values[i], found)
    return found


def _polynomial(terms: Sequence[float], x: Any) -> Any:
    """Σ termᵢ · xⁱ, the highest power first."""
    return functools.reduce(lambda total, term: total * x + float32(term), terms[1:], float32(terms[0]))


# ---- bounds ----------------------------------------------------------------------------------------------------------
# Calls until the last pass: a choice of one of two values has each of them twice, and an epilogue of some of these many
# times what it is applied to.
def _chosen(is_bound: Callable[[Any, Any], Any], call: Any) -> Any:
    """The bound where a comparison says so, which it never does of NaN: what x86's max and min do, of the bound and the
    value in this order."""
    bound, value = call.args
    x = tirx.Var("x", call.ty)
    return tirx.Let(x, value, tirx.Select(is_bound(bound, x), bound, x))


def _chosen_or_nan(is_first: Callable[[Any, Any], Any], call: Any) -> Any:
    """One of two as a comparison says, but the first one if it is NaN; x86's max and min give the second one of two if
    either is NaN."""
    a, b = (tirx.Var(name, call.ty) for name in ("a", "b"))
    chosen = tirx.Select(tirx.isnan(a), a, tirx.Select(is_first(a, b), a, b))
    return tirx.Let(a, call.args[0], tirx.Let(b, call.args[1], chosen))


def _bound(name: str, lower: Callable[..., Any], is_first: Callable[[Any, Any], Any], on_arm: str) -> Intrinsic:
    """A choice of one of two that lets NaN through: on ARM an instruction, where the choice would be two."""

    def instruction(call: Any) -> Any:
        return tirx.call_llvm_pure_intrin(call.ty, on_arm, *call.args)

    return Intrinsic(name, {"default": functools.partial(lower, is_first), "llvm.aarch64": instruction})


_at_least = _bound("tirx.chanas_at_least", _chosen, operator.gt, "llvm.maximum")
_at_most = _bound("tirx.chanas_at_most", _chosen, operator.lt, "llvm.minimum")
maximum = _bound("tirx.chanas_maximum", _chosen_or_nan, operator.gt, "llvm.maximum")
"""The larger one of two float32; NaN where one is."""
minimum = _bound("tirx.chanas_minimum", _chosen_or_nan, operator.lt, "llvm.minimum")
"""The smaller one of two float32; NaN where one is."""


def at_least(bound: float, x: Any) -> Any:
    """max(bound, x) of a float32; NaN of NaN, which the compiler's own max turns into the bound."""
    return _at_least(float32(bound), x)


def at_most(bound: float, x: Any) -> Any:
    """min(bound, x) of a float32; NaN of NaN."""
    return _at_most(float32(bound), x)


# ---- functions -------------------------------------------------------------------------------------------------------
def exp(value: Any) -> Any:
    """e^value, its relative error at most 4e-7 where it is a normal float32, and else at most the least such one.

    2^n · e^r for the whole number n that is nearest to value / log(2), but at most 127; the bits of 2^n are written as
    such. NaN and infinity go through r.
    """
    x = at_least(_EXP_LOW, value)
    exponent = x * float32(1.0 / math.log(2.0)) + float32(_EXPONENT_BIAS + 0.5)
    biased = te.min(exponent, float32(_EXPONENT_HIGH)).astype("int32")  # rounds towards zero; of NaN the bound
    n = biased.astype("float32") - float32(_EXPONENT_BIAS)
    r = x - n * float32(_LOG2_HIGH) - n * float32(_LOG2_LOW)
    power = _polynomial(_EXP_TERMS, r) * (r * r) + r + float32(1.0)
    return power * tirx.reinterpret("float32", biased << tirx.const(_MANTISSA_BITS, "int32"))


def _gelu(x: Any) -> Any:
    """x · Φ(x) as max(x, 0) − |x| · Φ(−|x|), where nothing cancels, without a division.

    max(x, 0) is written x − min(x, 0): that is NaN of −∞, as −∞ · Φ(−∞) is.
    """
    size = te.min(tirx.abs(x), float32(_GELU_END))
    tail = _polynomial(_GELU_TERMS, size * float32(2.0 / _GELU_END) - float32(1.0))
    return x - at_most(0.0, x) - size * tail


def epilogue(kind: Epilogue, value: Any) -> Any:
    """A function of a sum, by its name.

    Raises:
        ScheduleError: there is no epilogue of this name.
    """
    check_epilogue(kind)
    zero, one = float32(0.0), float32(1.0)
    slope = leaky_slope(kind)
    if slope is not None:
        return te.max(value, value * float32(slope))  # both are NaN, or neither
    if kind == "none":
        return value
    if kind == "relu":
        return at_least(0.0, value)
    if kind == "relu6":
        return at_most(6.0, at_least(0.0, value))
    if kind == "tanh":
        return one - float32(2.0) / (exp(value * float32(2.0)) + one)
    if kind == "gelu":
        return _gelu(value)
    if kind in ("sigmoid", "swish"):
        return (one if kind == "sigmoid" else value) / (exp(zero - value) + one)
    gate = at_most(6.0, at_least(0.0, value + float32(3.0))) * float32(1.0 / 6.0)
    return gate if kind == "hsigmoid" else value * gate
