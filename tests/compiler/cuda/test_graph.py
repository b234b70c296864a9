"""chanas/compiler/cuda/graph.py: what blocks and whole networks compute on a GPU,
each kernel carried out by this machine, is what PyTorch computes."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.cases import ReferenceCase, block_case, network_case, operator_case, random_network
from chanas.compiler.cuda.graph import (
    COPIES,
    array_numbers,
    block_launches,
    block_program,
    gpu_program,
    network_launches,
    network_program,
    operator_launches,
    operator_program,
)
from chanas.compiler.space import Point
from chanas.core.arch import BlockConfig, SearchSpace
from chanas.core.target import HardwareTarget, gpu_in_dtype, in_batches
from chanas.errors import ScheduleError
from chanas.operators.steps import block_workloads, device_workloads
from chanas.operators.workload import Workload

from ..carried_out import Array, num_launches, run_program
from ..cuda_cases import GPU, IN_HALVES, IN_TF32, WORKLOADS, key
from ..workbench import NANO, NUM_CLASSES

TARGETS = (GPU, gpu_in_dtype(GPU, "f16"), gpu_in_dtype(GPU, "tf32"))
# One of each kind, with and without expansion, residual and squeeze-excite.
BLOCKS = tuple({(b.kind, b.has_expand, b.residual, b.use_se): b for b in NANO.all_blocks(NUM_CLASSES)}.values())


def points_of(block: BlockConfig, target: HardwareTarget = GPU, seed: int = 0) -> list[Point]:
    rng = np.random.default_rng(seed)
    return [schedule_space(w, target).sample(1, rng)[0] for w in device_workloads(block, target)]


def error(case: ReferenceCase, got: Array) -> float:
    """Relative to the largest expected magnitude; rows beyond the expected ones are spare."""
    pixels, channels = case.expected.shape
    return float(np.abs(got.reshape(-1, channels)[:pixels] - case.expected).max() / np.abs(case.expected).max())


@pytest.mark.parametrize("workload", [*WORKLOADS, *IN_HALVES, *IN_TF32], ids=key)
def test_an_operator_computes_what_pytorch_does(workload: Workload) -> None:
    case = operator_case(workload, GPU)
    (point,) = schedule_space(workload, GPU).sample(1, np.random.default_rng(3))
    program = gpu_program(*operator_launches(workload, point), GPU)
    assert error(case, run_program(program, case.arguments, case.weights)) < case.tolerance


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.key)
def test_a_block_computes_what_pytorch_does(block: BlockConfig, target: HardwareTarget) -> None:
    case = block_case(block, target)
    program = gpu_program(block_launches(block, points_of(block, target), target), 1, target)
    assert error(case, run_program(program, case.arguments, case.weights)) < case.tolerance


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.key)
def test_a_block_of_three_images_does_too(block: BlockConfig) -> None:
    target = in_batches(TARGETS[1], 3)
    case = block_case(block, target)
    assert len(case.expected) == 3 * block.output_size**2
    program = gpu_program(block_launches(block, points_of(block, target), target), 1, target)
    assert error(case, run_program(program, case.arguments, case.weights)) < case.tolerance


def test_a_block_of_32_images_does_too() -> None:
    block = BlockConfig("mbconv", 4, 16, 32, 16, 3, 1, "hswish", use_se=True, residual=True)
    target = in_batches(GPU, 32)
    case = block_case(block, target)
    program = gpu_program(block_launches(block, points_of(block, target), target), 1, target)
    assert error(case, run_program(program, case.arguments, case.weights)) < case.tolerance


def network(
    space: SearchSpace, target: HardwareTarget = GPU
) -> tuple[tuple[BlockConfig, ...], list[list[Point]], ReferenceCase]:
    blocks = space.smallest.blocks(space, NUM_CLASSES)
    case = network_case(blocks, *random_network(blocks, 0, target.batch), target)
    return blocks, [points_of(b, target) for b in blocks], case


@pytest.mark.parametrize("target", [*TARGETS, in_batches(GPU, 2)], ids=lambda t: t.name)
def test_a_network_computes_what_pytorch_does(tiny_space: SearchSpace, target: HardwareTarget) -> None:
    """Residuals, squeeze-excite, maps whose rows are more than their pixels, shared memory between the steps."""
    blocks, points, case = network(tiny_space, target)
    program = network_program(blocks, points, target)
    assert error(case, run_program(program, case.arguments, case.weights)) < case.tolerance


def test_a_network_launches_a_kernel_for_each_operator() -> None:
    blocks, points, _ = network(NANO)
    assert num_launches(network_program(blocks, points, GPU)) == sum(len(device_workloads(b, GPU)) for b in blocks)


def test_what_is_timed_alone_runs_many_times_with_weights_of_its_own() -> None:
    workload = WORKLOADS[1]
    program = operator_program(workload, schedule_space(workload, GPU).sample(1, np.random.default_rng(0))[0], GPU)
    assert num_launches(program) == COPIES
    assert len(program["main"].params) == 1 + 2 * COPIES + 1
    block = next(b for b in BLOCKS if b.use_se)
    assert (
        num_launches(block_program(block, points_of(block), GPU))
        == COPIES * len(device_workloads(block, GPU))
        == COPIES * (len(block_workloads(block)) - 1)
    )


def test_a_block_needs_a_point_for_each_operator() -> None:
    with pytest.raises(ScheduleError, match=r"^expected 2 points for block .*, got 0$"):
        block_launches(next(b for b in BLOCKS if b.kind == "classifier"), [], GPU)


# ---- memory ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", [GPU, in_batches(GPU, 3)], ids=lambda t: t.name)
def test_no_launch_writes_over_what_is_still_to_be_read(tiny_space: SearchSpace, target: HardwareTarget) -> None:
    blocks = tiny_space.largest.blocks(tiny_space, NUM_CLASSES)
    launches = network_launches(blocks, [[()] * len(device_workloads(b, target)) for b in blocks], target)
    assert max(len(launch.reads) for launch in launches) == 3  # what is scaled, its gate, the residual
    holds: dict[int, int] = {}
    for i, launch in enumerate(launches):
        inputs = [value for value in launch.reads if value > 0]  # 0 is the image
        assert all(holds[launches[value - 1].array] == value for value in inputs)
        assert launch.array not in [launches[value - 1].array for value in inputs]
        holds[launch.array] = i + 1


def test_blocks_share_what_is_inside_them_the_largest_first() -> None:
    block = next(b for b in BLOCKS if b.has_expand and b.use_se)
    expand, depthwise, squeeze, gate, project = array_numbers(device_workloads(block, GPU), turn=3)
    assert (expand, depthwise) == (2, 3)
    assert {squeeze, gate} == {4, 5}
    assert project == 1
