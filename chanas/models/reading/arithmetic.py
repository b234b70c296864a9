"""Operators on single numbers: arithmetic, comparisons, activations, conversions."""

from __future__ import annotations

import functools
import math

import numpy as np

from chanas.models.graph import Constant, Read
from chanas.models.reading.call import Call, reads
from chanas.models.reading.making import constant
from chanas.models.sources.model import TYPES

_SAME_NAME = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "IsNaN"),
    *("Log", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Sqrt", "Tan", "Tanh"),
)
"""Operators that the graph has by the same name in small letters."""
_UNARY = {
    **{name: name.lower() for name in _SAME_NAME},
    "BitwiseNot": "bitwise_not",
    "Neg": "negative",
    "Not": "logical_not",
}
_BINARY = {
    "Add": "add",
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Div": "divide",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Mul": "multiply",
    "Or": "logical_or",
    "Pow": "power",
    "Sub": "subtract",
    "Xor": "logical_xor",
}
_VARIADIC = {"Max": "maximum", "Mean": "add", "Min": "minimum", "Sum": "add"}
_ROUNDING = ("ceil", "floor", "round")


@reads(*_UNARY)
def _unary(call: Call) -> Read:
    x, op = call.input(0), _UNARY[call.op]
    if op in _ROUNDING and not call.make.dtype_of(x).startswith("float"):
        return x
    return call.make.each(op, x)


@reads(*_BINARY, attributes=["axis", "broadcast"])
def _binary(call: Call) -> Read:
    make = call.make
    a, b = call.input(0), _legacy_broadcast(call)
    if call.op == "Pow" and isinstance(b, Constant) and b.value.size == 1:
        simple = {1.0: lambda: a, 2.0: lambda: make.each("multiply", a, a), 0.5: lambda: make.each("sqrt", a)}
        found = simple.get(float(b.value.ravel()[0]))
        if found is not None and make.dtype_of(a) == "float32" and len(b.shape) <= make.rank(a):
            return found()
    if call.op == "Pow" and make.dtype_of(b) != make.dtype_of(a):
        wide = "float32" if "float32" in (make.dtype_of(a), make.dtype_of(b)) else make.dtype_of(a)
        return make.cast(make.each("power", make.cast(a, wide), make.cast(b, wide)), make.dtype_of(a))
    return make.each(_BINARY[call.op], a, b)


def _legacy_broadcast(call: Call) -> Read:
    """The second operand; before operator set 7 its axes may lie amid those of the first (`broadcast`, `axis`)."""
    b = call.input(1)
    if call.opset >= 7 or not call.attribute("broadcast", 0) or "axis" not in call.given:
        return b
    rank, own = len(call.shape(0)), call.make.shape_of(b)
    axis = call.axis("axis", 0, rank)
    return call.make.reshape(b, (*own, *[1] * (rank - axis - len(own))))


@reads(*_VARIADIC)
def _variadic(call: Call) -> Read:
    values = [call.input(i) for i in range(len(call.inputs))]
    found = functools.reduce(functools.partial(call.make.each, _VARIADIC[call.op]), values)
    return call.make.scaled(found, 1 / len(values)) if call.op == "Mean" else found


@reads("Mod", attributes=["fmod"])
def _mod(call: Call) -> Read:
    a, b = call.input(0), call.input(1)
    return call.make.each("mod" if call.attribute("fmod", 0) else "floor_mod", a, b)


@reads("BitShift", attributes=["direction"])
def _bit_shift(call: Call) -> Read:
    way = call.choice("direction", "LEFT", ("LEFT", "RIGHT"))
    return call.make.each("left_shift" if way == "LEFT" else "right_shift", call.input(0), call.input(1))


@reads("Where")
def _where(call: Call) -> Read:
    return call.make.each("where", *(call.input(i) for i in range(3)))


@reads("IsInf", attributes=["detect_negative", "detect_positive"])
def _is_inf(call: Call) -> Read:
    make, x = call.make, call.input(0)
    signs = (call.attribute("detect_negative", 1), call.attribute("detect_positive", 1))
    if all(signs):
        return make.each("isinf", x)
    if not any(signs):
        return make.broadcast(constant(False, "bool"), make.shape_of(x))
    return make.each("equal", x, make.number(math.inf if signs[1] else -math.inf, x))


