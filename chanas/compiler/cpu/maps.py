"""Maps as the operators of processors read and write them: loads, padded or not, and the way of sums to memory, in
tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvm import te, tirx

from chanas.compiler.cpu.arithmetic import arithmetic_of
from chanas.compiler.expressions import epilogue, float32, fused_multiply_add
from chanas.operators.layout import num_blocks
from chanas.operators.precision import precision_of
from chanas.operators.workload import Axis, Workload

Tensors = Sequence[Any]
Read = Callable[..., Any]
"""A value by its indices, such as a stage's or what is read of one."""


def pixel(x: Any, b: Any, m: Any, v: Any) -> Any:
    """Element of activations at channel block `b`, pixel `m`, lane `v`, whether stored [B, M, l] or [B, H, W, l]."""
    if len(x.shape) == 3:
        return x[b, m, v]
    width = int(x.shape[2])
    return x[b, m // width, m % width, v]


def is_inside(axes: tuple[Axis, Axis], h: Any, w: Any) -> Any:
    """True for a row and a column of the padded input that belong to the map."""
    rows, columns = axes
    return tirx.all(
        h >= rows.before, h < rows.size + rows.before, w >= columns.before, w < columns.size + columns.before
    )


def unpadded(axes: tuple[Axis, Axis], h: Any, w: Any) -> Any:
    """The pixel at a row and a column of the padded input."""
    rows, columns = axes
    return (h - rows.before) * columns.size + (w - columns.before)


def padded(
    workload: Workload,
    lanes: int,
    prefix: str,
    x: Any,
    height: int,
    width: int,
    axes: tuple[Axis, Axis] | None = None,
    load: Callable[[Any], Any] = lambda number: number,
    zero: Any = None,
) -> Any:
    """[B, height, width, l]: the input with zeros around it, as its axes say, or others.

    Args:
        load: what is kept of a number of the input.
        zero: what is kept of none.
    """
    axes, zero = axes or workload.axes, float32(0.0) if zero is None else zero
    return te.compute(
        (num_blocks(workload.in_channels, lanes), height, width, lanes),
        lambda b, h, w, v: tirx.if_then_else(is_inside(axes, h, w), load(x[b, unpadded(axes, h, w), v]), zero),
        name=f"{prefix}pad",
    )


class GridValues(NamedTuple):
    """The meaning of numbers q in int8, step · (q − zero), as expressions. Of an output there are numbers for each 1
    instead of the step."""

    step: Any
    zero: Any


def grids(parameters: Tensors) -> tuple[GridValues, GridValues, GridValues]:
    """Those of an operator's input, output and residual."""
    given, written, residual = ([parameters[-1][0, place + i] for i in range(2)] for place in (0, 2, 4))
    return GridValues(*given), GridValues(*written), GridValues(*residual)


def loader(workload: Workload, parameters: Tensors) -> Callable[[Any], Any]:
    """A number of the input as a float32; in int8 in steps of its grid."""
    load = arithmetic_of(workload.input_precision).load
    if workload.reads_image or not workload.is_quantised:
        return load
    zero = grids(parameters)[0].zero
    return lambda number: load(number) - zero


def store(workload: Workload, value: Any, parameters: Tensors) -> Any:
    """A float32 as the operator's output holds it."""
    if workload.is_quantised and not workload.wide:
        grid = grids(parameters)[1]
        value = fused_multiply_add(value, grid.step, grid.zero)
    return arithmetic_of(workload.output_precision).store(value)


def finish(workload: Workload, value: Any, add: Callable[[Any], Any] | None) -> Any:
    """Epilogue and residual of a sum with its bias; `add` adds the residual, and is None where there is none."""
    if add is None:
        return epilogue(workload.epilogue, value)
    if workload.residual_first:
        return epilogue(workload.epilogue, add(value))
    return add(epilogue(workload.epilogue, value))


def output(workload: Workload, parameters: Tensors, total: Any, residual: Any, b: Any, v: Any) -> Any:
    """An element of an output from its sum, and the element of the residual, None where there is none."""
    bias, add = parameters[1][b, v], None
    if not workload.is_quantised:
        if residual is not None:
            load = arithmetic_of(precision_of(workload.dtype)).load
            add = lambda value: value + load(residual)  # noqa: E731 -- the other one is one, too
        return store(workload, finish(workload, total + bias, add), parameters)
    grid = grids(parameters)[2]
    if residual is not None:
        add = lambda value: fused_multiply_add(residual.astype("float32") - grid.zero, grid.step, value)  # noqa: E731
    if workload.reads_image:
        value = total + bias
    else:
        value = fused_multiply_add(total.astype("float32"), parameters[2][b, v], bias)
    return store(workload, finish(workload, value, add), parameters)


def window_output(
    workload: Workload, lanes: int, prefix: str, total: Read, parameters: Tensors, extras: Tensors
) -> Any:
    """[B, H, W, l]: sums with their bias, epilogue and residual."""
    rows, columns = workload.axes

    def value(b: Any, h: Any, w: Any, v: Any) -> Any:
        residual = pixel(extras[-1], b, h * columns.output + w, v) if workload.residual else None
        return output(workload, parameters, total(b, h, w, v), residual, b, v)

    shape = (num_blocks(workload.out_channels, lanes), rows.output, columns.output, lanes)
    return te.compute(shape, value, name=f"{prefix}out")
