"""chanas/prescheduler/codegen/cuda/untuned.py: TVM's default schedules for GPUs compute what PyTorch does, and
compile."""

from __future__ import annotations

import pytest

from chanas.errors import ScheduleError
from chanas.operators.workload import WINOGRAD, Workload
from chanas.prescheduler.checks.sequential import kernel_error
from chanas.prescheduler.codegen.cuda.build import cuda_source, verify
from chanas.prescheduler.codegen.cuda.nvrtc import compile_cubin, why_no_nvrtc
from chanas.prescheduler.codegen.cuda.untuned import default_gpu_operator
from chanas.prescheduler.workloads.cases import FLOAT16_OPERATOR_TOLERANCE, FLOAT32_TOLERANCE

from ...cuda_cases import GPU, IN_HALVES, OF_THREE, WORKLOADS, key

REASON = why_no_nvrtc()
OPERATORS = [w for w in WORKLOADS if w.op != "squeeze"]


@pytest.mark.parametrize("workload", OPERATORS, ids=key)
def test_default_schedules_compute_what_pytorch_does(workload: Workload) -> None:
    assert kernel_error(default_gpu_operator(workload, GPU), workload, GPU) < FLOAT32_TOLERANCE


@pytest.mark.parametrize("workload", [OF_THREE[i] for i in (0, 5, 7, 8)], ids=key)
def test_those_of_several_images_do_too(workload: Workload) -> None:
    assert kernel_error(default_gpu_operator(workload, GPU), workload, GPU) < FLOAT32_TOLERANCE


@pytest.mark.parametrize("workload", [IN_HALVES[0], IN_HALVES[5], IN_HALVES[8]], ids=key)
def test_those_of_float16_do_too(workload: Workload) -> None:
    assert kernel_error(default_gpu_operator(workload, GPU), workload, GPU) < FLOAT16_OPERATOR_TOLERANCE


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize("workload", OPERATORS, ids=key)
def test_they_are_within_the_limits_and_compile(workload: Workload) -> None:
    source = cuda_source(verify(default_gpu_operator(workload, GPU), GPU), GPU)
    cubin, _ = compile_cubin(source, "sm_90")
    assert cubin[:4] == b"\x7fELF"


def test_an_operator_that_is_not_there_says_so() -> None:
    for op in WINOGRAD:
        with pytest.raises(ScheduleError, match=f"^operator {op} is not there for GPUs"):
            default_gpu_operator(Workload(op, 8, 8, 8, 3), GPU)


def test_two_operators_in_one_have_no_default() -> None:
    with pytest.raises(ScheduleError, match=r"^operator squeeze has no default schedule; its two operators have"):
        default_gpu_operator(Workload("squeeze", 7, 16, 8), GPU)
