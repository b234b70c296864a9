"""Schedule spaces of the operators that compute in bfloat16, and how a point of them becomes a schedule.

The coordinates mean what they do in `space`; the reduction of a 1×1 convolution counts pairs of channels.
"""

from __future__ import annotations

from typing import Any

from chanas.folding import num_blocks
from chanas.prescheduler.space import Coordinate, Named, ScheduleSpace, factorisations, max_accumulators
from chanas.prescheduler.workload import Workload
from chanas.target import HardwareTarget

# Pairs of channels, and dot products, written out in one loop body.
_MAX_PAIRS = 8
_MAX_WRITTEN_OUT = 224
# A sum depends on the one before it for six cycles; where a map allows no more sums, it is what there is.
_MIN_ACCUMULATORS = 6


def _parallel(target: HardwareTarget) -> tuple[Coordinate, ...]:
    return (Coordinate.choice("fuse", 1, 2),) if target.num_threads > 1 else ()


def pointwise_space(workload: Workload, target: HardwareTarget) -> ScheduleSpace:
    """Tiles of pixels and channel blocks, pairs written out, loop order, and where a gate is applied."""
    lanes, limit = target.vector_lanes, max_accumulators(target)
    pixels, blocks, half = workload.output_size**2, num_blocks(workload.out_channels, lanes), lanes // 2
    k_options = tuple(o for o in factorisations(-(-workload.in_channels // 2), 2, _MAX_PAIRS) if half % o[1] == 0)
    tiles = {
        m * n
        for _, m in factorisations(pixels, 2, limit)
        for _, n in factorisations(blocks, 2, limit)
        if m * n <= limit
    }
    smallest = min(_MIN_ACCUMULATORS, max(tiles))
    coordinates = (
        Coordinate.split("m", pixels, innermost_max=limit),
        Coordinate.split("n", blocks, innermost_max=limit),
        Coordinate("split_k", k_options),
        Coordinate.choice("order", 0, 1),
        *_parallel(target),
        *((Coordinate.choice("scale_at", 0, 1),) if workload.scaled else ()),
    )

    def legal(p: Named) -> bool:
        accumulators = p["split_m"][1] * p["split_n"][1]
        if not smallest <= accumulators <= limit:
            return False
        if accumulators * p["split_k"][1] > max(_MAX_WRITTEN_OUT, accumulators):
            return False
        return not (p["order"][0] and (p["split_m"][0] == 1 or p["split_n"][0] == 1))

    return ScheduleSpace(workload, coordinates, legal)


def depthwise_space(workload: Workload, target: HardwareTarget) -> ScheduleSpace:
    """Tiles of rows and columns, whether a kernel's rows are written out, and for how much of a map zeros are added."""
    limit, size = max_accumulators(target), workload.output_size
    coordinates = (
        Coordinate.split("h", size, innermost_max=limit),
        Coordinate.split("w", size, innermost_max=limit),
        *_parallel(target),
        Coordinate.choice("unroll", 0, 1),
        Coordinate.choice("pad_at", 0, 1),
    )
    return ScheduleSpace(workload, coordinates, lambda p: p["split_h"][1] * p["split_w"][1] <= limit)


def apply_pointwise(sch: Any, workload: Workload, named: Named, prefix: str, parallel: bool) -> None:
    """for n, m, v, k  ->  for n_o, m_o (or m_o, n_o): for k_o: [k_i, m_i, n_i] written out, v a vector."""
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
    if workload.scaled:
        scale = sch.get_sblock(f"{prefix}scale")
        if named["scale_at"][0]:
            sch.compute_at(scale, m_o, preserve_unit_loops=True)
            fusable = 1 if named["order"][0] else 2
        elif parallel:
            sch.parallel(sch.get_loops(scale)[0])
        sch.vectorize(sch.get_loops(scale)[-1])
    if parallel:
        _parallelise(sch, outer[: min(named["fuse"][0], fusable)])
    _zero_first(sch, acc, k_o, 2)


def apply_depthwise(sch: Any, workload: Workload, named: Named, prefix: str, parallel: bool) -> None:
    """for c, h, w, v, rh, rp  ->  for c, h_o, w_o: for rh: [rp, h_i, w_i] written out, v a vector."""
    pad, acc, out = (sch.get_sblock(f"{prefix}{name}") for name in ("pad", "acc", "out"))
    c, h, w, v = sch.get_loops(out)
    h_o, h_i = sch.split(h, list(named["split_h"]))
    w_o, w_i = sch.split(w, list(named["split_w"]))
    sch.reorder(c, h_o, w_o, h_i, w_i, v)
    _written_out(sch, h_i, w_i, v)
    sch.compute_at(acc, w_o, preserve_unit_loops=True)
    a_h, a_w, a_v, rh, rp = sch.get_loops(acc)[-5:]
    sch.reorder(rh, rp, a_h, a_w, a_v)
    _written_out(sch, rp, a_h, a_w, a_v)
    if named["unroll"][0]:
        sch.unroll(rh)
    place = named["pad_at"][0]
    sch.compute_at(pad, (c, h_o)[place], preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(pad)[-1])
    if parallel:
        _parallelise(sch, [c, h_o][: 1 if place == 0 else named["fuse"][0]])
    _zero_first(sch, acc, rh, 2)


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
