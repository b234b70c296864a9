"""Schedules for operators that were not tuned: what is known of the same operator elsewhere, of similar ones here, and
what promises most of all points. Each is an idea that nobody has tried on the operator.

A point of one space stands for points of another (`points_of`): where the two agree, which they do for uses of a
processor that differ in threads alone, for those that say the same; elsewhere (other vectors, registers, dtypes, sizes)
for the legal ones that are most like it (Transfer-Tuning: Gibson and Cano, 2022; Verma et al., 2024, section 4.4).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Coordinate, Named, Point, ScheduleSpace
from chanas.core.arrays import FloatArray, IntArray
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.operators.steps import device_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord

# Schedules that an operator is given, from so many similar ones: where the first does not work, the next may.
_NUM_TAKEN = 3
# Coordinates that only some uses of a device have: a point without one stands for all of its values.
_FREE = frozenset({"fuse"})
# Coordinates that split a loop over vectors of channels, and all whose last factor is a side of the tile.
_VECTORS = ("split_n", "split_c")
_TILED = ("split_m", "split_n", "split_h", "split_w", "split_c")
# Sums of logarithms this close are equal.
_DECIMALS = 9


@dataclass(frozen=True)
class Idea:
    """A schedule that was not tried on an operator.

    source     workload that it was found for
    seconds    those of the source, in proportion to the operations: a guess
    device     where it was found, as records call devices; empty: here
    """

    source: Workload
    point: Point
    seconds: float
    device: str = ""

    @property
    def origin(self) -> str:
        """The source's key, and the device if it is another one: `pointwise-… on 7fde38404424/2t/…`."""
        return f"{self.source.key} on {self.device}" if self.device else self.source.key

    def to_json(self) -> dict[str, str]:
        """The entry of a table's header: the source's key, and the device if it is another one."""
        return {"source": self.source.key} | ({"device": self.device} if self.device else {})


def ideas(
    workload: Workload,
    target: HardwareTarget,
    here: Mapping[Workload, Sequence[TuningRecord]],
    elsewhere: Iterable[Idea] = (),
) -> Iterator[Idea]:
    """Schedules for a workload, the most trusted first: its own best one, those of the same operator `elsewhere`, and
    distinct ones of the most similar workloads of its family, the most similar first.

    `here` has the valid records of each workload that was tuned, best first.
    """
    for record in list(here.get(workload, ()))[:1]:
        yield _idea(workload, record.point, workload, record)
    yield from elsewhere
    space = schedule_space(workload, target)
    found: set[Point] = set()
    for source in by_likeness(workload, (w for w in here if w != workload and here[w])):
        best = here[source][0]
        (point,) = nearest_points([schedule_space(source, target).groups(best.point)], space)
        if point not in found:
            yield _idea(workload, point, source, best)
        found.add(point)
        if len(found) == _NUM_TAKEN:
            return


def _idea(workload: Workload, point: Point, source: Workload, record: TuningRecord) -> Idea:
    return Idea(source, point, record.last_s * workload.num_flops / source.num_flops)


def by_likeness(workload: Workload, others: Iterable[Workload]) -> list[Workload]:
    """Those of its family and dtype, the most similar first."""
    mine = description(workload)
    alike = [w for w in others if (w.op, w.dtype) == (workload.op, workload.dtype)]
    return sorted(alike, key=lambda w: (float(np.abs(description(w) - mine).sum()), w.key))


def description(workload: Workload) -> FloatArray:
    """float64[8]: what makes two workloads of a family alike, each unit about as much as a factor of 2 in a size."""
    sizes = [workload.input_size, workload.in_channels, workload.out_channels]
    shape = [1.5 * math.log2(workload.kernel_size), 1.5 * math.log2(workload.stride)]
    kind = [0.25 * (workload.epilogue == "none"), 0.5 * workload.residual, 0.5 * workload.scaled]
    return np.array([*(math.log2(s) for s in sizes), *shape, *kind])


# ---- of all points ---------------------------------------------------------------------------------------------------
def ranked_points(workload: Workload, target: HardwareTarget, num: int) -> list[Point]:
    """The best-ranked points of an operator, at most `num`, no two of which have the same tile.

    First is what keeps most sums in registers, which hides the latency of multiply-adds. No more than a start: only
    measuring finds the best one.
    """
    space = schedule_space(workload, target)
    tiles: dict[tuple[int, ...], Point] = {}
    for point in sorted(space.points, key=lambda point: _rank(space.groups(point)), reverse=True):
        tiles.setdefault(tuple(_tile(space.groups(point))), point)
    return list(tiles.values())[:num]


