"""The search-efficiency benchmark: searches played again on measured points, and what is made of the curves."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from chanas.compiler.backends import schedule_space
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord

from ..compiler.workbench import device

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = Workload("pointwise", 7, 16, 64)


@pytest.fixture
def efficiency(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("tuning_efficiency")
    for name in ("common", "metaschedule", "metaschedule_worker", "tuning", "tuning_efficiency"):
        sys.modules.pop(name, None)


def invented_table(workload: Workload) -> dict[Any, TuningRecord]:
    """Seconds that depend on the point alone: the n-th point takes n seconds."""
    points = schedule_space(workload, device()).points
    return {point: TuningRecord(point, float(i + 1)) for i, point in enumerate(points)}


@pytest.mark.parametrize("strategy", ["gp", "transfer", "mutation", "random"])
def test_a_search_is_played_on_measured_points_alone(efficiency: ModuleType, strategy: str) -> None:
    whole = invented_table(SMALL)
    table = dict(list(whole.items())[::2])
    made = efficiency.replay(SMALL, table, device(), strategy, 6, 0, {})
    assert len({r.point for r in made}) == len(made) == 6
    assert all(table[r.point] is r for r in made)


def test_the_same_seed_plays_the_same_search(efficiency: ModuleType) -> None:
    table, target = invented_table(SMALL), device()
    first, again, other = (efficiency.replay(SMALL, table, target, "gp", 6, seed, {}) for seed in (1, 1, 2))
    assert first == again != other


def test_a_curve_is_the_best_so_far_over_the_best_of_all(efficiency: ModuleType) -> None:
    records = [TuningRecord((i,), s) for i, s in enumerate([None, 4.0, 6.0, 3.0])]
    assert efficiency.curve(records, 2.0, 6) == [float("inf"), 2.0, 2.0, 1.5, 1.5, 1.5]


def test_the_gap_is_the_mean_over_operators_and_seeds(efficiency: ModuleType) -> None:
    curves = {"a": [[1.5, 1.0], [1.3, 1.1]], "b": [[1.2, 1.2], [1.0, 1.0]]}
    assert efficiency.gap_percent(curves, 1) == pytest.approx(25)
    assert efficiency.gap_percent(curves, 2) == pytest.approx(7.5)


def test_the_figures_need_every_program_of_the_peer(efficiency: ModuleType) -> None:
    table = {(1,): TuningRecord((1,), 2.0), (2,): TuningRecord((2,), 3.0)}
    curves = {s: {SMALL.key: [[1.5, 1.0]]} for s in efficiency.STRATEGIES}
    row = {"workload": SMALL.key, "seconds": 3.0, "wall_s": 40.0}
    figures = efficiency.figures_of(curves, {SMALL: table}, [row], 1.0, 2)
    assert figures["gp_gap_percent"].met is True
    assert figures["metaschedule_time_over_ours"].value == pytest.approx(1.5)
    failed = {"workload": SMALL.key, "error": "timeout"}
    figures = efficiency.figures_of(curves, {SMALL: table}, [row, failed], 1.0, 2)
    assert figures["metaschedule_time_over_ours"].value is None
    assert figures["metaschedule_seconds_per_operator"].value == pytest.approx(40)


def _raise() -> None:
    raise RuntimeError("no such schedule")


def test_a_build_in_a_fork_ends_with_done_its_error_or_a_timeout(efficiency: ModuleType) -> None:
    in_fork = importlib.import_module("metaschedule_worker").in_fork
    assert in_fork(lambda: None, 10.0) is None
    assert in_fork(_raise, 10.0) == "RuntimeError: no such schedule"
    assert in_fork(lambda: time.sleep(60), 0.1) == "timeout: more than 0.1 s"
