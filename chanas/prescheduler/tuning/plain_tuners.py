"""Tuners without a cost model: at random, over a grid, one point after the other, and by a genetic algorithm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.statistics import expected_improvement
from chanas.errors import ConfigError
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.mutate import breed
from chanas.prescheduler.tuning.tuner import PriorUse

# Draws in a row that bring nothing new before a space counts as used up.
_MAX_DRY_DRAWS = 64


class Tried:
    """Points that were asked for or have records: the part that tuners without a cost model have in common."""

    def __init__(self, space: ScheduleSpace[Any], kept: Sequence[TuningRecord], seed: int) -> None:
        self.space, self.rng = space, np.random.default_rng(seed)
        self.prior: PriorUse | None = None
        self.records: dict[Point, TuningRecord] = {}
        self.asked: set[Point] = set()
        self.tell([r for r in kept if space.contains(r.point)])

    def tell(self, records: Sequence[TuningRecord]) -> None:
        """Take in measured points, failures included."""
        self.records.update({r.point: r for r in records})
        self.asked |= {r.point for r in records}

    def new(self, num: int, points: Iterator[Point]) -> list[Point]:
        """The next `num` of some points that were never asked for; fewer where these end."""
        found: list[Point] = []
        for point in points if num > 0 else ():
            if point not in self.asked:
                self.asked.add(point)
                found.append(point)
                if len(found) == num:
                    break
        return found

    def drawn(self) -> Iterator[Point]:
        """Points at random, for as long as new ones come."""
        dry = 0
        while dry < _MAX_DRY_DRAWS and len(self.asked) < self.space.num_points:
            before = len(self.asked)
            yield from self.space.shuffled(self.rng)
            dry = 0 if len(self.asked) > before else dry + 1

    def promise(self, rival_s: float = math.inf) -> float:
        """The improvement that one more point promises if all points are as those that were tried: log seconds of a
        normal distribution."""
        logs = np.log([r.seconds for r in self.records.values() if r.seconds is not None])
        if len(self.records) >= self.space.num_points:
            return 0.0
        if not len(logs):
            return math.inf if math.isinf(rival_s) else 0.0
        best, spread = min(float(logs.min()), math.log(rival_s)), np.array([max(float(logs.std()), 1e-9)])
        return float(expected_improvement(best, np.array([logs.mean()]), spread)[0])


class RandomTuner(Tried):
    """Points at random: the baseline of all others."""

    def __init__(self, space: ScheduleSpace[Any], kept: Sequence[TuningRecord], seed: int) -> None:
        super().__init__(space, kept, seed)
        self._points = self.drawn()

    def ask(self, num: int) -> list[Point]:
        """The next points at random."""
        return self.new(num, self._points)


class ExhaustiveTuner(Tried):
    """All points in the space's order, the last coordinate fastest (AutoTVM's grid search).

    Raises:
        ConfigError: the space is too large to be listed.
    """

    def __init__(self, space: ScheduleSpace[Any], kept: Sequence[TuningRecord], seed: int) -> None:
        if not space.is_listed:
            raise ConfigError(f"the space of {space.workload.key} is too large for tuner exhaustive; use grid")
        super().__init__(space, kept, seed)
        self._points = iter(space.points)

    def ask(self, num: int) -> list[Point]:
        """The next points in order."""
        return self.new(num, self._points)

    def promise(self, rival_s: float = math.inf) -> float:
        """Infinite while points are left: it stops early nowhere."""
        return math.inf if len(self.records) < self.space.num_points else 0.0


class GridTuner(Tried):
    """Points that lie evenly in all coordinates, ever closer: a Halton sequence over the options of each."""

    def __init__(self, space: ScheduleSpace[Any], kept: Sequence[TuningRecord], seed: int) -> None:
        super().__init__(space, kept, seed)
        self._points = itertools.chain(self._spread(), self.drawn())

    def ask(self, num: int) -> list[Point]:
        """The next points of the grid; what it does not reach comes at random in the end."""
        return self.new(num, self._points)

    def _spread(self) -> Iterator[Point]:
        from scipy.stats import qmc

        sizes = np.array([len(c.options) for c in self.space.coordinates])
        sequence, dry = qmc.Halton(len(sizes), scramble=False), 0
        while dry < _MAX_DRY_DRAWS and len(self.asked) < self.space.num_points:
            before = len(self.asked)
            for place in (sequence.random(64) * sizes).astype(int):
                groups = {c.name: c.options[i] for c, i in zip(self.space.coordinates, place, strict=True)}
                if self.space.legal(groups):
                    yield self.space.encode(groups)
            dry = 0 if len(self.asked) > before else dry + 1


class GeneticTuner(Tried):
    """A genetic algorithm: children of the fastest points so far, mutated and crossed, after a first generation at
    random."""

    population = 24
    """Points that children come from: the fastest, whenever they were tried."""
    crossover_share = 0.6
    """Children that have two parents."""
    gamma = 2.0
    """γ of the probability exp(−γ (E* − E_p) / E*) that a point becomes a parent."""

    def __init__(self, space: ScheduleSpace[Any], kept: Sequence[TuningRecord], seed: int) -> None:
        super().__init__(space, kept, seed)
        self._points = self.drawn()

    def ask(self, num: int) -> list[Point]:
        """Children, and points at random where there are no others."""
        num = max(0, num)
        valid = sorted((r for r in self.records.values() if r.seconds is not None), key=lambda r: r.seconds or 0.0)
        if len(self.asked) < self.population or not valid:
            return self.new(num, self._points)
        parents = valid[: self.population]
        seconds = np.array([r.seconds for r in parents])
        children = breed(
            self.space,
            [r.point for r in parents],
            seconds,
            num,
            self.rng,
            self.gamma,
            self.crossover_share,
            frozenset(self.asked),
        )
        found = self.new(num, iter(children))
        return found + self.new(num - len(found), self._points)
