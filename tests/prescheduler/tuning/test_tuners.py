"""prescheduler/tuning/tuners.py: every tuner keeps the contract, and is found by its name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point, ScheduleSpace
from chanas.errors import ConfigError
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.tuner import Tuner
from chanas.prescheduler.tuning.tuners import PLAIN, Tuners, check_tuner, tuner_names
from chanas.testing import TunerContract
from chanas.testing.spaces import LARGE, TARGET, smooth
from chanas.testing.tuners import explore

BEST_S = min(smooth(point).seconds or 0.0 for point in LARGE.points)
NAMES = ("gp", "xgb", "lgbm", "mlp", "forest", *PLAIN, "optuna:TPESampler", "optuna:RandomSampler")


@pytest.mark.parametrize("name", NAMES, scope="class")
class TestTuners(TunerContract):
    @pytest.fixture(autouse=True)
    def named(self, name: str) -> None:
        self.name = name

    def tuner(self, space: ScheduleSpace[Any], kept: Sequence[TuningRecord], seed: int) -> Tuner:
        return Tuners(self.name, seed=seed).make(space, kept, TARGET)


@pytest.mark.parametrize("name", ["gp", "xgb", "lgbm", "mlp", "forest", "optuna:TPESampler"])
def test_what_learns_comes_nearer_to_the_best_than_chance(name: str) -> None:
    def reached(tuner: str) -> float:
        """Mean of how much slower the best of 48 points is than the best of all."""
        best = []
        for seed in range(3):
            points = explore(Tuners(tuner, seed=seed).make(LARGE, [], TARGET), num_trials=24)
            best.append(min(smooth(point).seconds or 0.0 for point in points))
        return float(np.mean(best)) / BEST_S

    assert reached(name) < reached("random")


def test_children_of_the_fastest_are_more_like_the_best_than_chance() -> None:
    """Seconds count the coordinates in which a point differs from the best one."""
    space = schedule_space(Workload("blockconv", 28, 64, 128, 3, 1, "relu"), TARGET)
    best = space.groups(space.middle)

    def measure(point: Point) -> TuningRecord:
        groups = space.groups(point)
        return TuningRecord(point, 1e-6 * (1 + sum(groups[name] != best[name] for name in best)))

    def mean_s(name: str) -> float:
        points = explore(Tuners(name).make(space, [], TARGET), measure, num_trials=80)
        return float(np.mean([measure(point).seconds for point in points[40:]]))

    assert mean_s("ga") < 0.85 * mean_s("random")


@pytest.mark.parametrize("name", NAMES)
def test_a_record_of_a_point_outside_of_the_space_is_no_trouble(name: str) -> None:
    outside = (196, 1, 12, 1, 96, 1, 0)
    assert LARGE.means(outside)
    assert not LARGE.contains(outside)
    tuner = Tuners(name).make(LARGE, [smooth(LARGE.points[0])], TARGET)
    tuner.tell([smooth(outside)])
    assert LARGE.contains(tuner.ask(1)[0])


def test_the_grid_tries_every_option_soon() -> None:
    points = explore(Tuners("grid").make(LARGE, [], TARGET), num_trials=40)
    for coordinate in LARGE.coordinates:
        legal = {LARGE.groups(point)[coordinate.name] for point in LARGE.points}
        assert {LARGE.groups(point)[coordinate.name] for point in points} >= legal


def test_exhaustive_goes_in_the_order_of_the_space() -> None:
    assert explore(Tuners("exhaustive").make(LARGE, [], TARGET), num_trials=20) == list(LARGE.points[:20])


def test_operators_of_a_family_share_what_a_cost_model_learns() -> None:
    tuners = Tuners("gp")
    explore(tuners.make(LARGE, [], TARGET), num_trials=16)
    knowing, fresh = tuners.make(LARGE, [], TARGET), Tuners("gp").make(LARGE, [], TARGET)
    assert knowing.ask(4) != fresh.ask(4)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"^unknown tuner 'tree'; known: .*exhaustive.*optuna:SAMPLER"):
        check_tuner("tree")
    assert set(NAMES[:9]) <= set(tuner_names())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("optuna:Tree", "one of .*TPESampler.*, got 'Tree'"),
        ("optuna:BaseSampler", "got 'BaseSampler'"),
        ("optuna:GridSampler", "got 'GridSampler'"),
        ("optuna:CmaEsSampler", "CmaEsSampler needs cmaes; install it with `pip install cmaes`"),
    ],
)
def test_a_sampler_that_cannot_be_made_is_refused(name: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ConfigError, match=says):
        check_tuner(name)


@pytest.mark.parametrize(
    ("name", "module", "remedy"),
    [
        ("xgb", "xgboost", "chanas[boost]"),
        ("lgbm", "lightgbm", "chanas[boost]"),
        ("optuna:A", "optuna", "chanas[optuna]"),
    ],
)
def test_a_library_that_is_missing_is_named(
    name: str, module: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as error:
        check_tuner(name)
    assert str(error.value) == f"{module} is not installed; install it with `pip install '{remedy}'`"


def test_a_trained_model_goes_with_the_gaussian_process(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^expected --tuner gp with --pretrained, got ga"):
        check_tuner("ga", str(tmp_path / "model.safetensors"))
