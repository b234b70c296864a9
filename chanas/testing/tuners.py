"""The contract of tuners."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chanas.compiler.space import Point, ScheduleSpace
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.tuner import Tuner
from chanas.testing.spaces import LARGE, SMALL, failure, sample, smooth


def explore(tuner: Tuner, measure: Callable[[Point], TuningRecord] = smooth, num: int = 4) -> list[Point]:
    """All points that a tuner asks for, in order, `num` at a time."""
    asked: list[Point] = []
    while batch := tuner.ask(num):
        asked += batch
        tuner.tell([measure(point) for point in batch])
    return asked


class TunerContract:
    """Tests that every `Tuner` passes. Inherit it, and make the tuner."""

    def tuner(self, space: ScheduleSpace[Any], num_trials: int, kept: Sequence[TuningRecord], seed: int) -> Tuner:
        """A new tuner of a space, for `num_trials` points with those of the `kept` records."""
        raise NotImplementedError

    @pytest.mark.parametrize("space", [LARGE, SMALL], ids=["large", "small"])
    def test_points_are_legal_and_distinct_and_as_many_as_there_are_trials(self, space: ScheduleSpace[Any]) -> None:
        asked = explore(self.tuner(space, 30, [], 0))
        assert len(set(asked)) == len(asked) == min(30, space.num_points)
        assert all(space.contains(point) for point in asked)

    @pytest.mark.parametrize("num_trials", [0, 1, 3, 4, 5, 17])
    def test_it_ends_after_the_trials(self, num_trials: int) -> None:
        tuner = self.tuner(LARGE, num_trials, [], 0)
        assert len(explore(tuner)) == num_trials
        assert tuner.ask(4) == []

    def test_it_ends_when_the_space_is_exhausted(self) -> None:
        assert sorted(explore(self.tuner(SMALL, 1000, [], 0))) == sorted(SMALL.points)

    def test_kept_records_count_as_trials_and_are_not_asked_for(self) -> None:
        kept = [smooth(point) for point in sample(LARGE, 10)]
        asked = explore(self.tuner(LARGE, 16, kept, 0))
        assert len(asked) == 6
        assert set(asked).isdisjoint(record.point for record in kept)

    def test_more_kept_records_than_trials_ask_for_nothing(self) -> None:
        assert self.tuner(LARGE, 4, [smooth(point) for point in sample(LARGE, 10)], 0).ask(4) == []

    def test_failures_end_nothing(self) -> None:
        tuner = self.tuner(LARGE, 14, [failure(point) for point in sample(LARGE, 3)], 0)
        assert len(set(explore(tuner, failure))) == 11

    def test_a_seed_asks_for_the_same_points_twice(self) -> None:
        first, again = (explore(self.tuner(LARGE, 24, [], 7)) for _ in range(2))
        assert first == again

    def test_all_is_promised_while_nothing_works_and_nothing_when_all_is_tried(self) -> None:
        tuner = self.tuner(SMALL, 1000, [], 0)
        assert tuner.promise() == math.inf
        explore(tuner)
        assert tuner.promise() == 0.0
