"""Check that a GPU target works: the operators of a small block are compiled for it, and their schedules carried out by
this machine's processor and compared with PyTorch; on the GPU itself where it is in this machine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chanas.compiler.backends import schedule_space
from chanas.compiler.cuda.emulator import sequential_error
from chanas.compiler.cuda.nvrtc import library_for
from chanas.core.target import HardwareTarget
from chanas.core.units import format_latency
from chanas.devices.driver import find_gpu
from chanas.devices.gpu_use import GPU_TARGET, check_free
from chanas.errors import ChanasError, TargetError, describe
from chanas.files.scratch import scratch_folder
from chanas.measuring.checks.compile_points import compile_elsewhere
from chanas.measuring.checks.target_check import Step, check_here, small_block
from chanas.measuring.worker.compiler import open_compiler
from chanas.operators.precision import FLOAT32
from chanas.operators.steps import tuned_workloads


def check_gpu(target: HardwareTarget, shared: bool = False) -> Iterator[Step]:
    """Compile one random schedule of each operator of a small block; carry the same out here and compare."""
    workloads = tuned_workloads([small_block()], target)
    rng = np.random.default_rng(0)
    chosen = [(w, schedule_space(w, target).sample(1, rng)[0]) for w in workloads]
    arch = target.required_gpu.arch
    try:
        nvrtc = library_for(arch)
    except TargetError as missing:
        yield Step("compile", False, str(missing))
    else:
        with open_compiler(target) as compiler:
            records = [compile_elsewhere(compiler, w, point) for w, point in chosen]
        failed = [r.error for r in records if r.error is not None]
        if failed:
            yield Step("compile", False, f"{len(failed)} of {len(records)} kernels: {failed[0]}")
        else:
            most = max(r.figures.registers for r in records if r.figures is not None)
            mean_s = sum(r.build_s for r in records) / len(records)
            yield Step(
                "compile",
                True,
                f"{len(records)} kernels for {arch} by {nvrtc.name}, {format_latency(mean_s)} each, "
                f"up to {most} registers",
            )
    why_not_here = _why_not_here(target, shared)
    if why_not_here is None:
        with scratch_folder() as scratch:
            yield from check_here(small_block(), target, scratch)
        return
    yield Step("run", None, why_not_here)
    try:
        error = max(sequential_error(w, point, target) for w, point in chosen)
    except (ChanasError, RuntimeError) as fault:
        yield Step("compare", False, describe(fault, 200))
        return
    right = error <= FLOAT32.operator_tolerance
    where = "the kernels, their threads carried out by this processor: the GPU's own code is not tested"
    yield Step("compare", right, f"relative error {error:.1g} against PyTorch of {where}")


def _why_not_here(target: HardwareTarget, shared: bool) -> str | None:
    """Return the reason that this machine's GPU runs nothing; None if it is the target, and free or may be shared."""
    if target.name != GPU_TARGET:
        return "a GPU that is only described"
    if find_gpu() is None:
        return "no NVIDIA GPU was found"
    try:
        check_free([target], shared)
    except TargetError as error:
        return str(error)
    return None
