"""chanas/compiler/cpu/blocks.py: a block fused into one function computes what its PyTorch module
computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fast_cases import fast

from chanas.compiler.backends import schedule_space
from chanas.compiler.cases import block_case, change_case
from chanas.compiler.program import FormChange
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.blocks import BlockConfig, conversions
from chanas.core.genome import decode, sample
from chanas.core.target import HardwareTarget, in_dtype
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
    in_dtypes,
    mixed_lut,
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


# ---- several dtypes -------------------------------------------------------------------------------------------------
CONVERSIONS = [block for dtype in ("bfloat16", "int8") for block in conversions(7, 24, dtype, "float32")]
CONVERSIONS += [block for dtype in ("bfloat16", "int8") for block in conversions(5, 40, "float32", dtype)]
NEEDS = {"bfloat16": needs_bfloat16, "int8": needs_int8}


@pytest.mark.parametrize("block", [pytest.param(b, marks=NEEDS[b.dtype], id=b.key) for b in CONVERSIONS])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_block_that_converts_gives_the_nearest_numbers(
    workbench: Workbench, block: BlockConfig, num_threads: int
) -> None:
    target = device(num_threads=num_threads)
    (outcome,) = workbench.run([workbench.candidate(block, [], target)])
    assert (outcome.error, outcome.max_error) == (None, 0.0)
    expected = change_case(FormChange.of_block(block, target))
    for found, wanted in zip(block_case(block, target).arguments, expected.arguments, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "block",
    [pytest.param(dataclasses.replace(BLOCKS[i], dtype=d), marks=NEEDS[d]) for i in (0, 6, 9, 10) for d in NEEDS],
)
def test_a_block_is_computed_in_its_own_dtype(
    workbench: Workbench, block: BlockConfig, rng: np.random.Generator
) -> None:
    """As on a target of that dtype."""
    target = device()
    points = random_points(block, target, rng)
    assert block_case(block, target).tolerance == block_case(block, in_dtype(target, block.dtype)).tolerance
    alone = workbench.candidate(dataclasses.replace(block, dtype=""), points, in_dtype(target, block.dtype))
    mine, theirs = workbench.run([workbench.candidate(block, points, target), alone])
    assert (mine.error, theirs.error) == (None, None)
    assert mine.max_error == theirs.max_error


@needs_int8
@pytest.mark.usefixtures("in_one_process")
def test_networks_of_float32_and_int8_are_their_emulations(
    tiny_space: SearchSpace, shared_pool: WorkerPool, tmp_path: Path
) -> None:
    space = tiny_space.with_dtypes(("float32", "int8"))
    chosen = [in_dtypes(space.smallest, letters) for letters in ("iiiiii", "fififf")]
    drawn = decode(space, sample(space, 2, np.random.default_rng(1)))
    assert all(len(set(a.dtypes)) == 2 for a in drawn)
    check_networks(space, [*chosen, *drawn], HOST, tmp_path)


@needs_bfloat16
@pytest.mark.usefixtures("in_one_process")
def test_networks_of_three_dtypes_are_their_emulations(
    tiny_space: SearchSpace, shared_pool: WorkerPool, tmp_path: Path
) -> None:
    chosen = [in_dtypes(tiny_space.smallest, letters) for letters in ("bfibif", "fbbfib", "ibibib")]
    check_networks(tiny_space, chosen, device(), tmp_path)


def check_networks(
    space: SearchSpace, architectures: Sequence[Architecture], target: HardwareTarget, folder: Path
) -> None:
    """Networks compiled whole give the logits that they are expected to give, of images that are not alike: these
    differ by 1e-2 of the largest. A sum in another order may become another bfloat16."""
    networks = [architecture.blocks(space, NUM_CLASSES) for architecture in architectures]
    lut = mixed_lut(space, dict.fromkeys(block for blocks in networks for block in blocks), target)
    jobs = []
    for i, blocks in enumerate(networks):
        job = network_job(blocks, folder / f"{i}.so", seed=i)
        shifts = np.random.default_rng(i).standard_normal((1, 3, 1, 1), np.float32)
        jobs.append(dataclasses.replace(job, images=job.images + 4.0 * shifts))
    for outcome in compile_networks(lut, target, jobs, progress=False):
        assert outcome.error is None
        assert outcome.max_error is not None
        assert outcome.max_error < 5e-4
