"""chanas/prescheduler/tuning/cost_model: what holds for every cost model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point, ScheduleSpace
from chanas.errors import ConfigError
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.history import CostModel, Prior
from chanas.prescheduler.tuning.cost_model.models import cost_model
from chanas.prescheduler.tuning.offline.models import Kind, OfflineModel, save_model
from chanas.prescheduler.tuning.offline.networks import arrays_of, make_network
from chanas.prescheduler.tuning.offline.primitives import NUM_VALUES, SLOTS

from ....compiler.workbench import device, hashed_seconds

NAMES = ("gp", "random", "attention", "mlp")
HERE = device()
SPACE = schedule_space(Workload("pointwise", 14, 96, 96, epilogue="relu"), HERE)
OTHER = schedule_space(Workload("pointwise", 8, 48, 192), HERE)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each model's name, of one that has to be trained with its file."""
    if request.param in ("gp", "random"):
        return str(request.param)
    kind, file = Kind(model=request.param), tmp_path / "model.safetensors"
    scale = np.full((len(SLOTS), NUM_VALUES), 2.0, dtype=np.float32)
    save_model(OfflineModel(kind, scale, scale, arrays_of(make_network(kind.model, kind.width, seed=0))), file)
    return f"{request.param}:{file}"


def sample(space: ScheduleSpace, num: int, seed: int = 0) -> list[Point]:
    return space.sample(num, np.random.default_rng(seed))


def measured(space: ScheduleSpace, num: int, seed: int = 0) -> list[TuningRecord]:
    """Records that follow no rule, so that there is nothing to be learnt by chance."""
    return [TuningRecord(p, hashed_seconds(None, None, json.dumps(p), None), 1e-9) for p in sample(space, num, seed)]


def failed(space: ScheduleSpace, num: int, seed: int = 1) -> list[TuningRecord]:
    return [TuningRecord(p, None, None, "timeout: build took more than 20 s") for p in sample(space, num, seed)]


def predictions(model: CostModel, space: ScheduleSpace = SPACE) -> tuple[list[float], list[float]]:
    mean, deviation = model.predict(space, sample(space, 30, seed=9))
    return mean.tolist(), deviation.tolist()


def assert_sound(model: CostModel, space: ScheduleSpace, num: int) -> None:
    mean, deviation = model.predict(space, sample(space, num, seed=9))
    assert mean.shape == deviation.shape == (num,)
    assert mean.dtype == deviation.dtype == np.float64
    assert np.all(np.isfinite(mean))
    assert np.all(np.isfinite(deviation))
    assert np.all(deviation >= 0.0)


@pytest.mark.parametrize("num_points", [1, 40])
@pytest.mark.parametrize("num_records", [0, 1, 5, 6, 60])
def test_predictions_are_finite_whatever_was_observed(name: str, num_records: int, num_points: int) -> None:
    model = cost_model(name, HERE, seed=0)
    model.observe(SPACE, measured(SPACE, num_records))
    assert_sound(model, SPACE, num_points)
    assert_sound(model, OTHER, num_points)


def test_equal_times_are_no_trouble(name: str) -> None:
    model = cost_model(name, HERE, seed=0)
    model.observe(SPACE, [TuningRecord(p, 1e-6, 0.0) for p in sample(SPACE, 20)])
    assert_sound(model, SPACE, 30)


def test_a_model_is_determined_by_its_seed_and_its_records(name: str) -> None:
    first, again = (cost_model(name, HERE, seed=3) for _ in range(2))
    for model in (first, again):
        model.observe(SPACE, measured(SPACE, 20))
        model.observe(OTHER, measured(OTHER, 10))
    assert predictions(first) == predictions(again)
    for model in (first, again):
        model.observe(OTHER, measured(OTHER, 30, seed=4))
    assert predictions(first, OTHER) == predictions(again, OTHER)


def test_failed_records_teach_nothing(name: str) -> None:
    with_failures, without = (cost_model(name, HERE, seed=3) for _ in range(2))
    without.observe(SPACE, measured(SPACE, 20))
    with_failures.observe(SPACE, failed(SPACE, 10))
    with_failures.observe(SPACE, [*failed(SPACE, 5, seed=2), *measured(SPACE, 20), *failed(SPACE, 5, seed=3)])
    assert predictions(with_failures) == predictions(without)


def test_nothing_observed_changes_nothing(name: str) -> None:
    told, untold = (cost_model(name, HERE, seed=3) for _ in range(2))
    told.observe(SPACE, [])
    assert predictions(told) == predictions(untold)


def test_another_devices_records_say_nothing_once_they_are_dropped(name: str) -> None:
    model, untold = (cost_model(name, HERE, seed=3) for _ in range(2))
    records = sorted(measured(SPACE, 20), key=lambda r: r.seconds or 0.0)
    prior = Prior(tuple((r.point,) for r in records), np.array([r.seconds for r in records]), HERE)
    model.history.add_elsewhere(SPACE, prior)
    forecast = model.predict_from_prior(SPACE, sample(SPACE, 30, seed=9))
    assert (forecast is None) == (name == "random")
    assert forecast is None or (forecast.shape == (30,) and np.ptp(forecast) > 0.0)
    assert model.predict_from_prior(OTHER, sample(OTHER, 5)) is None or name != "random"
    model.history.drop_elsewhere(SPACE)
    assert model.predict_from_prior(SPACE, sample(SPACE, 30)) is None
    assert predictions(model) == predictions(untold)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"^unknown cost model 'tree'; known: attention, gp, lgbm, mlp, random, xgb$"):
        cost_model("tree", HERE, seed=0)


@pytest.mark.parametrize(
    ("asked", "message"),
    [("mlp", "name its file with --pretrained"), ("gp:model.safetensors", "it takes no file of a trained one")],
)
def test_a_file_is_for_models_that_are_trained(asked: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cost_model(asked, HERE, seed=0)


def test_a_file_of_another_model_is_refused(name: str) -> None:
    kind, _, file = name.partition(":")
    if not file:
        pytest.skip("has no file")
    other = {"mlp": "attention", "attention": "mlp"}[kind]
    with pytest.raises(ConfigError, match=f"expected a cost model '{other}' in .*, got '{kind}'"):
        cost_model(f"{other}:{file}", HERE, seed=0)
