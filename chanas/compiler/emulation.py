"""Networks emulated in numpy and PyTorch, operator by operator: in float32, with the numbers rounded that blocks in
other dtypes have, or to the bit as kernels in int8 compute.

Rounding takes about as long as PyTorch in float32. Exact sums and multiplications, as kernels make them, take many
times as long, and come out one number apart here and there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chanas.core.arrays import Array, Float32Array
from chanas.core.blocks import BlockConfig
from chanas.network.folding import BlockOperator, block_operators, quantise_operators, with_parameters
from chanas.operators.epilogues import Epilogue, leaky_slope
from chanas.operators.precision import INT8, precision_of
from chanas.operators.quantised import Grid, computed
from chanas.operators.workload import Workload

_MOST_PRODUCT, _EXACT_IN_FLOAT32 = 255 * 127, 1 << 24
_FEWEST_IMAGES, _MOST_IMAGES, _NUMBERS_AT_ONCE = 8, 128, 1 << 21
Parameters = Sequence[Mapping[str, Float32Array]]
"""PyTorch's parameters by name of each block that computes."""


def has_int8(blocks: Sequence[BlockConfig], dtype: str) -> bool:
    """True if one of a network's blocks is in int8, where those without a dtype of their own are in `dtype`."""
    return any((block.dtype or dtype) == INT8.dtype for block in blocks)


def emulated_logits(
    blocks: Sequence[BlockConfig],
    parameters: Parameters,
    images: Float32Array,
    dtype: str = "float32",
    *,
    exact: bool = False,
) -> Float32Array:
    """float32[B, classes] of a network for images float32[B, C, R, R].

    Args:
        dtype: of blocks without one of their own.
        exact: blocks in int8 are computed to the bit, and those in bfloat16 in float32; otherwise numbers are rounded.

    Raises:
        CheckpointError: a parameter is missing, such as what numbers stand for.
    """
    found = []
    for value in in_parts(images):
        for block, tensors, grid in with_parameters(blocks, parameters):
            if block.converts:
                value = converted(block, grid, value, exact)
            else:
                value = block_values(block, tensors, value, dtype, exact=exact)[-1]
        found.append(value.reshape(len(value), -1))
    return np.concatenate(found)


def block_values(
    block: BlockConfig, tensors: Mapping[str, Float32Array], x: Array, dtype: str = "float32", *, exact: bool = False
) -> list[Array]:
    """The output of each operator of a block for its input [B, C, S, S]: float32, but uint8 where `exact` in int8."""
    dtype = block.dtype or dtype
    if dtype == INT8.dtype:
        operators = quantise_operators(block, tensors)
        return quantised_values(operators, x) if exact else rounded_values(operators, x)
    operators = block_operators(block, tensors, dtype)
    return float_values(operators, x) if exact or dtype == "float32" else rounded_values(operators, x)


def float_values(operators: Sequence[BlockOperator], x: Float32Array) -> list[Float32Array]:
    """The output of each operator of a block for maps float32[B, C, S, S], in float32."""
    return _values(operators, x, _float_value)


def rounded_values(operators: Sequence[BlockOperator], x: Float32Array) -> list[Float32Array]:
    """The same with weights and outputs rounded to the numbers that they may be."""
    return _values(operators, x, rounded_value)


def quantised_values(operators: Sequence[BlockOperator], x: Array) -> list[Array]:
    """The same of a block in int8, to the bit where it is in int8: numbers uint8, or float32 where that is what it
    writes."""
    return _values(operators, x, _quantised_value)


def _values(
    operators: Sequence[BlockOperator], x: Array, compute: Callable[[BlockOperator, Sequence[Array]], Array]
) -> list[Array]:
    values: list[Array] = [x]
    for operator in operators:
        values.append(compute(operator, [values[read] for read in operator.step.reads]))
    return values[1:]


def _float_value(operator: BlockOperator, given: Sequence[Float32Array]) -> Float32Array:
    import torch

    workload, (x, *extras) = operator.step.workload, map(torch.from_numpy, given)
    with torch.inference_mode():
        if workload.takes_mean:
            return x.mean((2, 3), keepdim=True).numpy()
        if workload.scaled:
            x = x * extras.pop(0)
        weight, bias = (torch.from_numpy(np.ascontiguousarray(a)) for a in (operator.weight, operator.bias))
        value = activated(convolved(x, weight, bias, workload), workload.epilogue)
        found: Float32Array = (value + extras.pop(0) if workload.residual else value).numpy()
    return found


