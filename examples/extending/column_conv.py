"""A family of operators from outside the package: convolutions whose tiles are columns of one row.

`pyproject.toml` beside it gives the operator its name: after `pip install examples/extending`, `chanas tune` tries it
wherever a network has a convolution in channel blocks, and keeps it where it is the fastest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chanas.compiler.cpu.families import family
from chanas.compiler.cpu.schedules import parallelise, split_tiles, unroll, zero_first
from chanas.compiler.cpu.space import max_accumulators
from chanas.compiler.space import Coordinate, ScheduleSpace, Split, loop
from chanas.core.target import HardwareTarget
from chanas.operators.layout import num_blocks
from chanas.operators.workload import Workload


@dataclass(frozen=True, slots=True)
class ColumnPoint:
    """w: columns; n: channel blocks; each outer and inner."""

    w: Split = loop("w")
    n: Split = loop("n")


def space(workload: Workload, target: HardwareTarget) -> ScheduleSpace[ColumnPoint]:
    """Tiles whose sums fit in registers; of a row that four or more columns don't divide, the last one is smaller."""
    limit, blocks = max_accumulators(target), num_blocks(workload.out_channels, target.vector_lanes)
    columns = workload.axes[1].output
    splits = (Coordinate.tiles("w", columns, limit, range(4, limit + 1)), Coordinate.split("n", blocks))
    return ScheduleSpace(workload, splits, ColumnPoint, lambda p: p.w.inner * p.n.inner <= limit)


def expression(_: ColumnPoint) -> Any:
    """What chanas' own block convolutions compute."""
    from chanas.compiler.cpu.operators import blockconv

    return blockconv


def schedule(sch: Any, workload: Workload, point: ColumnPoint, prefix: str, parallel: bool) -> None:
    """for n_o, h, w_o: for k, rh, rw: [w_i, n_i] written out, v a vector."""
    pad, acc, out = (sch.get_sblock(f"{prefix}{name}") for name in ("pad", "acc", "out"))
    n, h, w, v = sch.get_loops(out)
    (n_o, n_i), (w_o, w_i) = sch.split(n, list(point.n)), split_tiles(sch, w, point.w)
    sch.reorder(n_o, h, w_o, w_i, n_i, v)
    sch.compute_at(acc, w_o, preserve_unit_loops=True)
    a_n, a_h, a_w, a_v, k, rh, rw = sch.get_loops(acc)[-7:]
    sch.reorder(k, rh, rw, a_h, a_w, a_n, a_v)
    for lanes in (v, a_v, sch.get_loops(pad)[-1]):
        sch.vectorize(lanes)
    unroll(sch, w_i, n_i, a_w, a_n)
    if parallel:
        parallelise(sch, 2, [n_o, h])
    zero_first(sch, acc, k, 3)


FAMILIES = {("llvm", "float32"): family(space, expression, schedule, computes="blockconv")}
