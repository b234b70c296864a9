"""benchmarks/transfer.py: nobody looks at the new device, and the figures are what they are called."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.networks import write_mbv3


@pytest.fixture
def script(load: Any) -> ModuleType:
    module: ModuleType = load("transfer")
    return module


@pytest.fixture
def data_file(tmp_path: Path, rng: np.random.Generator) -> Path:
    return write_mbv3(tmp_path / "measured.csv", rng)


def test_nobody_sees_more_of_the_new_gpu_than_what_was_measured(script: ModuleType, data_file: Path) -> None:
    data = script.read_measured(data_file)
    chosen, known = np.arange(6), [2, 3]
    spoilt = data.log_latencies.copy()
    spoilt[6:, :2] = 9.0
    changed = dataclasses.replace(data, log_latencies=spoilt)
    before, after = script.contenders(data), script.contenders(changed)
    assert set(before) == {"chanas", "ridge", "ridge-smoothed", "nearest", "table"}
    for kind, predict in before.items():
        measured = data.log_latencies[chosen, 0]
        again = after[kind](known, chosen, measured)
        np.testing.assert_allclose(again, predict(known, chosen, measured), rtol=1e-9, err_msg=kind)


def test_ranks_and_errors_are_those_of_their_names(script: ModuleType, rng: np.random.Generator) -> None:
    from scipy.stats import spearmanr

    a, b = rng.normal(size=(2, 30))
    assert script.spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert script.mape_percent(np.log([1.1, 2.0]), np.log([1.0, 2.5])) == pytest.approx(15.0)


def test_regret_is_what_the_chosen_network_lacks(script: ModuleType) -> None:
    top1 = np.array([0.70, 0.75, 0.80, 0.85])
    truth = np.array([1.0, 2.0, 3.0, 4.0])
    assert script.regret_points(truth, truth, top1, 3.0) == pytest.approx(0.0)
    assert script.regret_points(truth + 1.0, truth, top1, 3.0) == pytest.approx(5.0)  # too slow, it says
    assert script.regret_points(truth - 1.0, truth, top1, 3.0) == pytest.approx(0.0)  # finalists are timed
    assert script.regret_points(truth + 9.0, truth, top1, 3.0) == pytest.approx(10.0)  # the one predicted fastest


def row(script: ModuleType, kind: str, spearman: float, draw: int = 0, device: str = "a") -> Any:
    return script.Row(10, device, draw, kind, spearman, 10.0 * (1.0 - spearman), 1.0 - spearman)


def test_the_lead_is_over_the_best_baseline_of_each_score(script: ModuleType) -> None:
    others = {"ridge": 0.8, "nearest": 0.9, "table": 0.7, "ridge-smoothed": 0.99}
    rows = [row(script, kind, value) for kind, value in others.items()]
    rows += [row(script, "chanas", 0.9, draw=0), row(script, "chanas", 0.98, draw=1)]
    figures = script.figures_of(
        rows, {"a": {"spearman": 0.95, "mape_percent": 2.0}}, {"a": {"spearman": 0.92, "mape_percent": 3.0}}
    )
    assert figures["spearman_10"].value == pytest.approx(0.94)
    assert figures["spearman_10"].met is True
    assert figures["mape_percent_10"].met is True
    assert figures["spearman_lead_10"].value == pytest.approx(0.04)
    assert figures["mape_percent_lead_10"].value == pytest.approx(0.4)
    assert figures["regret_points_lead_10"].met is True
    assert figures["ceiling_spearman"].value == pytest.approx(0.95)
    assert figures["spearman_10_by_command"].met is False
    assert figures["mape_percent_10_by_command"].met is True


def test_the_command_writes_what_the_figures_are_of(
    script: ModuleType, data_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = script.read_measured(data_file)
    (row, *_) = script.judged(data, 10, [0], 0, {"chanas": script.contenders(data)["chanas"]})
    found = script.by_command(data, 10, 0, [row.device])[row.device]
    assert found["spearman"] == pytest.approx(row.spearman, abs=1e-3)
    assert found["mape_percent"] == pytest.approx(row.mape_percent, rel=1e-3)
    assert "by command" in capsys.readouterr().out


def test_spread_is_that_between_draws_of_the_mean_over_devices(script: ModuleType) -> None:
    rows = [row(script, "chanas", s, draw, device) for s, draw, device in ((0.8, 0, "a"), (1.0, 0, "b"), (0.7, 1, "a"))]
    assert script.summary(rows, "spearman") == (pytest.approx(0.8), pytest.approx(0.1))


def test_a_quick_run_judges_everybody_and_writes_nothing(
    script: ModuleType, common: ModuleType, data_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main(["--quick", "--data", str(data_file)])
    lines = capsys.readouterr().out.splitlines()
    figures = json.loads(lines[-1])
    assert {"spearman_5", "mape_percent_10", "regret_points_10", "ceiling_spearman"} <= set(figures)
    assert figures["spearman_10_by_command"]["value"] > 0.8
    assert sum(line.split()[:2] == ["10", "table"] for line in lines) == 1
    assert not common.RESULTS.exists()


def test_networks_of_any_space_are_judged_without_regret(
    script: ModuleType, tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cells.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["first", "second", "phone_ms", "fpga_ms", "gpu_1_ms"])
        for _ in range(60):
            own = rng.integers(0, 4, 2)
            writer.writerow([f"op{own[0]}", f"op{own[1]}", *(1.0 + own.sum() + 0.01 * rng.random(3))])
    script.main(["--quick", "--data", str(path)])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["spearman_10"]["value"] > 0.8
    assert not any("regret" in name for name in figures)


def test_batches_of_one_gpu_alone_are_refused(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("op,v100_1_ms,v100_32_ms\na,1,2\nb,2,3\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="at least two kinds"):
        script.main(["--quick", "--data", str(path)])


def test_a_missing_file_is_one_line(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="transfer: error: cannot read the latencies of networks"):
        script.main(["--data", str(tmp_path / "none.csv")])