def rounded_value(operator: BlockOperator, given: Sequence[Float32Array]) -> Float32Array:
    """The output of an operator for what it reads, float32[B, C, S, S] each, rounded like its weights."""
    workload, by = operator.step.workload, operator.numbers
    if by is not None:
        if by.numbers is not None:
            weight = by.numbers if by.steps is None else by.numbers * by.steps.reshape(-1, 1, 1, 1)
            operator = replace(operator, weight=weight, bias=by.bias)
        if workload.scaled:  # what is multiplied with the gate is of the input's numbers, too
            x, gate, *others = given
            given = [by.input.rounded(x * gate), np.ones_like(gate), *others]
        value = _float_value(operator, given)
        return value if workload.output_storage != INT8.storage else by.output.rounded(value)
    if operator.weight is not None:
        operator = replace(operator, weight=workload.input_precision.rounded(operator.weight))
    return workload.output_precision.rounded(_float_value(operator, given))


def _quantised_value(operator: BlockOperator, given: Sequence[Array]) -> Array:
    workload, by = operator.step.workload, operator.numbers
    if by is None:
        return _float_value(operator, given)
    gate = given[1][:, :, 0, 0] if workload.scaled else None
    residual = given[-1] if workload.residual else None
    return computed(workload, by, given[0], exact_sums(workload), gate, residual)


def converted(block: BlockConfig, grid: Grid | None, value: Array, exact: bool = False) -> Array:
    """A map in another dtype; what is rounded stays float32."""
    if grid is None:
        return value if exact else precision_of(block.dtype).rounded(value)
    if not exact:
        return grid.rounded(value)
    return grid.encode(value) if block.kind == "encode" else grid.decode(value)


def in_parts(images: Float32Array) -> Iterator[Array]:
    """Images a few at a time, the more the smaller they are; channels last in memory, the order that
    PyTorch is faster in and that all operations keep."""
    num = min(_MOST_IMAGES, max(_FEWEST_IMAGES, _NUMBERS_AT_ONCE // max(1, images[:1].size)))
    for i in range(0, len(images), num):
        yield np.ascontiguousarray(images[i : i + num].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def activated(value: Any, epilogue: Epilogue) -> Any:
    """PyTorch's function of a tensor for an epilogue."""
    from torch.nn import functional

    slope = leaky_slope(epilogue)
    if slope is not None:
        return functional.leaky_relu(value, slope)
    functions = {
        "none": lambda x: x,
        "relu": functional.relu,
        "relu6": functional.relu6,
        "hswish": functional.hardswish,
        "hsigmoid": functional.hardsigmoid,
        "sigmoid": functional.sigmoid,
        "swish": functional.silu,
        "tanh": functional.tanh,
        "gelu": functional.gelu,
    }
    return functions[epilogue](value)


def convolved(value: Any, weight: Any, bias: Any, workload: Workload) -> Any:
    """PyTorch's convolution, of one pixel for each channel after a mean."""
    from torch.nn import functional

    axes, padding = workload.axes, (0, 0)
    rows, columns = axes
    if workload.op == "upconv":
        whole = functional.conv_transpose2d(value, weight.transpose(0, 1), None, (rows.stride, columns.stride))
        cut = functional.pad(whole, (-columns.before, -columns.after, -rows.before, -rows.after))
        return cut + bias[:, None, None]
    if workload.padding is None and rows.reach % 2 and columns.reach % 2:  # what it pads itself is as much on each side
        padding = (rows.before, columns.before)
    else:
        value = functional.pad(value, (columns.before, columns.after, rows.before, rows.after))
    stride, dilation = (rows.stride, columns.stride), (rows.dilation, columns.dilation)
    return functional.conv2d(value, weight, bias, stride, padding, dilation, workload.num_groups)


def exact_sums(workload: Workload) -> Callable[[Array, Float32Array], Array]:
    """PyTorch's convolution without a bias, exact of numbers in int8: in float64, and where no sum leaves the whole
    numbers of float32 in that, which takes a tenth of the time."""
    largest = _MOST_PRODUCT * workload.channels_per_group * workload.kernel_area
    return convolution(workload, np.float32 if largest < _EXACT_IN_FLOAT32 else np.float64)


def convolution(
    workload: Workload, dtype: type[np.float32] | type[np.float64] = np.float32
) -> Callable[[Array, Float32Array], Array]:
    """PyTorch's convolution in a type, without a bias."""
    import torch

    def convolve(x: Array, weight: Float32Array) -> Array:
        taken, weights = (torch.from_numpy(np.require(a, dtype, ["C", "W"])) for a in (x, weight))
        with torch.inference_mode():
            sums: Array = convolved(taken, weights, weights.new_zeros(len(weight)), workload).numpy()
        return sums

    return convolve
