"""Operators that compute each number of their output from the numbers at the same place of what they read, which is
broadcast as in numpy: once in numpy, for what is known, and once as an expression of TVM's, for what is not.

Float arithmetic is float32. NaN and infinity come out as they do in PyTorch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from chanas.core.arrays import Array


class Elementwise(NamedTuple):
    """An operator by its two definitions.

    known   on arrays of numpy
    tir     on scalar expressions of TVM's
    """

    known: Callable[..., Array]
    tir: Callable[..., Any]


def _const(value: float, like: Any) -> Any:
    from tvm import tirx

    return tirx.const(value, str(like.ty.dtype))


def is_float(x: Any) -> bool:
    """True of a scalar expression of floats."""
    return str(x.ty.dtype).startswith("float")


def _intrinsic(name: str) -> Callable[..., Any]:
    def call(*x: Any) -> Any:
        from tvm import tirx

        return getattr(tirx, name)(*x)

    return call


def _libm(name: str) -> Callable[..., Any]:
    """A function of C's: TVM's own definitions miss it by up to 1e-2, or are not there for a processor."""

    def call(*x: Any) -> Any:
        from tvm import tirx

        return tirx.call_pure_extern("float32", f"{name}f", *x)

    return call


def maximum(a: Any, b: Any) -> Any:
    """The larger one; NaN where one is."""
    from tvm import tirx

    from chanas.compiler import expressions

    return expressions.maximum(a, b) if is_float(a) else tirx.max(a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller one; NaN where one is."""
    from tvm import tirx

    from chanas.compiler import expressions

    return expressions.minimum(a, b) if is_float(a) else tirx.min(a, b)


def _divided(a: Any, b: Any) -> Any:
    """Whole numbers are divided towards zero."""
    return _intrinsic("div")(a, b) if is_float(a) else _of_whole("truncdiv", a, b)


def _of_whole(name: str, a: Any, b: Any) -> Any:
    """A function of whole numbers; zero where they are divided by zero, where the processor would end the program."""
    from tvm import tirx

    safe = tirx.Select(b == 0, _const(1, b), b)
    return tirx.Select(b == 0, _const(0, a), _intrinsic(name)(a, safe))


def _floor_mod(a: Any, b: Any) -> Any:
    """a − ⌊a / b⌋ · b, of the sign of b; of floats by C's fmod, which is exact."""
    from tvm import tirx

    if not is_float(a):
        return _of_whole("floormod", a, b)
    rest = _libm("fmod")(a, b)
    return tirx.Select(tirx.any(tirx.all(rest < 0, b > 0), tirx.all(rest > 0, b < 0)), rest + b, rest)


def _trunc_mod(a: Any, b: Any) -> Any:
    return _libm("fmod")(a, b) if is_float(a) else _of_whole("truncmod", a, b)


def _power(a: Any, b: Any) -> Any:
    from tvm import tirx

    if is_float(a):
        return tirx.pow(a, b.astype(str(a.ty.dtype)))
    return tirx.pow(a.astype("float64"), b.astype("float64")).astype(str(a.ty.dtype))


def _sign(x: Any) -> Any:
    from tvm import tirx

    zero, one = _const(0, x), _const(1, x)
    of = tirx.Select(x > zero, one, tirx.Select(x < zero, zero - one, zero))
    return tirx.Select(tirx.isnan(x), x, of) if is_float(x) else of


def _exp(x: Any) -> Any:
    from chanas.compiler.expressions import exp

    return exp(x)


def _epilogue(name: str) -> Callable[[Any], Any]:
    def of(x: Any) -> Any:
        from chanas.compiler.expressions import epilogue

        return epilogue(name, x)

    return of


def _negated(x: Any) -> Any:
    return _const(0, x) - x if not is_float(x) else x * _const(-1, x)


def _softplus(x: Any) -> Any:
    """log(1 + e^x) as max(x, 0) + log(1 + e^−|x|), which is finite for every finite x."""
    from tvm import tirx

    return maximum(x, _const(0, x)) + _libm("log1p")(_exp(_negated(tirx.abs(x))))


def _number(x: Any) -> Any:
    """A truth as a number, which LLVM compares; others as they are."""
    return x.astype("int8") if str(x.ty.dtype) == "bool" else x


def _differ(a: Any, b: Any) -> Any:
    """a ≠ b; true where one is NaN, of which LLVM's comparison of TVM's says that it is false."""
    from tvm import tirx

    return tirx.any(a != b, tirx.isnan(a), tirx.isnan(b)) if is_float(a) else a != b


def _np_divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    safe = np.where(b == 0, 1, b)
    return np.where(b == 0, 0, np.trunc(a / safe).astype(a.dtype))


def _shifted(shift: Callable[[Any, Any], Any], a: Any, b: Any, of_negative: int) -> Any:
    """A shift by bits; by as many as there are, or by fewer than none, all bits go: 0 is left, or a number below 0
    becomes another one. Processors would take the rest of such a number of bits, as is written here."""
    from tvm import tirx

    bits, zero = 8 * np.dtype(str(a.ty.dtype)).itemsize, _const(0, a)
    is_inside = tirx.all(b >= _const(0, b), b < _const(bits, b))
    is_signed = str(a.ty.dtype).startswith("int")
    gone = tirx.Select(a < zero, _const(of_negative, a), zero) if is_signed else zero
    return tirx.Select(is_inside, shift(a, b & _const(bits - 1, b)), gone)


