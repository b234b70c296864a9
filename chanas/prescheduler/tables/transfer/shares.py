"""Operators of blocks, and what share of a block's time each of them has on the device of a table.

A table knows seconds of blocks alone. They are taken apart by a regression:
    seconds of a block = Σ_operators c_f · (FLOPs, bytes read, bytes written, bytes of weights, 1),   c_f ≥ 0,
with five coefficients for each family f of operators, fitted to the relative error of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chanas.core.arrays import FloatArray, IntArray
from chanas.core.blocks import BlockConfig
from chanas.core.statistics import relative_fit
from chanas.operators.steps import block_workloads
from chanas.operators.workload import Workload

_FAMILIES = ("conv", "pointwise", "dense", "depthwise", "pool")
_NUM_COSTS = 5
_ITEM_BYTES = 4


@dataclass(frozen=True)
class Parts:
    """N blocks taken apart into O distinct operators.

    operators    the O workloads, in float32 whatever the table's dtype
    families     int64[O]     family of each
    of_operator  float64[N, O]  share of a block's time that an operator has; rows sum to one
    of_cost      float64[N, 25]  the same by family and kind of cost
    seconds      float64[N]   by the regression
    """

    operators: tuple[Workload, ...]
    families: IntArray
    of_operator: FloatArray
    of_cost: FloatArray
    seconds: FloatArray


def family(workload: Workload) -> int:
    """Index of its family: a 1×1 convolution of one pixel is a dense layer, bound by its weights."""
    is_dense = workload.op == "pointwise" and workload.output_pixels == 1
    return _FAMILIES.index("dense" if is_dense else workload.op)


def costs(workload: Workload) -> FloatArray:
    """float64[5]: see the top of this file; bytes of float32."""
    read, written = workload.input_pixels * workload.in_channels, workload.output_pixels * workload.out_channels
    return np.array(
        [workload.num_flops, _ITEM_BYTES * read, _ITEM_BYTES * written, workload.weight_bytes, 1.0], dtype=np.float64
    )


def take_apart(blocks: Sequence[BlockConfig], seconds: Mapping[str, float]) -> Parts:
    """Blocks in shares of their time, by the `seconds` that some or all of them take, by `BlockConfig.key`."""
    steps = [block_workloads(block) for block in blocks]
    operators = tuple(dict.fromkeys(w for group in steps for w in group))
    place = {workload: i for i, workload in enumerate(operators)}
    each = np.array([costs(w) for w in operators])
    families = np.array([family(w) for w in operators])
    counts = np.zeros((len(blocks), len(operators)))
    for row, group in zip(counts, steps, strict=True):
        for workload in group:
            row[place[workload]] += 1.0

    columns = np.zeros((len(operators), len(_FAMILIES), _NUM_COSTS))
    columns[np.arange(len(operators)), families] = each
    design = counts @ columns.reshape(len(operators), -1)
    known = np.array([block.key in seconds for block in blocks])
    coefficients = _regress(design[known], np.array([seconds[b.key] for b in blocks if b.key in seconds]))

    by_cost = design * coefficients
    by_operator = counts * (columns.reshape(len(operators), -1) @ coefficients)
    total = by_cost.sum(axis=1)
    return Parts(operators, families, by_operator / total[:, None], by_cost / total[:, None], total)


def _regress(design: FloatArray, seconds: FloatArray) -> FloatArray:
    """float64[25] coefficients, each a little above zero, so that each operator has a share."""
    size = (design / seconds[:, None]).max(axis=0)
    size[size == 0.0] = design.max() / seconds.mean()
    out: FloatArray = np.maximum(relative_fit(design, seconds), 1e-6 / size)
    return out
