"""workflows/models/spaces.py: spaces of an operator or of a network, with the records of a run."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest
from html_pages import Page

from chanas.compiler.backends import schedule_space
from chanas.devices.host import load_target
from chanas.errors import CheckpointError, ConfigError
from chanas.files.run import RunDirectory
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import RecordStore
from chanas.testing.spaces import failure, smooth
from chanas.workflows.models.spaces import spaces_of, write_page

WORKLOAD = Workload("pointwise", 8, 16, 32, epilogue="relu")
TWO_THREADS = dataclasses.replace(load_target("cpu"), num_threads=2, name="cpu-2t")


def test_records_are_those_of_the_threads_that_are_asked_for(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    points = schedule_space(WORKLOAD, TWO_THREADS).points
    with contextlib.closing(RecordStore(run.records, TWO_THREADS)) as store:
        store.add(WORKLOAD.key, [smooth(points[0]), failure(points[1])])
    before = run.records.read_bytes()
    (one,), (two,) = (spaces_of(WORKLOAD.key, num_threads=n, run=run) for n in (1, 2))
    assert (one.num_tried, two.num_tried, two.num_failed) == (0, 2, 1)
    assert two.best is not None
    assert two.best.point == points[0]
    assert run.records.read_bytes() == before


def test_a_file_of_knobs_changes_what_is_shown(tmp_path: Path) -> None:
    (tmp_path / "knobs.yaml").write_text("pointwise: {rules: false, auto_unroll: [0, 16]}")
    run = RunDirectory(tmp_path)
    point = schedule_space(WORKLOAD, load_target("cpu")).points[0]
    with contextlib.closing(RecordStore(run.records, load_target("cpu"))) as store:
        store.add(WORKLOAD.key, [smooth(point), smooth((*point, 16))])
    (plain,), (wide,) = (spaces_of(WORKLOAD.key, run=run, knobs=k) for k in (None, tmp_path / "knobs.yaml"))
    assert wide.num_points == wide.space.num_combinations > (plain.num_points or 0)
    assert wide.knobs[-1].name == "auto_unroll"
    assert (plain.num_tried, wide.num_tried) == (1, 2)
    with pytest.raises(ConfigError, match=r"^--knobs changes spaces of processors"):
        spaces_of(WORKLOAD.key, "jetson-nano", run=run, knobs=tmp_path / "knobs.yaml")


def test_a_page_has_the_figures_of_what_was_tried(tmp_path: Path) -> None:
    run, target = RunDirectory(tmp_path), load_target("cpu")
    with contextlib.closing(RecordStore(run.records, target)) as store:
        store.add(WORKLOAD.key, [smooth(point) for point in schedule_space(WORKLOAD, target).points[:8]])
    write_page(spaces_of(WORKLOAD.key, run=run), WORKLOAD.key, tmp_path / "space.html")
    page = Page((tmp_path / "space.html").read_text(encoding="utf-8"))
    assert page.figures == ["space-0", "effects-0"]
    assert WORKLOAD.key in page.text


def test_without_points_that_work_there_is_no_page(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"^the records have no point of pointwise-8px\S* that works"):
        write_page(spaces_of(WORKLOAD.key, run=run), WORKLOAD.key, tmp_path / "space.html")
    assert list(tmp_path.iterdir()) == []


def test_without_records_there_is_the_space_alone(tmp_path: Path) -> None:
    (space,) = spaces_of(WORKLOAD.key, "raspberry-pi-4", run=RunDirectory(tmp_path / "none"))
    assert space.num_tried == 0
    assert space.target.vector_lanes == 4
    assert not (tmp_path / "none").exists()


def test_records_that_are_none_are_named(tmp_path: Path) -> None:
    RunDirectory(tmp_path).records.write_text("no database")
    with pytest.raises(CheckpointError, match=r"records\.sqlite"):
        spaces_of(WORKLOAD.key, run=RunDirectory(tmp_path))


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^expected the key of an operator, such as .*, got 'pointwise-8px'$"):
        spaces_of("pointwise-8px", run=RunDirectory(tmp_path))
