"""Points of one space in another: the legal one that is most like it, where no point means the same.

Another size, vectors of another width or another dtype change the options of a space's coordinates. A point's tile,
order and unrolling have a nearest counterpart all the same (Transfer-Tuning: Gibson and Cano, 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.compiler.space import Named, Point, ScheduleSpace

# Coordinates that split a loop over vectors of channels.
_VECTORS = ("split_n", "split_c")
# Sums of logarithms this close are equal.
_DECIMALS = 9


def nearest_point(named: Named, space: ScheduleSpace[Any]) -> Point:
    """The legal point that is most like one of another space: in the logarithms of all factors of a split but its
    outermost, which follows from the loop's extent, and in every choice.

    {split_m: (7, 7), split_n: (2, 8), unroll: 1} with 16 channels → {split_m: (7, 7), split_n: (3, 8), unroll: 1} of 24
    """
    return nearest_points([named], space)[0]


def nearest_points(wanted: Sequence[Named], space: ScheduleSpace[Any]) -> list[Point]:
    """`nearest_point` of each, in one pass over the space."""
    points = np.array(space.points, dtype=np.int64)
    logs = np.log2(np.maximum(points, 1))
    return [space.points[int(np.argmin(_costs(named, space, points, logs)))] for named in wanted]


def _costs(
    named: Named, space: ScheduleSpace[Any], points: npt.NDArray[np.int64], logs: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
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


def mapped_points(
    points: Sequence[Point], whence: ScheduleSpace[Any], space: ScheduleSpace[Any], ratio: float
) -> list[tuple[Point, ...]]:
    """For each point of the space `whence` those of `space` that are most like it: with as many values in a tile, then,
    where that is another one, with as many vectors.

    ratio  values in a vector of `whence` for each of `space`
    """
    named = [whence.groups(point) for point in points]
    found = nearest_points([*(_in_values(n, ratio) for n in named), *named], space)
    return [tuple(dict.fromkeys(pair)) for pair in zip(found[: len(named)], found[len(named) :], strict=True)]


def _in_values(named: Named, ratio: float) -> Named:
    """The same where a vector has `ratio` times as many values: tiles of that many more vectors."""
    return {
        name: (*group[:-1], max(1, round(group[-1] * ratio))) if name in _VECTORS else group
        for name, group in named.items()
    }
