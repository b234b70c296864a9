"""chanas/compiler/cuda/graph.py: what operators, blocks and whole networks compute on a GPU, each kernel carried out by
this machine, is what PyTorch computes."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.compiler.backends import case_of, schedule_space
from chanas.compiler.cases import ReferenceCase, network_case, random_network
from chanas.compiler.cuda.graph import (
    COPIES,
    array_numbers,
    block_program,
    launches_of,
    network_program,
    operator_program,
)
from chanas.compiler.space import Point
from chanas.core.arch import SearchSpace
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget, gpu_in_dtype, in_batches
from chanas.errors import ScheduleError
from chanas.operators.steps import block_workloads, device_steps, device_workloads
from chanas.operators.workload import Workload

from ..carried_out import num_launches, run_program
from ..cuda_cases import GPU, IN_HALVES, WORKLOADS, key
from ..workbench import NANO, NUM_CLASSES

TARGETS = (GPU, gpu_in_dtype(GPU, "f16"), gpu_in_dtype(GPU, "tf32"))
# One of each kind, with and without expansion, residual and squeeze-excite.
BLOCKS = tuple({(b.kind, b.has_expand, b.residual, b.use_se): b for b in NANO.all_blocks(NUM_CLASSES)}.values())
LARGE_BATCH = BlockConfig("mbconv", 4, 16, 32, 16, 3, 1, "hswish", use_se=True, residual=True)


def points_of(block: BlockConfig, target: HardwareTarget = GPU) -> list[Point]:
    rng = np.random.default_rng(0)
    return [schedule_space(w, target).sample(1, rng)[0] for w in device_workloads(block, target)]


def error(case: ReferenceCase, program: object) -> float:
    """Of what a program computes, relative to the largest expected magnitude; rows beyond the expected ones are
    spare."""
    got, (pixels, channels) = run_program(program, case.arguments, case.weights), case.expected.shape
    return float(np.abs(got.reshape(-1, channels)[:pixels] - case.expected).max() / np.abs(case.expected).max())


# With gate and residual, neither, and no weights either; all kernels alone: `test_families`.
@pytest.mark.parametrize("workload", [WORKLOADS[0], WORKLOADS[5], WORKLOADS[7], IN_HALVES[0]], ids=key)
def test_an_operator_computes_what_pytorch_does(workload: Workload) -> None:
    (point,) = schedule_space(workload, GPU).sample(1, np.random.default_rng(3))
    case = case_of(workload, GPU)
    assert error(case, operator_program(workload, point, GPU, copies=1)) < case.tolerance


@pytest.mark.parametrize(
    ("block", "target"),
    [
        *((block, target) for target in (*TARGETS, in_batches(TARGETS[1], 3)) for block in BLOCKS),
        (LARGE_BATCH, in_batches(GPU, 32)),
    ],
    ids=lambda v: v.key if isinstance(v, BlockConfig) else v.name,
)
def test_a_block_computes_what_pytorch_does(block: BlockConfig, target: HardwareTarget) -> None:
    case = case_of(block, target)
    assert len(case.expected) == target.batch * block.output_size**2
    assert error(case, block_program(block, points_of(block, target), target, copies=1)) < case.tolerance


@pytest.mark.parametrize("target", [*TARGETS, in_batches(GPU, 2)], ids=lambda t: t.name)
def test_a_network_computes_what_pytorch_does(tiny_space: SearchSpace, target: HardwareTarget) -> None:
    """Residuals, squeeze-excite, maps whose rows are more than their pixels, shared memory between the steps."""
    blocks = tiny_space.smallest.blocks(tiny_space, NUM_CLASSES)
    case = network_case(blocks, *random_network(blocks, 0, target.batch), target)
    assert error(case, network_program(blocks, [points_of(b, target) for b in blocks], target)) < case.tolerance


def test_a_network_launches_a_kernel_for_each_operator() -> None:
    blocks = NANO.smallest.blocks(NANO, NUM_CLASSES)
    program = network_program(blocks, [points_of(b) for b in blocks], GPU)
    assert num_launches(program) == sum(len(device_workloads(b, GPU)) for b in blocks)


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
        block_program(next(b for b in BLOCKS if b.kind == "classifier"), [], GPU)


# ---- memory ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", [GPU, in_batches(GPU, 3)], ids=lambda t: t.name)
def test_no_launch_writes_over_what_is_still_to_be_read(tiny_space: SearchSpace, target: HardwareTarget) -> None:
    chain = [device_steps(b, target) for b in tiny_space.largest.blocks(tiny_space, NUM_CLASSES)]
    launches = launches_of(chain, [[()] * len(steps) for steps in chain])
    assert max(len(launch.step.reads) for launch in launches) == 3  # what is scaled, its gate, the residual
    holds: dict[int, int] = {}
    for i, launch in enumerate(launches):
        inputs = [value for value in launch.step.reads if value > 0]  # 0 is the image
        assert all(holds[launches[value - 1].array] == value for value in inputs)
        assert launch.array not in [launches[value - 1].array for value in inputs]
        holds[launch.array] = i + 1


def test_blocks_share_what_is_inside_them_the_largest_first() -> None:
    block = next(b for b in BLOCKS if b.has_expand and b.use_se)
    expand, depthwise, squeeze, gate, project = array_numbers(device_steps(block, GPU), turn=3)
    assert (expand, depthwise) == (2, 3)
    assert {squeeze, gate} == {4, 5}
    assert project == 1
