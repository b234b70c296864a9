"""Conversion of trained weights to those that compiled kernels read, in numpy alone: batch normalisation folded into
the convolution before it, channels grouped into vectors.

Packed forms (l lanes, B = ceil(C_out / l) channel blocks): pointwise float32[B, C_in, l], depthwise float32[B, k·k, l],
convolution float32[B, C_in·k·k, l], bias float32[B, l]; activations float32[B, pixels, l]. Padding is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.core.arch import BlockConfig
from chanas.core.layouts import num_blocks
from chanas.errors import CheckpointError
from chanas.network.bfloat16 import pair_rows, pair_taps
from chanas.operators.grouped import abreast
from chanas.operators.steps import block_workloads
from chanas.operators.transposed import num_taps, taps_of_phase
from chanas.operators.winograd import as_array, transforms
from chanas.operators.workload import Workload, winograd_axis, winograd_plans

Array = npt.NDArray[np.float32]
BN_EPSILON = 1e-5


def pack_channels(values: Array, lanes: int) -> Array:
    """float32[C, ...] -> float32[B, ..., l]."""
    channels = values.shape[0]
    padded = np.zeros((num_blocks(channels, lanes) * lanes, *values.shape[1:]), dtype=np.float32)
    padded[:channels] = values
    grouped = padded.reshape(-1, lanes, *values.shape[1:])
    return np.ascontiguousarray(np.moveaxis(grouped, 1, -1))


def unpack_channels(packed: Array, channels: int) -> Array:
    """Inverse of `pack_channels`: float32[B, ..., l] -> float32[C, ...]."""
    moved = np.moveaxis(packed, -1, 1)
    return np.ascontiguousarray(moved.reshape(-1, *moved.shape[2:])[:channels])


def pack_convolution(workload: Workload, weight: Array, bias: Array, lanes: int) -> list[Array]:
    """Packed weight and bias of a convolution float32[C_out, C_in / groups, k, k] or a dense float32[C_out, C_in]."""
    return [pack_channels(weight.reshape(weight.shape[0], -1), lanes), pack_channels(bias, lanes)]


def fold_batch_norm(weight: Array, gamma: Array, beta: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
    """Weight and bias of the convolution that equals convolution followed by batch normalisation."""
    scale = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + BN_EPSILON)
    folded = weight.astype(np.float64) * scale.reshape(-1, *([1] * (weight.ndim - 1)))
    return folded.astype(np.float32), (beta - mean * scale).astype(np.float32)


def _pack_pointwise_in_pairs(workload: Workload, weight: Array, bias: Array, lanes: int) -> list[Array]:
    """bfloat16 words of two input channels: float32[B, ceil(C_in / 2), l]."""
    packed, packed_bias = pack_convolution(workload, weight, bias, lanes)
    return [pair_rows(packed), packed_bias]


def _pack_depthwise_in_pairs(workload: Workload, weight: Array, bias: Array, lanes: int) -> list[Array]:
    """bfloat16 words of two taps of a row: float32[B, k·ceil(k / 2), l]."""
    packed, packed_bias = pack_convolution(workload, weight, bias, lanes)
    return [pair_taps(packed, weight.shape[-1]), packed_bias]


def _pack_winograd(workload: Workload, weight: Array, bias: Array, lanes: int) -> list[Array]:
    """Transformed weight and bias of a convolution float32[C_out, C_in, kh, kw].

    Returns float32[B, t·C_in·k·s, l], in this order of products, input channels, kernel rows (or columns, k of those
    across the tiles) and phases, and float32[B, l], for B = ceil(C_out / l).
    """
    axis = winograd_axis(workload)
    rows = weight if axis == 1 else weight.swapaxes(2, 3)
    out, channels, k, size = rows.shape
    stride = workload.axes[axis].stride
    plan = transforms(size, stride)
    taps = np.zeros((out, channels, k, plan.taps * stride))
    taps[..., :size] = rows
    phases = taps.reshape(out, channels, k, plan.taps, stride)
    products = np.einsum("tj,ockjs->otcks", as_array(plan.taps_in), phases).astype(np.float32)
    return [pack_channels(np.ascontiguousarray(products).reshape(out, -1), lanes), pack_channels(bias, lanes)]


def _pack_square_tiles(workload: Workload, weight: Array, bias: Array, lanes: int) -> list[Array]:
    """Transformed weight and bias of a convolution float32[C_out, C_in, kh, kw].

    Returns float32[B, t·t·C_in, l], in this order of products (rows, columns) and input channels, and float32[B, l].
    """
    down, along = (as_array(plan.taps_in) for plan in winograd_plans(workload))
    products = np.einsum("ih,jw,ochw->oijc", down, along, weight.astype(np.float64)).astype(np.float32)
    return pack_convolution(workload, products, bias, lanes)


def _pack_transposed(workload: Workload, weight: Array, bias: Array, lanes: int) -> list[Array]:
    """Taps by phase and bias of a transposed convolution float32[C_out, C_in, k, k].

    Returns float32[B, s·s·C_in·t·t, l], in this order of phases (rows, columns), input channels and taps of a phase
    (rows, columns), t = ceil(k / s) each way, and float32[B, l], for B = ceil(C_out / l).
    """
    rows, columns = workload.axes
    whole = [(axis.stride * num_taps(axis)) for axis in (rows, columns)]
    taps = np.zeros((*weight.shape[:2], *whole), np.float32)
    taps[..., : rows.kernel, : columns.kernel] = weight
    by_row, by_column = ([taps_of_phase(a, phase) for phase in range(a.stride)] for a in (rows, columns))
    by_phase = taps[:, :, by_row][..., by_column]  # [C_out, C_in, phase, tap, phase, tap]
    return pack_convolution(workload, by_phase.transpose(0, 2, 4, 1, 3, 5), bias, lanes)


def _pack_grouped(workload: Workload, weight: Array, bias: Array, lanes: int) -> list[Array]:
    """Weight float32[C_out, C_in / groups, kh, kw] in the lanes of groups abreast, and bias.

    Returns float32[B, C_in / groups · kh · kw, l], B vectors of whole sets of groups, and float32[ceil(C_out / l), l].
    """
    shared, groups = abreast(workload, lanes), workload.num_groups
    whole = np.zeros((shared.sets * shared.groups, shared.vectors, shared.outputs, weight[0].size), np.float32)
    whole[:groups] = weight.reshape(groups, *whole.shape[1:])
    in_sets = whole.reshape(shared.sets, shared.groups, *whole.shape[1:])  # [sets, G, vectors, outputs, depth]
    lane_by_lane = in_sets.transpose(0, 2, 4, 3, 1).reshape(-1, weight[0].size, lanes)
    return [np.ascontiguousarray(lane_by_lane), pack_channels(bias, lanes)]


_PACKING = {
    ("groupconv", "float32"): _pack_grouped,
    ("upconv", "float32"): _pack_transposed,
    ("winograd", "float32"): _pack_winograd,
    ("winograd2", "float32"): _pack_square_tiles,
    ("pointwise", "bfloat16"): _pack_pointwise_in_pairs,
    ("depthwise", "bfloat16"): _pack_depthwise_in_pairs,
}
"""Operators in dtypes whose weights are not packed as they are (`pack_convolution`)."""


def pack_operator(workload: Workload, weight: Array, bias: Array, lanes: int) -> list[Array]:
    """Packed weight and bias of an operator as its CPU kernel reads them.

    Those of a bfloat16 conv, which reads the image, stay float32.
    """
    return _PACKING.get((workload.op, workload.dtype), pack_convolution)(workload, weight, bias, lanes)


def pack_block(block: BlockConfig, tensors: Mapping[str, Array], lanes: int, dtype: str = "float32") -> Array:
    """All parameters of a block as the one array float32[n] that its kernel of `dtype` takes, from PyTorch's by name.

    Packed weights and biases follow one another in the order of the block's operators. One array, because a compiled
    network checks each of its arguments at every call, for about 0.1 µs each.

    `tensors` has the names that `chanas.network.static` gives inside one block, such as `depthwise.conv.weight`.

    Raises:
        CheckpointError: a parameter is missing.
    """
    return np.concatenate([part.ravel() for part in pack_operators(block, tensors, lanes, dtype)])


def pack_operators(block: BlockConfig, tensors: Mapping[str, Array], lanes: int, dtype: str = "float32") -> list[Array]:
    """The packed parameters of each operator of a block, in order (`pack_operator`).

    Raises:
        CheckpointError: a parameter is missing.
    """
    folded = fold_operators(block, tensors, dtype)
    return [part for workload, weight, bias in folded for part in pack_operator(workload, weight, bias, lanes)]


def fold_operators(
    block: BlockConfig, tensors: Mapping[str, Array], dtype: str = "float32"
) -> list[tuple[Workload, Array, Array]]:
    """Workload, weight and bias of each operator of a block that has weights, in order.

    Raises:
        CheckpointError: a parameter is missing.
    """

    def get(name: str) -> Array:
        if name not in tensors:
            raise CheckpointError(
                f"parameter {name} of block {block.key} is missing; the weights are not of this network"
            )
        return tensors[name]

    def conv_bn(name: str) -> tuple[Array, Array]:
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


def split_tensors(tensors: Mapping[str, Array], num_network_blocks: int) -> list[dict[str, Array]]:
    """The parameters of each block, `blocks.3.depthwise.conv.weight` becoming `depthwise.conv.weight` of block 3."""
    split: list[dict[str, Array]] = [{} for _ in range(num_network_blocks)]
    for name, value in tensors.items():
        _, index, rest = name.split(".", 2)
        if int(index) < num_network_blocks:
            split[int(index)][rest] = value
    return split


def pack_rows(workload: Workload, weight: Array, bias: Array) -> list[npt.NDArray[Any]]:
    """Weights and bias of an operator as its GPU kernel reads them.

    float32[C_out, C_in / groups, k, k] (or a dense one) -> [k·k, C_in, C_out], depthwise [k·k, C]; bias [C_out].
    Products in float16 have two neighbours of C_in side by side, [k·k, C_in / 2, C_out, 2]; a conv, which reads the
    image, has float32 weights.
    """
    by_channel = weight.reshape(*weight.shape[:2], -1)
    is_depthwise = workload.op == "depthwise"
    by_tap: npt.NDArray[Any] = by_channel[:, 0].T if is_depthwise else by_channel.transpose(2, 1, 0)
    if workload.input_storage == "float16":
        by_tap = by_tap.astype(np.float16)
        if not is_depthwise:
            taps, inp, out = by_tap.shape
            by_tap = by_tap.reshape(taps, inp // 2, 2, out).transpose(0, 1, 3, 2)
    return [np.ascontiguousarray(by_tap), np.ascontiguousarray(bias)]


def pack_block_rows(block: BlockConfig, tensors: Mapping[str, Array], dtype: str = "float32") -> list[npt.NDArray[Any]]:
    """Weights and bias of each operator of a block, in order, as GPU kernels read them (`pack_rows`).

    Raises:
        CheckpointError: a parameter is missing.
    """
    folded = fold_operators(block, tensors, dtype)
    return [part for workload, weight, bias in folded for part in pack_rows(workload, weight, bias)]
