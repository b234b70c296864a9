"""Schedule spaces of 1×1 convolutions that compute in bfloat16, and how a point of them becomes a schedule.

The coordinates mean what they do in `space`; the reduction counts pairs of channels, or four channels at once where the
last channel block is half empty. Depthwise convolutions are scheduled as in float32.
"""

from __future__ import annotations

import math
from typing import Any

from chanas.compiler.cpu import schedules
from chanas.compiler.cpu.points import HalfBlockPoint, LoopOrder, PointwisePoint
from chanas.compiler.cpu.space import max_accumulators, parallel_choice, scale_choice
from chanas.compiler.space import Coordinate, ScheduleSpace, factorisations
from chanas.core.layouts import num_blocks
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Workload, ends_in_half_a_block

# Registers that hold neither sums nor the weights of a tile.
_OTHER_REGISTERS = 1
# Pairs of channels, and dot products, written out in one loop body.
_MAX_PAIRS = 8
_MAX_WRITTEN_OUT = 224
# A sum depends on the one before it for six cycles; where a map allows no more sums, it is what there is.
_MIN_ACCUMULATORS = 6


def pointwise_space(
    workload: Workload, target: HardwareTarget
) -> ScheduleSpace[PointwisePoint] | ScheduleSpace[HalfBlockPoint]:
    """Tiles of pixels and channel blocks, pairs written out, loop order, and where a gate is applied."""
    lanes, limit = target.vector_lanes, max_accumulators(target)
    if ends_in_half_a_block(workload, lanes):
        return _half_block_space(workload, target)
    pixels, blocks, half = workload.output_size**2, num_blocks(workload.out_channels, lanes), lanes // 2
    k_options = tuple(o for o in factorisations(-(-workload.in_channels // 2), 2, _MAX_PAIRS) if half % o[1] == 0)
    coordinates = (
        Coordinate.split("m", pixels, innermost_max=limit),
        Coordinate.split("n", blocks, innermost_max=limit),
        Coordinate("split_k", k_options),
        Coordinate.choice("order", *LoopOrder),
        *parallel_choice(target, 1, 2),
        *scale_choice(workload),
    )
    tiles = _tiles(coordinates[0], coordinates[1], target)

    def legal(p: PointwisePoint) -> bool:
        tile = (p.m.inner, p.n.inner)
        if tile not in tiles or math.prod(tile) * p.k.inner > _MAX_WRITTEN_OUT:
            return False
        return p.order is LoopOrder.CHANNELS_OUTSIDE or (p.m.outer > 1 and p.n.outer > 1)

    return ScheduleSpace(workload, coordinates, PointwisePoint, legal)


def _tiles(pixels: Coordinate, blocks: Coordinate, target: HardwareTarget) -> frozenset[tuple[int, int]]:
    """Tiles of pixels times channel blocks whose sums and weights fit in registers: all of them for a map of one pixel.

    Else, where there are such, those of at least two pixels and two blocks (what is loaded is used twice: with one
    block a kernel reaches three quarters of the peak, with one pixel half) and enough sums to hide a dot product's
    latency.
    """
    registers = target.num_vector_registers - _OTHER_REGISTERS
    fitting = {(m[-1], n[-1]) for m in pixels.options for n in blocks.options if (m[-1] + 1) * n[-1] <= registers}
    if fitting and max(m for m, _ in fitting) == 1:
        return frozenset(fitting)
    square = {(m, n) for m, n in fitting if m > 1 and n > 1} or fitting
    smallest = min(_MIN_ACCUMULATORS, max(m * n for m, n in square))
    return frozenset((m, n) for m, n in square if m * n >= smallest)


def _half_block_space(workload: Workload, target: HardwareTarget) -> ScheduleSpace[HalfBlockPoint]:
    """Tiles of pixels times all channel blocks; those of the full blocks are cut further."""
    lanes, limit = target.vector_lanes, max_accumulators(target)
    options = factorisations(workload.in_channels // 4, 2, _MAX_PAIRS // 2)
    coordinates = (
        Coordinate.split("m", workload.output_size**2, innermost_max=limit),
        Coordinate.split("n", num_blocks(workload.out_channels, lanes) - 1, innermost_max=limit),
        Coordinate("split_k", tuple(o for o in options if lanes // 4 % o[1] == 0)),
        *parallel_choice(target, 1),
        *scale_choice(workload),
    )
    tiles = _tiles(coordinates[0], coordinates[1], target)

    def legal(p: HalfBlockPoint) -> bool:
        tile = (p.m.inner, p.n.inner)
        return tile in tiles and math.prod(tile) * 2 * p.k.inner <= _MAX_WRITTEN_OUT

    return ScheduleSpace(workload, coordinates, HalfBlockPoint, legal)


def pointwise(
    sch: Any, workload: Workload, point: PointwisePoint | HalfBlockPoint, prefix: str, parallel: bool
) -> None:
    """Schedule as in float32, but for the half block."""
    if isinstance(point, HalfBlockPoint):
        _half_block_pointwise(sch, workload, point, prefix, parallel)
    else:
        schedules.pointwise(sch, workload, point, prefix, parallel)


def _half_block_pointwise(sch: Any, workload: Workload, point: HalfBlockPoint, prefix: str, parallel: bool) -> None:
    """for m_o: the full blocks (for n_o: for k_o: [k_i, m_i, n_i] written out, v a vector), then the half one (for q_o:
    [q_i, m_i] written out), then what follows the sums, for n: [m_i] written out."""
    acc, tail, mixed, out = (sch.get_sblock(f"{prefix}{name}") for name in ("acc", "tail", "mixed", "out"))
    n, m, v = sch.get_loops(out)
    m_o, m_i = sch.split(m, list(point.m))
    sch.reorder(m_o, n, m_i, v)
    _written_out(sch, n, m_i, v)
    sch.compute_at(tail, m_o, preserve_unit_loops=True)
    t_m, t_v, quad = sch.get_loops(tail)[-3:]
    q_o, q_i = sch.split(quad, list(point.k))
    sch.reorder(q_o, q_i, t_m, t_v)
    _written_out(sch, q_i, t_m, t_v)
    w_o, w_i = sch.split(sch.get_loops(mixed)[-1], [None, 2])
    sch.reorder(w_i, w_o)
    _written_out(sch, w_i, w_o)
    sch.compute_at(acc, m_o, preserve_unit_loops=True)
    a_n, a_m, a_v, k = sch.get_loops(acc)[-4:]
    n_o, n_i = sch.split(a_n, list(point.n))
    quads, written_out = point.k
    k_o, k_i = sch.split(k, [quads, 2 * written_out])
    sch.reorder(n_o, k_o, k_i, a_m, n_i, a_v)
    _written_out(sch, k_i, a_m, n_i, a_v)
    if workload.scaled:
        schedules.apply_scale(sch, workload, prefix, m_o if point.scales_tiles else None, parallel)
    if parallel:
        schedules.parallelise(sch, 1, [m_o])
    schedules.zero_first(sch, acc, k_o, 2)
    schedules.zero_first(sch, tail, q_o, 1)


def _written_out(sch: Any, *loops: Any) -> None:
    """The last loop becomes a vector, the others are unrolled."""
    sch.vectorize(loops[-1])
    for loop in loops[:-1]:
        sch.unroll(loop)
