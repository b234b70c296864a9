"""workflows/models/reporting.py: the report of a tuned network, with the records of its run and without."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from html_pages import Page
from networks import change_document

from chanas import workflows
from chanas.bundle.tuned import DOCUMENT
from chanas.compiler.backends import schedule_space
from chanas.devices.host import load_target
from chanas.errors import CheckpointError
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import RecordStore
from chanas.testing.spaces import failure, smooth
from chanas.workflows.models.reporting import report_tuned


def page(folder: Path) -> Page:
    return Page(report_tuned(folder).read_text(encoding="utf-8"))


@pytest.fixture
def placed(copied: Path) -> Path:
    """A tuned network in a run of its own, whose records have ten trials of each operator, one of which failed."""
    run, target = RunDirectory(copied.parent), load_target("cpu")
    with contextlib.closing(RecordStore(run.records, target)) as store:
        for entry in json.loads((copied / DOCUMENT).read_text(encoding="utf-8"))["operators"]:
            points = schedule_space(Workload.from_json(entry["workload"]), target).points[:10]
            store.add(entry["key"], [failure(points[0]), *map(smooth, points[1:])])
    change_document(copied, run="..")
    return copied


def test_a_network_in_its_run_has_curves_and_spaces(placed: Path) -> None:
    before = RunDirectory(placed.parent).records.read_bytes()
    found = page(placed)
    assert found.figures[:2] == ["operators", "tuning"]
    assert "effects-0" in found.figures
    assert 'class="missing"' not in (placed / "report.html").read_text(encoding="utf-8")
    assert RunDirectory(placed.parent).records.read_bytes() == before
    assert workflows.report_tuned(placed) == placed / "report.html"


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (None, "does not say which run's records"),
        ("nowhere", "are not at"),
        ("../empty", "has no records of its operators"),
    ],
)
def test_without_records_a_line_says_why_and_the_table_is_there(placed: Path, run: str | None, told: str) -> None:
    with contextlib.closing(RecordStore(placed.parent / "empty" / "records.sqlite", load_target("cpu"))):
        pass
    change_document(placed, run=run)
    found = page(placed)
    assert found.figures == ["operators"]
    assert told in found.text
    assert "conv-16px-3x8-k3s1-relu-float32" in found.text


def test_damaged_records_are_a_line(placed: Path) -> None:
    RunDirectory(placed.parent).records.write_text("no database")
    found = page(placed)
    assert found.figures == ["operators"]
    assert "records.sqlite cannot be read" in found.text


def test_a_file_of_knobs_is_taken_from_the_run_or_named(placed: Path) -> None:
    knobs = placed.parent / "knobs" / "mine.yaml"
    knobs.parent.mkdir()
    knobs.write_text("all: {auto_unroll: [0, 16]}")
    digest = file_digest(knobs)
    change_document(placed, knobs={"name": "mine.yaml", "hash": digest})
    assert f"The file of knobs mine.yaml ({digest}) is not in" in page(placed).text
    knobs.rename(knobs.with_name(f"mine-{digest}.yaml"))
    assert "The file of knobs" not in page(placed).text


@pytest.mark.parametrize("changes", [{"measured": {}}, {"measured": {"latency_s": 0.0}}, {"operators": 0.0}])
def test_a_document_without_usable_times_is_refused(copied: Path, changes: dict[str, Any]) -> None:
    if changes == {"operators": 0.0}:
        entries = json.loads((copied / DOCUMENT).read_text(encoding="utf-8"))["operators"]
        changes = {"operators": [{**entries[0], "seconds": 0.0}, *entries[1:]]}
    change_document(copied, **changes)
    with pytest.raises(CheckpointError, match=r"tuned\.json is damaged"):
        report_tuned(copied)


def test_what_is_no_operator_is_refused(copied: Path) -> None:
    entries = json.loads((copied / DOCUMENT).read_text(encoding="utf-8"))["operators"]
    change_document(copied, operators=[{**entries[0], "workload": {"op": "conv"}}, *entries[1:]])
    with pytest.raises(CheckpointError, match=r"tuned\.json is damaged"):
        report_tuned(copied)


def test_what_is_no_tuned_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no folder of a tuned network"):
        report_tuned(tmp_path)


def test_a_network_says_which_run_and_what_was_tried(tuned_folder: Path, tmp_path: Path) -> None:
    document = json.loads((tuned_folder / DOCUMENT).read_text(encoding="utf-8"))
    assert (tuned_folder / document["run"]).resolve() == tuned_folder.parent.resolve()
    assert document["knobs"] is None
    assert document["measured"]["peak_gflops"] > 0.0
    for operator in document["operators"]:
        assert operator["trials"] >= 1
        assert operator["failed"] == 0
        assert 0.0 < operator["mean_gflops"] <= operator["best_gflops"] * 1.5
        assert 0.0 < operator["share_of_peak"] <= 1.0
    assert Page(report_tuned(Path(shutil.copytree(tuned_folder, tmp_path / "net"))).read_text()).figures != []
