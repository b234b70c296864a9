"""Schedule spaces of 1×1 convolutions that compute in bfloat16, and how a point of them becomes a schedule.

The coordinates mean what they do in `space`; the reduction counts pairs of channels, or four channels at once where the
last channel block is half empty. Depthwise convolutions are scheduled as in float32.
"""

from __future__ import annotations

import math
from typing import Any

from chanas.core.layouts import num_blocks
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Workload, ends_in_half_a_block
from chanas.prescheduler.kernels.cpu.space import max_accumulators, parallel_choice, scale_choice
from chanas.prescheduler.workloads.space import Coordinate, Named, ScheduleSpace, factorisations

# Registers that hold neither sums nor the weights of a tile.
_OTHER_REGISTERS = 1
# Pairs of channels, and dot products, written out in one loop body.
_MAX_PAIRS = 8
_MAX_WRITTEN_OUT = 224
# A sum depends on the one before it for six cycles; where a map allows no more sums, it is what there is.
_MIN_ACCUMULATORS = 6


def pointwise_space(workload: Workload, target: HardwareTarget) -> ScheduleSpace:
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
        Coordinate.choice("order", 0, 1),
        *parallel_choice(target, 1, 2),
        *scale_choice(workload),
    )
    tiles = _tiles(coordinates[0], coordinates[1], target)

    def legal(p: Named) -> bool:
        tile = (p["split_m"][1], p["split_n"][1])
        if tile not in tiles or math.prod(tile) * p["split_k"][1] > _MAX_WRITTEN_OUT:
            return False
        return not (p["order"][0] and (p["split_m"][0] == 1 or p["split_n"][0] == 1))

    return ScheduleSpace(workload, coordinates, legal)


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


def _half_block_space(workload: Workload, target: HardwareTarget) -> ScheduleSpace:
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

    def legal(p: Named) -> bool:
        tile = (p["split_m"][1], p["split_n"][1])
        return tile in tiles and math.prod(tile) * 2 * p["split_k"][1] <= _MAX_WRITTEN_OUT

    return ScheduleSpace(workload, coordinates, legal)


def apply_pointwise(sch: Any, workload: Workload, named: Named, prefix: str, parallel: bool) -> None:
    """for n, m, v, k  ->  for n_o, m_o (or m_o, n_o): for k_o: [k_i, m_i, n_i] written out, v a vector."""
    if "order" not in named:
        _apply_half_block(sch, workload, named, prefix, parallel)
        return
    acc, out = sch.get_sblock(f"{prefix}acc"), sch.get_sblock(f"{prefix}out")
    n, m, v = sch.get_loops(out)
    m_o, m_i = sch.split(m, list(named["split_m"]))
    n_o, n_i = sch.split(n, list(named["split_n"]))
    outer = [m_o, n_o] if named["order"][0] else [n_o, m_o]
    sch.reorder(*outer, m_i, n_i, v)
    _written_out(sch, m_i, n_i, v)
    sch.compute_at(acc, outer[1], preserve_unit_loops=True)
    a_n, a_m, a_v, k = sch.get_loops(acc)[-4:]
    k_o, k_i = sch.split(k, list(named["split_k"]))
    sch.reorder(k_o, k_i, a_m, a_n, a_v)
    _written_out(sch, k_i, a_m, a_n, a_v)
    fusable = 2
    if workload.scaled and _apply_scale(sch, named, prefix, m_o, parallel):
        fusable = 1 if named["order"][0] else 2
    if parallel:
        _parallelise(sch, outer[: min(named["fuse"][0], fusable)])
    _zero_first(sch, acc, k_o, 2)


def _apply_scale(sch: Any, named: Named, prefix: str, tile: Any, parallel: bool) -> bool:
    """Multiply weights or input by the gate. Return True if the input is multiplied tile by tile as needed, False if
    everything is multiplied at first."""
    scale, in_tile = sch.get_sblock(f"{prefix}scale"), bool(named.get("scale_at", (0,))[0])
    if in_tile:
        sch.compute_at(scale, tile, preserve_unit_loops=True)
    elif parallel:
        sch.parallel(sch.get_loops(scale)[0])
    sch.vectorize(sch.get_loops(scale)[-1])
    return in_tile


def _apply_half_block(sch: Any, workload: Workload, named: Named, prefix: str, parallel: bool) -> None:
    """for m_o: the full blocks (for n_o: for k_o: [k_i, m_i, n_i] written out, v a vector), then the half one (for q_o:
    [q_i, m_i] written out), then what follows the sums, for n: [m_i] written out."""
    acc, tail, mixed, out = (sch.get_sblock(f"{prefix}{name}") for name in ("acc", "tail", "mixed", "out"))
    n, m, v = sch.get_loops(out)
    m_o, m_i = sch.split(m, list(named["split_m"]))
    sch.reorder(m_o, n, m_i, v)
    _written_out(sch, n, m_i, v)
    sch.compute_at(tail, m_o, preserve_unit_loops=True)
    t_m, t_v, quad = sch.get_loops(tail)[-3:]
    q_o, q_i = sch.split(quad, list(named["split_k"]))
    sch.reorder(q_o, q_i, t_m, t_v)
    _written_out(sch, q_i, t_m, t_v)
    w_o, w_i = sch.split(sch.get_loops(mixed)[-1], [None, 2])
    sch.reorder(w_i, w_o)
    _written_out(sch, w_i, w_o)
    sch.compute_at(acc, m_o, preserve_unit_loops=True)
    a_n, a_m, a_v, k = sch.get_loops(acc)[-4:]
    n_o, n_i = sch.split(a_n, list(named["split_n"]))
    quads, written_out = named["split_k"]
    k_o, k_i = sch.split(k, [quads, 2 * written_out])
    sch.reorder(n_o, k_o, k_i, a_m, n_i, a_v)
    _written_out(sch, k_i, a_m, n_i, a_v)
    if workload.scaled:
        _apply_scale(sch, named, prefix, m_o, parallel)
    if parallel:
        _parallelise(sch, [m_o])
    _zero_first(sch, acc, k_o, 2)
    _zero_first(sch, tail, q_o, 1)


def _written_out(sch: Any, *loops: Any) -> None:
    """The last loop becomes a vector, the others are unrolled."""
    sch.vectorize(loops[-1])
    for loop in loops[:-1]:
        sch.unroll(loop)


def _parallelise(sch: Any, loops: list[Any]) -> None:
    sch.parallel(sch.fuse(*loops) if len(loops) > 1 else loops[0])


def _zero_first(sch: Any, acc: Any, reduce_outer: Any, num_unrolled: int) -> None:
    """Split the zero-initialisation off the reduction, vectorised and written out like the update."""
    init = sch.decompose_reduction(acc, reduce_outer)
    loops = sch.get_loops(init)
    _written_out(sch, *loops[len(loops) - 1 - num_unrolled :])
