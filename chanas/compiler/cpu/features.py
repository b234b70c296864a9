"""Features of a schedule point on a CPU: tile sizes, registers in use, bytes touched by a tile, arithmetic intensity,
the workload's own dimensions, and knobs that a person has added."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chanas.compiler.space import EXTRA_KNOBS, Named, ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.operators.layout import num_blocks

_PIXEL_SPLITS = ("split_m", "split_h", "split_w")
"""Coordinates whose last factor is a side of the tile's pixels."""
_CHOICES = ("order", "reduce", "unroll", "scale_at", "fuse")
_KNOWN = {*_PIXEL_SPLITS, "split_n", "split_c", "split_k", *_CHOICES, "pad_at", *EXTRA_KNOBS}
_NUM_OF_OTHERS = 4
"""Coordinates of a family from elsewhere that count as well, beside the known ones."""


def cpu_features(space: ScheduleSpace[Any], named: Named, target: HardwareTarget) -> list[float]:
    """One point's features, as many for every workload."""
    workload, lanes = space.workload, target.vector_lanes
    axes, kernel_area = workload.axes, workload.kernel_area
    height, width = axes
    depth = workload.channels_per_group
    rows = 1 if workload.takes_mean else math.prod(named[name][-1] for name in _PIXEL_SPLITS if name in named)
    columns = named.get("split_n", named.get("split_c", (1, 1)))[-1]
    accumulators, band = rows * columns, named.get("split_h", ())
    input_rows = rows
    if "split_h" in named:
        input_rows = height.read_by(named["split_h"][-1]) * width.read_by(named["split_w"][-1])
    # Vectors loaded and multiply-adds done by one pass over the reduction of a tile.
    loads = input_rows * (lanes if workload.is_channelwise else 1) + columns * kernel_area * lanes
    weights = columns * lanes * kernel_area
    tile_bytes = depth * (
        workload.input_precision.item_bytes * input_rows + workload.weight_precision.item_bytes * weights
    )
    work = accumulators * kernel_area * lanes
    logs = [
        math.sqrt(workload.input_pixels),
        depth,
        num_blocks(workload.out_channels, lanes),
        workload.output_pixels,
        math.sqrt(kernel_area * height.stride * width.stride),
        accumulators,
        rows,
        columns,
        work / loads,
        tile_bytes / target.l1_bytes,
        tile_bytes / target.l2_bytes,
        named.get("split_k", (1, 1))[-1],
        named.get("split_w", (1, 1))[-1],
        named.get("split_m", (1, 1))[-1],
        math.prod(band[1:]) if len(band) == 3 else 1,  # rows between two paddings of a block convolution
    ]
    # or in matrix registers, which leave sums in memory
    in_vectors = workload.op not in ("pointwise", "blockconv", "conv") or "split_k" in named or "order" not in named
    spill = max(0.0, accumulators - 0.85 * target.num_vector_registers) if in_vectors else 0.0
    starving = max(0.0, 10.0 - accumulators)  # too few independent sums to hide the latency of a multiply-add
    choices = [float(named.get(c, (0,))[0]) for c in _CHOICES]
    places = [float(named.get("pad_at", (-1,))[0] == place) for place in (0, 1, 2)]
    kind = [float(workload.scaled), float(workload.residual)]
    steps, is_explicit = (float(named.get(name, (0,))[0]) for name in EXTRA_KNOBS)
    further = [math.log2(1.0 + steps), is_explicit]
    others = [math.log2(1.0 + group[-1]) for name, group in named.items() if name not in _KNOWN][:_NUM_OF_OTHERS]
    others += [0.0] * (_NUM_OF_OTHERS - len(others))
    logged = np.log2(np.array(logs, dtype=np.float64)).tolist()
    return [*logged, spill / 4, starving / 4, *choices, *places, *kind, *further, *others]
