"""What each operator computes on a GPU, as TVM tensor expressions; the how is `cuda_schedules`.

Notation: C channels, N output channels, M pixels of a square map, R = `num_rows` of its size, k kernel size.
    activations [R, C] (channels last, one pixel a row), images [C, M], gates [C], biases [N]
    weights [k·k, C, N], of depthwise convolutions [k·k, C]
Channels last, because every width of a MobileNet is a multiple of 8, so that any thread can load four neighbours at
once and a warp's loads are whole lines, whatever the size of the map; a row of 7 or 14 pixels has no such alignment.
A map has a few more rows than pixels, so that tiles divide them. What stands there is never read as a pixel.
Convolutions over all channels are matrix products: the rows of `input` are windows (implicit GEMM), never stored whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from chanas.errors import ScheduleError
from chanas.prescheduler.operators import OperatorGraph
from chanas.prescheduler.operators import _epilogue as epilogue
from chanas.prescheduler.workload import Workload

_ROW_MULTIPLE = 8
"""Maps of 49, 100 or 196 pixels get 7, 4 and 4 rows more; the larger ones of the presets none."""


def num_rows(size: int) -> int:
    """Rows that a square map of a size has in memory: its pixels, from 8 on rounded up to a multiple of 8."""
    pixels = size**2
    return pixels if pixels < _ROW_MULTIPLE else -(-pixels // _ROW_MULTIPLE) * _ROW_MULTIPLE


def is_dense(workload: Workload) -> bool:
    """Whether it is a product of a matrix and one vector: sums are shared by threads instead of rows."""
    return workload.op == "pointwise" and workload.output_size == 1


def input_shape(workload: Workload) -> tuple[int, int]:
    """Shape of the operator's input."""
    if workload.op == "conv":
        return (workload.in_channels, workload.input_size**2)
    return (num_rows(workload.input_size), workload.in_channels)


def output_shape(workload: Workload) -> tuple[int, ...]:
    """Shape of the operator's output; a depthwise convolution's are its rows in two dimensions."""
    if workload.op == "depthwise":
        return (workload.output_size, workload.output_size, workload.out_channels)
    return (num_rows(workload.output_size), workload.out_channels)


