"""Shapes of what CPU kernels read and write: activations in channel blocks, and packed parameters, of which each family
has its own.

Notation as in `operators`: l lanes of a vector, B = ceil(C / l) channel blocks. Several images lie one after the other,
so that the first axis of activations is as many times as long.
"""

from __future__ import annotations

import math

from chanas.core.layouts import num_blocks
from chanas.operators.grouped import abreast
from chanas.operators.transposed import num_taps
from chanas.operators.workload import Workload, extra_names, winograd_counts

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]


def input_shape(workload: Workload, lanes: int) -> Shape:
    """Shape of the operator's input activations."""
    if workload.reads_image:
        return (workload.batch * workload.in_channels, workload.input_pixels)
    return (workload.batch * num_blocks(workload.in_channels, lanes), workload.input_pixels, lanes)


def output_shape(workload: Workload, lanes: int) -> tuple[int, int, int]:
    """Shape of the operator's output activations."""
    return (workload.batch * num_blocks(workload.out_channels, lanes), workload.output_pixels, lanes)


def extra_shapes(workload: Workload, lanes: int) -> Shapes:
    """Shapes of gate, shift and residual, those of them that the operator has (`extra_names`), in this order."""
    by_channel = (workload.batch * num_blocks(workload.in_channels, lanes), 1, lanes)
    shapes = {"gate": by_channel, "shift": by_channel, "residual": output_shape(workload, lanes)}
    return tuple(shapes[name] for name in extra_names(workload))


# ---- weights and bias ------------------------------------------------------------------------------------------------
def _weights_and_bias(workload: Workload, lanes: int, depth: int) -> Shapes:
    blocks = num_blocks(workload.out_channels, lanes)
    return ((blocks, depth, lanes), (blocks, lanes))


def no_parameters(workload: Workload, lanes: int) -> Shapes:
    """Nothing: pooling has none."""
    return ()


def convolution_parameters(workload: Workload, lanes: int) -> Shapes:
    """[B, C_in / groups · k · k, l] and [B, l]."""
    return _weights_and_bias(workload, lanes, workload.channels_per_group * workload.kernel_area)


def grouped_parameters(workload: Workload, lanes: int) -> Shapes:
    """[B, C_in / groups · k · k, l] in the lanes of groups abreast, as many vectors as whole sets of them have, and
    [B, l] in the order of channels."""
    shared = abreast(workload, lanes)
    depth = workload.channels_per_group * workload.kernel_area
    return ((shared.sets * shared.vectors, depth, lanes), (num_blocks(workload.out_channels, lanes), lanes))


def paired_pointwise_parameters(workload: Workload, lanes: int) -> Shapes:
    """Two input channels in a word: [B, ceil(C_in / 2), l] and [B, l]."""
    return _weights_and_bias(workload, lanes, -(-workload.in_channels // 2))


def paired_depthwise_parameters(workload: Workload, lanes: int) -> Shapes:
    """Two taps of a row in a word: [B, k · ceil(k / 2), l] and [B, l]."""
    return _weights_and_bias(workload, lanes, workload.kernel_size * -(-workload.kernel_size // 2))


def transposed_parameters(workload: Workload, lanes: int) -> Shapes:
    """[B, phases · C_in · taps of a phase, l] and [B, l]."""
    taps = math.prod(axis.stride * num_taps(axis) for axis in workload.axes)
    return _weights_and_bias(workload, lanes, taps * workload.in_channels)


def winograd_parameters(workload: Workload, lanes: int) -> Shapes:
    """[B, t · C_in · k · s, l] of a tile of t products along the axis of stride s, k the taps across it, or
    [B, t · t · C_in, l] of a tile in both axes; and [B, l]."""
    return _weights_and_bias(workload, lanes, winograd_counts(workload).weights * workload.in_channels)
