"""Schedules of predicted rows that nobody ever ran: where one turns out not to work, another takes its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.arch import BlockConfig
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget
from chanas.measuring.fleet import Pool
from chanas.operators.steps import device_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.ideas import ranked_points
from chanas.prescheduler.tuning.preflight import try_points

# Schedules that are tried in place of one that does not work.
_NUM_OTHERS = 4


def replace_failing(
    lut: LatencyLUT, blocks: Sequence[BlockConfig], target: HardwareTarget, pool: Pool, scratch: Path
) -> bool:
    """Run every operator of those of the blocks that were predicted once, and compare it with PyTorch; where one does
    not work, rows of the table that were predicted get a schedule that does. True if any did.

    What the table says of seconds stays.

    Raises:
        ChanasError: the disk is full.
    """
    points: dict[Workload, list[Point]] = {}
    for block in dict.fromkeys(lut.predicted(blocks)):
        for workload, (_, point) in zip(device_workloads(block, target), lut.rows[block.key].schedules, strict=False):
            known = points.setdefault(workload, [])
            known += [point] if point not in known else []
    of_space = {w: schedule_space(w, target) for w in points}
    tried = {w: _legal([*some, *ranked_points(w, target, _NUM_OTHERS)], of_space[w]) for w, some in points.items()}
    working, _ = try_points(tried, target, pool, scratch)
    replaced = {w.key: point for w, point in working.items() if point != points[w][0]}  # the first did not work
    for key, row in lut.rows.items():
        if row.predicted_error is None or replaced.keys().isdisjoint(key for key, _ in row.schedules):
            continue
        schedules = tuple((key, replaced.get(key, point)) for key, point in row.schedules)
        lut.rows[key] = dataclasses.replace(row, schedules=schedules)
    return bool(replaced)


def _legal(points: Sequence[Point], space: ScheduleSpace[object]) -> list[Point]:
    """Those of some points that are in a space, each once."""
    return [p for p in dict.fromkeys(points) if space.contains(p)]
