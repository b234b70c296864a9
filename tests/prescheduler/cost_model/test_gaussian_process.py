"""chanas/prescheduler/cost_model/gaussian_process.py: it learns which schedules are fast, and carries that over."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from chanas.prescheduler.cost_model.base import cost_model
from chanas.prescheduler.records import TuningRecord
from chanas.prescheduler.space import ScheduleSpace, schedule_space
from chanas.prescheduler.workload import Workload

from ..cases import HOST, landscape_seconds

SPACE = schedule_space(Workload("pointwise", 14, 96, 192, epilogue="relu"), HOST)
SIMILAR = schedule_space(Workload("pointwise", 12, 64, 128, epilogue="hswish"), HOST)


def measured(space: ScheduleSpace, num: int, seed: int, noise: float) -> list[TuningRecord]:
    rng = np.random.default_rng(seed)
    return [
        TuningRecord(p, landscape_seconds(space, p) * math.exp(noise * rng.normal())) for p in space.sample(num, rng)
    ]


def tau(model_name: str, told: list[tuple[ScheduleSpace, int]], asked: ScheduleSpace, noise: float = 0.03) -> float:
    """Kendall's rank correlation of predictions and true times, after some records of some workloads."""
    model = cost_model(model_name, HOST, seed=0)
    for space, num in told:
        model.observe(space, measured(space, num, seed=1, noise=noise))
    points = asked.sample(150, np.random.default_rng(2))
    mean, _ = model.predict(asked, points)
    return float(kendalltau(mean, [landscape_seconds(asked, p) for p in points]).statistic)


def test_a_few_records_teach_the_ranking() -> None:
    assert tau("gp", [(SPACE, 40)], SPACE) > 0.7
    assert abs(tau("random", [(SPACE, 40)], SPACE)) < 0.2


def test_more_records_teach_more() -> None:
    assert tau("gp", [(SPACE, 80)], SPACE) > tau("gp", [(SPACE, 10)], SPACE)


def test_what_was_learnt_carries_over_to_another_workload() -> None:
    assert tau("gp", [(SPACE, 60)], SIMILAR) > 0.6


def test_only_the_order_within_a_workload_is_learnt() -> None:
    """Another operator of the same shape that is fifty times slower says the same about what is fast."""
    slow = schedule_space(Workload("pointwise", 14, 96, 192, epilogue="hswish"), HOST)
    model = cost_model("gp", HOST, seed=0)
    model.observe(SPACE, measured(SPACE, 30, seed=1, noise=0.03))
    model.observe(slow, [replace(r, seconds=50 * (r.seconds or 0.0)) for r in measured(slow, 30, seed=2, noise=0.03)])
    points = SPACE.sample(150, np.random.default_rng(3))
    mean, _ = model.predict(SPACE, points)
    assert kendalltau(mean, [landscape_seconds(SPACE, p) for p in points]).statistic > 0.7


def test_records_of_another_workload_help_where_there_are_few() -> None:
    assert tau("gp", [(SPACE, 60), (SIMILAR, 4)], SIMILAR) > tau("gp", [(SIMILAR, 6)], SIMILAR)


@pytest.mark.parametrize(("noise", "expected"), [(0.03, 0.9), (0.3, 0.85)])
def test_more_records_than_one_fit_takes_teach_the_ranking_at_once(noise: float, expected: float) -> None:
    """What a resumed run begins with."""
    assert tau("gp", [(SPACE, 200), (SIMILAR, 200)], SPACE, noise) > expected


def test_what_is_known_is_less_uncertain_than_what_is_not() -> None:
    model = cost_model("gp", HOST, seed=0)
    records = measured(SPACE, 40, seed=1, noise=0.03)
    model.observe(SPACE, records)
    tried = [r.point for r in records]
    untried = [p for p in SPACE.sample(200, np.random.default_rng(3)) if p not in tried]
    assert model.predict(SPACE, tried)[1].mean() < model.predict(SPACE, untried)[1].mean()
