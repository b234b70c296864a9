"""chanas/compiler/cpu/operators.py and apply.py: whatever the point, an operator computes what PyTorch
computes.

Operators are built and run in worker processes, which compare them with `reference.operator_case`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from fast_cases import fast

from chanas.compiler.backends import schedule_space
from chanas.compiler.cases import operator_case
from chanas.compiler.space import Point
from chanas.core.target import HardwareTarget
from chanas.measuring.fleet import WorkerPool
from chanas.operators.epilogues import Epilogue
from chanas.operators.workload import Operator, Workload

from ..workbench import ANY_EPILOGUE, HOST, OPERATORS, Workbench, covering_points, device, random_workload

PLAIN = {
    "conv": Workload("conv", 13, 3, 40, 3, 2, "hswish"),
    "blockconv": Workload("blockconv", 9, 24, 40, 3, 2, "hswish"),
    "winograd": Workload("winograd", 9, 24, 40, 3, 1, "hswish"),
    "pointwise": Workload("pointwise", 4, 48, 72, epilogue="relu", scaled=True, residual=True),
    "depthwise": Workload("depthwise", 9, 40, 40, 5, 2, "relu"),
    "pool": Workload("pool", 6, 72, 72),
    "winograd2": Workload("winograd2", 9, 24, 40, 3, 1, "hswish"),
}
EDGES = [
    Workload("conv", 1, 1, 8, 3, 1, "none"),
    Workload("conv", 11, 3, 16, 7, 2, "relu"),
    Workload("blockconv", 1, 3, 8, 7, 2, "relu"),
    Workload("blockconv", 7, 24, 40, 1, 2, "relu"),
    Workload("blockconv", 17, 8, 24, 3, 1, "relu"),
    Workload("blockconv", 5, 32, 64, 5, 1, "relu", groups=2),
    Workload("groupconv", 5, 6, 10, 3, 1, "none", groups=2),
    Workload("groupconv", 6, 120, 120, 3, 2, "relu", groups=10),
    Workload("groupconv", 5, 30, 60, 3, 1, "swish", groups=10, residual=True),
    Workload("groupconv", 4, 232, 232, 3, 1, "relu", groups=2),
    Workload("winograd", 2, 5, 10, 3, 1, "none"),
    Workload("winograd", 13, 17, 24, 7, 2, "hswish"),
    Workload("winograd2", 1, 3, 8, 3, 1, "relu"),
    Workload("winograd2", 17, 8, 10, 3, 1, "none"),
    Workload("pointwise", 1, 24, 10, epilogue="hsigmoid"),
    Workload("pointwise", 11, 8, 24, residual=True),
    Workload("pointwise", 4, 40, 72, epilogue="hswish", scaled=True, residual=True),
    Workload("pointwise", 2, 136, 56),
    Workload("depthwise", 1, 8, 8, 7, 2, "relu"),
    Workload("depthwise", 13, 16, 16, 7, 1, "hswish"),
    Workload("depthwise", 7, 16, 32, 3, 2, "relu"),
    Workload("depthwise", 5, 10, 30, 3, 1, "none"),
    Workload("pool", 1, 8, 8),
    Workload("pool", 13, 24, 24),
]
# Shapes between those, for the slow tests.
MORE_EDGES = [
    Workload("conv", 7, 3, 24, 5, 1, "hsigmoid"),
    Workload("blockconv", 2, 5, 10, 3, 1, "none"),
    Workload("blockconv", 7, 40, 56, 5, 1, "hsigmoid"),
    Workload("blockconv", 13, 17, 24, 7, 2, "hswish"),
    Workload("blockconv", 19, 16, 8, 1, 1, "none"),
    Workload("groupconv", 7, 128, 128, 3, 2, "relu", groups=64),
    Workload("groupconv", 7, 36, 18, 1, 3, "none", groups=3),
    Workload("winograd", 1, 3, 8, 7, 2, "relu"),
    Workload("winograd", 7, 40, 56, 5, 1, "hsigmoid"),
    Workload("winograd", 14, 96, 24, 7, 1, "relu"),
    Workload("winograd", 17, 8, 24, 3, 2, "relu"),
    Workload("winograd", 11, 16, 40, 5, 2, "relu"),
    Workload("winograd2", 14, 96, 24, 5, 1, "hsigmoid"),
    Workload("winograd2", 33, 512, 24, 5, 1, "relu"),
    Workload("pointwise", 1, 8, 8),
    Workload("pointwise", 1, 200, 3),
    Workload("pointwise", 7, 24, 40, epilogue="hsigmoid", scaled=True),
    Workload("pointwise", 13, 40, 16, epilogue="hswish", residual=True),
    Workload("pointwise", 7, 24, 24, epilogue="hsigmoid"),
    Workload("pointwise", 9, 56, 40, epilogue="relu", scaled=True),
    Workload("pointwise", 5, 16, 19, residual=True),
    Workload("depthwise", 2, 24, 24, 7, 1, "none"),
    Workload("depthwise", 7, 40, 40, 3, 2, "hsigmoid"),
    Workload("depthwise", 8, 56, 56, 5, 2, "relu"),
]

every_operator = pytest.mark.parametrize("op", OPERATORS)


@pytest.fixture(scope="module")
def two_threads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """A workbench whose timing worker runs kernels on two threads (on as many cores as there are)."""
    with WorkerPool(device(num_threads=2)) as pool:
        yield Workbench(pool, tmp_path_factory.mktemp("two-threads"))


def errors(
    workbench: Workbench, workload: Workload, points: list[Point], target: HardwareTarget = HOST
) -> dict[str, str]:
    """What is wrong with each point that is not right."""
    outcomes = workbench.run(workbench.candidate(workload, point, target) for point in points)
    return {f"{workload.key} {p}": o.error for p, o in zip(points, outcomes, strict=True) if o.error}


@pytest.mark.parametrize("workload", EDGES, ids=lambda w: w.key)
def test_an_operator_of_odd_shape_is_right(workbench: Workbench, workload: Workload, rng: np.random.Generator) -> None:
    assert errors(workbench, workload, schedule_space(workload, HOST).sample(1, rng)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("workload", [*EDGES, *MORE_EDGES], ids=lambda w: w.key)
def test_an_operator_of_odd_shape_is_right_at_many_points(workbench: Workbench, workload: Workload) -> None:
    points = schedule_space(workload, HOST).sample(6, np.random.default_rng(1))
    assert errors(workbench, workload, points) == {}


@every_operator
@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_choices_of_a_schedule_are_right(workbench: Workbench, op: Operator, lanes: int) -> None:
    target = device(lanes)
    points = covering_points(schedule_space(PLAIN[op], target), np.random.default_rng(lanes))
    assert errors(workbench, PLAIN[op], points if lanes == 16 else points[:1], target) == {}


@every_operator
def test_choices_of_a_schedule_are_right_on_two_threads(two_threads: Workbench, op: Operator) -> None:
    target = device(num_threads=2)
    points = covering_points(schedule_space(PLAIN[op], target), np.random.default_rng(2))
    assert errors(two_threads, PLAIN[op], points[:2], target) == {}


@pytest.mark.slow
@every_operator
@pytest.mark.parametrize(("lanes", "num_threads"), [(8, 1), (4, 1), (16, 2)])
def test_every_choice_of_a_schedule_is_right(
    workbench: Workbench, two_threads: Workbench, op: Operator, lanes: int, num_threads: int
) -> None:
    target = device(lanes, num_threads)
    points = covering_points(schedule_space(PLAIN[op], target), np.random.default_rng(lanes))
    assert errors(two_threads if num_threads > 1 else workbench, PLAIN[op], points, target) == {}


@every_operator
@pytest.mark.parametrize("seed", fast(range(12), range(1)))
def test_random_operators_are_right_at_random_points(workbench: Workbench, op: Operator, seed: int) -> None:
    rng = np.random.default_rng([seed, OPERATORS.index(op)])
    workload, target = random_workload(op, rng), device(lanes=(16, 8, 4)[seed % 3])
    assert errors(workbench, workload, schedule_space(workload, target).sample(1, rng), target) == {}


WITH_EPILOGUES: tuple[Operator, ...] = ("conv", "blockconv", "winograd", "winograd2", "pointwise", "depthwise")
# Each operator with some epilogues, and each epilogue with some operators: all write them by the same code.
PAIRS = [
    pytest.param(op, epilogue, marks=[] if (i + j) % 5 == 0 or op == "pointwise" else pytest.mark.slow)
    for i, op in enumerate(WITH_EPILOGUES)
    for j, epilogue in enumerate(ANY_EPILOGUE)
]


@pytest.mark.parametrize(("op", "epilogue"), PAIRS)
def test_every_epilogue_is_right(
    workbench: Workbench, op: Operator, epilogue: Epilogue, rng: np.random.Generator
) -> None:
    channels = 24 if op != "conv" else 3
    workload = Workload(op, 5, channels, 24, 1 if op == "pointwise" else 3, epilogue=epilogue)
    assert errors(workbench, workload, schedule_space(workload, HOST).sample(1, rng)) == {}


# Channels fill their vectors: what only fills one up is NaN where what it is computed from is.
WITH_ODD_NUMBERS = [
    *(Workload("pointwise", 4, 32, 32, epilogue=epilogue, residual=True) for epilogue in ANY_EPILOGUE),
    Workload("pointwise", 4, 32, 32, epilogue="relu", scaled=True, residual=True, residual_first=True),
    Workload("conv", 9, 3, 16, 3, 2, "hswish"),
    Workload("blockconv", 7, 16, 16, 3, 1, "relu6"),
    Workload("depthwise", 7, 16, 16, 5, 2, "sigmoid"),
    Workload("pool", 5, 32, 32),
]


@pytest.mark.parametrize("workload", WITH_ODD_NUMBERS, ids=lambda w: w.key)
def test_nan_and_infinity_go_through_as_in_pytorch(
    workbench: Workbench, workload: Workload, rng: np.random.Generator
) -> None:
    # the library that PyTorch calls for gelu in float32 makes NaN of infinity
    infinite = [] if workload.epilogue == "gelu" else [(np.inf,), (-np.inf,)]
    points = schedule_space(workload, HOST).sample(2, rng)
    cases = [operator_case(workload, HOST, odd) for odd in ((np.nan, -np.nan), *infinite)]
    outcomes = workbench.run(workbench.candidate(workload, p, HOST, case) for p in points for case in cases)
    assert [o.error for o in outcomes if o.error] == []
    assert all(np.isnan(case.expected).sum() > 0 for case in cases[:1])


HALF_A_BLOCK = Workload("pointwise", 5, 24, 40)
WITH_WEIGHTS = [*(w for w in PLAIN.values() if w.has_weights), HALF_A_BLOCK]


@pytest.mark.parametrize("first", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("workload", fast(WITH_WEIGHTS, [1, 2, 3, 6]), ids=lambda w: w.key)
def test_a_residual_is_added_before_or_after_the_epilogue(
    two_threads: Workbench, workload: Workload, first: bool, rng: np.random.Generator
) -> None:
    added = dataclasses.replace(workload, epilogue="relu", scaled=False, residual=True, residual_first=first)
    target = device(num_threads=2)
    assert errors(two_threads, added, schedule_space(added, target).sample(1, rng), target) == {}


@every_operator
@pytest.mark.parametrize("num_threads", [1, 2])
def test_loops_are_parallel_only_for_several_threads(workbench: Workbench, op: Operator, num_threads: int) -> None:
    target = device(num_threads=num_threads)
    candidate = workbench.candidate(PLAIN[op], schedule_space(PLAIN[op], target).points[0], target)
    built = workbench.pool.build(candidate.build, 60.0).result()
    assert built.error is None
    assert (b"TVMBackendParallelLaunch" in candidate.library.read_bytes()) == (num_threads > 1)


def test_a_point_of_another_space_is_an_error_that_names_it(workbench: Workbench) -> None:
    (outcome,) = workbench.run([workbench.candidate(PLAIN["pool"], (1, 2, 3, 4))])
    assert outcome.seconds is None
    assert outcome.error is not None
    assert outcome.error.startswith("ScheduleError: split_c=[1, 2] is not an option of workload pool-6px")
