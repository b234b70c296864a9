"""The comparison of tuners: played on records alone, and what is made of the curves."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from chanas.compiler.backends import schedule_space
from chanas.core.effort import Search
from chanas.errors import DataError
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord

from ..compiler.workbench import device

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = Workload("pointwise", 7, 16, 64)


@pytest.fixture
def tuners(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("tuners")
    for name in ("common", "kernel_tuner_replay", "tuners", "tuning"):
        sys.modules.pop(name, None)


def table_of(tuners: ModuleType) -> Any:
    """Every second point of a space was measured: the n-th of them takes n seconds, and the last one failed."""
    space = schedule_space(SMALL, device())
    records = [TuningRecord(point, float(i + 1)) for i, point in enumerate(space.points[::2])]
    records[-1] = TuningRecord(records[-1].point, None, error="wrong")
    return tuners.Table("small", SMALL, space.num_points, space.coordinates, records)


def test_published_records_are_those_that_were_measured(tuners: ModuleType, tmp_path: Path) -> None:
    workload = tuners.OPERATORS["large"][0]
    records = [TuningRecord((1, 4, 2), 1.25e-3), TuningRecord((2, 8, 1), None)]
    measured = {"small": {SMALL: []}, "large": {workload: records}}
    tuners.write_recorded(measured, tmp_path / "recorded.csv.gz")
    assert tuners.read_recorded(tmp_path / "recorded.csv.gz") == {"large": {workload: records}}


@pytest.mark.parametrize(
    "row", ["large,pointwise-1px,1 4,2.0", "large,{key},1 x,2.0", "large,{key},1 4,slow", "large,{key},1 4"]
)
def test_a_damaged_row_of_published_records_is_named(tuners: ModuleType, tmp_path: Path, row: str) -> None:
    path, key = tmp_path / "recorded.csv", tuners.OPERATORS["large"][0].key
    path.write_text(f"group,operator,point,ms\nlarge,{key},1 4,2.0\n{row.format(key=key)}\n")
    with pytest.raises(DataError, match="line 3: expected"):
        tuners.read_recorded(path)


@pytest.mark.parametrize("tuner", ["gp", "forest", "ga", "random", "grid", "pattern"])
def test_a_tuner_is_played_on_measured_points_until_it_has_the_best(tuners: ModuleType, tuner: str) -> None:
    table = table_of(tuners)
    num = len(table.records)
    (run,) = tuners.play(table, device(), tuner, num, [0], Search(), tuner)
    assert run.curve[-1] == 1.0
    assert list(run.curve) == sorted(run.curve, reverse=True)
    assert len(run.curve) == num


def test_trials_are_counted_until_the_best_is_near(tuners: ModuleType) -> None:
    run = tuners.Run("gp", "small", SMALL.key, 0, (2.0, 1.04, 1.04, 1.0), 0.1)
    assert run.trials_to(1.05) == 2
    assert run.trials_to(1.01) == 4
    assert run._replace(curve=(2.0, 1.5)).trials_to(1.01) == 3


def runs(tuners: ModuleType, tuner: str, trials: dict[str, list[int]]) -> list[Any]:
    """Runs of a tuner in which each operator takes so many trials, seed by seed."""
    return [
        tuners.Run(tuner, "large", f"{op}-1", seed, (9.0,) * (num - 1) + (1.0,) * (8 - num + 1), 0.0)
        for op, nums in trials.items()
        for seed, num in enumerate(nums)
    ]


def test_a_mean_is_geometric_over_operators_and_seeds(tuners: ModuleType) -> None:
    mean = tuners.mean_trials(runs(tuners, "gp", {"a": [1, 4], "b": [4, 1]}), 1.01)
    assert mean == pytest.approx((2.0, 2.0, 2.0))
    spread = tuners.mean_trials(runs(tuners, "gp", {"a": [1, 4]}), 1.01)
    assert spread.low < spread.value < spread.high


def test_the_default_is_beaten_only_outside_of_its_interval(tuners: ModuleType) -> None:
    own = runs(tuners, "gp", {"a": [4, 4, 4], "b": [2, 3, 4]})
    other = runs(tuners, "random", {"a": [3, 3, 3], "b": [3, 3, 3]})
    figures = tuners.figures_of(tuners.summary([*own, *other]))
    assert figures["default_beaten_in_families"].value == 1.0
    assert figures["default_over_random_large"].value == pytest.approx((4 * 24 ** (1 / 3)) ** 0.5 / 3)
