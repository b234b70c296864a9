"""chanas/prescheduler/tuning/cost_model/gaussian_process.py: it learns which schedules are fast, and carries that
over."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import ScheduleSpace
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model import gaussian_process
from chanas.prescheduler.tuning.cost_model.gaussian_process import GaussianProcessModel
from chanas.prescheduler.tuning.cost_model.history import History
from chanas.prescheduler.tuning.cost_model.models import cost_model
from chanas.prescheduler.tuning.cost_model.solving import Problem

from ....compiler.workbench import device, landscape_seconds

HERE = device()
SPACE = schedule_space(Workload("pointwise", 14, 96, 192, epilogue="relu"), HERE)
SIMILAR = schedule_space(Workload("pointwise", 12, 64, 128, epilogue="hswish"), HERE)


def measured(space: ScheduleSpace, num: int, seed: int, noise: float) -> list[TuningRecord]:
    rng = np.random.default_rng(seed)
    return [
        TuningRecord(p, landscape_seconds(space, p) * math.exp(noise * rng.normal())) for p in space.sample(num, rng)
    ]


def tau(model_name: str, told: list[tuple[ScheduleSpace, int]], asked: ScheduleSpace, noise: float = 0.03) -> float:
    """Kendall's rank correlation of predictions and true times, after some records of some workloads."""
    model = cost_model(model_name, HERE, seed=0)
    for space, num in told:
        model.observe(space, measured(space, num, seed=1, noise=noise))
    points = asked.sample(150, np.random.default_rng(2))
    mean, _ = model.predict(asked, points)
    return float(kendalltau(mean, [landscape_seconds(asked, p) for p in points]).statistic)


@pytest.mark.parametrize(
    ("told", "asked", "noise", "least"),
    [
        ([(SPACE, 40)], SPACE, 0.03, 0.7),
        ([(SPACE, 60)], SIMILAR, 0.03, 0.6),
        # more than one fit takes: what a resumed run begins with
        ([(SPACE, 200), (SIMILAR, 200)], SPACE, 0.03, 0.9),
        ([(SPACE, 200), (SIMILAR, 200)], SPACE, 0.3, 0.8),
    ],
    ids=["a few", "of another workload", "many", "many and noisy"],
)
def test_records_teach_the_ranking(
    told: list[tuple[ScheduleSpace, int]], asked: ScheduleSpace, noise: float, least: float
) -> None:
    assert tau("gp", told, asked, noise) > least


def test_more_records_teach_more() -> None:
    assert tau("gp", [(SPACE, 80)], SPACE) > tau("gp", [(SPACE, 10)], SPACE)
    assert tau("gp", [(SPACE, 60), (SIMILAR, 4)], SIMILAR) > tau("gp", [(SIMILAR, 6)], SIMILAR)


def test_only_the_order_within_a_workload_is_learnt() -> None:
    """Another operator of the same shape that is fifty times slower says the same about what is fast."""
    slow = schedule_space(Workload("pointwise", 14, 96, 192, epilogue="hswish"), HERE)
    model = cost_model("gp", HERE, seed=0)
    model.observe(SPACE, measured(SPACE, 30, seed=1, noise=0.03))
    model.observe(slow, [replace(r, seconds=50 * (r.seconds or 0.0)) for r in measured(slow, 30, seed=2, noise=0.03)])
    points = SPACE.sample(150, np.random.default_rng(3))
    mean, _ = model.predict(SPACE, points)
    assert kendalltau(mean, [landscape_seconds(SPACE, p) for p in points]).statistic > 0.7


def test_what_is_known_is_less_uncertain_than_what_is_not() -> None:
    model = cost_model("gp", HERE, seed=0)
    records = measured(SPACE, 40, seed=1, noise=0.03)
    model.observe(SPACE, records)
    tried = [r.point for r in records]
    untried = [p for p in SPACE.sample(200, np.random.default_rng(3)) if p not in tried]
    assert model.predict(SPACE, tried)[1].mean() < model.predict(SPACE, untried)[1].mean()


# ---- records of other workloads -------------------------------------------------------------------------------------
def upside_down(records: list[TuningRecord]) -> list[TuningRecord]:
    """What is fast comes out slow, and the other way round."""
    return [replace(r, seconds=1e-9 / (r.seconds or 1.0)) for r in records]


