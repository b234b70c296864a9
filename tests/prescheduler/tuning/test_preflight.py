"""chanas/prescheduler/tuning/preflight.py: what can't work on a device is told before anything is tuned, in one
line."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tables import save_space

from chanas.commands import process as cli
from chanas.compiler.backends import schedule_space
from chanas.core.target import HardwareTarget
from chanas.errors import MeasureError
from chanas.files.run import RunDirectory
from chanas.measuring import devices
from chanas.measuring.fleet import WorkerPool
from chanas.operators.steps import tuned_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning import preflight
from chanas.prescheduler.tuning.preflight import (
    all_families,
    check_families,
    one_of_each,
    remaining_workloads,
    require_families,
)

from ...compiler.cuda_cases import GPU
from ...compiler.workbench import HOST, NANO, NUM_CLASSES, SyntheticPool

POINTWISE, DEPTHWISE = Workload("pointwise", 4, 16, 32), Workload("depthwise", 4, 16, 16, 3)
NO_BF16 = dataclasses.replace(
    HOST,
    name="cpu-bf16",
    dtype="bfloat16",
    mcpu="x86-64-v4",
    vector_lanes=16,
    num_vector_registers=32,
    fingerprint="0" * 12,
)
"""A processor with AVX-512 and without its instructions for bfloat16: LLVM aborts at every such kernel."""
ABORT = "crash: the worker ended with signal 6 (SIGABRT) in build"


def failing(error: Callable[[Any], str | None]) -> SyntheticPool:
    """Operators whose measurement fails as `error` says of the request of their build; None where it works."""
    pool = SyntheticPool()
    pool.check_error = error
    return pool


# ---- the operators --------------------------------------------------------------------------------------------------
def test_the_cheapest_operator_stands_for_its_family() -> None:
    larger = dataclasses.replace(POINTWISE, in_channels=32)
    assert one_of_each([larger, DEPTHWISE, POINTWISE, larger]) == (POINTWISE, DEPTHWISE)


@pytest.mark.parametrize(
    ("target", "families"),
    [
        (HOST, {"conv", "blockconv", "groupconv", "winograd", "winograd2", "pointwise", "depthwise", "pool", "upconv"}),
        (NO_BF16, {"conv", "blockconv", "pointwise", "depthwise", "pool"}),
        (GPU, {"conv", "blockconv", "pointwise", "depthwise", "pool", "squeeze"}),
        (dataclasses.replace(GPU, batch=4), {"conv", "blockconv", "pointwise", "depthwise", "pool"}),
    ],
    ids=["f32", "bf16", "gpu", "gpu-b4"],
)
def test_all_families_are_those_of_the_dtype_and_device(target: HardwareTarget, families: set[str]) -> None:
    workloads = all_families(target)
    assert {w.op for w in workloads} == families
    assert len(workloads) == len(families)
    assert {(w.dtype, w.batch) for w in workloads} == {(target.dtype, target.batch)}
    assert {w.op for w in tuned_workloads(NANO.all_blocks(NUM_CLASSES), target)} <= families


# ---- the check ------------------------------------------------------------------------------------------------------
def test_all_families_work_here(pool: WorkerPool, tmp_path: Path) -> None:
    workloads = all_families(HOST)
    assert check_families(workloads, HOST, pool, tmp_path) == dict.fromkeys(w.op for w in workloads)
    assert list(tmp_path.iterdir()) == []


def test_one_bad_point_condemns_no_family(tmp_path: Path) -> None:
    bad: list[Path] = []

    def error(asked: Any) -> str | None:
        bad.append(asked.path)
        return "timeout" if len(bad) < 3 else None

    pool = failing(error)
    assert check_families([POINTWISE], HOST, pool, tmp_path) == {"pointwise": None}
    assert len(set(bad)) == len({a.what.point for a in pool.checked}) == 3


def test_a_family_that_fails_at_three_points_fails_with_the_first_error(tmp_path: Path) -> None:
    errors = iter(("crash", "timeout", "crash"))
    pool = failing(lambda asked: next(errors) if asked.what.workload.op == "depthwise" else None)
    checks = check_families([DEPTHWISE, POINTWISE], HOST, pool, tmp_path)
    assert checks == {"depthwise": "crash", "pointwise": None}
    assert len(pool.checked) == 4
    assert list(tmp_path.iterdir()) == []


def test_what_fails_is_one_line_with_the_families_and_what_to_do(tmp_path: Path) -> None:
    pool = failing(lambda asked: None if asked.what.workload.op == "conv" else "crash: a; it said: b")
    target = dataclasses.replace(HOST, mcpu="x86-64-v3")
    workloads = [Workload("conv", 8, 3, 8, 3, 2), DEPTHWISE, POINTWISE]
    with pytest.raises(MeasureError) as caught:
        require_families(workloads, target, pool, tmp_path)
    assert str(caught.value) == (
        f"operators in f32 do not work on {HOST.device}, compiled for x86-64-v3: depthwise, pointwise "
        "(crash: a; it said: b); run `chanas doctor` and report what it says"
    )
    require_families(workloads[:1], target, pool, tmp_path)


def test_nothing_is_checked_where_nothing_is_left(tmp_path: Path) -> None:
    pool = failing(lambda _asked: "crash")
    require_families([], HOST, pool, tmp_path)
    assert pool.checked == []


# ---- what is left ---------------------------------------------------------------------------------------------------
def keep(store: RecordStore, workload: Workload, num: int) -> None:
    points = schedule_space(workload, HOST).points[:num]
    store.add(workload.key, [TuningRecord(p, 1e-6) for p in points])


def test_an_operator_whose_points_were_all_tried_has_none_left(store: RecordStore) -> None:
    pool = Workload("pool", 2, 16, 16)
    keep(store, pool, len(schedule_space(pool, HOST).points))
    assert remaining_workloads([pool, POINTWISE], HOST, store, 1000) == [POINTWISE]


def test_a_common_budget_is_left_to_all_or_none(store: RecordStore) -> None:
    keep(store, POINTWISE, 4)
    keep(store, DEPTHWISE, 1)
    assert remaining_workloads([POINTWISE, DEPTHWISE], HOST, store, 3) == [POINTWISE, DEPTHWISE]
    keep(store, DEPTHWISE, 2)
    assert remaining_workloads([POINTWISE, DEPTHWISE], HOST, store, 3) == []


# ---- the command ----------------------------------------------------------------------------------------------------
@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for x86-64 and runs what it compiles")
def test_a_dtype_that_the_compiler_aborts_at_ends_in_seconds_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "load_used", lambda _usage: NO_BF16)
    monkeypatch.setattr(preflight, "_NUM_POINTS", 1)  # of each family: a worker starts anew after each
    run = RunDirectory(tmp_path / "run")
    space = save_space(NANO, tmp_path / "nano.yaml")
    options = ["--run", str(run.root), "--space", str(space), "--num-classes", str(NUM_CLASSES), "--dtype", "bf16"]
    start = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        cli.main(["prescheduler", *options])
    said = capsys.readouterr().err
    assert ended.value.code == 1
    *plan, said = said.splitlines(keepends=True)
    assert plan[0].startswith("plan")
    assert said.startswith(f"chanas: error: operators in bf16 do not work on {HOST.device}, compiled for x86-64-v4: ")
    assert f"({ABORT}; it said: LLVM ERROR: " in said
    assert said.endswith("; use --dtype f32\n")
    for family in ("pointwise", "depthwise"):
        assert family in said
    assert time.monotonic() - start < 120.0  # of a machine that does other things too
    store = RecordStore(run.records, NO_BF16)
    assert store.count() == (0, 0)
    store.close()


def test_a_run_checks_each_family_once_and_not_again_when_all_is_tuned(
    tmp_path: Path, synthetic_pool: SyntheticPool
) -> None:
    space = save_space(NANO, tmp_path / "nano.yaml")
    options = ["--run", str(tmp_path / "run"), "--space", str(space), "--num-classes", str(NUM_CLASSES)]
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            cli.main(["prescheduler", *options, "--trials", "3", "--calibrate", "0"])
        assert ended.value.code in (0, None)
    checked = [a.what.workload.op for a in synthetic_pool.checked]
    assert sorted(checked) == ["conv", "depthwise", "pointwise", "pool"]
