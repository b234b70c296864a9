"""chanas/compiler/cpu/blocks.py: a block fused into one function computes what its PyTorch module
computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fast_cases import fast

from chanas.compiler.backends import schedule_space
from chanas.core.arch import BlockConfig, SearchSpace
from chanas.core.target import HardwareTarget
from chanas.measuring.fleet import WorkerPool
from chanas.operators.steps import block_workloads
from chanas.prescheduler.tables.networks import compile_networks
from chanas.testing.families import covering_points

from ..workbench import (
    BF16,
    HOST,
    INT8,
    MATRICES,
    NUM_CLASSES,
    Workbench,
    device,
    needs_bfloat16,
    needs_int8,
    needs_matrices,
    network_job,
    random_lut,
    random_points,
)

BLOCKS = [
    BlockConfig("stem", 13, 3, 0, 24, 3, 2, "hswish"),
    BlockConfig("stem", 8, 1, 0, 16, 5, 1, "relu"),
    BlockConfig("mbconv", 7, 16, 16, 16, 3, 1, "relu", residual=True),
    BlockConfig("mbconv", 11, 24, 24, 40, 5, 2, "none"),
    BlockConfig("mbconv", 7, 16, 48, 24, 7, 1, "relu"),
    BlockConfig("mbconv", 13, 8, 24, 40, 5, 2, "hswish", use_se=True),
    BlockConfig("mbconv", 7, 24, 72, 24, 3, 1, "hswish", use_se=True, residual=True),
    BlockConfig("mbconv", 1, 40, 80, 40, 3, 1, "relu", use_se=True, residual=True),
    BlockConfig("mbconv", 5, 40, 40, 24, 3, 2, "relu", use_se=True),
    BlockConfig("head", 5, 24, 0, 40, activation="hswish"),
    BlockConfig("classifier", 1, 40, 24, 10, activation="hswish"),
    BlockConfig("classifier", 1, 8, 16, 3, activation="relu"),
]
SQUEEZED = BLOCKS[6]


@pytest.mark.parametrize("block", fast(BLOCKS, [0, 2, 3, 6, 7, 9, 10]), ids=lambda b: b.key)
def test_a_block_is_right_at_random_points(workbench: Workbench, block: BlockConfig, rng: np.random.Generator) -> None:
    (outcome,) = workbench.run([workbench.candidate(block, random_points(block, HOST, rng))])
    assert outcome.error is None
    assert outcome.seconds is not None


@pytest.mark.parametrize(("lanes", "num_threads"), [(16, 2), (8, 1), (4, 2)])
def test_a_block_is_right_on_other_devices(workbench: Workbench, lanes: int, num_threads: int) -> None:
    target = device(lanes, num_threads)
    points = random_points(SQUEEZED, target, np.random.default_rng(lanes))
    (outcome,) = workbench.run([workbench.candidate(SQUEEZED, points, target)])
    assert outcome.error is None


def test_every_choice_of_the_last_operator_is_right_inside_a_block(workbench: Workbench) -> None:
    rng = np.random.default_rng(3)
    *others, _ = random_points(SQUEEZED, HOST, rng)
    last = covering_points(schedule_space(block_workloads(SQUEEZED)[-1], HOST), rng)[:6]
    outcomes = workbench.run(workbench.candidate(SQUEEZED, [*others, point]) for point in last)
    assert [o.error for o in outcomes] == [None] * len(last)


def test_a_block_needs_a_point_for_every_operator(workbench: Workbench, rng: np.random.Generator) -> None:
    points = random_points(SQUEEZED, HOST, rng)
    (outcome,) = workbench.run([workbench.candidate(SQUEEZED, points[:-1])])
    assert outcome.error == f"ScheduleError: expected 6 points for block {SQUEEZED.key}, got 5"


# ---- bfloat16 -------------------------------------------------------------------------------------------------------
BLOCKS_IN_BFLOAT16 = [
    *(BLOCKS[i] for i in (0, 2, 5, 9, 10)),
    BlockConfig("mbconv", 7, 24, 72, 24, 7, 1, "hswish", use_se=True, residual=True),
]


TARGETS_IN_BFLOAT16 = [
    pytest.param(BF16, marks=needs_bfloat16, id="pairs"),
    pytest.param(MATRICES, marks=needs_matrices, id="matrices"),
]
IN_BFLOAT16 = pytest.mark.parametrize("target", TARGETS_IN_BFLOAT16)
IN_FEWER_BITS = pytest.mark.parametrize(
    "target", [*TARGETS_IN_BFLOAT16, pytest.param(INT8, marks=needs_int8, id="int8")]
)


@IN_BFLOAT16
@pytest.mark.parametrize("block", BLOCKS_IN_BFLOAT16, ids=lambda b: b.key)
def test_a_block_is_right_in_bfloat16(
    workbench: Workbench, block: BlockConfig, target: HardwareTarget, rng: np.random.Generator
) -> None:
    (outcome,) = workbench.run([workbench.candidate(block, random_points(block, target, rng), target)])
    assert outcome.error is None
    assert outcome.max_error is not None
    assert outcome.max_error < 1e-2


@IN_FEWER_BITS
@pytest.mark.usefixtures("in_one_process")
def test_a_whole_network_is_right_in_fewer_bits(
    tiny_space: SearchSpace, shared_pool: WorkerPool, target: HardwareTarget, tmp_path: Path
) -> None:
    blocks = tiny_space.smallest.blocks(tiny_space, NUM_CLASSES)
    network = network_job(blocks, tmp_path / "network.so")
    (outcome,) = compile_networks(random_lut(tiny_space, blocks, target), target, [network], progress=False)
    assert outcome.error is None
    assert outcome.max_error is not None
    assert outcome.max_error < 1e-2


# ---- int8 -----------------------------------------------------------------------------------------------------------
BLOCKS_IN_INT8 = [*BLOCKS_IN_BFLOAT16, BlockConfig("mbconv", 1, 20, 60, 20, 5, 1, "relu", use_se=True, residual=True)]


@needs_int8
@pytest.mark.parametrize("block", BLOCKS_IN_INT8, ids=lambda b: b.key)
def test_a_block_in_int8_is_its_emulation(workbench: Workbench, block: BlockConfig, rng: np.random.Generator) -> None:
    """To the bit where no sum is of float32."""
    (outcome,) = workbench.run([workbench.candidate(block, random_points(block, INT8, rng), INT8)])
    assert outcome.error is None
    assert outcome.max_error is not None
    assert outcome.max_error <= {"stem": 1.01 / 255, "classifier": 1e-4}.get(block.kind, 1e-6)
