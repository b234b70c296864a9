"""chanas/prescheduler/records/schedules.py: files of schedules, and those that come with chanas."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

import chanas
from chanas.compiler.backends import backend_of, schedule_space
from chanas.core.target import tvm_version
from chanas.errors import CheckpointError
from chanas.operators.keys import workload_of_key
from chanas.operators.workload import Workload
from chanas.prescheduler.records.schedules import SHIPPED, read_schedules, shipped_schedules, write_schedules
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.records.store import TuningRecord

from ...compiler.workbench import device

ROOT = Path(__file__).resolve().parents[3]
HERE = device()
SOURCE = Source("cpu", HERE, tvm_version(), backend_of(HERE).space_version)
WORKLOADS = Workload("pointwise", 14, 96, 192, epilogue="relu"), Workload("pool", 7, 96, 96)
FILES = sorted(SHIPPED.glob("*.json"))


def records() -> dict[str, tuple[TuningRecord, ...]]:
    points = {w.key: schedule_space(w, HERE).points[:2] for w in WORKLOADS}
    return {key: tuple(TuningRecord(p, 1.25e-5 * (i + 1)) for i, p in enumerate(some)) for key, some in points.items()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "avx.json"
    write_schedules(path, SOURCE, records())
    return path


def test_a_file_is_read_as_it_was_written(file: Path) -> None:
    found = read_schedules(file)
    assert found.records == records()
    assert (found.source.device, found.source.target, found.source.spaces) == ("avx.json", HERE, SOURCE.spaces)


def test_an_operator_is_a_line_and_lines_are_sorted(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if "float32" in line and "px-" in line]
    assert [json.loads("{" + line.strip().rstrip(",") + "}").keys() for line in lines] == [
        {key} for key in sorted(w.key for w in WORKLOADS)
    ]


def test_the_same_content_is_the_same_file(file: Path, tmp_path: Path) -> None:
    again = read_schedules(file)
    write_schedules(tmp_path / "again.json", again.source, dict(reversed(again.records.items())))
    assert (tmp_path / "again.json").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"schema": 1', '"schema": 9', "expected schema 1 of file of schedules"),
        ("1.25e-05", '"fast"', "not written as expected"),
        ('"tvm"', '"tvn"', "versions.tvm is missing"),
        ('"kind": "llvm"', '"kind": 3', "target.kind"),
    ],
)
def test_a_damaged_file_is_refused_by_name(file: Path, old: str, new: str, says: str) -> None:
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(CheckpointError, match=says) as caught:
        read_schedules(file)
    assert str(file) in str(caught.value)


# ---- those that come with chanas ------------------------------------------------------------------------------------
def test_they_lie_in_the_package_and_nothing_keeps_them_out_of_a_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert Path(chanas.__file__).parent / "schedules" == SHIPPED
    assert wheel == {"packages": ["chanas"]}
    assert [f.path for f in shipped_schedules()] == FILES != []


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_entry_is_a_schedule_of_its_operator(path: Path) -> None:
    found = read_schedules(path)
    target = found.source.target
    assert found.source.refusals(target) == []
    for key, some in found.records.items():
        workload = workload_of_key(key)
        space = schedule_space(workload, target)
        assert (workload.key, workload.dtype) == (key, target.dtype)
        assert all(space.contains(r.point) for r in some), key
        assert len({r.point for r in some}) == len(some) <= 3
        assert [r.seconds for r in some] == sorted(r.seconds or 0.0 for r in some), key


def test_the_page_about_them_has_a_row_for_each() -> None:
    page = (SHIPPED / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in FILES if f"| `{path.name}` |" not in page] == []
