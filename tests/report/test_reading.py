from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from chanas.files.run import RunDirectory
from chanas.files.writing import read_json, write_json
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.report.reading import at, dicts, read_run, real, reals

from ..compiler.workbench import HOST


def test_all_stages_are_read(make_run: Callable[..., RunDirectory], key: str) -> None:
    run = read_run(make_run())
    assert at(run.bundle, "architecture", "key") == at(run.result, "winner") == key
    assert [t["name"] for t in run.tables] == ["cpu"]
    assert run.tables[0]["num_rows"] == 2
    assert len(run.training) == 14
    assert run.notes == []
    assert run.tuning is not None
    assert (run.tuning.num_workloads, run.tuning.num_trials, run.tuning.num_failed) == (7, 56, 7)
    assert [(c.workload, c.num_uses) for c in run.tuning.curves] == [
        ("conv1x1 <0>", 5),
        ("conv1x1 <1>", 4),
        ("conv1x1 <2>", 4),
    ]
    assert run.tuning.share == pytest.approx(1.0)
    assert run.table is not None
    assert run.table["calibration"]["num_networks"] == 12
    for curve in run.tuning.curves:
        best = [s for _, s in curve.best_s]
        assert best == sorted(best, reverse=True)


def test_without_a_winner_the_longest_tuned_operators_have_curves(make_run: Callable[..., RunDirectory]) -> None:
    tuning = read_run(make_run("records")).tuning
    assert tuning is not None
    assert [c.workload for c in tuning.curves] == [f"conv1x1 <{i}>" for i in (6, 5, 4, 3, 2, 1)]
    assert tuning.share is None


def test_records_of_another_device_are_not_those_of_the_winner(make_run: Callable[..., RunDirectory]) -> None:
    directory = make_run()
    path = directory.bundle / "codesign.json"
    bundle = read_json(path, "bundle")
    bundle["targets"][0]["target"]["fingerprint"] = "beef"
    write_json(path, bundle)
    tuning = read_run(directory).tuning
    assert tuning is not None
    assert tuning.share is None


def test_an_empty_run_has_nothing_and_no_notes(make_run: Callable[..., RunDirectory]) -> None:
    run = read_run(make_run("none"))
    assert [run.bundle, run.result, run.front, run.tuning, run.checkpoint, run.table] == [None] * 6
    assert run.tables == run.training == ()
    assert run.notes == []


def test_what_is_damaged_becomes_a_note(make_run: Callable[..., RunDirectory]) -> None:
    directory = make_run()
    (directory.bundle / "codesign.json").write_text("{")
    (directory.search / "result.json").write_text("[1]")
    directory.records.write_text("no database, but long enough to look at: " + 200 * "x")
    metrics = directory.supernet / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + "{torn\n{torn")
    run = read_run(directory)
    assert [run.bundle, run.result, run.tuning] == [None] * 3
    assert len(run.training) == 14
    assert len(run.notes) == 4


def test_a_torn_last_line_is_no_news(make_run: Callable[..., RunDirectory]) -> None:
    directory = make_run("supernet")
    metrics = directory.supernet / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"step": 1')
    run = read_run(directory)
    assert (len(run.training), run.notes) == (14, [])


def test_values_at_paths() -> None:
    data = {"a": {"b": 1, "c": True, "d": [1, 2.5], "e": [{"x": 1}, 3]}, "n": float("inf")}
    assert real(data, "a", "b") == 1.0
    assert real(data, "a", "c") is real(data, "n") is real(data, "z") is real(None, "a") is None
    assert reals(data, "a", "d") == [1.0, 2.5]
    assert reals(data, "a", "e") == []
    assert dicts(data, "a", "e") == [{"x": 1}]
    assert at(data, "a", "b", "c") is None


def test_records_are_read_as_the_prescheduler_writes_them(tmp_path: Path) -> None:
    """The report has queries of its own: they fail here where the store's tables change."""
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    store = RecordStore(run.records, HOST)
    tried = [TuningRecord((0,), 2e-5), TuningRecord((1,), None, error="slow"), TuningRecord((2,), 1e-5)]
    store.add("pointwise", tried)
    store.close()
    read = read_run(run)
    assert read.notes == []
    assert read.tuning is not None
    assert (read.tuning.num_trials, read.tuning.num_failed) == (3, 1)
    assert read.tuning.curves[0].best_s == ((1, 2e-5), (2, 2e-5), (3, 1e-5))


@pytest.mark.parametrize("bad", ["9e999", "-1.0", "0.0", "'fast'"])
def test_seconds_that_nothing_can_have_taken_are_left_out_and_noted(
    make_run: Callable[..., RunDirectory], bad: str
) -> None:
    directory = make_run("records")
    before = read_run(directory).tuning
    with contextlib.closing(sqlite3.connect(directory.records)) as db, db:
        db.execute(
            f"UPDATE records SET seconds = {bad} WHERE rowid = (SELECT MIN(rowid) FROM records WHERE seconds > 0)"
        )
    read = read_run(directory)
    assert before is not None
    assert read.tuning is not None
    assert (read.tuning.num_trials, read.tuning.num_failed) == (before.num_trials - 1, before.num_failed)
    assert any("left out" in note for note in read.notes)
