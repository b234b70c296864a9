"""compiler/families.py and every family in its tables: the contract of families, and that programs compute what PyTorch
computes whatever the shape, the epilogue and the numbers, on every kind of device and in every precision.

Programs of processors are built and run in worker processes; kernels of GPUs are carried out in numpy.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from fast_cases import fast, slow

from chanas.compiler.backends import BACKENDS, backend_of, case_of, schedule_operator, schedule_space
from chanas.compiler.cases import operator_case
from chanas.compiler.cpu.families import FAMILIES as CPU_FAMILIES
from chanas.compiler.cuda.emulator import sequential_error
from chanas.compiler.cuda.families import FAMILIES as GPU_FAMILIES
from chanas.compiler.families import Family
from chanas.compiler.space import Point
from chanas.core.target import HardwareTarget, gpu_in_dtype
from chanas.errors import ScheduleError, TargetError
from chanas.operators.epilogues import PLAIN, USUAL, Epilogue
from chanas.operators.layout import Blocks
from chanas.operators.workload import Workload
from chanas.testing import FamilyContract
from chanas.testing.families import Case, OperatorBench, covering_points, runs_here

from .cuda_cases import GPU, IN_HALVES, IN_TF32, WORKLOADS
from .workbench import (
    BF16,
    INT8,
    INT8_MATRICES,
    MATRICES,
    NEON,
    OPERATORS,
    Workbench,
    device,
    needs_bfloat16,
    needs_int8,
    needs_matrices,
    random_workload,
)

HOST = device()  # with the longest vectors, on any machine
HALVES, TF32 = (gpu_in_dtype(GPU, dtype) for dtype in ("f16", "tf32"))
ANY_EPILOGUE = (*PLAIN, "leaky0.1")

# ---- the rows of all tables, an operator for each -------------------------------------------------------------------
OF_CPUS = {
    "conv": Workload("conv", 13, 3, 40, 3, 2, "hswish"),
    "blockconv": Workload("blockconv", 9, 24, 40, 3, 2, "hswish"),
    "groupconv": Workload("groupconv", 7, 40, 40, 3, 2, "relu", groups=5),
    "winograd": Workload("winograd", 9, 24, 40, 3, 1, "hswish"),
    "winograd2": Workload("winograd2", 9, 24, 40, 3, 1, "hswish"),
    "pointwise": Workload("pointwise", 4, 48, 72, epilogue="relu", scaled=True, residual=True),
    "depthwise": Workload("depthwise", 9, 40, 40, 5, 2, "relu"),
    "pool": Workload("pool", 6, 72, 72),
    "upconv": Workload("upconv", 7, 20, 24, 3, 2, "relu"),
}
CPUS = {"float32": HOST, "bfloat16": BF16, "int8": INT8}
GPUS = {"float32": GPU, "float16": HALVES, "tf32": TF32}
OF_GPUS = {w.op: w for w in reversed(WORKLOADS)}
ROWS: list[Case] = [
    *((replace(OF_CPUS[op], dtype=dtype), CPUS[dtype]) for op, dtype in CPU_FAMILIES),
    *((replace(OF_CPUS[op], dtype="bfloat16"), MATRICES) for op in ("pointwise", "blockconv", "conv")),
    *((replace(OF_CPUS[op], dtype="int8"), INT8_MATRICES) for op in ("pointwise", "blockconv")),
    *((replace(OF_GPUS[op], dtype=dtype), GPUS[dtype]) for op, dtype in GPU_FAMILIES),
]


def named(case: Case) -> str:
    workload, target = case
    matrices = "-matrices" if target.has_matrices else ""
    return f"{target.kind}-{target.vector_lanes}-{target.num_threads}t{matrices}-{workload.key}"


def each(cases: Iterable[Case], *, is_run: bool = False) -> pytest.MarkDecorator:
    """A test of each case; what is run in bfloat16 or int8 needs a processor that has it."""
    marked = []
    for case in cases:
        needed = needs_int8 if case[1].dtype == "int8" else needs_bfloat16
        needed = needs_matrices if case[1].has_matrices else needed
        marks = [needed] if is_run and case[1].dtype in ("bfloat16", "int8") else []
        marked.append(pytest.param(case, id=named(case), marks=marks))
    return pytest.mark.parametrize("case", marked)


def elsewhere(case: Case, devices: Sequence[HardwareTarget]) -> list[Case]:
    """The same operator on other devices of the kind, whose vectors its groups do not fill."""
    workload, target = case
    if target.gpu is not None:
        return [case]
    others = [replace(d, dtype=target.dtype) for d in devices if target == HOST or d.vector_lanes == 16]
    shared = workload.op == "groupconv"
    return [case, *((workload, d) for d in others if not shared or workload.outputs_per_group % d.vector_lanes)]


OTHER_DEVICES = (device(num_threads=2), device(8), device(4))
ROWS_ON_DEVICES = [on for case in ROWS for on in elsewhere(case, OTHER_DEVICES)]
SPACES = [on for case in ROWS for on in elsewhere(case, (*OTHER_DEVICES, device(4, 2), NEON))]


class TestRows(FamilyContract):
    """On the processor with the longest vectors all choices are looked at, elsewhere some."""

    cases = (*SPACES, *((w, GPU) for w in WORKLOADS), *((w, HALVES) for w in IN_HALVES))

    def points(self, case: Case) -> list[Point]:
        _, target = case
        if target.gpu is not None:
            return sampled(case, 2, 8) if case in ROWS else []
        points = super().points(case)
        if target == HOST:
            return points
        return points[: 4 if target.dtype == "bfloat16" else target.num_threads] if case in ROWS_ON_DEVICES else []


class TestResiduals(FamilyContract):
    cases = tuple((replace(w, residual=True, scaled=False), t) for w, t in ROWS[:9] if w.has_weights)

    def points(self, case: Case) -> list[Point]:
        return sampled(case, 1)


@pytest.mark.parametrize("case", [ROWS[0], ROWS[-1]], ids=named)
def test_the_space_of_an_operator_is_listed_once(case: Case) -> None:
    assert schedule_space(*case) is schedule_space(*case)


@pytest.mark.parametrize("kind", BACKENDS)
def test_points_have_as_many_features_in_every_space(kind: str) -> None:
    features = BACKENDS[kind].features
    spaces = [(schedule_space(w, t), t) for w, t in ROWS if t.kind == kind]
    assert len({len(features(space, space.groups(space.middle), target)) for space, target in spaces}) == 1


# ---- programs -------------------------------------------------------------------------------------------------------
def test_another_family_is_another_entry() -> None:
    """What the tables are made of, layouts too, may come from outside the package."""
    plain = CPU_FAMILIES["pointwise", "float32"]
    workload = Workload("pointwise", 4, 48, 72, epilogue="relu")
    own = Workload(**{**workload.to_json(), "op": "rows"})
    with pytest.raises(ScheduleError, match="operator rows is not there on CPUs"):
        schedule_space(own, HOST)
    CPU_FAMILIES["rows", "float32"] = Family(
        lambda w, t: plain.space(replace(w, op="pointwise"), t),
        lambda w, p, t: plain.program(replace(w, op="pointwise"), p, t),
        lambda _: Blocks(4),
    )
    try:
        point = schedule_space(own, HOST).middle
        assert schedule_operator(own, point, HOST).script() == schedule_operator(workload, point, HOST).script()
        assert case_of(own, HOST).arguments[0].shape == (12, 16, 4)
    finally:
        del CPU_FAMILIES["rows", "float32"]


# ---- results --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorBench]:
    with OperatorBench(tmp_path_factory.mktemp("operators")) as bench:
        yield bench


def sampled(case: Case, num: int, seed: int = 0) -> list[Point]:
    return schedule_space(*case).sample(num, np.random.default_rng(seed))


@pytest.mark.slow
@each(ROWS_ON_DEVICES, is_run=True)
def test_every_choice_of_a_schedule_is_right(bench: OperatorBench, case: Case) -> None:
    workload, target = case
    for on in (case, (workload, target if target.gpu else replace(target, num_threads=2))):
        points = sampled(on, 8) if target.gpu else covering_points(schedule_space(*on), np.random.default_rng(2))
        assert bench.wrong(on, points) == {}


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
EDGES_IN_BFLOAT16 = [
    Workload("pointwise", 1, 8, 8),
    Workload("pointwise", 1, 1, 5),
    Workload("pointwise", 3, 13, 10, wide=True),
    Workload("pointwise", 7, 17, 40, epilogue="hsigmoid", scaled=True),
    Workload("pointwise", 11, 8, 24, residual=True),
    Workload("pointwise", 7, 24, 40, scaled=True),
    Workload("pointwise", 5, 20, 56, epilogue="hswish", scaled=True, residual=True),
    Workload("pointwise", 5, 18, 24),
    Workload("pointwise", 9, 24, 40, 1, 2, "relu6", residual=True, residual_first=True),
    Workload("blockconv", 7, 18, 24, 3, 2, "relu"),
    Workload("blockconv", 9, 24, 20, 3, 1, "leaky0.1", residual=True, input_width=6, kernel_width=1),
    Workload("depthwise", 1, 8, 8, 7, 2, "relu"),
    Workload("depthwise", 2, 24, 24, 7, 1, "none"),
    Workload("depthwise", 7, 40, 40, 3, 2, "hsigmoid"),
    Workload("depthwise", 13, 16, 16, 7, 1, "hswish"),
    Workload("depthwise", 9, 5, 5, 3, 3, "none"),
    Workload("depthwise", 12, 16, 16, 5, 2, "relu"),
    Workload("depthwise", 14, 16, 16, 7, 2, "relu"),
    Workload("depthwise", 9, 24, 24, 3, 2, "swish", residual=True, input_width=6),
    Workload("depthwise", 10, 16, 16, 3, 1, "relu6", padding=(0, 1, 2, 2), dilation=(2, 1)),
    Workload("depthwise", 8, 16, 16, 5, 2, "gelu", padding=(1, 1, 2, 2)),
    Workload("depthwise", 12, 16, 16, 2, 3, "none", padding=(0, 0, 0, 0)),
    Workload("conv", 9, 3, 24, 3, 2, "swish", residual=True, kernel_width=5),
    Workload("pool", 1, 8, 8),
    Workload("pool", 5, 24, 24, input_width=3),
]
EDGES_IN_MATRICES = [
    *(w for w in EDGES_IN_BFLOAT16 if w.op in ("pointwise", "blockconv") and w.input_size > 1),
    Workload("pointwise", 17, 40, 72, epilogue="relu"),
    Workload("pointwise", 28, 31, 33, epilogue="hswish", scaled=True),
    Workload("pointwise", 9, 100, 40, 1, 3, "relu", scaled=True),
    Workload("pointwise", 9, 8, 24, 1, 2, "relu", scaled=True),
    Workload("blockconv", 19, 72, 40, 3, 1, "hswish"),
    Workload("blockconv", 13, 40, 8, 5, 2, "none", dilation=(2, 1), padding=(0, 1, 3, 2)),
    Workload("blockconv", 3, 130, 24, 7, 1, "relu", residual=True, residual_first=True, input_width=34),
    Workload("blockconv", 7, 16, 40, 1, 3, "relu"),
]


def is_for_int8(workload: Workload) -> bool:
    """True of an operator that has kernels in int8."""
    family = CPU_FAMILIES.get((workload.op, "int8"))
    return family is not None and set(workload.generalities) <= family.takes


EDGES_IN_INT8 = [
    *(w for w in (*EDGES, *EDGES_IN_BFLOAT16) if is_for_int8(w)),
    Workload("pointwise", 8, 24, 40, 1, 2, "leaky0.1"),
    Workload("pointwise", 7, 30, 44, epilogue="relu6", residual=True, residual_first=True),
    Workload("blockconv", 9, 22, 20, 3, 2, "none", residual=True, input_width=7),
    Workload("depthwise", 9, 20, 20, 3, 1, "relu6", residual=True, dilation=(2, 1)),
    Workload("conv", 11, 3, 20, 3, 2, "relu", residual=True, residual_first=True),
    Workload("pool", 7, 20, 20, wide=True),
]
ODD_SHAPES: list[Case] = [
    *((w, HOST) for w in EDGES),
    *((replace(w, dtype="int8"), INT8) for w in EDGES_IN_INT8 if w.outputs_per_group == 1 or w.op != "depthwise"),
    *((replace(w, dtype="bfloat16"), BF16) for w in EDGES_IN_BFLOAT16),
    *((replace(w, dtype="bfloat16"), MATRICES) for w in EDGES_IN_MATRICES),
    *((replace(w, dtype="int8"), INT8_MATRICES) for w in EDGES_IN_MATRICES),
    *((w, GPU) for w in WORKLOADS),
    *((w, HALVES) for w in IN_HALVES),
    *((w, TF32) for w in IN_TF32),
]


@each(ODD_SHAPES, is_run=True)
def test_an_operator_of_odd_shape_is_right(bench: OperatorBench, case: Case) -> None:
    assert bench.wrong(case, sampled(case, 1 if case[1] == HOST else 2)) == {}


@pytest.mark.slow
@each([*ODD_SHAPES, *((w, HOST) for w in MORE_EDGES)], is_run=True)
def test_an_operator_of_odd_shape_is_right_at_many_points(bench: OperatorBench, case: Case) -> None:
    assert bench.wrong(case, sampled(case, 6, 1)) == {}


IN_BFLOAT16 = tuple(op for op, dtype in CPU_FAMILIES if dtype == "bfloat16")


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("seed", fast(range(12), range(1)))
def test_random_operators_are_right_at_random_points(bench: OperatorBench, op: str, seed: int) -> None:
    workload = random_workload(op, np.random.default_rng([seed, OPERATORS.index(op)]))
    case = workload, device(lanes=(16, 8, 4)[seed % 3])
    assert bench.wrong(case, sampled(case, 1, seed)) == {}
    for target in (BF16, MATRICES) if op in IN_BFLOAT16 and seed < 3 else ():
        rounded = replace(workload, dtype="bfloat16"), target
        if runs_here(target):
            assert bench.wrong(rounded, sampled(rounded, 1, seed)) == {}


def with_epilogue(op: str, epilogue: Epilogue, target: HardwareTarget) -> Case:
    channels, kernel = 24 if op != "conv" else 3, 1 if op == "pointwise" else 3
    return Workload(op, 5, channels, 24, kernel, epilogue=epilogue, dtype=target.dtype), target


# Each operator with some epilogues, and each epilogue with some operators: all write them by the same code.
WITH_EPILOGUES = [
    (op, epilogue, target) if (i + j) % 5 == 0 or op == "pointwise" else slow((op, epilogue, target))
    for target, epilogues in ((HOST, ANY_EPILOGUE), (BF16, USUAL), (MATRICES, USUAL), (GPU, USUAL), (HALVES, USUAL))
    for i, op in enumerate(("conv", "blockconv", "winograd", "winograd2", "pointwise", "depthwise"))
    for j, epilogue in enumerate(epilogues)
    if (op, target.dtype) in backend_of(target).families() and (op == "pointwise" or not target.has_matrices)
]


@pytest.mark.parametrize(("op", "epilogue", "target"), WITH_EPILOGUES)
def test_every_epilogue_is_right(bench: OperatorBench, op: str, epilogue: Epilogue, target: HardwareTarget) -> None:
    if not runs_here(target):
        pytest.skip("this processor lacks the instructions")
    case = with_epilogue(op, epilogue, target)
    assert bench.wrong(case, sampled(case, 1)) == {}


# Channels fill their vectors: what only fills one up is NaN where what it is computed from is.
WITH_ODD_NUMBERS: list[Case] = [
    *((Workload("pointwise", 4, 32, 32, epilogue=e, residual=True), HOST) for e in ANY_EPILOGUE),
    (Workload("pointwise", 4, 32, 32, epilogue="relu", scaled=True, residual=True, residual_first=True), HOST),
    (Workload("conv", 9, 3, 16, 3, 2, "hswish"), HOST),
    (Workload("blockconv", 7, 16, 16, 3, 1, "relu6"), HOST),
    (Workload("depthwise", 7, 16, 16, 5, 2, "sigmoid"), HOST),
    (Workload("pool", 5, 32, 32), HOST),
    *((Workload("pointwise", 4, 32, 32, epilogue=e, dtype="bfloat16"), t) for e in USUAL for t in (BF16, MATRICES)),
    (Workload("pool", 4, 32, 32, dtype="bfloat16"), BF16),
    *((w, GPU) for w in (WORKLOADS[1], WORKLOADS[3], WORKLOADS[5], WORKLOADS[6], WORKLOADS[7], WORKLOADS[10])),
    *((w, HALVES) for w in (IN_HALVES[1], IN_HALVES[5])),
]


@each(WITH_ODD_NUMBERS, is_run=True)
def test_nan_and_infinity_go_through_as_in_pytorch(bench: OperatorBench, case: Case) -> None:
    workload, target = case
    assert np.isnan(operator_case(workload, target, (np.nan, -np.nan)).expected.astype(np.float32)).any() or (
        workload.output_storage == "uint16"
    )
    # the library that PyTorch calls for gelu in float32 makes NaN of infinity
    infinite = [] if workload.epilogue == "gelu" else [(np.inf,), (-np.inf,)]
    for odd in ((np.nan, -np.nan), *infinite):
        assert bench.wrong(case, sampled(case, 1), odd) == {}


HALF_A_BLOCK = Workload("pointwise", 5, 24, 40)
WITH_WEIGHTS = [*(w for w in OF_CPUS.values() if w.op in OPERATORS and w.has_weights), HALF_A_BLOCK]


@pytest.mark.parametrize("first", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("workload", fast(WITH_WEIGHTS, [1, 2, 3, 6]), ids=lambda w: w.key)
def test_a_residual_is_added_before_or_after_the_epilogue(
    bench: OperatorBench, workload: Workload, first: bool
) -> None:
    added = replace(workload, epilogue="relu", scaled=False, residual=True, residual_first=first)
    case = added, device(num_threads=2)
    assert bench.wrong(case, sampled(case, 1)) == {}


@each([(w, t) for w, t in ROWS if t.gpu is None and w.op in OPERATORS], is_run=True)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_loops_are_parallel_only_for_several_threads(workbench: Workbench, case: Case, num_threads: int) -> None:
    workload, target = case[0], replace(case[1], num_threads=num_threads)
    candidate = workbench.candidate(workload, schedule_space(workload, target).points[0], target)
    built = workbench.pool.build(candidate.build, 60.0).result()
    assert built.error is None
    assert (b"TVMBackendParallelLaunch" in candidate.library.read_bytes()) == (num_threads > 1)


@pytest.mark.parametrize("target", [HOST, pytest.param(BF16, marks=needs_bfloat16)], ids=lambda t: t.name)
def test_a_wrong_result_and_a_point_of_another_space_are_noticed(workbench: Workbench, target: HardwareTarget) -> None:
    workload = replace(OF_CPUS["pointwise"], dtype=target.dtype)
    case = operator_case(workload, target)
    bits = case.expected.copy().view(np.uint16 if target == BF16 else np.uint32)
    bits[0, 0, 0] ^= 1 << (8 * bits.itemsize - 1)  # another sign
    spoilt = replace(case, expected=bits.view(case.expected.dtype))
    point = schedule_space(workload, target).points[0]
    pool = replace(OF_CPUS["pool"], dtype=target.dtype)
    outcomes = workbench.run(
        [workbench.candidate(workload, point, target, spoilt), workbench.candidate(pool, (1, 2, 3, 4), target)]
    )
    assert [str(o.error).split(":")[0] for o in outcomes] == ["wrong result", "ScheduleError"]
    assert sequential_error(WORKLOADS[1], sampled((WORKLOADS[1], GPU), 1)[0], GPU) < 1e-4


# ---- what is refused ------------------------------------------------------------------------------------------------
WINDOW = Workload("depthwise", 9, 16, 16, 3)
SQUARE = Workload("pointwise", 8, 16, 16)
REFUSED: list[tuple[Workload, HardwareTarget, str]] = [
    *((w, HOST, text) for w, text in [
        (Workload("squeeze", 9, 32, 32), "squeeze is not there on CPUs"),
        (replace(WINDOW, dtype="tf32"), "depthwise is not there in tf32"),
        (Workload("blockconv", 9, 32, 32, 3, groups=4), "groups that fill vectors of 16 for blockconv"),
        (Workload("groupconv", 9, 32, 32, 3, groups=2), "groups that do not fill vectors of 16 for groupconv"),
        (Workload("groupconv", 9, 32, 32, 3), "groups that do not fill vectors of 16 for groupconv"),
        (replace(WINDOW, op="winograd", dilation=(2, 2)), "winograd with dilation is not there"),
        (replace(WINDOW, op="winograd", groups=2), "winograd with groups is not there"),
        (Workload("winograd", 9, 16, 16, 9), "at most 7 taps a stride for winograd, got 9"),
        (Workload("winograd2", 9, 16, 16, 3, 2), "stride 1 and 2 to 5 taps each way for winograd2"),
        (Workload("winograd2", 9, 16, 16, 7), "stride 1 and 2 to 5 taps each way for winograd2"),
        (Workload("winograd2", 9, 16, 16, 3, kernel_width=1), "stride 1 and 2 to 5 taps each way for winograd2"),
        (replace(WINDOW, op="winograd2", dilation=(2, 2)), "winograd2 with dilation is not there"),
        (replace(WINDOW, op="winograd2", groups=2), "winograd2 with groups is not there"),
        (Workload("upconv", 9, 16, 16, 2, 2, groups=4), "upconv with groups is not there in float32"),
        (Workload("upconv", 9, 16, 16, 2, 2, dilation=(2, 2)), "upconv with dilation is not there in float32"),
        (replace(SQUARE, groups=4), "pointwise with groups is not there in float32"),
        (replace(WINDOW, scaled=True), "depthwise with gate is not there in float32"),
        (Workload("pool", 9, 16, 16, residual=True), "pool with residual is not there in float32"),
        (Workload("pool", 9, 16, 16, epilogue="relu"), "pool with epilogue of its own is not there in float32"),
    ]),
    *((replace(w, dtype="bfloat16"), BF16, f"{text} is not there in bfloat16") for w, text in [
        *((Workload(op, 8, 8, 8, 3), op) for op in ("winograd", "winograd2", "upconv")),
        (Workload("blockconv", 8, 32, 32, 3, groups=2), "blockconv with groups"),
        (replace(WINDOW, out_channels=32), "several outputs of a channel"),
        (replace(SQUARE, scaled=True, prologue="relu"), "prologue"),
    ]),
    *((w, GPU, text) for w, text in [
        *((Workload(op, 8, 8, 8, 3), f"{op} is not there on GPUs") for op in ("winograd", "winograd2", "upconv")),
        (replace(WINDOW, dtype="bfloat16"), "depthwise is not there in bfloat16"),
        (replace(WINDOW, kernel_width=5), "rectangular kernels is not there in float32"),
        (replace(SQUARE, stride=2), "stride is not there in float32"),
        (replace(SQUARE, epilogue="gelu"), "epilogue of its own is not there in float32"),
        (replace(SQUARE, epilogue="relu", residual=True, residual_first=True), "residual before the epilogue is not"),
        (replace(WINDOW, residual=True), "with residual is not there in float32"),
        (replace(WINDOW, out_channels=32), "several outputs of a channel is not there in float32"),
        (Workload("pointwise", 8, 15, 16, dtype="float16"), "even number of channels in float16"),
        (Workload("squeeze", 7, 72, 24, batch=2), "squeeze is there for one image"),
        (replace(SQUARE, input_size=128, in_channels=128, out_channels=128, batch=1024), r"less than 2\^31 values"),
        (replace(WINDOW, input_size=128, in_channels=128, out_channels=128, batch=1024), r"less than 2\^31 values"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("workload", "target", "says"), [pytest.param(*row, id=f"{row[1].name}-{row[0].key}") for row in REFUSED]
)
def test_what_a_family_does_not_take_is_refused_by_name(workload: Workload, target: HardwareTarget, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        schedule_space(workload, target)


def test_a_processor_is_no_gpu() -> None:
    with pytest.raises(TargetError, match=r"^expected a GPU, got target"):
        GPU_FAMILIES.space(WORKLOADS[0], HOST)


def test_gpus_add_a_residual_to_any_product() -> None:
    assert schedule_space(Workload("blockconv", 8, 16, 16, 3, residual=True), GPU).coordinates


def test_spaces_of_processors_are_there_without_tvm() -> None:
    code = "import sys; from chanas.compiler.backends import BACKENDS; print('tvm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
