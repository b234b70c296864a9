"""Conversion of trained weights to those that compiled kernels read, in numpy alone: batch normalisation folded into
the convolution before it, then packed in the kernels' layout (`chanas.operators.layout`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chanas.core.arrays import Array, Float32Array
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.errors import CheckpointError
from chanas.operators.layout import Blocks, Layout, layout_of
from chanas.operators.precision import INT8
from chanas.operators.quantised import IDENTITY, Grid, Quantised, quantised
from chanas.operators.steps import Step, block_steps, block_workloads
from chanas.operators.workload import Workload

BN_EPSILON = 1e-5
GRIDS, SHIFT = "grids", "shift{}"
"""Names, among a block's parameters, of what numbers in int8 stand for, float32[1 + operators, 2] of steps and zeros
(of the block's input, and of what each operator writes), and of what is added to the bias of an operator in int8, by
its number from 1 on, float32[C_out]."""


def fold_batch_norm(
    weight: Float32Array, gamma: Float32Array, beta: Float32Array, mean: Float32Array, variance: Float32Array
) -> tuple[Float32Array, Float32Array]:
    """Weight and bias of the convolution that equals convolution followed by batch normalisation."""
    scale = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + BN_EPSILON)
    folded = weight.astype(np.float64) * scale.reshape(-1, *([1] * (weight.ndim - 1)))
    return folded.astype(np.float32), (beta - mean * scale).astype(np.float32)


def pack_block(
    block: BlockConfig, tensors: Mapping[str, Float32Array], layout: Layout, dtype: str = "float32"
) -> list[Array]:
    """The parameters of a block as its kernel of `dtype` takes them, from PyTorch's by name: packed weights and biases
    in the order of the block's operators, put together as the layout says.

    `tensors` has the names that `chanas.network.static` gives inside one block, such as `depthwise.conv.weight`, and
    in int8 `GRIDS`, and `SHIFT` of some operators. A block's own dtype goes before `dtype`.

    Raises:
        CheckpointError: a parameter is missing.
    """
    dtype = block.dtype or dtype
    if dtype == INT8.dtype:
        return layout.together(
            [part for operator in quantise_operators(block, tensors) for part in operator.pack(layout)]
        )
    folded = fold_operators(block, tensors, dtype)
    return layout.together([part for operator in folded for part in layout.pack_parameters(*operator)])


@dataclass(frozen=True, eq=False)
class BlockOperator:
    """An operator of a block with its weights.

    weight, bias  float32[C_out, C_in / groups, k, k] and float32[C_out]; None of one without any
    numbers       what the whole numbers of one in int8 stand for
    """

    step: Step
    weight: Float32Array | None
    bias: Float32Array | None
    numbers: Quantised | None = None

    def pack(self, layout: Layout) -> list[Array]:
        """Its parameters in a layout."""
        if self.numbers is not None:
            assert isinstance(layout, Blocks)
            return layout.pack_quantised(self.step.workload, self.numbers)
        if self.weight is None or self.bias is None:
            return []
        return layout.pack_parameters(self.step.workload, self.weight, self.bias)


def block_operators(
    block: BlockConfig, tensors: Mapping[str, Float32Array], dtype: str = "float32"
) -> list[BlockOperator]:
    """The operators of a block in order, in its own dtype or else in `dtype`, from parameters by name; without
    what numbers in int8 stand for.

    Raises:
        CheckpointError: a parameter is missing.
    """
    folded = iter(fold_operators(block, tensors, dtype))
    found = []
    for step in block_steps(block, dtype):
        weight, bias = next(folded)[1:] if step.workload.has_weights else (None, None)
        found.append(
            BlockOperator(
                step, None if weight is None else weight.reshape(*weight.shape, *[1] * (4 - weight.ndim)), bias
            )
        )
    return found


def block_grids(block: BlockConfig, tensors: Mapping[str, Float32Array]) -> list[Grid]:
    """Grids of the numbers of a block's input, and of what each of its operators writes.

    Raises:
        CheckpointError: the block was not calibrated.
    """
    if GRIDS not in tensors:
        raise CheckpointError(f"parameter {GRIDS} of block {block.key} is missing; it was not calibrated for int8")
    return [Grid(float(step), int(zero)) for step, zero in tensors[GRIDS]]


def quantise_operators(block: BlockConfig, tensors: Mapping[str, Float32Array]) -> list[BlockOperator]:
    """The operators of a block in int8, as `GRIDS` of its parameters says.

    Raises:
        CheckpointError: a parameter is missing.
    """
    grids, found = block_grids(block, tensors), []
    for number, operator in enumerate(block_operators(block, tensors, INT8.dtype), 1):
        workload, reads = operator.step.workload, operator.step.reads
        numbers = None
        if workload.is_quantised:
            given = IDENTITY if workload.reads_image else grids[reads[0]]
            written = IDENTITY if workload.wide else grids[number]
            residual = grids[reads[-1]] if workload.residual else IDENTITY
            bias, shift = operator.bias, tensors.get(SHIFT.format(number))
            bias = bias if bias is None or shift is None else bias + shift
            numbers = quantised(workload, operator.weight, bias, given, written, residual)
        found.append(replace(operator, numbers=numbers))
    return found


def packed_parameters(
    blocks: Sequence[BlockConfig], parameters: Sequence[Mapping[str, Float32Array]], target: HardwareTarget
) -> list[Array]:
    """The arguments of a compiled network beside its images, from its blocks, PyTorch's parameters by name of each that
    computes, and the target that it was compiled for."""
    layout, found = layout_of(target), list[Array]()
    for block, tensors, grid in with_parameters(blocks, parameters):
        if block.converts:
            found += [] if grid is None else [grid.conversion_numbers(encodes=block.kind == "encode")]
        else:
            found += pack_block(block, tensors, layout, target.dtype)
    return found


def with_parameters(
    blocks: Sequence[BlockConfig], parameters: Sequence[Mapping[str, Float32Array]]
) -> Iterator[tuple[BlockConfig, Mapping[str, Float32Array], Grid | None]]:
    """The blocks of a network with the parameters of those that compute, and what the numbers stand for that others
    write or read in int8: a neighbour's input or output.

    Raises:
        CheckpointError: a neighbour was not calibrated.
    """
    own = iter(parameters)
    tensors = [{} if block.converts else next(own) for block in blocks]
    for i, block in enumerate(blocks):
        grid = None
        if block.converts and block.dtype == INT8.dtype:
            neighbour, end = (i + 1, 0) if block.kind == "encode" else (i - 1, -1)
            grid = block_grids(blocks[neighbour], tensors[neighbour])[end]
        yield block, tensors[i], grid


def fold_operators(
    block: BlockConfig, tensors: Mapping[str, Float32Array], dtype: str = "float32"
) -> list[tuple[Workload, Float32Array, Float32Array]]:
    """Workload, weight and bias of each operator of a block that has weights, in order.

    Raises:
        CheckpointError: a parameter is missing.
    """

    def get(name: str) -> Float32Array:
        if name not in tensors:
            raise CheckpointError(
                f"parameter {name} of block {block.key} is missing; the weights are not of this network"
            )
        return tensors[name]

    def conv_bn(name: str) -> tuple[Float32Array, Float32Array]:
        bn = [get(f"{name}.bn.{part}") for part in ("weight", "bias", "running_mean", "running_var")]
        return fold_batch_norm(get(f"{name}.conv.weight"), *bn)

    if block.kind in ("stem", "head"):
        folded = [conv_bn("conv")]
    elif block.kind == "classifier":
        feature = get("feature.weight")
        no_bias = np.zeros(feature.shape[0], dtype=np.float32)
        folded = [(feature, no_bias), (get("linear.weight"), get("linear.bias"))]
    else:
        folded = [conv_bn("expand")] if block.has_expand else []
        folded.append(conv_bn("depthwise"))
        if block.use_se:
            folded += [(get(f"se.{name}.weight"), get(f"se.{name}.bias")) for name in ("reduce", "expand")]
        folded.append(conv_bn("project"))
    workloads = [workload for workload in block_workloads(block, dtype) if workload.has_weights]
    return [(workload, *parts) for workload, parts in zip(workloads, folded, strict=True)]


def split_tensors(tensors: Mapping[str, Float32Array], blocks: Sequence[BlockConfig]) -> list[dict[str, Float32Array]]:
    """The parameters of each block that computes, `blocks.3.depthwise.conv.weight` becoming `depthwise.conv.weight` of
    the fourth."""
    split: list[dict[str, Float32Array]] = [{} for block in blocks if not block.converts]
    for name, value in tensors.items():
        _, index, rest = name.split(".", 2)
        if int(index) < len(split):
            split[int(index)][rest] = value
    return split
