"""bf16_operators, bf16_schedules and bf16_intrinsics: whatever the point, operators, blocks and networks in bfloat16
compute what PyTorch computes, as exactly as bfloat16 can."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from fast_cases import fast, slow

from chanas.compiler.backends import schedule_space
from chanas.compiler.cases import block_case, operator_case
from chanas.core.arch import BlockConfig, SearchSpace
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.errors import ScheduleError, TargetError
from chanas.measuring.fleet import WorkerPool
from chanas.operators.epilogues import Epilogue
from chanas.operators.precision import BFLOAT16
from chanas.operators.steps import block_workloads
from chanas.operators.workload import Operator, Workload
from chanas.prescheduler.tables.networks import compile_networks

from ..workbench import (
    EPILOGUES,
    HOST,
    NANO,
    NUM_CLASSES,
    Workbench,
    covering_points,
    network_job,
    random_lut,
    random_points,
    random_workload,
)

DTYPE = "bfloat16"
HERE = dataclasses.replace(HOST, name="cpu-bf16", dtype=DTYPE, vector_lanes=16, num_vector_registers=32)
IN_BFLOAT16: tuple[Operator, ...] = ("conv", "pointwise", "depthwise", "pool")


def has_instructions() -> bool:
    try:
        load_target("cpu", 1, "bf16")
    except TargetError:
        return False
    return True


needs_instructions = pytest.mark.skipif(not has_instructions(), reason="this processor lacks AVX512_BF16")
PLAIN = {
    "conv": Workload("conv", 13, 3, 40, 3, 2, "hswish", dtype=DTYPE),
    "pointwise": Workload("pointwise", 4, 48, 72, epilogue="relu", scaled=True, residual=True, dtype=DTYPE),
    "depthwise": Workload("depthwise", 8, 40, 40, 5, 2, "relu", dtype=DTYPE),
    "pool": Workload("pool", 6, 72, 72, dtype=DTYPE),
}
EDGES = [
    Workload("pointwise", 1, 8, 8, dtype=DTYPE),
    Workload("pointwise", 1, 1, 5, dtype=DTYPE),
    Workload("pointwise", 3, 13, 10, dtype=DTYPE, wide=True),
    Workload("pointwise", 7, 17, 40, epilogue="hsigmoid", scaled=True, dtype=DTYPE),
    Workload("pointwise", 11, 8, 24, residual=True, dtype=DTYPE),
    Workload("pointwise", 7, 24, 40, scaled=True, dtype=DTYPE),
    Workload("pointwise", 5, 20, 56, epilogue="hswish", scaled=True, residual=True, dtype=DTYPE),
    Workload("pointwise", 5, 18, 24, dtype=DTYPE),
    Workload("depthwise", 1, 8, 8, 7, 2, "relu", dtype=DTYPE),
    Workload("depthwise", 2, 24, 24, 7, 1, "none", dtype=DTYPE),
    Workload("depthwise", 7, 40, 40, 3, 2, "hsigmoid", dtype=DTYPE),
    Workload("depthwise", 13, 16, 16, 7, 1, "hswish", dtype=DTYPE),
    Workload("depthwise", 9, 5, 5, 3, 3, "none", dtype=DTYPE),
    Workload("depthwise", 12, 16, 16, 5, 2, "relu", dtype=DTYPE),
    Workload("depthwise", 14, 16, 16, 7, 2, "relu", dtype=DTYPE),
    Workload("pool", 1, 8, 8, dtype=DTYPE),
]
BLOCKS = [
    BlockConfig("stem", 13, 3, 0, 24, 3, 2, "hswish"),
    BlockConfig("mbconv", 7, 16, 16, 16, 3, 1, "relu", residual=True),
    BlockConfig("mbconv", 13, 8, 24, 40, 5, 2, "hswish", use_se=True),
    BlockConfig("mbconv", 7, 24, 72, 24, 7, 1, "hswish", use_se=True, residual=True),
    BlockConfig("head", 5, 24, 0, 40, activation="hswish"),
    BlockConfig("classifier", 1, 40, 24, 10, activation="hswish"),
]
BLOCK_ERROR = 1e-2
# All epilogues with one operator, and some with the others: all write them by the same code.
PAIRS = [
    (op, epilogue) if (i + j) % 3 == 0 or op == "pointwise" else slow((op, epilogue))
    for i, op in enumerate(("conv", "pointwise", "depthwise"))
    for j, epilogue in enumerate(EPILOGUES)
]


def wrong(workbench: Workbench, workload: Workload, num: int, target: HardwareTarget = HERE) -> list[str]:
    """What is wrong with each of a few points that is not right."""
    points = covering_points(schedule_space(workload, target), np.random.default_rng(num))[:num]
    outcomes = workbench.run(workbench.candidate(workload, p, target) for p in points)
    return [f"{p}: {o.error}" for p, o in zip(points, outcomes, strict=True) if o.error]


# ---- shapes and types, on any processor -----------------------------------------------------------------------------
@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.key)
def test_a_block_has_the_same_operators_in_any_dtype(block: BlockConfig) -> None:
    plain, mine = block_workloads(block), block_workloads(block, DTYPE)
    assert [dataclasses.replace(w, dtype="float32", wide=False) for w in mine] == list(plain)
    assert not {w.key for w in plain} & {w.key for w in mine}
    assert [w.wide for w in mine] == [block.kind == "classifier" and w == mine[-1] for w in mine]


def test_an_image_and_logits_are_float32_and_all_between_is_bits() -> None:
    blocks = NANO.smallest.blocks(NANO, NUM_CLASSES)
    workloads = [w for b in blocks for w in block_workloads(b, DTYPE)]
    assert [w.input_storage for w in workloads] == ["float32"] + ["uint16"] * (len(workloads) - 1)
    assert [w.output_storage for w in workloads] == ["uint16"] * (len(workloads) - 1) + ["float32"]


def test_weights_weigh_half() -> None:
    plain = Workload("pointwise", 7, 960, 160)
    assert dataclasses.replace(plain, dtype=DTYPE).weight_bytes == plain.weight_bytes - 2 * 960 * 160


@pytest.mark.parametrize("op", ["blockconv", "winograd", "winograd2"])
def test_an_operator_that_is_not_there_in_bfloat16_says_so(op: Operator) -> None:
    with pytest.raises(ScheduleError, match=f"operator {op} is not there in bfloat16"):
        schedule_space(Workload(op, 8, 8, 8, 3, dtype=DTYPE), HERE)


@pytest.mark.parametrize("seed", fast(range(40), range(8)))
def test_every_point_survives_the_way_through_its_names(seed: int) -> None:
    rng = np.random.default_rng(seed)
    op: Operator = ("pointwise", "depthwise")[seed % 2]
    target = dataclasses.replace(HERE, num_threads=1 + seed % 3)
    space = schedule_space(dataclasses.replace(random_workload(op, rng), dtype=DTYPE), target)
    assert space.points
    for point in space.sample(20, rng):
        named = space.groups(point)
        assert space.encode(named) == point
        assert ("fuse" in named) == (target.num_threads > 1)


@pytest.mark.parametrize("workload", [*PLAIN.values(), *EDGES], ids=lambda w: w.key)
def test_a_case_is_stored_as_its_operator_reads_it(workload: Workload) -> None:
    case = operator_case(workload, HERE)
    assert case.tolerance == BFLOAT16.operator_tolerance
    assert case.arguments[0].dtype == workload.input_storage
    assert case.expected.dtype == workload.output_storage
    assert all(case.arguments[i].dtype == np.float32 for i in case.weights)


def test_a_block_of_bfloat16_has_fewer_parameters() -> None:
    block = BLOCKS[3]
    plain, mine = block_case(block, dataclasses.replace(HERE, dtype="float32")), block_case(block, HERE)
    assert mine.weight_bytes < 0.6 * plain.weight_bytes


# ---- what is computed -----------------------------------------------------------------------------------------------
@needs_instructions
@pytest.mark.parametrize("op", IN_BFLOAT16)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_every_choice_of_a_schedule_is_right(workbench: Workbench, op: Operator, num_threads: int) -> None:
    target = dataclasses.replace(HERE, num_threads=num_threads)
    assert wrong(workbench, PLAIN[op], 4, target) == []


@needs_instructions
@pytest.mark.parametrize("workload", EDGES, ids=lambda w: w.key)
def test_an_operator_of_odd_shape_is_right(workbench: Workbench, workload: Workload) -> None:
    assert wrong(workbench, workload, 1) == []


@pytest.mark.slow
@needs_instructions
@pytest.mark.parametrize("workload", EDGES, ids=lambda w: w.key)
def test_an_operator_of_odd_shape_is_right_at_several_points(workbench: Workbench, workload: Workload) -> None:
    assert wrong(workbench, workload, 4) == []


@needs_instructions
@pytest.mark.parametrize(("op", "epilogue"), PAIRS)
def test_every_epilogue_is_right(workbench: Workbench, op: Operator, epilogue: Epilogue) -> None:
    channels = 24 if op != "conv" else 3
    workload = Workload(op, 5, channels, 24, 1 if op == "pointwise" else 3, epilogue=epilogue, dtype=DTYPE)
    assert wrong(workbench, workload, 1) == []


@needs_instructions
@pytest.mark.parametrize("op", ["pointwise", "pool"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_nan_and_infinity_go_through_as_in_pytorch(workbench: Workbench, op: Operator, epilogue: Epilogue) -> None:
    workload = Workload(op, 4, 32, 32, epilogue="none" if op == "pool" else epilogue, dtype=DTYPE)
    point = schedule_space(workload, HERE).middle
    cases = [operator_case(workload, HERE, odd) for odd in ((np.nan, -np.nan), (np.inf,), (-np.inf,))]
    outcomes = workbench.run(workbench.candidate(workload, point, HERE, case) for case in cases)
    assert [o.error for o in outcomes if o.error] == []


@needs_instructions
@pytest.mark.parametrize("op", IN_BFLOAT16)
@pytest.mark.parametrize("seed", fast(range(3), range(1)))
def test_random_operators_are_right_at_random_points(workbench: Workbench, op: Operator, seed: int) -> None:
    workload = random_workload(op, np.random.default_rng([seed, IN_BFLOAT16.index(op)]))
    assert wrong(workbench, dataclasses.replace(workload, dtype=DTYPE), 1) == []


@needs_instructions
@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.key)
def test_a_block_is_right(workbench: Workbench, block: BlockConfig, rng: np.random.Generator) -> None:
    (outcome,) = workbench.run([workbench.candidate(block, random_points(block, HERE, rng), HERE)])
    assert outcome.error is None
    assert outcome.max_error is not None
    assert outcome.max_error < BLOCK_ERROR


@needs_instructions
def test_a_wrong_result_is_noticed(workbench: Workbench) -> None:
    case = operator_case(PLAIN["pointwise"], HERE)
    expected = case.expected.copy()
    expected[0, 0, 0] ^= 0x8000  # another sign
    point = schedule_space(PLAIN["pointwise"], HERE).points[0]
    spoilt = dataclasses.replace(case, expected=expected)
    (outcome,) = workbench.run([workbench.candidate(PLAIN["pointwise"], point, HERE, spoilt)])
    assert outcome.error is not None
    assert outcome.error.startswith("wrong result")


@needs_instructions
@pytest.mark.usefixtures("in_one_process")
def test_a_whole_network_is_right(tiny_space: SearchSpace, shared_pool: WorkerPool, tmp_path: Path) -> None:
    blocks = tiny_space.smallest.blocks(tiny_space, NUM_CLASSES)
    network = network_job(blocks, tmp_path / "network.so")
    (outcome,) = compile_networks(random_lut(tiny_space, blocks, HERE), HERE, [network], progress=False)
    assert outcome.error is None
    assert outcome.max_error is not None
    assert outcome.max_error < 1e-2
