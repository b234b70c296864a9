"""schedules.py and product.py of chanas/compiler/cuda: what schedules of several images and of tensor
cores compute, carried out by this machine, is what PyTorch computes; the CUDA text has the loads, barriers and stores
that it asks for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from chanas.compiler.backends import schedule_operator, schedule_space
from chanas.compiler.cuda.build import cuda_source, verify
from chanas.compiler.cuda.emulator import kernel_error, sequential_error
from chanas.compiler.cuda.operators import check_operator
from chanas.compiler.space import Named, Point
from chanas.core.target import HardwareTarget
from chanas.devices.target_files import arch_target
from chanas.errors import ScheduleError
from chanas.operators.precision import FLOAT16, FLOAT32
from chanas.operators.workload import Operator, Workload

from ..cuda_cases import GPU, OF_THREE, OF_TWO_IN_HALVES, WORKLOADS, key

POINTWISE, DEPTHWISE, DENSE = WORKLOADS[1], WORKLOADS[6], WORKLOADS[9]
DEEP = Workload("pointwise", 4, 64, 24, epilogue="relu", scaled=True)
DEEP_IN_HALVES, DEEP_IN_TF32 = (dataclasses.replace(DEEP, dtype=d) for d in ("float16", "tf32"))


@pytest.mark.parametrize("workload", OF_THREE, ids=key)
def test_schedules_of_several_images_do_too(workload: Workload) -> None:
    (point,) = schedule_space(workload, GPU).sample(1, np.random.default_rng(8))
    assert sequential_error(workload, point, GPU) < FLOAT32.operator_tolerance


@pytest.mark.parametrize("workload", OF_TWO_IN_HALVES, ids=key)
def test_tensor_cores_multiply_the_rows_of_several_images(workload: Workload) -> None:
    assert sequential_error(workload, a_point(workload, mma=1), GPU) < FLOAT16.operator_tolerance


@pytest.mark.parametrize("mma", [0, 1])
@pytest.mark.parametrize("batch", [2, 9])
def test_each_image_has_its_own_gate(batch: int, mma: int) -> None:
    """A tile goes over the border between images, and past the last one."""
    workload = dataclasses.replace(DEEP, input_size=3, batch=batch, dtype="float16")
    assert sequential_error(workload, a_point(workload, mma=mma, shares=1), GPU) < FLOAT16.operator_tolerance


@pytest.mark.parametrize("op", ["pointwise", "depthwise"])
def test_arrays_whose_places_32_bits_do_not_count_are_refused(op: Operator) -> None:
    """Whether it is the input's or the output's."""
    most = Workload(op, 128, 128, 128, batch=1023)
    check_operator(most)
    for in_channels in (8, 128):
        with pytest.raises(ScheduleError, match=r"^expected arrays of less than 2\^31 values, got .*-b1024; use a"):
            check_operator(dataclasses.replace(most, in_channels=in_channels, batch=1024))


@pytest.mark.parametrize("mma", [0, 1])
@pytest.mark.parametrize(("stages", "shares"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_stages_and_shares_of_a_sum_change_nothing(stages: int, shares: int, mma: int) -> None:
    workload = DEEP_IN_HALVES if mma else DEEP
    point = a_point(workload, stages=stages, shares=shares, mma=mma)
    assert sequential_error(workload, point, GPU) < FLOAT16.operator_tolerance


@pytest.mark.parametrize(
    ("arch", "workload", "instruction"),
    [
        ("sm_75", DEEP_IN_HALVES, "m16n8k8.row.col.f32.f16.f16.f32"),
        ("sm_80", DEEP_IN_HALVES, "m16n8k16.row.col.f32.f16.f16.f32"),
        ("sm_80", DEEP_IN_TF32, "m16n8k8.row.col.f32.tf32.tf32.f32"),
    ],
)
def test_tensor_cores_are_those_of_the_architecture(arch: str, workload: Workload, instruction: str) -> None:
    target = arch_target(arch)
    point = a_point(workload, target, mma=1)
    assert instruction in text(workload, point, target)
    assert sequential_error(workload, point, target) < FLOAT16.operator_tolerance


@pytest.mark.parametrize(("arch", "dtype"), [("sm_90", "float32"), ("sm_75", "tf32"), ("sm_70", "float16")])
def test_nothing_is_rounded_that_was_not_asked_for_and_old_architectures_have_no_tensor_cores(
    arch: str, dtype: str
) -> None:
    workload, target = dataclasses.replace(DEEP, dtype=dtype), arch_target(arch)
    points = schedule_space(workload, target).sample(20, np.random.default_rng(0))
    assert not any("mma.sync" in text(workload, p, target) for p in points)


def test_the_next_stretch_is_loaded_before_this_one_is_used() -> None:
    source = text(DEEP, a_point(DEEP, stages=2, shares=1))
    _, loop = source.split("for (int step", 1)
    assert loop.index("input_next_ptr") < loop.index("a_words_ptr") < loop.rindex("input_next_ptr")
    assert loop.count("__syncthreads();") == 1


def test_a_wrong_schedule_is_found_out() -> None:
    """The kernel computes another operator than the reference."""
    other = Workload("pointwise", 4, 24, 40, epilogue="hswish")
    (point,) = schedule_space(other, GPU).sample(1, np.random.default_rng(0))
    assert kernel_error(schedule_operator(other, point, GPU), POINTWISE, GPU) > 0.01


def a_point(workload: Workload, target: HardwareTarget = GPU, **wanted: tuple[int, ...] | int) -> Point:
    """A random point with some groups given."""
    space = schedule_space(workload, target)

    def fits(named: Named) -> bool:
        return all(named[name] == (value if isinstance(value, tuple) else (value,)) for name, value in wanted.items())

    rng = np.random.default_rng(9)
    return next(p for _ in range(50) for p in space.sample(10, rng) if fits(space.groups(p)))


def text(workload: Workload, point: Point, target: HardwareTarget = GPU) -> str:
    return cuda_source(verify(schedule_operator(workload, point, target), target), target)


def test_loads_into_shared_memory_are_vectors_between_two_barriers() -> None:
    point = a_point(POINTWISE, load_input=4, load_weights=4, stages=1, shares=1)
    source = text(POINTWISE, point)
    first, loads, rest = source.split("__syncthreads();")
    assert "*(float4*)(x_ptr" in first
    assert "*(float4*)(weights_ptr" in first
    assert loads.count("*(float4*)(input_shared") >= 1
    assert loads.count("*(float4*)(weights_shared") >= 1
    assert "_shared_ptr" in rest
    assert "blockIdx.x" in source
    assert "#include" not in source


def test_the_halo_of_a_depthwise_convolution_is_shared_or_not() -> None:
    shared = text(DEPTHWISE, a_point(DEPTHWISE, cache=1, load_input=4))
    assert "*(float4*)(input_shared" in shared
    assert shared.count("__syncthreads();") == 1
    assert "__shared__" not in text(DEPTHWISE, a_point(DEPTHWISE, cache=0))


def test_threads_share_a_sum_where_the_point_says_so() -> None:
    alone = text(DENSE, a_point(DENSE, split_k=(32, 1, 1)))
    together = text(DENSE, a_point(DENSE, split_k=(2, 16, 1)))
    assert "threadIdx.y" in together
    assert "__syncthreads" in together or "__shfl" in together
    assert "__syncthreads" not in alone


def test_only_what_the_schedule_unrolls_is_unrolled() -> None:
    lines = [line.strip() for line in text(POINTWISE, a_point(POINTWISE, unroll=1)).splitlines()]
    loops = [i for i, line in enumerate(lines) if line.startswith("for (")]
    assert loops
    assert all(lines[i - 1].startswith("#pragma unroll") for i in loops)
