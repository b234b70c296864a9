"""chanas/measuring/worker/cpu.py: a time counts only for a right result, and is taken as a network would
run it."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.cases import ReferenceCase, operator_case
from chanas.core.codec import to_json
from chanas.devices.timing import TimingSettings
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import Answer, Build, ErrorKind, Measure, OperatorAt, Ping, WorkerError
from chanas.operators.precision import FLOAT32
from chanas.operators.workload import Workload

from ...compiler.workbench import HOST, Workbench

ROOT = Path(__file__).resolve().parents[3]
WORKLOAD = Workload("pointwise", 4, 24, 40)
POINT = schedule_space(WORKLOAD, HOST).points[0]


@pytest.fixture(scope="module")
def case() -> ReferenceCase:
    return operator_case(WORKLOAD, HOST)


@pytest.fixture(scope="module")
def library(workbench: Workbench) -> Path:
    """A kernel that computes `WORKLOAD`."""
    candidate = workbench.candidate(WORKLOAD, POINT)
    assert workbench.pool.build(candidate.build, 60.0).result().error is None
    return candidate.library


def measure(workbench: Workbench, library: Path, case: ReferenceCase, **settings: Any) -> Answer:
    how = TimingSettings(**{"min_repeat_s": 1e-6, **settings})
    request = Measure(library=library, case=workbench.save(case), settings=how)
    return workbench.pool.measure(request, 60.0).result()


# ---- right and wrong ------------------------------------------------------------------------------------------------
def test_a_right_result_has_a_time(workbench: Workbench, library: Path, case: ReferenceCase) -> None:
    answer = measure(workbench, library, case)
    assert answer.error is None
    assert answer.timing.seconds > 0.0
    assert answer.timing.spread_s >= 0.0
    assert answer.timing.max_error < FLOAT32.operator_tolerance


@pytest.mark.parametrize("index", [0, 17, -1])
def test_one_wrong_value_is_a_wrong_result_without_a_time(
    workbench: Workbench, library: Path, case: ReferenceCase, index: int
) -> None:
    expected = case.expected.copy()
    expected.flat[index] += 0.01 * np.abs(expected).max()
    answer = measure(workbench, library, dataclasses.replace(case, expected=expected))
    assert answer.result is None
    assert answer.error is not None
    assert answer.error.kind is ErrorKind.WRONG
    assert answer.error.max_error == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_result_that_is_no_number_is_wrong(
    workbench: Workbench, library: Path, case: ReferenceCase, value: float
) -> None:
    _, weights, bias = case.arguments
    spoilt = bias.copy()
    spoilt[0, 0] = value
    answer = measure(workbench, library, dataclasses.replace(case, arguments=(case.arguments[0], weights, spoilt)))
    assert answer.error == WorkerError.wrong(math.inf)


def test_an_output_that_is_not_written_is_wrong(workbench: Workbench, library: Path, case: ReferenceCase) -> None:
    """What an earlier call left in the output does not pass for a result."""
    assert measure(workbench, library, case).error is None
    longer = np.concatenate([case.expected, case.expected[:1]])
    assert measure(workbench, library, dataclasses.replace(case, expected=longer)).error == WorkerError.wrong(math.inf)


def test_a_library_that_cannot_be_loaded_is_an_error(workbench: Workbench, case: ReferenceCase) -> None:
    broken = workbench.path(".so")
    broken.write_bytes(b"\x7fELF but not really")
    answer = measure(workbench, broken, case)
    assert answer.result is None
    assert answer.error is not None


# ---- the same program -----------------------------------------------------------------------------------------------
def test_the_same_machine_code_is_known_by_its_hash(workbench: Workbench) -> None:
    """Wherever the library lies; another tile is another program."""
    points = schedule_space(WORKLOAD, HOST).points
    smallest, largest = (choose(points, key=lambda p: p[1] * p[3] * p[5]) for choose in (min, max))
    asked = [workbench.candidate(WORKLOAD, p).build for p in (largest, smallest, largest)]
    first, other, again = [workbench.pool.build(build, 60.0).result().result["code"] for build in asked]
    assert first == again != other


# ---- time -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "arguments", [{"cold_bytes": 100_000}, {"code_copies": 5}, {"cold_bytes": 50_000, "code_copies": 3}]
)
def test_copies_of_weights_and_code_are_removed_and_change_no_result(
    workbench: Workbench, library: Path, case: ReferenceCase, arguments: dict[str, int]
) -> None:
    before = set(library.parent.glob("*.so"))
    result = measure(workbench, library, case, **arguments).timing
    assert result.max_error < FLOAT32.operator_tolerance
    assert set(library.parent.glob("*.so")) == before


# ---- the process ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["build", "measure"])
def test_workers_do_without_torch(
    pool: WorkerPool, workbench: Workbench, library: Path, case: ReferenceCase, kind: str
) -> None:
    assert measure(workbench, library, case).error is None
    pid = getattr(pool, kind)(Ping(), 60.0).result().result["pid"]
    mapped = Path(f"/proc/{pid}/maps").read_text()
    assert "libtvm" in mapped
    assert "libtorch" not in mapped


def test_errors_are_one_short_line(workbench: Workbench) -> None:
    long = Build(target=HOST, what=OperatorAt(WORKLOAD, tuple(range(3000))), path=Path("/x"))
    nowhere = Path("/nowhere/" + "x" * 5000 + ".so")
    for build in (long, dataclasses.replace(long, what=OperatorAt(WORKLOAD, POINT), path=nowhere)):
        answer = workbench.pool.build(build, 60.0).result()
        assert answer.error is not None
        assert len(str(answer.error)) < 400
        assert "\n" not in str(answer.error)


def test_a_worker_serves_until_its_input_ends() -> None:
    requests = [{"call": "ping", "arguments": {}}, {"call": "juggle", "arguments": {}}]
    done = subprocess.run(
        [sys.executable, "-m", "chanas.measuring.worker.cpu"],
        input="".join(json.dumps(r) + "\n" for r in requests),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["result"]["pid"] > 0
    assert second["error"] == to_json(WorkerError(ErrorKind.RAISED, "'juggle'", "KeyError"))
