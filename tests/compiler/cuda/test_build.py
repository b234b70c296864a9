"""chanas/compiler/cuda/build.py and measuring/checks/compile_points.py: random schedules become machine code without a
GPU; what is against its limits is told before the compiler is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from chanas.compiler.backends import schedule_operator, schedule_space
from chanas.compiler.cuda import nvrtc as cuda_nvrtc
from chanas.compiler.cuda.build import CompileRecord, build_kernel, compile_point, verify
from chanas.compiler.cuda.nvrtc import (
    GPUCompileError,
    KernelFigures,
    NVRTCError,
    NVRTCLibrary,
    compile_cubin,
    library_for,
    read_figures,
    why_no_nvrtc,
)
from chanas.core.target import HardwareTarget
from chanas.devices.target_files import arch_target
from chanas.errors import MeasureError, TargetError
from chanas.measuring.checks import compile_points as cuda_compile
from chanas.measuring.checks.compile_points import compile_elsewhere, compile_points, kind_of
from chanas.measuring.messages import Answer, ErrorKind, Request, WorkerError
from chanas.measuring.worker.compiler import Compiler, open_compiler
from chanas.operators.workload import Workload

from ..cuda_cases import GPU, WORKLOADS, key

REASON = why_no_nvrtc()
needs_nvrtc = pytest.mark.skipif(REASON is not None, reason=str(REASON))
NO_PASCAL = why_no_nvrtc("sm_60")
needs_pascal = pytest.mark.skipif(NO_PASCAL is not None, reason=str(NO_PASCAL))
DROPPED = ("sm_53", "sm_60", "sm_70")
"""Architectures that an older compiler has and the newest has not."""
FIGURES = KernelFigures(40, 0, 0, 4096, 2048)


def smaller(target: HardwareTarget, **limits: int) -> HardwareTarget:
    return dataclasses.replace(target, gpu=dataclasses.replace(target.required_gpu, **limits))


# ---- machine code ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("workload", "arch"),
    [
        *(pytest.param(w, arch, marks=needs_nvrtc) for arch in ("sm_80", "sm_90") for w in WORKLOADS),
        *(pytest.param(WORKLOADS[1], arch, marks=needs_pascal) for arch in DROPPED),
    ],
    ids=lambda v: v if isinstance(v, str) else key(v),
)
def test_a_random_point_of_each_space_compiles(workload: Workload, arch: str) -> None:
    target = arch_target(arch)
    (point,) = schedule_space(workload, target).sample(1, np.random.default_rng(10))
    cubin, figures = build_kernel(workload, point, target, arch)
    assert cubin[:4] == b"\x7fELF"
    assert 0 < figures.registers <= target.required_gpu.max_registers_per_thread
    assert 0 < figures.code_bytes < len(cubin)
    assert figures.shared_bytes <= target.required_gpu.max_shared_bytes_per_block
    assert library_for(arch).name.startswith("NVRTC 12.") or arch not in DROPPED


@needs_nvrtc
def test_figures_are_those_of_the_kernel() -> None:
    source = """extern "C" __global__ void __launch_bounds__(32) main_kernel(float* out) {
        __shared__ float tile[256];
        tile[threadIdx.x] = out[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = tile[31 - threadIdx.x];
    }"""
    _, figures = compile_cubin(source, "sm_80")
    assert figures.shared_bytes == 1024
    assert figures.spill_load_bytes == figures.spill_store_bytes == 0
    assert 4 <= figures.registers < 32


@needs_nvrtc
def test_spills_are_read_from_what_the_assembler_says() -> None:
    cubin, _ = compile_cubin('extern "C" __global__ void f(float* x) { x[threadIdx.x] = 1.0f; }', "sm_80")
    log = "96 bytes stack frame, 48 bytes spill stores, 52 bytes spill loads\nUsed 64 registers, 8 bytes smem"
    figures = read_figures(cubin, log)
    assert figures == KernelFigures(64, 48, 52, 8, figures.code_bytes)


@needs_nvrtc
def test_text_that_is_no_cuda_is_one_line() -> None:
    with pytest.raises(GPUCompileError, match=r"^NVRTC for sm_80: .*error") as caught:
        compile_cubin('extern "C" __global__ void f() { nonsense; }', "sm_80")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("version", "is_given"), [((12, 3), False), ((12, 4), True), ((13, 2), True)])
def test_what_kernels_need_nothing_of_is_left_out_where_the_compiler_can(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], is_given: bool
) -> None:
    given: list[str] = []

    class Library(NVRTCLibrary):
        def compile(self, source: str, options: Sequence[str]) -> tuple[bytes, str]:
            given.extend(options)
            raise NVRTCError("no program", "error")

    monkeypatch.setattr(cuda_nvrtc, "library_for", lambda _: Library("libnvrtc.so", version, ("sm_80",), None))
    with pytest.raises(GPUCompileError):
        compile_cubin("", "sm_80")
    assert ("--minimal" in given) is is_given


@needs_nvrtc
def test_an_architecture_that_the_compiler_lacks_lists_what_it_has() -> None:
    with pytest.raises(
        TargetError, match=r"^no compiler here has architecture 'sm_20': NVRTC \d+\.\d+ has sm_\d+, .*sm_90"
    ):
        library_for("sm_20")


# ---- limits ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("limits", [{"max_threads_per_block": 16}, {"max_shared_bytes_per_block": 64}])
def test_what_is_against_the_limits_is_told_before_the_compiler_is_called(limits: dict[str, int]) -> None:
    workload = WORKLOADS[1]
    (point,) = schedule_space(workload, GPU).sample(1, np.random.default_rng(11))
    function = schedule_operator(workload, point, GPU)
    with pytest.raises(GPUCompileError, match=r"^the kernel is against the limits of sm_90: threads x=\d+.* of "):
        verify(function, smaller(GPU, **limits))


# ---- many points ----------------------------------------------------------------------------------------------------
@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> list[Workload]:
    """Nothing is compiled; pooling fails. Returns what was asked for."""
    asked: list[Workload] = []

    def compile_(compiler: Compiler, workload: Workload, point: tuple[int, ...]) -> CompileRecord:
        asked.append(workload)
        failed = workload.op == "pool"
        return CompileRecord(point, None if failed else FIGURES, "no pooling" if failed else None, 0.1)

    monkeypatch.setattr(cuda_compile, "compile_elsewhere", compile_)
    monkeypatch.setattr(cuda_compile, "library_for", lambda arch: NVRTCLibrary("", (1, 0), (arch,), None))
    return asked


def test_points_are_compiled_and_the_same_for_a_seed(invented: list[Workload]) -> None:
    first = compile_points(WORKLOADS, GPU, 2, progress=False)
    assert invented == [workload for workload in WORKLOADS for _ in range(2)]
    assert (first.num_workloads, first.num_points) == (len(WORKLOADS), len(invented))
    assert compile_points(WORKLOADS, GPU, 2, progress=False) == first


def test_the_summary_has_every_kind_and_the_most_frequent_error(invented: list[Workload]) -> None:
    summary = compile_points(WORKLOADS, GPU, 2, progress=False)
    shares = {kind.kind: kind.share for kind in summary.kinds}
    assert shares == {kind_of(w): float(w.op != "pool") for w in WORKLOADS}
    assert summary.most_frequent_error == "no pooling"
    assert "100%" in summary.kinds[0].line()


def test_a_space_of_which_nothing_compiles_is_an_error(invented: list[Workload]) -> None:
    pools = [w for w in WORKLOADS if w.op == "pool"]
    with pytest.raises(MeasureError, match=r"^no kernel compiles for sm_90: no pooling$"):
        compile_points(pools, GPU, 2, progress=False)


def test_a_point_that_fails_is_a_record_with_its_error() -> None:
    record = compile_point(WORKLOADS[0], (1, 2), GPU)
    assert record.figures is None
    assert record.error is not None
    assert record.error.startswith("ScheduleError: expected a point of ")


@needs_nvrtc
def test_another_process_compiles_the_same_kernel(no_build_here: None) -> None:
    workload = WORKLOADS[1]
    (point,) = schedule_space(workload, GPU).sample(1, np.random.default_rng(0))
    with open_compiler(GPU) as compiler:
        record = compile_elsewhere(compiler, workload, point)
        failed = compile_elsewhere(compiler, workload, (1, 2))
    assert record.error is None
    assert record.figures is not None
    assert record.figures.code_bytes > 0
    assert str(failed.error).startswith("ScheduleError: expected a point of ")


def test_a_compiler_that_ends_is_a_record_with_its_error() -> None:
    class Dying(Compiler):
        def call(self, request: Request, timeout_s: float) -> Answer:
            error = WorkerError(ErrorKind.CRASH, "the worker ended with signal 6 (SIGABRT) in compile_point")
            return Answer(None, error, 0.5)

    record = compile_elsewhere(Dying(GPU), WORKLOADS[1], (1, 2))
    assert record == CompileRecord((1, 2), None, "the compiler ended with signal 6 (SIGABRT) in compile_point", 0.5)