@reads("Reciprocal")
def _reciprocal(call: Call) -> Read:
    x = call.input(0)
    return call.make.each("divide", call.make.number(1.0, x), x)


@reads("Clip", attributes=["min", "max"])
def _clip(call: Call) -> Read:
    """Bounds are attributes before operator set 11, and inputs since, which may be computed."""
    make, x = call.make, call.input(0)
    bounds: list[Read | None] = [call.input(i) if call.has(i) else None for i in (1, 2)]
    for i, name in enumerate(("min", "max")):
        if call.opset < 11 and name in call.given:
            bounds[i] = make.number(float(call.given[name]), x)
    if all(b is None or isinstance(b, Constant) for b in bounds):
        low, high = (None if b is None else b.value.ravel()[0].item() for b in bounds if not isinstance(b, int))
        if low is None or high is None or low <= high:
            return make.clip(x, low, high)
    low, high = bounds
    x = x if low is None else make.each("maximum", x, low)
    return x if high is None else make.each("minimum", x, high)


# ---- conversions ----------------------------------------------------------------------------------------------------
@reads("Cast", attributes=["to", "saturate", "round_mode"])
def _cast(call: Call) -> Read:
    return call.make.cast(call.input(0), type_of(call, call.attribute("to")))


@reads("CastLike", attributes=["saturate", "round_mode"])
def _cast_like(call: Call) -> Read:
    return call.make.cast(call.input(0), call.make.dtype_of(call.input(1)))


def type_of(call: Call, number: int | str) -> str:
    """The type of a graph's values for one of ONNX's.

    Raises:
        ModelError: there is none.
    """
    import onnx

    if isinstance(number, str):  # before operator set 6
        number = onnx.TensorProto.DataType.Value(number)
    if number in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE):
        return "float32"
    try:
        found = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(int(number))).name
    except (KeyError, ValueError, TypeError):
        found = str(number)
    if found not in TYPES:
        raise call.refused(f"converts to {found}, which is not there; known: {', '.join(TYPES)}")
    return found


@reads("BitCast", attributes=["to"])
def _bit_cast(call: Call) -> Read:
    """The same bits as a number of another type that is as wide."""
    make, x = call.make, call.input(0)
    before, dtype = make.dtype_of(x), type_of(call, call.attribute("to"))
    if np.dtype(before).itemsize != np.dtype(dtype).itemsize:
        raise call.refused(f"reads the bits of {before} as {dtype}, which is not as wide")
    return make.cast(x, dtype) if "bool" in (before, dtype) else make.node("bit_cast", [x], call.shape(0), dtype)


# ---- activations ----------------------------------------------------------------------------------------------------
def _if_positive(call: Call, x: Read, otherwise: Read) -> Read:
    """x where it is above 0, else another value; NaN stays NaN."""
    make = call.make
    return make.each("where", make.each("greater", x, make.number(0.0, x)), x, otherwise)


@reads("Relu")
def _relu(call: Call) -> Read:
    x = call.input(0)
    if call.make.dtype_of(x) != "float32":
        return call.make.each("maximum", x, call.make.number(0, x))
    return call.make.activation(x, "relu")


@reads("LeakyRelu", attributes=["alpha"])
def _leaky_relu(call: Call) -> Read:
    return _leaky(call, float(call.attribute("alpha", 0.01)))


def _leaky(call: Call, slope: float) -> Read:
    make, x = call.make, call.input(0)
    if 0.0 < slope < 1.0 and np.float32(f"{slope:g}") == np.float32(slope):
        return make.activation(x, f"leaky{slope:g}")
    return _if_positive(call, x, make.scaled(x, slope))


