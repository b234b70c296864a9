"""One schedule for every operation that has no schedule space: loops fused and shared out, the innermost a vector.

A function is what TVM's fusion made of some operations: element-wise expressions, conversions, reductions. What can be
computed where it is used is; of a reduction the sums of a vector of outputs are kept at once. Reductions along rows are
defined that way (`models.definitions`).
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

from chanas.core.target import HardwareTarget

OPAQUE = 8
"""TVM's mark of functions that are fused with nothing (`relay.OpPatternKind.kOpaque`)."""
KEPT = "chanas.kept"
"""Mark of stages that are computed once, before they are used, whatever reads them."""
MIN_PARALLEL = 16384
"""Outputs below which threads cost more than they bring."""

# Characters of an expression without exponentials and the like.
_CHEAP_TEXT = 400
# Sums of a reduction that are computed at once, in registers.
_TILES = (8, 7, 6, 11, 9, 10, 13, 5, 4, 3, 2)
# Longest reduction that is written out.
_MAX_WRITTEN_OUT = 16


def schedule_generic(function: Any, target: HardwareTarget) -> Any:
    """A `tirx.PrimFunc` scheduled for a processor; as it is where its loops are of no known kind."""
    from tvm import s_tir

    sch = s_tir.Schedule(function, error_render_level="none")
    for block in _blocks(sch):
        if _is_movable(sch, block) and _is_used_once_or_cheap(sch, block):
            with contextlib.suppress(Exception):  # TVM's own, as below: it is no loop nest of the usual kind
                sch.compute_inline(block)
    for block in _blocks(sch):
        if _is_movable(sch, block) and not sch.get_consumers(block):
            with contextlib.suppress(Exception):
                sch.reverse_compute_inline(block)
    for block in _blocks(sch):
        kept = sch.copy()
        try:
            _schedule_block(sch, block, target)
        except Exception:
            sch = kept
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)


def _blocks(sch: Any) -> list[Any]:
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def _is_movable(sch: Any, block: Any) -> bool:
    """True of stages that may be computed elsewhere: no sums, and none that are kept."""
    from tvm import tirx

    found = sch.get(block)
    is_sum = any(v.iter_type == tirx.IterVar.CommReduce for v in found.iter_vars)
    return not is_sum and KEPT not in found.annotations


def _is_used_once_or_cheap(sch: Any, block: Any) -> bool:
    """True of what is used at one place, or is no more than a few operations: it may be computed where it is used."""
    num = len(sch.get_consumers(block))
    return num == 1 or (num > 1 and len(str(sch.get(block).body)) < _CHEAP_TEXT)


def _schedule_block(sch: Any, block: Any, target: HardwareTarget) -> None:
    from tvm import tirx

    kinds = [v.iter_type for v in sch.get(block).iter_vars]
    loops = sch.get_loops(block)
    if len(loops) != len(kinds):
        return
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.CommReduce]
    if not spatial or len(spatial) + len(reduced) != len(loops):
        return
    extents = [int(sch.get(loop).extent) for loop in spatial]
    if not reduced:
        _schedule_map(sch, spatial, math.prod(extents), target)
    else:
        _schedule_reduction(sch, block, spatial, reduced, extents, target)


def _schedule_map(sch: Any, loops: list[Any], num: int, target: HardwareTarget) -> None:
    """for a, b, c  ->  parallel for outer: for v in a vector; a long row that ends in a part of a vector is left to the
    compiler, whose vectors need no condition."""
    innermost = int(sch.get(loops[-1]).extent)
    lanes = target.vector_lanes
    if innermost % lanes == 0:
        rest, vector = sch.split(loops[-1], [None, lanes])
        outer = [*loops[:-1], rest]
    elif innermost > 2 * lanes and len(loops) > 1:
        outer, vector = loops[:-1], None
    elif num % lanes == 0 or num > 4 * lanes:
        rest, vector = sch.split(sch.fuse(*loops), [None, lanes])
        outer = [rest]
    else:
        return
    if vector is not None:
        sch.vectorize(vector)
    if target.num_threads > 1 and num >= MIN_PARALLEL:
        fused = sch.fuse(*outer) if len(outer) > 1 else outer[0]
        sch.parallel(fused)


def _schedule_reduction(
    sch: Any, block: Any, spatial: list[Any], reduced: list[Any], extents: list[int], target: HardwareTarget
) -> None:
    """for a, v, k  ->  parallel for a: for k: v as a vector, the start of the sum outside of k."""
    lanes = target.vector_lanes
    num, length = math.prod(extents), math.prod(int(sch.get(loop).extent) for loop in reduced)
    if extents[-1] % lanes:
        return
    rest, vector = sch.split(spatial[-1], [None, lanes])
    outer, tile = [*spatial[:-1], rest], []
    if len(spatial) > 1 and length > _MAX_WRITTEN_OUT:
        size = next((t for t in _TILES if extents[-2] % t == 0), 1)
        rows, inner = sch.split(spatial[-2], [None, size])
        outer, tile = [*spatial[:-2], rows, rest], [inner]
    sch.reorder(*outer, *reduced, *tile, vector)
    sch.vectorize(vector)
    for loop in tile:
        sch.unroll(loop)
    fused = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    if target.num_threads > 1 and num * length >= MIN_PARALLEL:
        sch.parallel(fused)
    if length <= _MAX_WRITTEN_OUT:
        for loop in reduced:
            sch.unroll(loop)
    init = sch.decompose_reduction(block, reduced[0])
    sch.vectorize(sch.get_loops(init)[-1])
    if tile:
        sch.unroll(sch.get_loops(init)[-2])
