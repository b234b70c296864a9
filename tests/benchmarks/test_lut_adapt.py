"""benchmarks/lut_adapt.py: an adapted table is judged by its predicted rows, and by what searches find with it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from chanas.core.latency import LatencyLUT
from chanas.workflows.stages.adaptation import find_table


@pytest.fixture
def script(load: Any) -> ModuleType:
    module: ModuleType = load("lut_adapt")
    return module


@pytest.fixture(scope="module")
def full() -> LatencyLUT:
    return LatencyLUT.load(find_table("mbv3-amd-zen4-cpu"))


def adapted(full: LatencyLUT, factor: float, predicted_error: float) -> LatencyLUT:
    """Every second row is predicted, and off by a factor."""
    rows = {
        key: dataclasses.replace(row, median_s=factor * row.median_s, predicted_error=predicted_error) if i % 2 else row
        for i, (key, row) in enumerate(full.rows.items())
    }
    return LatencyLUT(full.header, rows)


def test_only_predicted_rows_count_as_errors(script: ModuleType, full: LatencyLUT) -> None:
    scores = script.compare(full, adapted(full, 1.1, 0.1), "r224-w1", seed=0)
    assert scores["num_predicted"] == len(full.rows) // 2
    assert scores["row_error_percent"] == pytest.approx(10.0)
    assert 0.0 < scores["network_error_percent"] < 10.0
    assert scores["inside_interval"] == 1.0
    assert sorted(scores["budgets_s"]) == scores["budgets_s"]


def test_an_interval_that_is_too_narrow_holds_none(script: ModuleType, full: LatencyLUT) -> None:
    assert script.compare(full, adapted(full, 1.1, 0.01), "r224-w1", seed=0)["inside_interval"] == 0.0


def test_a_table_is_its_own_equal(script: ModuleType, full: LatencyLUT) -> None:
    scores = script.compare(full, full, "r224-w1", seed=0)
    assert (scores["num_predicted"], scores["row_error_percent"]) == (0, None)
    assert (scores["network_error_percent"], scores["kendall_tau"]) == (pytest.approx(0.0), pytest.approx(1.0))


def test_the_worst_search_is_what_counts(script: ModuleType) -> None:
    def found(top1: float, seconds: float) -> dict[str, float]:
        return {"predicted_top1": top1, "measured_s": seconds}

    searches = [
        {"budget_s": 2.0, "full": found(0.75, 1.9), "adapted": found(0.75, 1.8)},
        {"budget_s": 1.0, "full": found(0.70, 0.9), "adapted": found(0.63, 0.8)},
    ]
    scores = dict.fromkeys(("row_error_percent", "network_error_percent", "kendall_tau", "inside_interval"), math.nan)
    figures = script.figures_of(scores, {"adapted": 90.0, "full": 200.0}, searches)
    assert figures["least_accuracy_ratio"].value == pytest.approx(0.9)
    assert figures["largest_share_of_budget"].value == pytest.approx(0.95)
    assert figures["adapt_s"].met
    assert "least_accuracy_ratio" not in script.figures_of(scores, {"adapted": 90.0, "full": 200.0}, [])


def test_a_command_that_fails_ends_the_benchmark(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"`chanas lut show .*none.json` ended with"):
        script.chanas(["lut", "show", str(tmp_path / "none.json")], None)