@reads("PRelu")
def _prelu(call: Call) -> Read:
    make, x, slope = call.make, call.input(0), call.input(1)
    if isinstance(slope, Constant) and slope.value.size == 1:
        return _leaky(call, float(slope.value.ravel()[0]))
    own, rank = make.shape_of(slope), make.rank(x)
    if call.opset < 7 and len(own) == 1 and rank > 2:  # one slope for each channel
        slope = make.along(slope, 1, rank)
    return _if_positive(call, x, make.each("multiply", x, slope))


@reads("Elu", attributes=["alpha"])
def _elu(call: Call) -> Read:
    return _exponential(call, float(call.attribute("alpha", 1.0)), 1.0)


@reads("Selu", attributes=["alpha", "gamma"])
def _selu(call: Call) -> Read:
    found = _exponential(call, float(call.attribute("alpha", 1.67326319217681884765625)), 1.0)
    return call.make.scaled(found, float(call.attribute("gamma", 1.05070102214813232421875)))


@reads("Celu", attributes=["alpha"])
def _celu(call: Call) -> Read:
    alpha = float(call.attribute("alpha", 1.0))
    return _exponential(call, alpha, 1 / alpha)


def _exponential(call: Call, alpha: float, inner: float) -> Read:
    """x where it is above 0, else α · (e^(x · inner) − 1)."""
    make, x = call.make, call.input(0)
    powers = make.each("exp", make.each("minimum", make.number(0.0, x), make.scaled(x, inner)))
    return _if_positive(call, x, make.scaled(make.scaled(powers, shift=-1.0), alpha))


@reads("Gelu", attributes=["approximate"])
def _gelu(call: Call) -> Read:
    make, x = call.make, call.input(0)
    if call.choice("approximate", "none", ("none", "tanh")) == "none":
        return make.activation(x, "gelu")
    cube = make.each("multiply", make.each("multiply", x, x), x)
    inner = make.scaled(make.each("add", x, make.scaled(cube, 0.044715)), math.sqrt(2 / math.pi))
    gate = make.scaled(make.scaled(make.each("tanh", inner), shift=1.0), 0.5)
    return make.each("multiply", x, gate)


@reads("Swish", attributes=["alpha"])
def _swish(call: Call) -> Read:
    make, x = call.make, call.input(0)
    alpha = float(call.attribute("alpha", 1.0))
    if alpha == 1.0:
        return make.activation(x, "swish")
    return make.each("multiply", x, make.each("sigmoid", make.scaled(x, alpha)))


@reads("Mish")
def _mish(call: Call) -> Read:
    make, x = call.make, call.input(0)
    return make.each("multiply", x, make.each("tanh", make.each("softplus", x)))


@reads("HardSigmoid", attributes=["alpha", "beta"])
def _hard_sigmoid(call: Call) -> Read:
    make, x = call.make, call.input(0)
    alpha, beta = float(call.attribute("alpha", 0.2)), float(call.attribute("beta", 0.5))
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return make.activation(x, "hsigmoid")
    return make.clip(make.scaled(x, alpha, beta), 0.0, 1.0)


@reads("HardSwish")
def _hard_swish(call: Call) -> Read:
    return call.make.activation(call.input(0), "hswish")


@reads("ThresholdedRelu", attributes=["alpha"])
def _thresholded_relu(call: Call) -> Read:
    make, x = call.make, call.input(0)
    is_above = make.each("greater", x, make.number(float(call.attribute("alpha", 1.0)), x))
    return make.each("where", is_above, x, make.number(0.0, x))


@reads("Shrink", attributes=["bias", "lambd"])
def _shrink(call: Call) -> Read:
    make, x = call.make, call.input(0)
    bias, limit = float(call.attribute("bias", 0.0)), float(call.attribute("lambd", 0.5))
    inside = make.each(
        "where", make.each("greater", x, make.number(limit, x)), make.scaled(x, shift=-bias), make.number(0.0, x)
    )
    return make.each("where", make.each("less", x, make.number(-limit, x)), make.scaled(x, shift=bias), inside)


@reads("Softsign")
def _softsign(call: Call) -> Read:
    make, x = call.make, call.input(0)
    return make.each("divide", x, make.scaled(make.each("abs", x), shift=1.0))
