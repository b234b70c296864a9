"""Schedules for a target on which nothing was tuned: of each operator's space the point whose tile keeps most sums in
registers, which is what hides the latency of multiply-adds. No more than a start: only measuring finds the best one.
"""

from __future__ import annotations

import math

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Named, Point
from chanas.core.arch import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.operators.steps import device_workloads
from chanas.operators.workload import Workload

_TILED = ("split_m", "split_n", "split_h", "split_w", "split_c")
"""Coordinates whose last factor is a side of the tile."""


def default_points(block: BlockConfig, target: HardwareTarget) -> list[Point]:
    """Choose one point for each operator of a block."""
    points = []
    for workload in device_workloads(block, target):
        space = schedule_space(workload, target)
        points.append(max(space.points, key=lambda point: _rank(space.groups(point))))
    return points


def ranked_points(workload: Workload, target: HardwareTarget, num: int) -> list[Point]:
    """The best-ranked points of an operator, at most `num`, no two of which have the same tile."""
    space = schedule_space(workload, target)
    ranked = sorted(space.points, key=lambda point: _rank(space.groups(point)), reverse=True)
    tiles: dict[tuple[int, ...], Point] = {}
    for point in ranked:
        named = space.groups(point)
        tiles.setdefault(tuple(group[-1] for name, group in named.items() if name in _TILED), point)
    return list(tiles.values())[:num]


def _rank(named: Named) -> tuple[int, int]:
    """Sums in registers; among equals, the longer stretch of the reduction that is written out."""
    tile = math.prod(group[-1] for name, group in named.items() if name in _TILED)
    return tile, named.get("split_k", (1,))[-1]
