"""GPU programs where there is no GPU: the program itself runs in TVM's virtual machine, and each of its kernel calls is
carried out by this machine's processor, all threads at once (`compiler.cuda.emulator`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.compiler.cuda.build import kernel_program, verify
from chanas.compiler.cuda.emulator import run_kernel
from chanas.compiler.cuda.programs import rewritten

from .cuda_cases import GPU

Array = npt.NDArray[Any]

_KNOWN: set[str] = set()


def _carried_out(function: Any) -> Callable[..., None]:
    """A kernel as a function of its arguments, the last of which it writes."""
    names = [str(p.name) for p in function.params]
    program = kernel_program(verify(function.with_attr("global_symbol", "main"), GPU), GPU)

    def call(*arguments: Any) -> None:
        arrays = [a.numpy() for a in arguments]
        run_kernel(program, dict(zip(names, arrays, strict=True)))
        arguments[-1].copyfrom(arrays[-1])

    return call


def _graph_builtins() -> None:
    """What TVM's CUDA runtime would bring: here a captured function is called, and what it allocates is kept."""
    import tvm
    import tvm_ffi

    invoke = tvm.get_global_func("vm.builtin.invoke_closure")
    kept: dict[int, Any] = {}

    def cached_alloc(context: Any, function: Any, index: int) -> Any:
        if index not in kept:
            kept[index] = invoke(context, function)
        return kept[index]

    for name, function in {
        "run_or_capture": lambda context, function, arguments, index: invoke(context, function, *arguments),
        "get_cached_alloc": cached_alloc,
    }.items():
        tvm_ffi.register_global_func(f"vm.builtin.cuda_graph.{name}", function, override=True)


def machine(module: Any) -> Any:
    """A virtual machine that runs a program of `cuda.graph` as it is rewritten to be one CUDA graph."""
    import tvm
    import tvm_ffi
    from tvm import relax

    _graph_builtins()  # a machine takes what there is when it is made: what is kept is its own
    module = rewritten(module, GPU)
    kernels = {gv: f for gv, f in module.functions_items() if not isinstance(f, relax.Function)}
    names = {gv: f"chanas.tests.kernel{tvm_ffi.structural_hash(f)}" for gv, f in kernels.items()}
    for gv, function in kernels.items():
        if names[gv] not in _KNOWN:
            tvm_ffi.register_global_func(names[gv], _carried_out(function), override=True)
            _KNOWN.add(names[gv])

    @relax.expr_functor.mutator
    class Calls(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            if call.op not in kernels:
                return call
            return relax.Call(relax.ExternFunc(names[call.op]), call.args, ty_args=[relax.TupleType([])])

    plain = tvm.IRModule()
    for gv, function in module.functions_items():
        if gv not in kernels:
            plain[gv] = Calls().visit_expr(function)
    executable = tvm.relax.build(plain, tvm.target.Target({"kind": "llvm"}), relax_pipeline=None, exec_mode="bytecode")
    return relax.VirtualMachine(executable, tvm.cpu())


def run_program(module: Any, arguments: Sequence[Array], weights: Sequence[int]) -> Array:
    """The output of a program that runs its steps once."""
    import tvm

    vm = machine(module)
    ordered = [a for i, a in enumerate(arguments) if i not in weights] + [arguments[i] for i in weights]
    output = vm["new_output"]()
    output.copyfrom(np.full(output.shape, np.nan, dtype=str(output.dtype)))
    vm["main"](*(tvm.runtime.tensor(a) for a in ordered), output)
    result: Array = output.numpy()
    return result


def num_launches(module: Any, function: str = "main") -> int:
    """Kernels that one run of a program's function launches; those of a CUDA graph are launched as one."""
    from tvm import relax

    kernels = {gv: f for gv, f in module.functions_items() if not isinstance(f, relax.Function)}
    called: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and node.op in kernels:
            called.append(kernels[node.op])

    relax.analysis.post_order_visit(module[function], visit)
    return sum(max(1, kernel.script().count('"blockIdx.x"')) for kernel in called)