def parameter_shapes(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """Shapes of weights and bias; nothing for pooling."""
    taps = workload.kernel_size**2
    if workload.op == "pool":
        return ()
    if workload.op == "depthwise":
        return ((taps, workload.out_channels), (workload.out_channels,))
    return ((taps, workload.in_channels, workload.out_channels), (workload.out_channels,))


def extra_shapes(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """Shapes of gate and residual, those of them that the operator has, in this order."""
    gate, residual = (workload.in_channels,), (num_rows(workload.output_size), workload.out_channels)
    return ((gate,) if workload.scaled else ()) + ((residual,) if workload.residual else ())


def _zero() -> Any:
    return tirx.const(0.0, "float32")


def _window(workload: Workload, h: Any, w: Any, tap_h: Any, tap_w: Any) -> tuple[Any, Any]:
    """The input pixel under a tap of the window of output pixel (h, w), and whether it is inside the map."""
    size, pad = workload.input_size, workload.kernel_size // 2
    y, x = h * workload.stride + tap_h - pad, w * workload.stride + tap_w - pad
    return y * size + x, tirx.all(y >= 0, y < size, x >= 0, x < size)


def _product(workload: Workload, x: Any, parameters: Sequence[Any], extras: Sequence[Any]) -> Any:
    """Σ over taps and channels of input[m, tap, c] · weights[tap, c, n], then bias, epilogue and residual."""
    weights, bias = parameters
    rest, size, k = list(extras), workload.output_size, workload.kernel_size
    rows, channels = num_rows(size), workload.in_channels
    gate = rest.pop(0) if workload.scaled else None

    def value(m: Any, tap: Any, c: Any) -> Any:
        if workload.op == "pointwise":
            return x[m, c] if gate is None else x[m, c] * gate[c]
        place, inside = _window(workload, m // size, m % size, tap // k, tap % k)
        inside = tirx.all(m < size**2, inside)
        return tirx.if_then_else(inside, x[c, place] if workload.op == "conv" else x[place, c], _zero())

    taken = te.compute((rows, k * k, channels), value, name="input")
    tap, c = te.reduce_axis((0, k * k), name="tap"), te.reduce_axis((0, channels), name="c")
    acc = te.compute(
        (rows, workload.out_channels),
        lambda m, n: te.sum(taken[m, tap, c] * weights[tap, c, n], axis=[tap, c]),
        name="acc",
    )
    return _finish(workload, acc, bias, rest.pop(0) if workload.residual else None)


def _finish(workload: Workload, acc: Any, bias: Any, residual: Any) -> Any:
    def value(m: Any, n: Any) -> Any:
        out = epilogue(workload.epilogue, acc[m, n] + bias[n])
        return out if residual is None else out + residual[m, n]

    return te.compute((num_rows(workload.output_size), workload.out_channels), value, name="out")


def _dense(workload: Workload, x: Any, parameters: Sequence[Any], extras: Sequence[Any]) -> Any:
    weights, bias = parameters
    rest = list(extras)
    gate = rest.pop(0) if workload.scaled else None
    k = te.reduce_axis((0, workload.in_channels), name="k")

    def term(m: Any, n: Any) -> Any:
        value = x[m, k] if gate is None else x[m, k] * gate[k]
        return te.sum(value * weights[0, k, n], axis=k)

    acc = te.compute((1, workload.out_channels), term, name="acc")
    return _finish(workload, acc, bias, rest.pop(0) if workload.residual else None)


def _pool(workload: Workload, x: Any, parameters: Sequence[Any], extras: Sequence[Any]) -> Any:
    pixels = workload.input_size**2
    k = te.reduce_axis((0, pixels), name="k")
    acc = te.compute((1, workload.out_channels), lambda m, n: te.sum(x[m + k, n], axis=k), name="acc")
    share = tirx.const(1.0 / pixels, "float32")
    return te.compute((1, workload.out_channels), lambda m, n: acc[m, n] * share, name="out")


def _depthwise(workload: Workload, x: Any, parameters: Sequence[Any], extras: Sequence[Any]) -> Any:
    weights, bias = parameters
    size, k, stride, channels = workload.output_size, workload.kernel_size, workload.stride, workload.out_channels
    padded = (size - 1) * stride + k

    def value(h: Any, w: Any, c: Any) -> Any:
        pad, in_size = k // 2, workload.input_size
        inside = tirx.all(h >= pad, h < in_size + pad, w >= pad, w < in_size + pad)
        return tirx.if_then_else(inside, x[(h - pad) * in_size + (w - pad), c], _zero())

    taken = te.compute((padded, padded, channels), value, name="input")
    rh, rw = te.reduce_axis((0, k), name="rh"), te.reduce_axis((0, k), name="rw")
    acc = te.compute(
        (size, size, channels),
        lambda h, w, c: te.sum(taken[h * stride + rh, w * stride + rw, c] * weights[rh * k + rw, c], axis=[rh, rw]),
        name="acc",
    )
    return te.compute(
        (size, size, channels), lambda h, w, c: epilogue(workload.epilogue, acc[h, w, c] + bias[c]), name="out"
    )


def operator_graph(workload: Workload) -> OperatorGraph:
    """A function of one operator. Arguments: input, weights, bias, gate, residual (those there are), output.

    Raises:
        ScheduleError: the operator is not there for GPUs, or not in this type.
    """
    builders = {"pointwise": _product, "conv": _product, "blockconv": _product, "depthwise": _depthwise, "pool": _pool}
    if workload.op not in builders or workload.dtype != "float32":
        raise ScheduleError(f"operator {workload.op} is not there for GPUs in {workload.dtype} ({workload.key})")
    x = te.placeholder(input_shape(workload), name="x")
    parameters = [
        te.placeholder(s, name=n) for s, n in zip(parameter_shapes(workload), ("weights", "bias"), strict=False)
    ]
    names = [n for n, used in (("gate", workload.scaled), ("residual", workload.residual)) if used]
    extras = [te.placeholder(s, name=n) for s, n in zip(extra_shapes(workload), names, strict=True)]
    build = _dense if is_dense(workload) else builders[workload.op]
    output = build(workload, x, parameters, extras)
    return OperatorGraph((x, *parameters, *extras, output), output)
