"""Blocks compiled by TVM without schedules: its stock route for a CPU, the yardstick for the gain from schedules
(paper, section 4.2).

TVM has no default schedules for a CPU: loops stay as its operators state them, and what is fast is what LLVM makes of
that. Only fusion is done, by TVM's own passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import transform

from chanas.compiler.libraries import export
from chanas.core.arrays import Array
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.epilogues import USUAL, Epilogue
from chanas.operators.layout import PLAIN
from chanas.operators.steps import block_steps
from chanas.operators.workload import Workload


def stock_build(module: Any, target: HardwareTarget) -> Any:
    """An executable of a Relax module, its operators legalised and fused as TVM's passes do, nothing scheduled."""
    fusing = [
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        transform.ConvertToDataflow(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
    ]
    device = target.tvm_target()
    with device, tvm.transform.PassContext(opt_level=3):
        return tvm.compile(tvm.transform.Sequential(fusing)(module), device)


def stock_module(proto: Any, program: Any, shapes: Mapping[str, list[int]], types: Mapping[str, str]) -> Any:
    """A finished network as a Relax module, by TVM's own importers.

    Args:
        proto: an `onnx.ModelProto`, with `shapes` and `types` of its inputs.
        program: of `torch.export`, which is taken where there is one.
    """
    if program is not None:
        from tvm.relax.frontend.torch import from_exported_program

        decomposed = program.run_decompositions()
        return from_exported_program(decomposed, keep_params_as_input=False, run_ep_decomposition=False)
    from tvm.relax.frontend.onnx import from_onnx

    return from_onnx(proto, dict(shapes), dict(types), sanitize_input_names=False)


def stock_network(module: Any, arrays: Sequence[Array], target: HardwareTarget) -> Callable[[], list[Array]]:
    """A Relax module `main(inputs…) -> outputs` built by `stock_build`, as a function that gives its outputs for
    `arrays`."""
    function = relax.VirtualMachine(stock_build(module, target), tvm.cpu())["main"]
    arguments = [tvm.runtime.tensor(array) for array in arrays]

    def run() -> list[Array]:
        found = function(*arguments)
        return [np.from_dlpack(o) for o in ([found] if hasattr(found, "numpy") else found)]

    return run


def block_module(block: BlockConfig) -> Any:
    """A Relax module `main(x, weight, bias, weight, bias, …)` of a block in operators of Relax, float32, NCHW.

    Arguments are those of `chanas.compiler.cases.plain_block_case`.
    """
    steps = block_steps(block)
    first = steps[0].workload
    x = relax.Var("x", relax.TensorType((1, first.in_channels, first.input_size, first.input_size), "float32"))
    parameters = [_parameters(step.workload, i) for i, step in enumerate(steps)]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *(p for own in parameters for p in own)]):
        with builder.dataflow():
            values = [x]
            for step, own in zip(steps, parameters, strict=True):
                values.append(_operator(builder, step.workload, [values[value] for value in step.reads], own))
            out = builder.emit_output(values[-1])
        builder.emit_func_output(out)
    return builder.get()


def build_block(block: BlockConfig, target: HardwareTarget, library_path: Path) -> None:
    """Compile one block to a shared library that `relax.VirtualMachine` loads."""
    export(stock_build(block_module(block), target), library_path, target)


def _parameters(workload: Workload, position: int) -> list[Any]:
    """Variables of weight and bias; none of pooling."""
    types = [relax.TensorType(argument.shape, argument.dtype) for argument in PLAIN.parameters(workload)]
    return [relax.Var(f"{name}{position}", type_) for name, type_ in zip(("weight", "bias"), types, strict=False)]


def _operator(builder: Any, workload: Workload, reads: Sequence[Any], parameters: Sequence[Any]) -> Any:
    """An operator's output from what it reads: input, then gate and residual as far as it has them."""
    x, *extras = reads
    if workload.takes_mean:
        return builder.emit(relax.op.mean(x, axis=[2, 3], keepdims=True))
    if workload.scaled:
        x = builder.emit(relax.op.multiply(x, extras.pop(0)))
    weight, bias = parameters
    stride, padding = workload.stride, workload.kernel_size // 2
    out = builder.emit(relax.op.nn.conv2d(x, weight, strides=stride, padding=padding, groups=workload.num_groups))
    out = _epilogue(builder, workload.epilogue, builder.emit(relax.op.add(out, bias)))
    return builder.emit(relax.op.add(out, extras.pop())) if workload.residual else out


def _epilogue(builder: Any, epilogue: Epilogue, x: Any) -> Any:
    if epilogue not in USUAL:
        raise ScheduleError(f"expected an epilogue of TVM's own route ({', '.join(USUAL)}), got {epilogue}")
    if epilogue == "none":
        return x
    if epilogue == "relu":
        return builder.emit(relax.op.nn.relu(x))
    three, six = relax.const(3.0, "float32"), relax.const(6.0, "float32")
    shifted = builder.emit(relax.op.clip(builder.emit(relax.op.add(x, three)), 0.0, 6.0))
    gate = builder.emit(relax.op.divide(shifted, six))
    return gate if epilogue == "hsigmoid" else builder.emit(relax.op.multiply(x, gate))
