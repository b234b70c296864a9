"""Whole numbers of few bits, which stand for scale · (number − zero point): to them, from them, and products of them.

Products are computed in float32: whole numbers are exact in it up to 2²⁴.
"""

from __future__ import annotations

import math

import numpy as np

from chanas.models.graph import Read
from chanas.models.reading.arithmetic import type_of
from chanas.models.reading.call import Call, read_as, reads
from chanas.models.reading.products import WINDOW

_TYPES = ("int8", "uint8", "int16", "uint16")


def _by_axis(call: Call, position: int, axis: int) -> Read:
    """A scale or a zero point as broadcast along an axis, or for blocks of `block_size` numbers along it."""
    make, x, shape = call.make, call.input(position), call.shape(0)
    own, rank, block = call.shape(position), len(shape), int(call.attribute("block_size", 0))
    if block and len(own) == rank:
        times = tuple(block if a == axis else 1 for a in range(rank))
        whole = [e * t for e, t in zip(own, times, strict=True)]
        wide = make.node("repeat", [x], whole, times=times)
        return make.slice(wide, axis, 0, shape[axis])
    return _along(call, x, axis, rank)


def _axis(call: Call) -> int:
    rank = len(call.shape(0))
    return call.axis("axis", 1, rank) if rank > 1 else 0


@reads("DequantizeLinear", attributes=["axis", "block_size", "output_dtype"])
def _dequantize(call: Call) -> Read:
    make, axis = call.make, _axis(call)
    x = make.cast(call.input(0), "float32")
    if call.has(2):
        x = make.each("subtract", x, make.cast(_by_axis(call, 2, axis), "float32"))
    return make.each("multiply", x, _by_axis(call, 1, axis))


@reads("QuantizeLinear", attributes=["axis", "block_size", "output_dtype", "saturate", "precision"])
def _quantize(call: Call) -> Read:
    """`saturate` is about floats of 8 bits alone: whole numbers are always kept within their type."""
    import onnx

    make, axis = call.make, _axis(call)
    precision = int(call.attribute("precision", 0))
    if precision not in (0, onnx.TensorProto.FLOAT):  # by default the scale's, and all floats are float32 here
        name = onnx.TensorProto.DataType.Name(precision).lower()
        raise call.refused(f"has precision {name}, which is not there; known: float32")
    number = int(call.attribute("output_dtype", 0))
    dtype = make.dtype_of(call.input(2)) if call.has(2) else type_of(call, number) if number else "uint8"
    zero = _by_axis(call, 2, axis) if call.has(2) else None
    return _rounded(
        call, make.each("divide", make.cast(call.input(0), "float32"), _by_axis(call, 1, axis)), zero, dtype
    )


def _rounded(call: Call, x: Read, zero: Read | None, dtype: str) -> Read:
    """A value as whole numbers around a zero point, within their type."""
    if dtype not in _TYPES:
        raise call.refused(f"gives {dtype}, which is not there; known: {', '.join(_TYPES)}")
    make = call.make
    found = make.each("round", x)
    if zero is not None:
        found = make.each("add", found, make.cast(zero, "float32"))
    limits = np.iinfo(dtype)
    return make.cast(make.clip(found, float(limits.min), float(limits.max)), dtype)


# ---- products -------------------------------------------------------------------------------------------------------
def _centred(call: Call, position: int, zero: int, axis: int) -> Read:
    """An input without its zero point, which may be one for each place of an axis."""
    make = call.make
    x = make.cast(call.input(position), "float32")
    if not call.has(zero):
        return x
    shift, rank = make.cast(call.input(zero), "float32"), len(call.shape(position))
    return make.each("subtract", x, _along(call, shift, axis, rank))


def _along(call: Call, x: Read, axis: int, rank: int) -> Read:
    """A number, or one for each place of an axis, as broadcast among `rank` axes."""
    own = call.make.shape_of(x)
    if math.prod(own) == 1:
        return call.make.reshape(x, ())
    return call.make.along(x, axis, rank) if len(own) == 1 else x


@reads("MatMulInteger")
def _matmul_integer(call: Call) -> Read:
    product = read_as(call, "MatMul", [_centred(call, 0, 2, -2), _centred(call, 1, 3, -1)], {})
    return call.make.cast(product, "int32")


@reads("ConvInteger", attributes=[*WINDOW, "group"])
def _conv_integer(call: Call) -> Read:
    product = read_as(call, "Conv", [_centred(call, 0, 2, 1), _centred(call, 1, 3, 0)], call.given)
    return call.make.cast(product, "int32")


@reads("QLinearMatMul")
def _qlinear_matmul(call: Call) -> Read:
    make = call.make
    product = read_as(call, "MatMul", [_centred(call, 0, 2, -2), _centred(call, 3, 5, -1)], {})
    rank = make.rank(product)
    scale = make.each("multiply", _along(call, call.input(1), -2, rank), _along(call, call.input(4), -1, rank))
    scale = make.each("divide", scale, _along(call, call.input(6), -2, rank))
    zero = call.input(7)
    return _rounded(call, make.each("multiply", product, scale), _along(call, zero, -2, rank), make.dtype_of(zero))


@reads("QLinearConv", attributes=[*WINDOW, "group"])
def _qlinear_conv(call: Call) -> Read:
    make = call.make
    product = read_as(call, "Conv", [_centred(call, 0, 2, 1), _centred(call, 3, 5, 0)], call.given)
    rank = make.rank(product)
    scale = make.each("multiply", make.reshape(call.input(1), ()), _along(call, call.input(4), 1, rank))
    if call.has(8):
        product = make.each("add", product, _along(call, make.cast(call.input(8), "float32"), 1, rank))
    scale = make.each("divide", scale, make.reshape(call.input(6), ()))
    zero = call.input(7)
    return _rounded(call, make.each("multiply", product, scale), make.reshape(zero, ()), make.dtype_of(zero))
