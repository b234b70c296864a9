"""New schedule points from good ones: the choice of a start, mutation, and crossover (paper, section 3.5 and figure
9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.compiler.space import Named, Point, ScheduleSpace
from chanas.core.arrays import FloatArray

# Attempts for each child that is asked for, before fewer children are returned (small spaces run dry).
_ATTEMPTS_PER_CHILD = 8


def start_probabilities(seconds: FloatArray, gamma: float) -> FloatArray:
    """float64[N]: exp(−γ (E* − E_p) / E*), normalised, with the performance E = 1 / seconds (paper, section 3.5)."""
    performance = 1.0 / seconds
    best = performance.max()
    weights = np.exp(-gamma * (best - performance) / best)
    probabilities: FloatArray = weights / weights.sum()
    return probabilities


def mutate(space: ScheduleSpace[Any], parent: Named, rng: np.random.Generator) -> Point | None:
    """Redraw one coordinate among its options; a split keeps dividing its loop. None if the result is illegal."""
    named = dict(parent)
    movable = [c for c in space.coordinates if len(c.options) > 1]
    if not movable:
        return None
    coordinate = movable[rng.integers(len(movable))]
    named[coordinate.name] = coordinate.options[rng.integers(len(coordinate.options))]
    return space.encode(named) if space.legal(named) else None


def cross(space: ScheduleSpace[Any], first: Named, second: Named, rng: np.random.Generator) -> Point | None:
    """Each coordinate from either parent. None when the result is illegal."""
    named = {name: (first if rng.random() < 0.5 else second)[name] for name in first}
    return space.encode(named) if space.legal(named) else None


def breed(
    space: ScheduleSpace[Any],
    points: Sequence[Point],
    seconds: FloatArray,
    num: int,
    rng: np.random.Generator,
    gamma: float = 8.0,
    crossover_share: float = 0.3,
    exclude: frozenset[Point] = frozenset(),
) -> list[Point]:
    """Up to `num` distinct new points from measured ones, none of them in `exclude`."""
    parents = [space.groups(p) for p in points]
    shares = np.cumsum(start_probabilities(seconds, gamma))
    shares /= shares[-1]

    def draw() -> Named:
        return parents[shares.searchsorted(rng.random(), side="right")]

    children: dict[Point, None] = {}
    for _ in range(num * _ATTEMPTS_PER_CHILD):
        if len(children) >= num:
            break
        start = draw()
        child = cross(space, start, draw(), rng) if rng.random() < crossover_share else mutate(space, start, rng)
        if child is not None and child not in exclude:
            children[child] = None
    return list(children)
