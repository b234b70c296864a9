"""Whole numbers of few bits, which stand for scale · (number − zero point): to them, from them, and products of them.

Products of whole numbers (MatMulInteger, ConvInteger) are computed in float32, which holds them exactly up to 2²⁴.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from chanas.models.graph import Constant, Read
from chanas.models.reading.arithmetic import type_of
from chanas.models.reading.call import Call, read_as, reads
from chanas.models.reading.products import WINDOW

_TYPES = ("int8", "uint8", "int16", "uint16")


def reads_steps(operator: str) -> bool:
    """True if ONNX's operator reads whole numbers with the steps that they stand for, as quantised networks do."""
    return operator.startswith("QLinear") or operator in ("DequantizeLinear", "QGemm")


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


# ---- operators of numbers of few bits, behind each of which its scale and its zero point are given ------------------
_RUNTIMES = "com.microsoft."
"""The domain of ONNX Runtime's own operators, of which its quantiser writes some (`QuantFormat.QOperator`)."""


def _floats(call: Call, first: int, axis: int = 1) -> Read:
    """The input at a position as floats."""
    given = [call.input(i) for i in range(first, first + 3) if call.has(i)]
    return read_as(call, "DequantizeLinear", given, {"axis": axis})


def _numbers(call: Call, value: Read, scale: int, dtype: str, axis: int = 1) -> Read:
    """A value as numbers by the scale at a position, and the zero point behind it; of a type where that is left out."""
    zero = call.input(scale + 1) if call.has(scale + 1) else Constant(np.zeros((), dtype))
    return read_as(call, "QuantizeLinear", [value, call.input(scale), zero], {"axis": axis})


def _whole_bias(call: Call, position: int, factor: float = 1.0) -> Read:
    """Whole numbers of 32 bits, whose steps are those of products of inputs 0 and 3, times a factor."""
    steps = call.make.each("multiply", _along(call, call.input(1), 0, 1), _along(call, call.input(4), 0, 1))
    steps = call.make.scaled(steps, factor)
    return read_as(call, "DequantizeLinear", [call.input(position), steps], {"axis": -1})


@reads("QLinearMatMul")
def _qlinear_matmul(call: Call) -> Read:
    product = read_as(call, "MatMul", [_floats(call, 0, -2), _floats(call, 3, -1)], {})
    return _numbers(call, product, 6, call.make.dtype_of(call.input(7)), -2)


@reads("QLinearConv", attributes=[*WINDOW, "group"])
def _qlinear_conv(call: Call) -> Read:
    read = [_floats(call, 0), _floats(call, 3, 0)]
    if call.has(8):
        read.append(_whole_bias(call, 8))
    return _numbers(call, read_as(call, "Conv", read, call.given), 6, call.make.dtype_of(call.input(7)))


@reads(f"{_RUNTIMES}QGemm", attributes=["alpha", "transA", "transB"])
def _qgemm(call: Call) -> Read:
    read = [_floats(call, 0), _floats(call, 3, 0 if call.attribute("transB", 0) else 1)]
    if call.has(6):
        read.append(_whole_bias(call, 6, float(call.attribute("alpha", 1.0))))
    product = read_as(call, "Gemm", read, call.given)
    return _numbers(call, product, 7, call.make.dtype_of(call.input(8))) if call.has(8) else product


@reads(f"{_RUNTIMES}QLinearAdd", f"{_RUNTIMES}QLinearMul")
def _qlinear_pair(call: Call) -> Read:
    found = read_as(call, call.op.removeprefix(f"{_RUNTIMES}QLinear"), [_floats(call, 0), _floats(call, 3)], {})
    return _numbers(call, found, 6, call.make.dtype_of(call.input(0)))


@reads(f"{_RUNTIMES}QLinearLeakyRelu", attributes=["alpha"])
@reads(f"{_RUNTIMES}QLinearSigmoid")
@reads(f"{_RUNTIMES}QLinearGlobalAveragePool", attributes=["channels_last"])
@reads(f"{_RUNTIMES}QLinearAveragePool", attributes=[*WINDOW, "ceil_mode", "channels_last", "count_include_pad"])
def _qlinear(call: Call) -> Read:
    if call.attribute("channels_last", 0):
        raise call.refused("has channels_last, which is not there; known: 0")
    given = {name: value for name, value in call.given.items() if name != "channels_last"}
    found = read_as(call, call.op.removeprefix(f"{_RUNTIMES}QLinear"), [_floats(call, 0)], given)
    return _numbers(call, found, 3, call.make.dtype_of(call.input(0)))


@reads(f"{_RUNTIMES}QLinearSoftmax", attributes=["axis", "opset"])
def _qlinear_softmax(call: Call) -> Read:
    """`opset` is that of the `Softmax` which it stands for."""
    plain = dataclasses.replace(call, opset=int(call.attribute("opset", call.opset)))
    found = read_as(plain, "Softmax", [_floats(call, 0)], {"axis": call.attribute("axis", -1)})
    return _numbers(call, found, 3, call.make.dtype_of(call.input(0)))


@reads(f"{_RUNTIMES}QLinearConcat", attributes=["axis"])
def _qlinear_concat(call: Call) -> Read:
    parts = [_floats(call, position) for position in range(2, len(call.inputs), 3)]
    return _numbers(call, read_as(call, "Concat", parts, call.given), 0, call.make.dtype_of(call.input(2)))


@reads(f"{_RUNTIMES}QuantizeLinear", f"{_RUNTIMES}DequantizeLinear", attributes=["axis"])
def _own_linear(call: Call) -> Read:
    given = [call.input(i) for i in range(len(call.inputs)) if call.has(i)]
    return read_as(call, call.op.removeprefix(_RUNTIMES), given, call.given)