_FLOAT_FUNCTIONS: Mapping[str, tuple[Any, Any]] = {
    "exp": (np.exp, _exp),
    "log": (np.log, _intrinsic("log")),
    "log1p": (np.log1p, _libm("log1p")),
    "expm1": (np.expm1, _libm("expm1")),
    "sqrt": (np.sqrt, _intrinsic("sqrt")),
    "floor": (np.floor, _intrinsic("floor")),
    "ceil": (np.ceil, _intrinsic("ceil")),
    "trunc": (np.trunc, _intrinsic("trunc")),
    "round": (np.rint, _intrinsic("nearbyint")),  # halves to even ones
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), _intrinsic("erf")),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), _epilogue("sigmoid")),
    "softplus": (lambda x: np.logaddexp(x, 0), _softplus),
    "tanh": (np.tanh, _epilogue("tanh")),
    **{name: (getattr(np, name), _libm(name)) for name in ("sin", "cos", "tan", "sinh", "cosh")},
    **{f"a{name}": (getattr(np, f"arc{name}"), _libm(f"a{name}")) for name in ("sin", "cos", "tan")},
    **{f"a{name}": (getattr(np, f"arc{name}"), _libm(f"a{name}")) for name in ("sinh", "cosh", "tanh")},
}
_TRUTHS: Mapping[str, tuple[Any, Any]] = {
    "equal": (np.equal, lambda a, b: _number(a) == _number(b)),
    "not_equal": (np.not_equal, lambda a, b: _differ(_number(a), _number(b))),
    "less": (np.less, lambda a, b: a < b),
    "less_equal": (np.less_equal, lambda a, b: a <= b),
    "greater": (np.greater, lambda a, b: a > b),
    "greater_equal": (np.greater_equal, lambda a, b: a >= b),
    "logical_and": (np.logical_and, _intrinsic("all")),
    "logical_or": (np.logical_or, _intrinsic("any")),
    "logical_xor": (np.logical_xor, lambda a, b: _number(a) != _number(b)),
    "logical_not": (np.logical_not, _intrinsic("Not")),
    "isnan": (np.isnan, _intrinsic("isnan")),
    "isinf": (np.isinf, lambda x: _intrinsic("abs")(x) == _const(np.inf, x)),
}
_OTHERS: Mapping[str, tuple[Any, Any]] = {
    "add": (np.add, lambda a, b: a + b),
    "subtract": (np.subtract, lambda a, b: a - b),
    "multiply": (np.multiply, lambda a, b: a * b),
    "divide": (_np_divide, _divided),
    "power": (np.power, _power),
    "mod": (np.fmod, _trunc_mod),
    "floor_mod": (np.mod, _floor_mod),
    "maximum": (np.maximum, maximum),
    "minimum": (np.minimum, minimum),
    "negative": (np.negative, _negated),
    "abs": (np.abs, _intrinsic("abs")),
    "sign": (np.sign, _sign),
    "where": (np.where, _intrinsic("Select")),
    "bitwise_and": (np.bitwise_and, lambda a, b: a & b),
    "bitwise_or": (np.bitwise_or, lambda a, b: a | b),
    "bitwise_xor": (np.bitwise_xor, lambda a, b: a ^ b),
    "bitwise_not": (np.bitwise_not, lambda x: ~x),
    "left_shift": (np.left_shift, lambda a, b: _shifted(lambda x, n: x << n, a, b, 0)),
    "right_shift": (np.right_shift, lambda a, b: _shifted(lambda x, n: x >> n, a, b, -1)),
}
ELEMENTWISE: Mapping[str, Elementwise] = {
    name: Elementwise(*both) for name, both in {**_FLOAT_FUNCTIONS, **_TRUTHS, **_OTHERS}.items()
}
"""All of them by name. Their results are as wide as numpy's of the same types."""


def cast(dtype: str) -> Callable[[Any], Any]:
    """Conversion of a scalar expression: to bool by its difference from zero, to whole numbers towards zero."""

    def of(x: Any) -> Any:
        return _differ(x, _const(0, x)) if dtype == "bool" else x.astype(dtype)

    return of


def clip(low: float | None, high: float | None) -> Callable[[Any], Any]:
    """A scalar expression within bounds; NaN stays NaN."""

    def of(x: Any) -> Any:
        from tvm import tirx

        from chanas.compiler.expressions import at_least, at_most

        if not is_float(x):
            x = x if low is None else tirx.max(_const(low, x), x)
            return x if high is None else tirx.min(_const(high, x), x)
        x = x if low is None else at_least(low, x)
        return x if high is None else at_most(high, x)

    return of


@functools.cache
def result_dtype(op: str, dtypes: tuple[str, ...]) -> str:
    """The type of an operator's result."""
    return "bool" if op in _TRUTHS else dtypes[-1] if op == "where" else dtypes[0]
