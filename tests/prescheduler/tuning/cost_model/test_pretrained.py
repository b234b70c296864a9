"""chanas/prescheduler/tuning/cost_model/pretrained.py: a trained model is used, corrected, dropped if it misleads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.core.arrays import FloatArray
from chanas.core.effort import Search
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.gaussian_process import GaussianProcessModel
from chanas.prescheduler.tuning.cost_model.guards import rank_correlation
from chanas.prescheduler.tuning.cost_model.history import History, Prior
from chanas.prescheduler.tuning.cost_model.pretrained import PretrainedModel
from chanas.prescheduler.tuning.evolution import Evolution
from chanas.prescheduler.tuning.offline.primitives import NUM_VALUES, SLOTS, Rows, flatten

from ....compiler.workbench import device, landscape_seconds

HERE = device()
SPACE = schedule_space(Workload("pointwise", 14, 96, 192, epilogue="relu"), HERE)
SECONDS = {point: landscape_seconds(SPACE, point) for point in SPACE.points}


class Oracle:
    """Says what `landscape_seconds` of a sequence are: times `sign`, and of the reduction as much as `share`."""

    def __init__(self, sign: float = 1.0, share: float = 1.0) -> None:
        self.sign, self.share, self.num_asked = sign, share, 0

    def log_seconds(self, rows: Rows) -> FloatArray:
        self.num_asked += len(rows)
        flat = flatten(rows).reshape(len(rows), len(SLOTS), 1 + NUM_VALUES)
        sums, inner, order = (flat[:, SLOTS.index(s), i] for s, i in (("CHW", 3), ("SP k", 3), ("RE order", 1)))
        log_s = 0.3 * (sums - math.log2(12)) ** 2 - self.share * 0.15 * inner + 0.1 * order
        return 3.0 + self.sign * log_s.astype(np.float64)  # any constant


def model_of(**options: Any) -> PretrainedModel:
    return PretrainedModel(History(HERE), Oracle(**options))  # type: ignore[arg-type]


def measured(num: int, seed: int = 0) -> list[TuningRecord]:
    return [TuningRecord(p, SECONDS[p], 0.0) for p in SPACE.sample(num, np.random.default_rng(seed))]


def tau(model: PretrainedModel) -> float | None:
    mean, _ = model.predict(SPACE, SPACE.points)
    return rank_correlation(mean, np.array([SECONDS[p] for p in SPACE.points]))


def test_the_first_points_that_are_tried_are_those_that_the_model_thinks_best() -> None:
    tuner = Evolution(SPACE, model_of(), [], 0, search=Search(random_share=0.0))
    fastest = sorted(SECONDS.values())
    assert sorted(SECONDS[p] for p in tuner.ask(4)) == pytest.approx(fastest[:4])


def test_what_is_measured_corrects_the_model() -> None:
    model = model_of(share=-1.0)
    before = tau(model)
    model.observe(SPACE, measured(40))
    after = tau(model)
    assert before is not None
    assert after is not None
    assert before < 0.8 < 0.9 < after


def test_predictions_are_centred_as_the_tuner_centres_seconds() -> None:
    model, records = model_of(), measured(12)
    model.observe(SPACE, records)
    log_s = np.log([r.seconds for r in records])
    mean, _ = model.predict(SPACE, [r.point for r in records])
    assert mean == pytest.approx(log_s - log_s.mean(), abs=0.05)


def test_a_model_that_orders_points_upside_down_is_dropped_for_the_workload() -> None:
    model, alone = model_of(sign=-1.0), GaussianProcessModel(History(HERE))
    records = measured(12)
    model.observe(SPACE, records[:3])
    assert not model.is_dropped(SPACE)
    for part in (records[3:8], records[8:]):
        model.observe(SPACE, part)
    for part in (records[:3], records[3:8], records[8:]):
        alone.observe(SPACE, part)
    assert model.is_dropped(SPACE)
    for mine, others in zip(model.predict(SPACE, SPACE.points), alone.predict(SPACE, SPACE.points), strict=True):
        assert np.array_equal(mine, others)


@pytest.mark.parametrize(("share", "is_dropped"), [(-0.5, False), (-3.0, True)])
def test_an_order_that_chance_may_have_made_is_not_worse_than_chance(share: float, is_dropped: bool) -> None:
    model = model_of(share=share)
    model.observe(SPACE, measured(12))
    assert model.is_dropped(SPACE) == is_dropped


def test_a_model_that_is_right_is_kept() -> None:
    model = model_of()
    for seed in range(4):
        model.observe(SPACE, measured(8, seed))
    assert not model.is_dropped(SPACE)


def test_each_point_is_asked_for_once() -> None:
    oracle = Oracle()
    model = PretrainedModel(History(HERE), oracle)  # type: ignore[arg-type]
    for _ in range(2):
        model.predict(SPACE, SPACE.points)
    model.observe(SPACE, measured(8))
    assert oracle.num_asked == len(SPACE.points)


def test_another_devices_records_count_beside_the_model_until_they_are_dropped() -> None:
    model, without = model_of(share=-1.0), model_of(share=-1.0)
    records = measured(40)
    model.history.add_elsewhere(
        SPACE, Prior(tuple((r.point,) for r in records), np.array([r.seconds for r in records]), HERE)
    )
    known, alone = tau(model), tau(without)
    assert known is not None
    assert alone is not None
    assert known > alone
    model.history.drop_elsewhere(SPACE)
    assert tau(model) == alone
