"""Parts of tensor expressions that every processor's operators share: epilogues.

The compiler turns its own exp into a call for each value of a vector, so exponentials are written out here, in
operations that vectors have.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from chanas.operators.epilogues import Epilogue, check_epilogue, leaky_slope

# Where e^x is a normal float32 whose power of two is one too.
_EXP_LOW, _EXP_HIGH = -87.33, 88.37
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


def _float(value: float) -> Any:
    return tirx.const(value, "float32")


def _polynomial(terms: Sequence[float], x: Any) -> Any:
    """Σ termᵢ · xⁱ, the highest power first."""
    return functools.reduce(lambda total, term: total * x + _float(term), terms[1:], _float(terms[0]))


def exp(value: Any) -> Any:
    """e^value, its relative error at most 2e-7; of numbers whose power is no normal float32, that of the nearest one.

    2^n · e^r for the whole number n that is nearest to value / log(2); the bits of 2^n are written as such.
    """
    x = te.min(te.max(value, _float(_EXP_LOW)), _float(_EXP_HIGH))
    biased = (x * _float(1.0 / math.log(2.0)) + _float(_EXPONENT_BIAS + 0.5)).astype("int32")  # rounds towards zero
    n = biased.astype("float32") - _float(_EXPONENT_BIAS)
    r = x - n * _float(_LOG2_HIGH) - n * _float(_LOG2_LOW)
    power = _polynomial(_EXP_TERMS, r) * (r * r) + r + _float(1.0)
    return power * tirx.reinterpret("float32", biased << tirx.const(_MANTISSA_BITS, "int32"))


def _gelu(x: Any) -> Any:
    """x · Φ(x) as max(x, 0) − |x| · Φ(−|x|), where nothing cancels, without a division."""
    size = te.min(tirx.abs(x), _float(_GELU_END))
    tail = _polynomial(_GELU_TERMS, size * _float(2.0 / _GELU_END) - _float(1.0))
    return te.max(x, _float(0.0)) - size * tail


def epilogue(kind: Epilogue, value: Any) -> Any:
    """A function of a sum, by its name.

    Raises:
        ScheduleError: there is no epilogue of this name.
    """
    check_epilogue(kind)
    zero, one, three, six = (_float(c) for c in (0.0, 1.0, 3.0, 6.0))
    slope = leaky_slope(kind)
    if slope is not None:
        return te.max(value, value * _float(slope))
    if kind == "none":
        return value
    if kind == "relu":
        return te.max(value, zero)
    if kind == "relu6":
        return te.min(te.max(value, zero), six)
    if kind == "tanh":
        return one - _float(2.0) / (exp(value * _float(2.0)) + one)
    if kind == "gelu":
        return _gelu(value)
    if kind in ("sigmoid", "swish"):
        return (one if kind == "sigmoid" else value) / (exp(zero - value) + one)
    gate = te.min(te.max(value + three, zero), six) * _float(1.0 / 6.0)
    return gate if kind == "hsigmoid" else value * gate
