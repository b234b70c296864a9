"""chanas/prescheduler/cuda_schedules.py and cuda_sequential.py: what a schedule computes, carried out by this machine,
is what PyTorch computes; the CUDA text has the loads, barriers and stores that the point asks for."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.errors import ScheduleError
from chanas.prescheduler.cuda_build import cuda_source, verify
from chanas.prescheduler.cuda_schedules import schedule_gpu_operator
from chanas.prescheduler.cuda_sequential import sequential_error
from chanas.prescheduler.cuda_space import gpu_space
from chanas.prescheduler.reference import FLOAT32_TOLERANCE
from chanas.prescheduler.space import Named, Point
from chanas.prescheduler.workload import Workload

from .cuda_cases import GPU, WORKLOADS, key

POINTWISE, DEPTHWISE, DENSE = WORKLOADS[1], WORKLOADS[6], WORKLOADS[9]


@pytest.mark.parametrize("workload", WORKLOADS, ids=key)
def test_schedules_compute_what_pytorch_does(workload: Workload) -> None:
    for point in gpu_space(workload, GPU).sample(2, np.random.default_rng(8)):
        assert sequential_error(workload, point, GPU) < FLOAT32_TOLERANCE


def test_a_wrong_schedule_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequential run computes another operator than the reference."""
    from chanas.prescheduler import cuda_sequential as module

    other = Workload("pointwise", 4, 24, 40, epilogue="hswish")
    (point,) = gpu_space(other, GPU).sample(1, np.random.default_rng(0))
    monkeypatch.setattr(module, "schedule_gpu_operator", lambda _w, p, t: schedule_gpu_operator(other, p, t))
    assert sequential_error(POINTWISE, point, GPU) > 0.01


def a_point(workload: Workload, **wanted: tuple[int, ...] | int) -> Point:
    """A random point with some groups given."""
    space = gpu_space(workload, GPU)

    def fits(named: Named) -> bool:
        return all(named[name] == (value if isinstance(value, tuple) else (value,)) for name, value in wanted.items())

    points = space.sample(500, np.random.default_rng(9))
    return next(p for p in points if fits(space.decode(p)))


def text(workload: Workload, point: Point) -> str:
    return cuda_source(verify(schedule_gpu_operator(workload, point, GPU), GPU), GPU)


def test_loads_into_shared_memory_are_vectors_between_two_barriers() -> None:
    source = text(POINTWISE, a_point(POINTWISE, load_input=4, load_weights=4))
    first, loads, rest = source.split("__syncthreads();")
    assert loads.count("*(float4*)(input_shared") == 1
    assert loads.count("*(float4*)(weights_shared") == 1
    assert "_shared_ptr[" in rest
    assert "blockIdx.x" in source
    assert "threadIdx.y" not in source
    assert first.startswith('extern "C" __global__')


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
    lines = [line.strip() for line in text(POINTWISE, a_point(POINTWISE, unroll=0)).splitlines()]
    loops = [i for i, line in enumerate(lines) if line.startswith("for (")]
    assert loops
    assert all(lines[i - 1].startswith("#pragma unroll") for i in loops)


def test_a_point_of_another_space_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"^expected a point of \d+ integers"):
        schedule_gpu_operator(POINTWISE, (1, 2, 3), GPU)
