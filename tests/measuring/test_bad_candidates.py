"""Candidates that crash, hang, compute nonsense or eat memory, in the real workers: each ends as a record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point
from chanas.core.effort import Effort, Search
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import Answer, Build, Measure, OperatorAt, Request
from chanas.measuring.worker.process import WorkerProcess
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning.jobs import TuningJobs

from ..compiler.workbench import HOST, plant_worker

WORKLOAD = Workload("pointwise", 4, 8, 32)
POINTS = schedule_space(WORKLOAD, HOST).points
ERRORS = {
    "compiler fails": "RuntimeError: planted",
    "compiler crashes": "crash: the worker ended with signal 11 (SIGSEGV) in build",
    "compiler never ends": "timeout: build took more than 1 s",
    "compiler takes all memory": "out of memory: a worker may allocate ",
    "kernel crashes": "crash: the worker ended with signal 11 (SIGSEGV) in measure",
    "kernel never ends": "timeout: measure took more than 1 s",
    "kernel takes all memory": "crash: the worker ended with signal 11 (SIGSEGV) in measure",
    "kernel is wrong": "wrong result: relative error ",
}
PLANTED = dict(zip(ERRORS, POINTS[1::2], strict=False))
ENDLESS = {PLANTED[kind] for kind in PLANTED if kind.endswith("never ends")}
TIMEOUT_S = 1.0


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Point, TuningRecord]]:
    """All points of an operator, eight of which are bad, after tuning."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "plan.json").write_text(json.dumps([[point, kind] for kind, point in PLANTED.items()]))
    worker = Path(__file__).with_name("planted_worker.py")
    call = WorkerProcess.call
    endless: set[Path] = set()

    def impatient(self: WorkerProcess, request: Request, timeout_s: float) -> Answer:
        """Wait for those that never end less long than for the others, on a machine that does other things too."""
        match request:
            case Build(what=OperatorAt(point=point), path=library) if point in ENDLESS:
                endless.add(library)
                timeout_s = TIMEOUT_S
            case Measure(library=library) if library in endless:
                timeout_s = TIMEOUT_S
        return call(self, request, timeout_s)

    store = RecordStore(folder / "records.sqlite", HOST)
    scratch = folder / "scratch"
    scratch.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        plant_worker(patch, "llvm", (str(worker), str(folder / "plan.json")))
        patch.setattr(WorkerProcess, "call", impatient)
        with WorkerPool(HOST) as workers:
            effort = Effort(trials=len(POINTS), tuner="random", search=Search(batch_size=len(POINTS)))
            TuningJobs(workers, HOST, store, effort, scratch).run([WORKLOAD], progress=False)
    assert list(scratch.iterdir()) == []
    yield {r.point: r for r in store.load(WORKLOAD.key)}
    store.close()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("kind", ERRORS)
def test_a_planted_candidate_ends_as_a_record_with_its_error(records: dict[Point, TuningRecord], kind: str) -> None:
    record = records[PLANTED[kind]]
    assert (record.error or "").startswith(ERRORS[kind])
    assert record.seconds is None


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_all_other_candidates_are_measured(records: dict[Point, TuningRecord]) -> None:
    assert set(records) == set(POINTS)
    others = [r for point, r in records.items() if point not in PLANTED.values()]
    assert all(r.error is None and (r.seconds or 0.0) > 0.0 for r in others)
