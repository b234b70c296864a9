"""chanas/prescheduler/records/merging.py: nothing is lost, nothing is doubled, whatever is merged how often."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chanas.errors import CheckpointError
from chanas.measuring.messages import Reading
from chanas.prescheduler.records import schema
from chanas.prescheduler.records.merging import merge_records
from chanas.prescheduler.records.store import BlockRecord, RecordStore, TuningRecord, Work

from ...compiler.workbench import HOST

TABLES = ("records", "blocks", "remeasured", "canary", "stopped", "rounds", "devices", "warm_starts", "runs")
batches = st.lists(st.tuples(st.sampled_from("vw"), st.integers(0, 3)), max_size=4)


def contents(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with sqlite3.connect(path) as db:
        found = {table: sorted(db.execute(f"SELECT * FROM {table}"), key=repr) for table in TABLES}
    db.close()
    return found


def fill(path: Path, batch: list[tuple[str, int]], seconds: float) -> None:
    store = RecordStore(path, HOST)
    for workload, point in batch:
        store.add(workload, [TuningRecord((point,), seconds, 0.0)])
        store.add_block(workload, BlockRecord((("o", (point,)),), seconds, created=seconds))
        store.add_round(workload, BlockRecord((("o", (point,)),), seconds, created=seconds))
        store.add_canary(Reading(seconds, 0.0, 1.0, seconds))
        store.stop(workload, point, 0.0, 0.0)
        store.note_work(seconds, Work(point, 1.0, 1.0))
    store.close()


@settings(max_examples=15, deadline=None)
@given(first=batches, second=batches)
def test_merging_loses_nothing_and_twice_is_once(
    tmp_path_factory: pytest.TempPathFactory, first: list[tuple[str, int]], second: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    a, b, both = (folder / name for name in ("a", "b", "both"))
    fill(a, first, 1.0)
    fill(b, second, 2.0)
    for source in (a, b):
        merge_records(source, both)
    merged = contents(both)
    for source in (b, a, b):
        merge_records(source, both)
    assert contents(both) == merged
    points = {row[:2] for row in merged["records"]}
    assert points == {(w, f"[{p}]") for w, p in (*first, *second)}
    newest = {(w, f"[{p}]"): 1.0 for w, p in first} | {(w, f"[{p}]"): 2.0 for w, p in second}
    assert {row[:2]: row[2] for row in merged["records"]} == newest


def test_one_device_alone_is_taken_without_its_work(tmp_path: Path) -> None:
    fill(tmp_path / "a", [("w", 1)], 1.0)
    store = RecordStore(tmp_path / "mine", HOST)
    merge_records(tmp_path / "a", tmp_path / "mine", device="other")
    assert store.load("w") == []
    merge_records(tmp_path / "a", tmp_path / "mine", device=store.device)
    assert [r.point for r in store.load("w")] == [(1,)]
    assert store.total_work() == Work()
    store.close()


def test_of_a_run_in_both_files_the_larger_figures_count(tmp_path: Path) -> None:
    for name, work in (("a", Work(3.0, 1.0, 5.0)), ("b", Work(2.0, 2.0, 4.0))):
        store = RecordStore(tmp_path / name, HOST)
        store.note_work(1.0, work)
        store.close()
    merge_records(tmp_path / "b", tmp_path / "a")
    store = RecordStore(tmp_path / "a", HOST)
    assert store.total_work() == Work(3.0, 2.0, 5.0)
    store.close()


def test_a_file_that_is_not_there_has_nothing_to_merge(tmp_path: Path) -> None:
    merge_records(tmp_path / "nowhere", tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_a_file_of_a_newer_schema_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    fill(tmp_path / "into", [("w", 1)], 1.0)
    before = contents(tmp_path / "into")
    with sqlite3.connect(tmp_path / "newer") as db:
        db.execute(f"PRAGMA user_version={schema.SCHEMA + 1}")
    db.close()
    with pytest.raises(CheckpointError, match="schema"):
        merge_records(tmp_path / "newer", tmp_path / "into")
    assert contents(tmp_path / "into") == before
