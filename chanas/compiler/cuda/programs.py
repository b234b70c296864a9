"""GPU programs to libraries that `relax.VirtualMachine` loads: Relax rewritten so that a whole program is one CUDA
graph, kernels lowered as `build` lowers them, their text compiled by NVRTC from the first kernel on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import transform
from tvm.tirx import compilation_pipeline

from chanas.compiler.cuda import build as cuda_build
from chanas.compiler.cuda.nvrtc import compile_cubin
from chanas.compiler.libraries import export
from chanas.core.target import HardwareTarget

_PIPELINE = "chanas-cuda"
_CAPTURED = "vm.builtin.cuda_graph.run_or_capture"


def rewritten(module: Any, target: HardwareTarget) -> Any:
    """The Relax part as the virtual machine's code generator takes it; kernels that depend on nothing but the
    program's arguments are captured as CUDA graphs (functions whose name ends in `cuda_graph_capture`)."""
    passes = [
        transform.RewriteCUDAGraph(),
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]
    with _context(), target.tvm_target():
        return _with_kept_answers(tvm.ir.transform.Sequential(passes)(module))


def _with_kept_answers(module: Any) -> Any:
    """Keep the answer of `run_or_capture` in a register: before → after

    call run_or_capture … dst: %void    →    call run_or_capture … dst: %3

    The virtual machine writes a captured function's answer to where its caller wants it, and there is no place `%void`:
    a program whose captured part gives nothing back, as ours do, would end with an error at its first call.
    """

    @relax.expr_functor.mutator
    class Kept(relax.PyExprMutator):  # type: ignore[misc]
        def visit_call_(self, call: Any) -> Any:
            name = getattr(call.args[0], "global_symbol", "") if call.args else ""
            if name != _CAPTURED:
                return call
            return relax.Call(call.op, call.args, call.attrs, ty_args=[relax.AnyType()])

    kept = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            kept.update_func(variable, Kept().visit_expr(function))
    return kept


def compile_program(module: Any, target: HardwareTarget, library: Path) -> None:
    """Compile a program (`cuda.graph`) to a library.

    It holds the kernels' machine code where TVM's CUDA runtime is loaded, and otherwise their text (`driver`).

    Raises:
        GPUCompileError: a kernel is against the GPU's limits, or the compiler does not take it.
    """
    export(build_program(module, target), library, target)


def build_program(module: Any, target: HardwareTarget) -> Any:
    """The executable of a program."""

    def passes() -> tuple[Any, Any, Any]:
        return (
            _each_function(target),
            compilation_pipeline.finalize_host_passes,
            compilation_pipeline.finalize_device_passes,
        )

    compilation_pipeline.register_tir_pipeline(_PIPELINE, passes)
    _compile_with_nvrtc(target)
    with _context():
        return relax.build(rewritten(module, target), target.tvm_target(), relax_pipeline=None, tir_pipeline=_PIPELINE)


def _context() -> Any:
    config = {
        "relax.backend.use_cuda_graph": True,
        "tirx.disable_assert": True,
        **cuda_build.CONFIG,
    }
    return tvm.transform.PassContext(opt_level=3, config=config)


def _each_function(target: HardwareTarget) -> Any:
    """Every kernel verified and lowered by itself, host and device parts of all together again."""

    def lower(module: Any, _: Any) -> Any:
        whole = tvm.IRModule({}, attrs=module.attrs)
        for variable, function in module.functions_items():
            alone = tvm.IRModule({variable: function}, attrs=module.attrs)
            whole.update(cuda_build.lowered_parts(alone, target))
        return whole

    return tvm.transform.module_pass(lower, opt_level=0)


def _compile_with_nvrtc(target: HardwareTarget) -> None:
    """Let TVM compile kernels as `build` does. Its own way parses headers that our kernels need nothing of, which
    takes ten times as long, and takes the architecture of the GPU that it finds."""
    arch = target.required_gpu.arch

    def compile_(code: str) -> bytes:
        cubin, _ = compile_cubin(cuda_build.kernel_text(code), arch)
        return cubin

    tvm_ffi.register_global_func(cuda_build.COMPILE_CALLBACK, compile_, override=True)
