"""chanas/measuring/worker/cuda.py: candidates are compiled, checked, and timed on a GPU that this
machine stands in for; what spoils a GPU for a process ends that process."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.cases import operator_case
from chanas.compiler.cuda.graph import COPIES
from chanas.devices.timing import Call, TimingSettings
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import Build, Crash, ErrorKind, Measure, OperatorAt, OperatorsAt, Ping, WorkerError
from chanas.measuring.worker import cuda
from chanas.measuring.worker.cuda import describe
from chanas.measuring.worker.timing import measure

from ...compiler.cuda_cases import GPU, WORKLOADS
from ...compiler.workbench import plant_worker
from ..stand_in import WORKER, StandIn, save_program

WORKLOAD = WORKLOADS[1]
POINT, OTHER = schedule_space(WORKLOAD, GPU).sample(2, np.random.default_rng(0))


@pytest.fixture(scope="module")
def gpu_pool() -> Iterator[WorkerPool]:
    with pytest.MonkeyPatch.context() as patch:
        plant_worker(patch, "cuda", WORKER)
        with WorkerPool(GPU) as workers:
            yield workers


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("case") / "case.npz"
    operator_case(WORKLOAD, GPU).save(path)
    return path


COLD = TimingSettings(cold_bytes=1)


def test_a_candidate_is_built_checked_and_timed(gpu_pool: WorkerPool, case: Path, tmp_path: Path) -> None:
    library = tmp_path / "kernel.so"
    build = Build(target=GPU, what=OperatorAt(WORKLOAD, POINT), path=library)
    built = gpu_pool.build(build, 60.0).result()
    assert built.error is None
    assert len(built.result["code"]) == 32
    timed = gpu_pool.measure(Measure(library=library, case=case, settings=COLD), 60.0).result()
    assert timed.error is None
    assert 0.0 < timed.timing.seconds < 1.0
    assert timed.timing.max_error < 1e-4


def test_several_take_turns_and_a_wrong_one_has_no_time(gpu_pool: WorkerPool, tmp_path: Path) -> None:
    right = operator_case(WORKLOAD, GPU)
    spoilt, folder = tmp_path / "spoilt.npz", tmp_path / "both"
    dataclasses.replace(right, expected=right.expected + 1.0).save(spoilt)
    points, compiled = [POINT, OTHER], [None, None]
    build = Build(target=GPU, what=OperatorsAt(WORKLOAD, points, compiled), path=folder)
    assert gpu_pool.build(build, 60.0).result().error is None
    quick = TimingSettings(repeats=2, min_repeat_s=1e-6)
    timing = Measure(library=folder, num=2, case=spoilt, settings=quick)
    answer = gpu_pool.measure(timing, 60.0).result()
    assert [m.error is not None and m.error.kind for m in answer.members] == [ErrorKind.WRONG, ErrorKind.WRONG]
    case = tmp_path / "case.npz"
    right.save(case)
    answer = gpu_pool.measure(dataclasses.replace(timing, case=case), 60.0).result()
    assert all(member.timing.seconds > 0.0 for member in answer.members)


def test_a_crash_costs_one_candidate(gpu_pool: WorkerPool) -> None:
    assert "crash" in str(gpu_pool.measure(Crash(), 60.0).result().error)
    assert gpu_pool.measure(Ping(), 60.0).result().error is None


def test_after_an_error_of_the_gpu_another_process_goes_on(tmp_path: Path) -> None:
    """One that answers every `crash` as a GPU does that was asked for an illegal address."""
    program = tmp_path / "worker.py"
    program.write_text(
        "import sys, types\nsys.modules['tvm'] = types.ModuleType('tvm')\n"
        "from chanas.measuring.worker import serve\n"
        "from chanas.measuring.worker.cuda import describe\n"
        "from chanas.measuring.messages import Crash, Ping\n"
        "def fault(_request):\n    raise RuntimeError('CUDA: an illegal memory access was encountered')\n"
        "serve.serve_requests({Ping: serve.ping, Crash: fault}, describe)\n"
    )
    root = Path(__file__).resolve().parents[3]
    with pytest.MonkeyPatch.context() as patch:
        plant_worker(patch, "cuda", (str(program),))
        patch.setenv("PYTHONPATH", str(root))
        with WorkerPool(GPU) as workers:
            before = workers.measure(Ping(), 60.0).result().result["pid"]
            error = workers.measure(Crash(), 60.0).result().error
            after = workers.measure(Ping(), 60.0).result().result["pid"]
    assert error == WorkerError(ErrorKind.GPU_FAULT, "CUDA: an illegal memory access was encountered")
    assert before != after


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA: out of memory", ErrorKind.OUT_OF_MEMORY),
        ("CUDA error: cudaErrorMemoryAllocation", ErrorKind.OUT_OF_MEMORY),
        ("CUDA: unspecified launch failure", ErrorKind.GPU_FAULT),
        ("something else", ErrorKind.RAISED),
    ],
)
def test_errors_say_what_became_of_the_gpu(text: str, kind: ErrorKind) -> None:
    assert describe(RuntimeError(text)).kind is kind


# ---- time -----------------------------------------------------------------------------------------------------------
class Clocked(StandIn):
    """Every launch takes a millisecond after `slow` slower ones; remembers how it was asked."""

    def __init__(self, slow: int = 0) -> None:
        self.slow, self.asked = slow, list[bool]()
        self.now = 0.0

    def timer(self) -> cuda.GPU:
        return cuda.GPU(lambda: self, lambda: self.now)

    def seconds(self, calls: Iterable[Call], cold: bool) -> float:
        num = len(list(calls))
        self.asked.append(cold)
        each = 1e-3 * (1.0 + 0.5 * max(0, self.slow - len(self.asked)))
        self.now += num * each
        return num * each


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from chanas.compiler.cuda.graph import operator_program

    path = tmp_path_factory.mktemp("library") / "kernel.so"
    save_program(operator_program(WORKLOAD, POINT, GPU), GPU, path)
    return path


@pytest.mark.parametrize("cold_bytes", [0, 1])
def test_seconds_are_those_of_one_copy_cold_where_that_is_asked(library: Path, case: Path, cold_bytes: int) -> None:
    device = Clocked()
    request = Measure(library=library, case=case, settings=TimingSettings(cold_bytes=cold_bytes))
    result = measure(request, device.timer())
    assert result.seconds == pytest.approx(1e-3 / COPIES)
    assert device.asked[-1] is bool(cold_bytes)


@pytest.mark.parametrize(("slow", "least"), [(20, 20), (10**6, 1)], ids=["settles", "never settles"])
def test_clock_rates_have_settled_before_anything_is_timed_or_are_not_waited_for(
    library: Path, case: Path, slow: int, least: int
) -> None:
    device = Clocked(slow)
    assert measure(Measure(library=library, case=case, settings=COLD), device.timer()).seconds > 0.0
    assert device.asked.index(True) >= least


def test_clock_rates_that_have_settled_are_not_waited_for_again(library: Path, case: Path) -> None:
    device = Clocked()
    timer = device.timer()
    measure(Measure(library=library, case=case, settings=COLD), timer)
    before = len(device.asked)
    measure(Measure(library=library, case=case, settings=COLD), timer)
    assert all(device.asked[before:])


def test_an_output_that_is_not_written_is_wrong(library: Path, case: Path) -> None:
    class Idle(Clocked):
        def load(self, library: Path | str) -> Any:
            machine = super().load(library)
            return {"main": lambda *_: None, "new_output": machine["new_output"]}

    result = measure(Measure(library=library, case=case), cuda.GPU(Idle))
    assert result == WorkerError.wrong(math.inf)
