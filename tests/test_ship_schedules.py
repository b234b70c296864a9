"""tools/ship_schedules.py: records of runs become a file of schedules."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from tool_modules import load_tool

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.errors import ConfigError
from chanas.files.run import RunDirectory
from chanas.operators.workload import Workload
from chanas.prescheduler.records.schedules import read_schedules
from chanas.prescheduler.records.store import RecordStore, TuningRecord

HERE = load_target("cpu")
OTHER = dataclasses.replace(HERE, fingerprint="0123456789ab", l2_bytes=2 * HERE.l2_bytes)
A, B = Workload("pointwise", 14, 96, 192), Workload("pool", 7, 96, 96)


@pytest.fixture
def tool() -> ModuleType:
    return load_tool("ship_schedules")


def points(workload: Workload) -> tuple[Point, ...]:
    return schedule_space(workload, HERE).points


def run_with(folder: Path, workload: Workload, records: Sequence[TuningRecord], target: HardwareTarget = HERE) -> Path:
    with contextlib.closing(RecordStore(RunDirectory(folder).records, target)) as store:
        store.add(workload.key, records)
        store.add_remeasured(workload.key, [r for r in records if r.again_s is not None])
    return folder


def test_runs_of_a_device_become_one_file(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third, slow, *_ = points(A)
    one = run_with(
        tmp_path / "one",
        A,
        [
            TuningRecord(first, 1.05e-6, code="x"),
            TuningRecord(second, 1.00e-6, code="y"),
            TuningRecord(slow, 1.2e-6, code="z"),
            TuningRecord(points(A)[4], None, error="crash"),
        ],
    )
    two = run_with(tmp_path / "two", A, [TuningRecord(third, 1.01e-6, code="x")])
    run_with(tmp_path / "two", B, [TuningRecord(points(B)[0], 2.34567e-6)])
    tool.main([str(one), str(two / "records.sqlite"), "--out", str(tmp_path / "avx.json")])
    found = read_schedules(tmp_path / "avx.json")
    assert {key: [(r.point, r.seconds) for r in some] for key, some in found.records.items()} == {
        A.key: [(second, 1.00e-6), (third, 1.01e-6)],  # the others are the same code, too slow, or wrong
        B.key: [(points(B)[0], 2.346e-6)],
    }
    assert (found.source.target, found.source.refusals(HERE)) == (HERE, [])
    assert "2 operators, 3 points of cpu" in capsys.readouterr().out


def test_three_points_of_an_operator_at_most_by_their_turns(tool: ModuleType) -> None:
    seconds = (1.00e-6, 1.01e-6, 1.02e-6, 1.03e-6, 1.04e-6)
    records = [TuningRecord(p, s, code=str(p)) for p, s in zip(points(A)[:5], seconds, strict=True)]
    records[4] = dataclasses.replace(records[4], again_s=0.99e-6)
    records[3] = dataclasses.replace(records[3], again_s=0.98e-6)
    best = tool.best_points(A.key, records, HERE)
    assert [(points(A).index(r.point), r.seconds) for r in best] == [(3, 0.98e-6), (4, 0.99e-6), (0, 1.00e-6)]


def test_points_outside_of_the_space_stay_at_home(tool: ModuleType) -> None:
    assert tool.best_points(A.key, [TuningRecord((1, 2, 3), 1e-6)], HERE) == []


def test_records_of_several_devices_are_refused_by_name(tool: ModuleType, tmp_path: Path) -> None:
    runs = [
        run_with(tmp_path / str(i), A, [TuningRecord(points(A)[0], 1e-6)], target)
        for i, target in enumerate((HERE, OTHER))
    ]
    with pytest.raises(ConfigError, match=r"expected records of one device, got .* l2_bytes \d+ there, \d+ before"):
        tool.main([*map(str, runs), "--out", str(tmp_path / "avx.json")])
    assert not (tmp_path / "avx.json").exists()


def test_a_run_without_records_of_the_target_says_what_it_has(tool: ModuleType, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", A, [TuningRecord(points(A)[0], 1e-6)])
    for arguments, says in (
        ([str(run), "--target", "cpu-2t"], "no records of target cpu-2t; it has those of: cpu"),
        ([str(tmp_path / "nowhere")], "expected a run directory or a file of records"),
    ):
        with pytest.raises(ConfigError, match=says):
            tool.main([*arguments, "--out", str(tmp_path / "avx.json")])