def default_points(block: BlockConfig, target: HardwareTarget) -> list[Point]:
    """The best-ranked point of each operator of a block."""
    spaces = [schedule_space(workload, target) for workload in device_workloads(block, target)]
    return [max(space.points, key=lambda point: _rank(space.groups(point))) for space in spaces]


def _tile(named: Named) -> list[int]:
    return [group[-1] for name, group in named.items() if name in _TILED]


def _rank(named: Named) -> tuple[int, int]:
    """Sums in registers; among equals, the longer stretch of the reduction that is written out."""
    return math.prod(_tile(named)), named.get("split_k", (1,))[-1]


# ---- points of one space in another ----------------------------------------------------------------------------------
def points_of(
    points: Sequence[Point], whence: ScheduleSpace[Any], space: ScheduleSpace[Any], ratio: float
) -> list[tuple[Point, ...]]:
    """For each point of the space `whence` those of `space` that it stands for: none or several that say the same where
    the spaces agree, else the one or two that are most like it.

    ratio  values in a vector of `whence` for each of `space`
    """
    if agree(whence, space):
        return [tuple(_same_points(whence.groups(point), space)) for point in points]
    named = [whence.groups(point) for point in points]
    found = nearest_points([*(_in_values(n, ratio) for n in named), *named], space)
    return [tuple(dict.fromkeys(pair)) for pair in zip(found[: len(named)], found[len(named) :], strict=True)]


def agree(a: ScheduleSpace[Any], b: ScheduleSpace[Any]) -> bool:
    """True if all points of space `a` are such of `b`: both have the same coordinates, but for those that may be left
    out, with the same factors of splits, and `b` has all choices of `a`."""

    def fixed(space: ScheduleSpace[Any]) -> dict[str, Coordinate]:
        return {c.name: c for c in space.coordinates if c.name not in _FREE}

    mine, theirs = fixed(a), fixed(b)
    return mine.keys() == theirs.keys() and all(
        set(c.options) <= set(theirs[name].options) if c.extent is None else c.options == theirs[name].options
        for name, c in mine.items()
    )


def _same_points(named: Named, space: ScheduleSpace[Any]) -> Iterator[Point]:
    """Legal points that agree with `named` wherever both have a coordinate.

    {split_m: (7, 7), …} → {split_m: (7, 7), …, fuse: 1} and {split_m: (7, 7), …, fuse: 2}
    """
    options = [(named[c.name],) if c.name in named else c.options for c in space.coordinates]
    for groups in itertools.product(*options):
        point = tuple(itertools.chain.from_iterable(groups))
        if space.contains(point):
            yield point


def _in_values(named: Named, ratio: float) -> Named:
    """The same where a vector has `ratio` times as many values: tiles of that many more vectors."""
    return {
        name: (*group[:-1], max(1, round(group[-1] * ratio))) if name in _VECTORS else group
        for name, group in named.items()
    }


def nearest_points(wanted: Sequence[Named], space: ScheduleSpace[Any]) -> list[Point]:
    """The legal points that are most like those of another space, in one pass: in the logarithms of all factors of a
    split but its outermost, which follows from the loop's extent, and in every choice.

    {split_m: (7, 7), split_n: (2, 8), unroll: 1} with 16 channels → {split_m: (7, 7), split_n: (3, 8), unroll: 1} of 24

    Of a space that is too large to be listed, points that say the very same, and some that are drawn.
    """
    if space.is_listed:
        legal = space.points
    else:
        same = {space.encode({c.name: named.get(c.name, c.options[0]) for c in space.coordinates}) for named in wanted}
        legal = (*sorted(filter(space.contains, same)), *space.shuffled(np.random.default_rng(0)))
    points = np.array(legal, dtype=np.int64)
    logs = np.log2(np.maximum(points, 1))
    return [legal[int(np.argmin(_costs(named, space, points, logs)))] for named in wanted]


def _costs(named: Named, space: ScheduleSpace[Any], points: IntArray, logs: FloatArray) -> FloatArray:
    """float64[P]: how unlike each point is; int64[P, C] and float64[P, C], its integers and their logarithms."""
    costs, start = np.zeros(len(points)), 0
    for coordinate in space.coordinates:
        group = named.get(coordinate.name, ())
        if len(group) == coordinate.width == 1:
            costs += points[:, start] != group[0]
        elif len(group) == coordinate.width:
            inner = slice(start + 1, start + coordinate.width)
            costs += np.abs(logs[:, inner] - np.log2(group[1:])).sum(axis=1)
        start += coordinate.width
    return np.round(costs, _DECIMALS)
