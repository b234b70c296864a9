"""The Relax module of a program: tuned operators as their schedules say, all else fused and scheduled alike.

Weights are arguments, so that the compiled module is code alone; they travel beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.core.target import HardwareTarget
from chanas.network.folding import pack_operator
from chanas.operators.workload import Workload
from chanas.prescheduler.kernels.cpu.blocks import schedule_packed_operator
from chanas.prescheduler.kernels.cpu.shapes import input_shape, output_shape
from chanas.prescheduler.models.definitions import OPAQUE
from chanas.prescheduler.models.generic import schedule_generic
from chanas.prescheduler.models.graph import Constant
from chanas.prescheduler.models.program import OtherOperation, Program, TunedOperation
from chanas.prescheduler.models.sources.model import Array
from chanas.prescheduler.workloads.space import Point

Chosen = Mapping[tuple[Workload, ...], tuple[Workload, Point]]
"""The operator that is taken of some that compute the same, and its schedule."""


@dataclass(frozen=True)
class ProgramModule:
    """A module `main(inputs…, parameters…) -> outputs` that is ready to be compiled, its parameters, and what it was
    made of."""

    module: Any
    parameters: tuple[Array, ...]
    program: Program
    chosen: Chosen

    def to_json(self) -> str:
        """The module as `tvm.ir.load_json` reads it."""
        import tvm

        return str(tvm.ir.save_json(self.module))


def program_module(program: Program, chosen: Chosen, target: HardwareTarget) -> ProgramModule:
    """The module of a program.

    Raises:
        KeyError: an operator has no schedule.
        ModelError: TVM does not take the definition of a node; names it.
    """
    return _Emission(program, chosen, target).module()


class _Emission:
    def __init__(self, program: Program, chosen: Chosen, target: HardwareTarget) -> None:
        from tvm import relax

        self.program, self.chosen, self.target = program, chosen, target
        self.lanes = target.vector_lanes
        self.inputs = [
            relax.Var(f"input{i}", relax.TensorType(facts.shape, facts.dtype)) for i, facts in enumerate(program.inputs)
        ]
        self.parameters: list[Array] = []
        self.variables: list[Any] = []
        self.builder = relax.BlockBuilder()
        self.functions: dict[tuple[Workload, Point], Any] = {}

    def module(self) -> ProgramModule:
        from tvm import relax

        # parameters first: a function's arguments are there before its body
        owned = [self._own(operation) for operation in self.program.operations]
        try:
            with self.builder.function("main", [*self.inputs, *self.variables]):
                with self.builder.dataflow():
                    values: list[Any] = list(self.inputs)
                    for operation, own in zip(self.program.operations, owned, strict=True):
                        values.append(self._emit(operation, own, values))
                    outs = [self.builder.emit_output(values[v]) for v in self.program.outputs]
                self.builder.emit_func_output(outs[0] if len(outs) == 1 else relax.Tuple(outs))
        except Exception:
            self.builder._end_block()  # which TVM leaves open, and then warns of on standard error
            raise
        fused = _fused(self.builder.get())
        return ProgramModule(_scheduled(fused, self.target), tuple(self.parameters), self.program, self.chosen)

    def _own(self, operation: Any) -> list[Any]:
        """Variables of what an operation reads beside values."""
        if isinstance(operation, TunedOperation):
            workload, _ = self.chosen[operation.choices]
            if operation.weight is None or operation.bias is None:
                return []
            parts = pack_operator(workload, operation.weight, operation.bias, self.lanes)
            return [self._variable(np.concatenate([part.ravel() for part in parts]))]
        return [self._variable(read.value) for read in operation.reads if isinstance(read, Constant)]

    def _variable(self, value: Array) -> Any:
        from tvm import relax

        value = np.asarray(value, order="C")
        self.parameters.append(value)
        variable = relax.Var(f"parameter{len(self.variables)}", relax.TensorType(value.shape, str(value.dtype)))
        self.variables.append(variable)
        return variable

    def _emit(self, operation: Any, own: Sequence[Any], values: Sequence[Any]) -> Any:
        if isinstance(operation, TunedOperation):
            return self._tuned(operation, own, values)
        assert isinstance(operation, OtherOperation)
        left = list(own)
        reads = [left.pop(0) if isinstance(r, Constant) else values[r] for r in operation.reads]
        return operation.emit(self.builder, reads, self.lanes)

    def _tuned(self, operation: TunedOperation, own: Sequence[Any], values: Sequence[Any]) -> Any:
        from tvm import relax

        workload, point = self.chosen[operation.choices]
        key = (workload, tuple(point))
        if key not in self.functions:
            function = schedule_packed_operator(workload, point, self.target).without_attr("global_symbol")
            function = function.with_attr("tirx.is_scheduled", True).with_attr("op_pattern", OPAQUE)
            self.functions[key] = self.builder.add_func(function, f"tuned{len(self.functions)}")
        first, *extras = (values[v] for v in operation.reads)
        shape = input_shape(workload, self.lanes)
        if tuple(int(e) for e in first.ty.shape) != shape:
            first = self.builder.emit(relax.op.reshape(first, shape))
        result = relax.TensorType(output_shape(workload, self.lanes), workload.output_storage)
        return self.builder.emit(relax.call_tir(self.functions[key], [first, *own, *extras], result))


def _fused(module: Any) -> Any:
    """All that is not tuned legalised and fused by TVM's passes."""
    import tvm
    from tvm.relax import transform

    passes = [
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.DeadCodeElimination(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
    ]
    with tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(module)


def _scheduled(module: Any, target: HardwareTarget) -> Any:
    """The module with a schedule for each function that has none."""
    from tvm import tirx

    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and not function.attrs.get("tirx.is_scheduled", False):
            module[variable] = schedule_generic(function, target)
    return module
