"""The contract of tuners."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chanas.compiler.space import Point, ScheduleSpace
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.tuner import Trials, Tuner
from chanas.testing.spaces import LARGE, SMALL, failure, sample, smooth


def explore(
    tuner: Tuner | Trials,
    measure: Callable[[Point], TuningRecord] = smooth,
    num: int = 4,
    num_trials: float = math.inf,
) -> list[Point]:
    """Points that a tuner asks for, in order, `num` at a time, until it has no more or there were so many."""
    asked: list[Point] = []
    while len(asked) < num_trials and (batch := tuner.ask(int(min(num, num_trials - len(asked))))):
        asked += batch
        tuner.tell([measure(point) for point in batch])
    return asked


class TunerContract:
    """Tests that every `Tuner` passes. Inherit it, and make the tuner."""

    def tuner(self, space: ScheduleSpace[Any], kept: Sequence[TuningRecord], seed: int) -> Tuner:
        """A new tuner of a space of which there are these records."""
        raise NotImplementedError

    @pytest.mark.parametrize("num", [1, 3, 8])
    def test_points_are_legal_and_distinct_and_no_more_than_asked_for(self, num: int) -> None:
        tuner = self.tuner(LARGE, [], 0)
        asked: list[Point] = []
        for _ in range(5):
            batch = tuner.ask(num)
            assert 1 <= len(batch) <= num
            asked += batch
            tuner.tell([smooth(point) for point in batch])
        assert len(set(asked)) == len(asked)
        assert all(LARGE.contains(point) for point in asked)

    def test_nothing_is_asked_for_where_nothing_may_be(self) -> None:
        assert self.tuner(LARGE, [], 0).ask(0) == []

    def test_it_ends_when_all_points_were_tried(self) -> None:
        tuner = self.tuner(SMALL, [], 0)
        assert sorted(explore(tuner)) == sorted(SMALL.points)
        assert tuner.ask(4) == []

    def test_points_of_records_are_not_asked_for(self) -> None:
        kept, told = [smooth(point) for point in sample(SMALL, 4)], SMALL.points[0]
        tuner = self.tuner(SMALL, kept, 0)
        tuner.tell([smooth(told)])
        known = {told, *(record.point for record in kept)}
        assert sorted(explore(tuner)) == sorted(set(SMALL.points) - known)

    def test_failures_end_nothing(self) -> None:
        tuner = self.tuner(LARGE, [failure(point) for point in sample(LARGE, 3)], 0)
        assert len(set(explore(tuner, failure, num_trials=11))) == 11

    def test_a_seed_asks_for_the_same_points_twice(self) -> None:
        first, again = (explore(self.tuner(LARGE, [], 7), num_trials=24) for _ in range(2))
        assert first == again

    def test_all_is_promised_while_nothing_works_and_nothing_when_all_is_tried(self) -> None:
        tuner = self.tuner(SMALL, [], 0)
        assert tuner.promise() == math.inf
        explore(tuner)
        assert tuner.promise() == 0.0

    def test_what_is_promised_is_an_improvement(self) -> None:
        tuner = self.tuner(LARGE, [smooth(point) for point in sample(LARGE, 12)], 0)
        assert tuner.promise() > 0.0
        assert tuner.promise(rival_s=1e-12) < 0.1 or tuner.promise() == math.inf
