"""The computation of those operators on a GPU that are TVM tensor expressions; `schedules` decides how these are
carried out. Products and squeeze are written down in `product` and `squeeze`. What they read and write are rows
(`chanas.operators.layout.Rows`), images [B·C, M].

Channels last, because every width of a MobileNet is a multiple of 8, so that any thread can load four neighbours at
once and a warp's loads are whole lines, whatever the size of the map; a row of 7 or 14 pixels has no such alignment.
There are a few more rows than pixels, so that tiles divide them. What stands there is never read as a pixel.
Convolutions over all channels are matrix products whose rows are windows (implicit GEMM), never stored whole.
Sums and biases are float32 in every type, and so are logits, the image that `conv` reads, and its weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from chanas.compiler.expressions import epilogue, float32
from chanas.errors import ScheduleError
from chanas.operators.layout import ROWS, input_shape, num_rows, operator_inputs
from chanas.operators.workload import Workload

Compute = Callable[[Workload, Any, Sequence[Any], Sequence[Any]], Any]
_MAX_VALUES = 1 << 31
"""Limit of an array, since places in it are counted in 32 bits."""


def output_rows(workload: Workload) -> int:
    """Rows of the operator's output."""
    return num_rows(workload.batch * workload.output_size**2)


def is_dense(workload: Workload) -> bool:
    """True for a product of a matrix and one vector: sums are shared by threads instead of rows."""
    return workload.op == "pointwise" and workload.output_size == 1 and workload.batch == 1


def output_shape(workload: Workload) -> tuple[int, ...]:
    """Shape of the operator's output; a depthwise convolution's are its rows by image and in two dimensions, and a
    pooling's no more than the images."""
    if workload.op == "depthwise":
        return (workload.batch, workload.output_size, workload.output_size, workload.out_channels)
    if workload.op == "pool":
        return (workload.batch, workload.out_channels)
    return (output_rows(workload), workload.out_channels)


def row_words(workload: Workload) -> int:
    """Words of 32 bits of a pixel's input channels."""
    return workload.in_channels // workload.input_precision.per_word


def word_type(workload: Workload) -> str:
    """Type of a word in a kernel's registers."""
    return "uint32" if workload.input_precision.per_word == 2 else "float32"


def store_vector(extent: int) -> int:
    """Neighbours of a row that a thread stores at once: the most that divide it, up to a float4."""
    return next(v for v in (4, 2, 1) if extent % v == 0)


def _zero(like: Any) -> Any:
    return tirx.const(0.0, like.dtype)


def _wide(value: Any) -> Any:
    return value.astype("float32")


def _weight(workload: Workload, weights: Any, c: Any, n: Any) -> Any:
    """A product's weight as float32."""
    return _wide(weights[0, c // 2, n, c % 2] if workload.input_precision.per_word == 2 else weights[0, c, n])


def image_and_pixel(m: Any, pixels: int, batch: int) -> tuple[Any, Any]:
    """Split a row of maps of so many pixels into its image and its pixel in that image's map."""
    return (0, m) if batch == 1 else (m // pixels, m % pixels)


def _finish(workload: Workload, acc: Any, bias: Any, residual: Any) -> Any:
    def value(m: Any, n: Any) -> Any:
        out = epilogue(workload.epilogue, acc[m, n] + bias[n])
        out = out if residual is None else out + _wide(residual[m, n])
        return out.astype(workload.output_storage)

    return te.compute((output_rows(workload), workload.out_channels), value, name="out")


def dense(workload: Workload, x: Any, parameters: Sequence[Any], extras: Sequence[Any]) -> Any:
    weights, bias = parameters
    rest = list(extras)
    gate = rest.pop(0) if workload.scaled else None
    k = te.reduce_axis((0, workload.in_channels), name="k")

    def term(m: Any, n: Any) -> Any:
        value = _wide(x[m, k])
        value = value if gate is None else _wide((value * _wide(gate[0, k])).astype(x.dtype))
        return te.sum(value * _weight(workload, weights, k, n), axis=k)

    acc = te.compute((1, workload.out_channels), term, name="acc")
    return _finish(workload, acc, bias, rest.pop(0) if workload.residual else None)


def pool(workload: Workload, x: Any, parameters: Sequence[Any], extras: Sequence[Any]) -> Any:
    pixels, shape = workload.input_size**2, (workload.batch, workload.in_channels)
    k = te.reduce_axis((0, pixels), name="pixel")
    acc = te.compute(shape, lambda m, n: te.sum(_wide(x[m * pixels + k, n]), axis=k), name="acc")
    share = float32(1.0 / pixels)
    return te.compute(shape, lambda m, n: (acc[m, n] * share).astype(workload.output_storage), name="out")


def depthwise(workload: Workload, x: Any, parameters: Sequence[Any], extras: Sequence[Any]) -> Any:
    weights, bias = parameters
    size, k, stride, channels = workload.output_size, workload.kernel_size, workload.stride, workload.out_channels
    padded, batch = (size - 1) * stride + k, workload.batch

    def value(b: Any, h: Any, w: Any, c: Any) -> Any:
        pad, in_size = k // 2, workload.input_size
        inside = tirx.all(h >= pad, h < in_size + pad, w >= pad, w < in_size + pad)
        return tirx.if_then_else(inside, x[b * in_size**2 + (h - pad) * in_size + (w - pad), c], _zero(x))

    taken = te.compute((batch, padded, padded, channels), value, name="input")
    rh, rw = te.reduce_axis((0, k), name="rh"), te.reduce_axis((0, k), name="rw")

    def term(b: Any, h: Any, w: Any, c: Any) -> Any:
        pixel = _wide(taken[b, h * stride + rh, w * stride + rw, c])
        return te.sum(pixel * _wide(weights[rh * k + rw, c]), axis=[rh, rw])

    def out(b: Any, h: Any, w: Any, c: Any) -> Any:
        return epilogue(workload.epilogue, acc[b, h, w, c] + bias[c]).astype(workload.output_storage)

    acc = te.compute((batch, size, size, channels), term, name="acc")
    return te.compute((batch, size, size, channels), out, name="out")


def check_operator(workload: Workload) -> None:
    """
    Raises:
        ScheduleError: the operator is not there for so many images or of such channels.
    """
    if workload.input_storage == "float16" and workload.in_channels % 2:
        raise ScheduleError(f"expected an even number of channels in float16, got {workload.key}")
    if workload.op == "squeeze" and workload.batch > 1:
        raise ScheduleError(f"operator squeeze is there for one image; of several it is two operators ({workload.key})")
    if max(math.prod(input_shape(workload, ROWS)), math.prod(output_shape(workload))) >= _MAX_VALUES:
        raise ScheduleError(f"expected arrays of less than 2^31 values, got {workload.key}; use a smaller batch")


@functools.lru_cache(maxsize=64)
def operator_function(workload: Workload, compute: Compute) -> Any:
    """A `tirx.PrimFunc` of one operator as its expression has it, unscheduled: `operator_inputs`, then the output.

    Raises:
        ScheduleError: as `check_operator` says.
    """
    check_operator(workload)
    x, *others = (te.placeholder(a.shape, a.dtype, name=a.name) for a in operator_inputs(workload, ROWS))
    num_parameters = len(ROWS.parameters(workload))
    output = compute(workload, x, others[:num_parameters], others[num_parameters:])
    return te.create_prim_func([x, *others, output])