def asked_with(model: GaussianProcessModel, space: ScheduleSpace, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """The records that a model goes by when it is asked about a space."""
    solve, problems = model._solve, list[Problem]()
    monkeypatch.setattr(model, "_solve", lambda problem, x: (problems.append(problem), solve(problem, x))[1])
    model.predict(space, space.points[:2])
    return problems[-1]


def after_misleading(num_own: int) -> GaussianProcessModel:
    """A model that was misled about `SPACE`, and has then seen some of its records, four at a time."""
    model = GaussianProcessModel(History(HERE))
    model.observe(SIMILAR, upside_down(measured(SIMILAR, 60, seed=1, noise=0.03)))
    own = measured(SPACE, num_own, seed=2, noise=0.03)
    for start in range(0, num_own, 4):
        model.observe(SPACE, own[start : start + 4])
    return model


def tau_of(model: GaussianProcessModel) -> float:
    points = SPACE.sample(150, np.random.default_rng(3))
    return float(kendalltau(model.predict(SPACE, points)[0], [landscape_seconds(SPACE, p) for p in points]).statistic)


def test_records_that_mislead_are_dropped_after_the_first_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = after_misleading(num_own=16)
    monkeypatch.setattr(gaussian_process, "_MIN_CORRELATION", -2.0)
    trusting = after_misleading(num_own=16)
    assert [model.leaves_alone(SPACE.workload.key) for model in (guarded, trusting)] == [True, False]
    assert tau_of(guarded) > tau_of(trusting)
    assert tau_of(after_misleading(num_own=0)) < -0.5


def test_a_workload_that_is_left_alone_does_not_leave_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = after_misleading(num_own=16)
    alike = schedule_space(Workload("pointwise", 14, 96, 96, epilogue="relu"), HERE)
    assert len(asked_with(model, alike, monkeypatch).y) == 60 + 16
    assert len(asked_with(model, SPACE, monkeypatch).y) == 16


def test_records_that_agree_stay() -> None:
    model = GaussianProcessModel(History(HERE))
    model.observe(SIMILAR, measured(SIMILAR, 60, seed=1, noise=0.03))
    own = measured(SPACE, 16, seed=2, noise=0.03)
    for start in range(0, 16, 4):
        model.observe(SPACE, own[start : start + 4])
    assert not model.leaves_alone(SPACE.workload.key)
    assert tau_of(model) > 0.6


def test_parameters_are_fitted_again_when_the_records_have_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    model, own, due = GaussianProcessModel(History(HERE)), measured(SPACE, 17, seed=2, noise=0.03), []
    for start, end in ((0, 10), (10, 12), (12, 17)):
        model.observe(SPACE, own[start:end])
        due.append(asked_with(model, SPACE, monkeypatch).is_due)
    assert due == [True, False, True]


def test_only_the_first_records_judge() -> None:
    model = GaussianProcessModel(History(HERE))
    model.observe(SIMILAR, measured(SIMILAR, 60, seed=1, noise=0.03))
    own = measured(SPACE, 40, seed=2, noise=0.03)
    for start in range(0, 8, 4):
        model.observe(SPACE, own[start : start + 4])
    model.observe(SPACE, upside_down(own[8:]))
    assert not model.leaves_alone(SPACE.workload.key)


def test_the_most_similar_workloads_are_asked() -> None:
    """Hundreds of records of unlike workloads don't drown those of one that is alike."""
    model = GaussianProcessModel(History(HERE))
    for size in (112, 96, 80, 56):
        unlike = schedule_space(Workload("pointwise", size, 16, 64), HERE)
        model.observe(unlike, upside_down(measured(unlike, 100, seed=size, noise=0.03)))
    model.observe(SIMILAR, measured(SIMILAR, 128, seed=1, noise=0.03))
    assert tau_of(model) > 0.6


def test_however_many_records_there_are_a_fit_takes_a_few_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GaussianProcessModel(History(HERE))
    for channels in range(64, 192, 8):
        space = schedule_space(Workload("pointwise", 14, 64, channels), HERE)
        model.observe(space, measured(space, 60, seed=channels, noise=0.03))
    own = measured(SPACE, 60, seed=0, noise=0.03)
    model.observe(SPACE, own)
    chosen = asked_with(model, SPACE, monkeypatch)
    assert (chosen.groups == 0).sum() == 60
    assert len(chosen.y) == 60 + 128


def test_of_too_many_records_the_fastest_are_kept() -> None:
    y = np.random.default_rng(0).permutation(1000).astype(np.float64)
    _, kept = gaussian_process._at_most(100, y[:, None], y)
    assert len(np.unique(kept)) == 100
    assert set(range(50)) <= set(kept.tolist())
    assert kept.max() == 999.0
