"""Compilation of a scheduled GPU function to machine code, without a GPU: lowered, checked against the GPU's limits
before any compiler is called, printed as CUDA, compiled by NVRTC to a cubin whose figures are read.

The compiler gets the kernel alone and what it calls: nearly all of its time would go to headers that it needs nothing
of, or a few lines.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm.ir.transform import Sequential
from tvm.s_tir import transform as scheduled
from tvm.s_tir.analysis import verify_gpu_code
from tvm.tirx import compilation_pipeline
from tvm.tirx import transform as lowering

from chanas.compiler.cuda.families import FAMILIES
from chanas.compiler.cuda.ir import OWN_BARRIERS
from chanas.compiler.cuda.nvrtc import GPUCompileError, KernelFigures, compile_cubin
from chanas.compiler.space import Point
from chanas.core.gpu import GPUFeatures
from chanas.core.target import HardwareTarget
from chanas.errors import ChanasError, describe
from chanas.operators.workload import Workload

_PREAMBLE_END = "#define ushort unsigned short\n#endif\n"
_SHORT_NAMES = "#define uint unsigned int\n#define uchar unsigned char\n#define ushort unsigned short\n"
# float16 as kernels store, load and convert it (they compute in float32), in place of a header of ten thousand lines.
_HALF = """struct half {
  unsigned short bits;
  half() = default;
  __device__ __forceinline__ half(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  __device__ __forceinline__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};
struct alignas(4) half2 { half x, y; };
struct alignas(8) half4 { half x, y, z, w; };
__device__ __forceinline__ half __float2half_rn(float x) { return half(x); }
__device__ __forceinline__ half2 make_half2(half x, half y) { return {x, y}; }
__device__ __forceinline__ half4 make_half4(half x, half y, half z, half w) { return {x, y, z, w}; }
"""
_MAX_VECTOR_BYTES = 16
COMPILE_CALLBACK = "tvm_callback_cuda_compile"
"""The function that TVM's CUDA runtime calls with the text of kernels, for machine code."""
CONFIG = {"tirx.UnrollLoop": {"auto_max_step": 0, "explicit_unroll": False}}
"""Configuration of passes: what is to be written out is marked so, for the CUDA compiler to do."""
# Largest thread index in z, of every architecture (CUDA C++ Programming Guide, "Technical specifications").
_MAX_THREADS_Z = 64


def verify(function: Any, target: HardwareTarget) -> Any:
    """The function lowered as far as its threads and buffers are explicit, checked against the target's limits.

    Raises:
        GPUCompileError: it wants more threads, shared memory or registers than there are.
    """
    gpu, module = target.required_gpu, tvm.IRModule({"main": function})
    with target.tvm_target():
        lowered = _explicit(target, OWN_BARRIERS in (function.attrs or {}))(module)
    limits = {
        "max_threads_per_block": gpu.max_threads_per_block,
        "max_thread_x": gpu.max_threads_per_block,
        "max_thread_y": gpu.max_threads_per_block,
        "max_thread_z": min(_MAX_THREADS_Z, gpu.max_threads_per_block),
        "max_vthread": 1,
        "max_shared_memory_per_block": gpu.max_shared_bytes_per_block,
        "max_local_memory_per_block": 4 * gpu.max_registers_per_thread,
        "max_vector_bytes": _MAX_VECTOR_BYTES,
    }
    if not verify_gpu_code(lowered["main"], limits):
        raise GPUCompileError(f"the kernel is against the limits of {gpu.arch}: {_wanted(lowered, gpu)}")
    return lowered


def _wanted(module: Any, gpu: GPUFeatures) -> str:
    threads = sorted(set(re.findall(r'"threadIdx\.(\w)"\D*(\d+)', module.script())))
    asked = ", ".join(f"{axis}={extent}" for axis, extent in threads)
    return (
        f"threads {asked} of {gpu.max_threads_per_block}, shared memory of {gpu.max_shared_bytes_per_block} bytes, or "
        f"{gpu.max_registers_per_thread} registers"
    )


def _explicit(target: HardwareTarget, is_written_down: bool) -> Any:
    """Blocks to loops over buffers of the least size and bound loops to threads, unless a kernel is written with these;
    then flat buffers."""
    blocks_to_threads = [
        scheduled.CanonicalizeLoop(),
        scheduled.LowerCrossThreadReduction(),
        scheduled.LowerInitBlock(),
        scheduled.PlanAndUpdateBufferAllocationLocation(),
        scheduled.ConvertBlocksToOpaque(),
        scheduled.LiftThreadBinding(),
        scheduled.CompactBufferAllocation(),
        scheduled.UnifyThreadBinding(),
        scheduled.LowerMatchBuffer(),
        scheduled.LowerOpaqueBlock(),
    ]
    return Sequential(
        [
            lowering.BindTarget(target.tvm_target()),
            *([] if is_written_down else blocks_to_threads),
            lowering.FlattenBuffer(),
            lowering.NarrowDataType(32),
        ]
    )


def _device_part(module: Any) -> Any:
    """Return the passes for a lowered module: vectors, barriers where a function has none of its own, sums over
    threads; then the kernel apart from the code that would launch it.

    Without `StorageRewrite`, which lets buffers share memory: a kernel's buffers are all alive at once. Kernels that
    are written down statement by statement are not simplified either: the CUDA compiler makes the same code of them.
    """
    has_own_barriers = any(OWN_BARRIERS in (f.attrs or {}) for f in module.functions.values())
    return Sequential(
        [
            lowering.VectorizeLoop(True),
            lowering.UnrollLoop(),
            *([] if has_own_barriers else [lowering.StmtSimplify()]),
            scheduled.RewriteUnsafeSelect(),
            lowering.VerifyMemory(),
            lowering.AnnotateEntryFunc(),
            *([] if has_own_barriers else [scheduled.ThreadSync("shared")]),
            scheduled.LowerThreadAllreduce(),
            lowering.SplitHostDevice(),
            lowering.MakePackedAPI(),
        ]
    )


def _device_module(verified: Any, target: HardwareTarget) -> Any:
    """Extract the kernels from the module that `verify` returned, just before they are printed."""
    with tvm.transform.PassContext(opt_level=3, config=CONFIG), target.tvm_target():
        device = lowering.Filter(lambda f: f.attrs["target"].kind.name == "cuda")(_device_part(verified)(verified))
        return compilation_pipeline.finalize_device_passes()(device)


def kernel_program(verified: Any, target: HardwareTarget) -> Any:
    """The one kernel of what `verify` returned, as a program: what `cuda_source` prints.

    Raises:
        GPUCompileError: it is not one kernel.
    """
    kernels = list(_device_module(verified, target).functions.values())
    if len(kernels) != 1:
        raise GPUCompileError(f"expected one kernel, got {len(kernels)}")
    return kernels[0]


def cuda_source(verified: Any, target: HardwareTarget) -> str:
    """The CUDA text of what `verify` returned, without the preamble that this compiler's kernels start with."""
    # where there is a driver TVM would have the text compiled at once, in its own slow way
    tvm_ffi.register_global_func(COMPILE_CALLBACK, lambda code: b"", override=True)
    with target.tvm_target():
        built = tvm.get_global_func("target.build.cuda")(_device_module(verified, target), target.tvm_target())
    return kernel_text(str(built.inspect_source()))


def kernel_text(source: str) -> str:
    """Cut TVM's CUDA text down to the kernels and the functions that they call, without the headers in front."""
    text = source[source.index(_PREAMBLE_END) + len(_PREAMBLE_END) :]
    needed = _SHORT_NAMES + (_HALF if re.search(r"\bhalf\d?\b", text) else "")
    return needed + _kept_as_loops(text)


def lowered_parts(module: Any, target: HardwareTarget) -> Any:
    """One scheduled function, lowered to the code that launches it and its kernels.

    Raises:
        GPUCompileError: it wants more threads, shared memory or registers than there are.
    """
    (variable,) = module.get_global_vars()
    verified = verify(module[variable], target)
    (lowered,) = verified.functions.values()
    alone = type(module)({variable: lowered}, attrs=module.attrs)
    return _device_part(alone)(alone)


def _kept_as_loops(source: str) -> str:
    """Loops that the schedule does not unroll stay loops: the compiler would unroll those of constant length."""
    lines = [""]
    for line in source.splitlines():
        text = line.lstrip()
        if text.startswith("for (") and lines[-1].lstrip() != "#pragma unroll":
            lines.append(f"{line.removesuffix(text)}#pragma unroll 1")
        lines.append(line)
    return "\n".join(lines[1:])


def build_kernel(workload: Workload, point: Point, target: HardwareTarget, arch: str) -> tuple[bytes, KernelFigures]:
    """The cubin of one schedule point of one operator for an architecture, and what it uses.

    Raises:
        ScheduleError: the point is not in the workload's space.
        GPUCompileError: the kernel is against the GPU's limits, or the compiler does not take it.
    """
    verified = verify(FAMILIES.program(workload, point, target), target)
    return compile_cubin(cuda_source(verified, target), arch)


def compile_point(workload: Workload, point: Point, target: HardwareTarget) -> CompileRecord:
    """Compile a schedule point in this process and return its figures; a failure is a record with its error."""
    start = time.process_time()
    try:
        _, figures = build_kernel(workload, point, target, target.required_gpu.arch)
    except (ChanasError, RuntimeError, ValueError) as error:  # the compiler's own errors are RuntimeErrors
        return CompileRecord(point, None, describe(error, 300), time.process_time() - start)
    return CompileRecord(point, figures, None, time.process_time() - start)


@dataclass(frozen=True)
class CompileRecord:
    """One compiled schedule point: its figures, or the reason why there are none.

    `build_s` is processor time, from the point to the cubin.
    """

    point: Point
    figures: KernelFigures | None
    error: str | None = None
    build_s: float = 0.0
