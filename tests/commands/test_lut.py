"""chanas/commands/lut.py: what `chanas lut` prints, its exit codes, and one line for bad input."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tables import CLASSES, random_table, save_space
from typer.testing import CliRunner

from chanas.commands.main import app
from chanas.core.arch import SearchSpace
from chanas.core.effort import TableEffort
from chanas.core.latency import Calibration
from chanas.core.usage import HERE, THIS_MACHINE, Usage
from chanas.files.run import RunDirectory
from chanas.prescheduler.tables.lut_check import Remeasured, TableCheck, Tolerances
from chanas.prescheduler.tables.transfer.adapt import AdaptedTable
from chanas.workflows.stages import adaptation, tables
from chanas.workflows.stages.tables import FillSummary, OpenTable

CALIBRATION = Calibration(1e-5, 1.25, 1e-6, 8, 0.012, 0.034, 0.98, 0.1)


@pytest.fixture
def run(tmp_path: Path, tiny_space: SearchSpace) -> RunDirectory:
    """A run directory with a table of the tiny space, whose file is `tiny.yaml` in it."""
    run = RunDirectory(tmp_path / "run")
    random_table(tiny_space).save(run.lut("cpu"))
    save_space(tiny_space, run.root / "tiny.yaml")
    return run


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["lut", *map(str, arguments)])


# ---- show and compare -----------------------------------------------------------------------------------------------
def test_show_prints_a_runs_table_or_a_file(run: RunDirectory) -> None:
    by_run = invoke("show", "--run", run.root, "--space", run.root / "tiny.yaml")
    by_file = invoke("show", run.lut("cpu"), "--space", run.root / "tiny.yaml")
    assert by_run.exit_code == 0
    assert by_run.output == by_file.output
    first, *_ = by_run.output.splitlines()
    assert first == f"table      {run.lut('cpu')}"
    assert "4 of 4 sub-spaces" in by_run.output


def test_show_prints_one_line_of_json(run: RunDirectory) -> None:
    done = invoke("show", "--run", run.root, "--space", run.root / "tiny.yaml", "--json")
    (line,) = done.output.splitlines()
    data = json.loads(line)
    assert (data["header"]["space"], data["num_classes"], len(data["sub_spaces"])) == ("tiny", CLASSES, 4)


def test_compare_prints_both_files(run: RunDirectory, tiny_space: SearchSpace) -> None:
    other = run.root / "other.json"
    random_table(tiny_space, seed=1).save(other)
    done = invoke("compare", run.lut("cpu"), other, "--space", run.root / "tiny.yaml")
    assert done.exit_code == 0
    assert done.output.splitlines()[:2] == [f"A              {run.lut('cpu')}", f"B              {other}"]
    assert "networks B/A" in done.output
    data = json.loads(invoke("compare", run.lut("cpu"), other, "--space", run.root / "tiny.yaml", "--json").output)
    assert (data["only_a"], data["architectures"]["num"]) == (0, 1000)


# ---- adapt ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [0.034, 0.5])
def test_adapt_says_how_many_rows_were_measured_and_predicted(
    run: RunDirectory, tiny_space: SearchSpace, monkeypatch: pytest.MonkeyPatch, error: float
) -> None:
    lut = random_table(tiny_space)
    for key in list(lut.rows)[5:]:
        lut.rows[key] = dataclasses.replace(lut.rows[key], predicted_error=error)
    asked: dict[str, Any] = {}

    def adapt(run: RunDirectory, sources: list[str], usage: Usage, **options: Any) -> AdaptedTable:
        asked.update(sources=sources, usage=usage, **options)
        return AdaptedTable(lut, run.lut("cpu"), 4, tiny_space.all_blocks(CLASSES)[:1], 7, 21)

    monkeypatch.setattr(adaptation, "adapt", adapt)
    done = invoke("adapt", "--from", "a.json", "--from", "b.json", "--run", run.root, "--measure", "20", "--threads", 2)
    assert done.output.splitlines() == [
        "measured   5 blocks, 4 of them now",
        "tuned      7 operators, 21 schedules tried",
        f"predicted  {len(lut.rows) - 5} blocks, ± {error:.1%} (median)",
        f"table      {run.lut('cpu')}: {len(lut.rows)} blocks",
        *(line for line in done.output.splitlines() if line.startswith("unsure") and error > 0.2),
        "holes      1 blocks without a known schedule; `chanas lut fill` tunes them",
    ]
    assert ("records.sqlite" in done.output) == (error > 0.2)
    assert asked["sources"] == ["a.json", "b.json"]
    assert (asked["usage"].threads, asked["effort"].measure) == (2, 20)


# ---- predict --------------------------------------------------------------------------------------------------------
def test_predict_fills_the_column_of_the_new_device(tmp_path: Path) -> None:
    rows = [f"op{i % 4},{1 + i % 4},{2 + i % 4},{3 + i % 4 if i < 6 else ''}" for i in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["op,a_ms,b_ms,new_ms", *rows]) + "\n", encoding="utf-8")
    out = tmp_path / "out.csv"
    done = invoke("predict", tmp_path / "a.csv", "--device", "new", "--out", out)
    lines = done.output.splitlines()
    assert lines[0] == "networks   20: 6 measured on new, 14 predicted from 2 other devices"
    assert [line.split()[0] for line in lines[1:]] == ["weights", "predicted", "file"]
    header, *written = out.read_text(encoding="utf-8").splitlines()
    assert header == "op,a_ms,b_ms,new_ms,new_predicted_error"
    assert all(all(line.split(",")) for line in written[6:])
    done = invoke("predict", tmp_path / "a.csv", "--device", "new", "--out", out, "--json")
    (line,) = done.output.splitlines()
    assert json.loads(line)["num_measured"] == 6


# ---- check ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("ratio", "code"), [(1.0, 0), (2.0, 1)])
@pytest.mark.parametrize("as_json", [False, True])
def test_check_ends_with_the_verdict(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, ratio: float, code: int, as_json: bool
) -> None:
    asked: dict[str, Any] = {}

    def check(table: OpenTable, **options: Any) -> TableCheck:
        asked.update(options)
        return TableCheck((Remeasured("block", 1e-6, ratio * 1e-6),), (), options["tolerances"], 0.1)

    monkeypatch.setattr(tables, "check", check)
    options = ("--sample", "7", "--networks", "2", "--row-tolerance", "0.3", "--seed", "5")
    done = invoke("check", "--run", run.root, *options, *(["--json"] if as_json else []))
    assert done.exit_code == code
    assert (asked["num_rows"], asked["num_networks"], asked["seed"]) == (7, 2, 5)
    assert asked["tolerances"] == Tolerances(0.1, 0.3, 0.9)
    assert asked["progress"] is not as_json
    if as_json:
        assert json.loads(done.output)["holds"] == (code == 0)
    else:
        assert done.output.splitlines()[-1].startswith("verdict    the table " + ("holds" if code == 0 else "does not"))


# ---- fill and calibrate ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("num_holes", [0, 3])
def test_fill_says_how_many_holes_there_were(
    run: RunDirectory, tiny_space: SearchSpace, monkeypatch: pytest.MonkeyPatch, num_holes: int
) -> None:
    lut = random_table(tiny_space)
    lut.calibration = CALIBRATION
    asked: dict[str, Any] = {}

    def fill(run: RunDirectory, usage: Usage, **options: Any) -> FillSummary:
        asked.update(run=run, usage=usage, **options)
        return FillSummary(run.lut("cpu"), num_holes, 20, 12, 1, lut, "from runs/other" if num_holes else "")

    monkeypatch.setattr(tables, "fill", fill)
    options = ["--sub-space", "r12-w1", "--sub-space", "r16-w1", "--calibrate", "0", "--warm-start", "runs/other"]
    done = invoke("fill", "--run", run.root, *options)
    assert done.output.splitlines() == [
        f"holes      {num_holes} of 20 blocks" + (", filled now" if num_holes else ""),
        "trials     12 new (1 failed)",
        f"table      {run.lut('cpu')}: {len(lut.rows)} blocks",
        *(["warm start from runs/other"] if num_holes else []),
        f"sum        {CALIBRATION.describe()}",
    ]
    assert (asked["run"], asked["usage"]) == (run, HERE)
    assert asked["effort"] == TableEffort(sub_spaces=("r12-w1", "r16-w1"), calibrate=0, warm_start="runs/other")


def test_calibrate_prints_the_error_before_and_after(
    run: RunDirectory, tiny_space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lut = random_table(tiny_space)
    lut.calibration = CALIBRATION
    lut.save(run.lut("cpu"))
    better = dataclasses.replace(CALIBRATION, mape=0.001)
    asked: dict[str, Any] = {}

    def calibrate(table: OpenTable, **options: Any) -> Calibration:
        asked.update(options)
        return better

    monkeypatch.setattr(tables, "calibrate", calibrate)
    done = invoke("calibrate", "--run", run.root, "--networks", "8")
    assert done.output.splitlines() == [
        f"before     {CALIBRATION.describe()}",
        f"sum        {better.describe()}",
        f"table      {run.lut('cpu')}",
    ]
    assert asked == {"num_networks": 8, "place": THIS_MACHINE, "seed": 0}


# ---- bad input ------------------------------------------------------------------------------------------------------
