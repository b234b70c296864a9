"""The Relax module of a program: tuned operators and blocks as their schedules say, all else fused and scheduled alike.

Weights are arguments, so that the compiled module is code alone; they travel beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import transform

from chanas.compiler.cpu.batches import copying, take_part
from chanas.compiler.cpu.blocks import num_block_parameters, schedule_block, schedule_packed_operator
from chanas.compiler.cpu.generic import OPAQUE, schedule_generic
from chanas.compiler.program import (
    Key,
    MapView,
    Operation,
    OtherOperation,
    Part,
    PartOf,
    Program,
    TunedBlock,
    TunedOperation,
    Value,
)
from chanas.compiler.space import Point
from chanas.core.arrays import Array
from chanas.core.target import HardwareTarget
from chanas.operators.layout import Blocks, input_shape, output_shape
from chanas.operators.workload import Workload

Chosen = Mapping[Key, tuple[Workload, Point]]
"""The operator that is taken of some that compute the same in a layout, and its schedule."""


@dataclass(frozen=True)
class ProgramModule:
    """A module `main(inputs…, parameters…) -> outputs` that is ready to be compiled, those of its parameters that the
    program holds, and what it was made of."""

    module: Any
    parameters: tuple[Array, ...]
    program: Program
    chosen: Chosen

    def to_json(self) -> str:
        """The module as `tvm.ir.load_json` reads it."""
        return str(tvm.ir.save_json(self.module))


def program_module(program: Program, chosen: Chosen, target: HardwareTarget) -> ProgramModule:
    """The module of a program.

    Raises:
        KeyError: an operator has no schedule.
        ModelError: TVM does not take the definition of a node; names it.
    """
    return _Emission(program, chosen, target).module()


def operation_parameters(operation: Operation, chosen: Chosen) -> list[Array]:
    """The parameters that the module of a program has for one of its operations."""
    match operation:
        case TunedBlock():  # which the program does not hold
            return []
        case TunedOperation(weight=weight, bias=bias, numbers=numbers):
            workload, _ = chosen[operation.key]
            layout = Blocks(operation.value.lanes)
            if numbers is not None:
                return layout.together(layout.pack_quantised(workload, numbers))
            if weight is None or bias is None:
                return []
            return layout.together(layout.pack_parameters(workload, weight, bias))
    return [np.asarray(read) for read in operation.reads if not isinstance(read, int)]


class _Emission:
    def __init__(self, program: Program, chosen: Chosen, target: HardwareTarget) -> None:
        self.program, self.chosen, self.target = program, chosen, target
        self.lanes = target.vector_lanes
        self.inputs = [
            relax.Var(program.names.get(i, f"input{i}"), relax.TensorType(value.shape, value.dtype))
            for i, value in enumerate(program.inputs)
        ]
        self.parameters: list[Array] = []
        self.variables: list[Any] = []
        self.builder = relax.BlockBuilder()
        self.values: list[Any] = list(self.inputs)  # None for what lies in the memory of a view
        self.joined: dict[int, Any] = {}  # memory of views as far as it is written, by their values
        self.numbers: dict[tuple[Workload, Point, int], int] = {}
        self.functions: dict[tuple[Any, ...], Any] = {}

    def module(self) -> ProgramModule:
        # parameters first: a function's arguments are there before its body
        owned = [self._own(operation) for operation in self.program.operations]
        try:
            with self.builder.function("main", [*self.inputs, *self.variables]):
                with self.builder.dataflow():
                    for operation, own in zip(self.program.operations, owned, strict=True):
                        self.values.append(self._emit(operation, own))
                    outs = [self.builder.emit_output(self._value(v)) for v in self.program.outputs]
                self.builder.emit_func_output(outs[0] if len(outs) == 1 else relax.Tuple(outs))
        except Exception:
            self.builder._end_block()  # which TVM leaves open, and then warns of on standard error
            raise
        made = self.builder.get()
        if self.program.others:
            made = _scheduled(_fused(made), self.target)
        return ProgramModule(made, tuple(self.parameters), self.program, self.chosen)

    def _own(self, operation: Operation) -> list[Any]:
        """Variables of what an operation reads beside values."""
        if isinstance(operation, TunedBlock):
            num = num_block_parameters(operation.block, self.lanes, self.target.dtype)
            return [self._variable("parameters", (num,), "float32")] if num else []
        return [self._parameter(array) for array in operation_parameters(operation, self.chosen)]

    def _parameter(self, value: Array) -> Any:
        value = np.asarray(value, order="C")
        self.parameters.append(value)
        return self._variable("parameter", value.shape, str(value.dtype))

    def _variable(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        variable = relax.Var(f"{name}{len(self.variables)}", relax.TensorType(shape, dtype))
        self.variables.append(variable)
        return variable

    def _value(self, number: int) -> Any:
        """The expression of a value."""
        if (found := self.values[number]) is not None:
            return found
        at, value = self.program.parts[number], self.program.value(number)
        return take_part(self.builder, self._memory(at), at.place, value.blocks)

    def _memory(self, at: PartOf) -> Any:
        """The expression of the memory that a value lies in, as far as it is written."""
        return self.joined[at.whole] if at.whole in self.joined else self._value(at.whole)

    def _emit(self, operation: Operation, own: Sequence[Any]) -> Any:
        """The expression of an operation; None if its value lies in the memory of a view alone."""
        number = len(self.values)
        match operation:
            case TunedOperation():
                return self._tuned(operation, own, number)
            case TunedBlock():
                return self._block(operation, own)
            case MapView():
                for read, part in operation.copied:
                    self._copy(self._value(read), self.program.value(read), PartOf(number, part))
                return None
            case OtherOperation():
                left = list(own)
                reads = [self._value(r) if isinstance(r, int) else left.pop(0) for r in operation.reads]
                found = operation.emit(self.builder, reads, self.lanes)
                if (at := self.program.parts.get(number)) is not None:
                    self._copy(found, operation.value, at)
                return found

    def _block(self, operation: TunedBlock, own: Sequence[Any]) -> Any:
        key = (operation.block, operation.points)
        if key not in self.functions:
            function = schedule_block(operation.block, operation.points, self.target)
            self.functions[key] = self._add(function, f"block{len(self.functions)}")
        result = relax.TensorType(operation.value.memory_shape, operation.value.dtype)
        return self._call(self.functions[key], [*map(self._value, operation.reads), *own], result, None)

    def _tuned(self, operation: TunedOperation, own: Sequence[Any], number: int) -> Any:
        workload, point = self.chosen[operation.key]
        lanes, (reads, parts) = operation.value.lanes, self._arguments(operation, workload, len(own))
        at = self.program.parts.get(number)
        if at is not None:
            parts[len(reads) + len(own)] = at.place
        tuned = self.numbers.setdefault((workload, tuple(point), lanes), len(self.numbers))
        key = (tuned, tuple(sorted(parts.items())))
        if key not in self.functions:
            function = schedule_packed_operator(workload, point, operation.form.on(self.target), parts)
            variant = sum(k[0] == tuned for k in self.functions)
            self.functions[key] = self._add(function, f"tuned{tuned}_{variant}" if variant else f"tuned{tuned}")
        result = relax.TensorType(output_shape(workload, Blocks(lanes)), workload.output_storage)
        return self._call(self.functions[key], [reads[0], *own, *reads[1:]], result, at)

    def _arguments(
        self, operation: TunedOperation, workload: Workload, num_own: int
    ) -> tuple[list[Any], dict[int, Part]]:
        """Expressions of what a tuned operator reads, all of the memory where that is a part of it; and these parts, by
        their positions among its arguments."""
        reads, parts = [], dict[int, Part]()
        for position, read in enumerate(operation.reads):
            at, value = self.program.parts.get(read), self.program.value(read)
            layout = Blocks(operation.value.lanes)
            shape = input_shape(workload, layout) if position == 0 else value.memory_shape
            if self.values[read] is None and at is not None and value.memory_shape == shape:
                reads.append(self._memory(at))
                if (at.place.first, at.place.blocks) != (0, value.blocks):
                    parts[position + (num_own if position else 0)] = at.place
                continue
            found = self._value(read)
            if tuple(int(e) for e in found.ty.shape) != shape:
                found = self.builder.emit(relax.op.reshape(found, shape))
            reads.append(found)
        return reads, parts

    def _copy(self, found: Any, value: Value, at: PartOf) -> None:
        """Copy a map to its place in the memory of a view."""
        parallel = self.target.num_threads > 1
        key = (value.memory_shape, value.dtype, value.images, at.place)
        if key not in self.functions:
            self.functions[key] = self._add(copying(value, at.place, parallel), "join")
        self._call(self.functions[key], [found], relax.TensorType(value.memory_shape, value.dtype), at)

    def _add(self, function: Any, name: str) -> Any:
        """A scheduled function in the module, which no other is fused with."""
        function = function.without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
        if self.program.others:
            function = function.with_attr("op_pattern", OPAQUE)
        return self.builder.add_func(function, name)

    def _call(self, function: Any, arguments: Sequence[Any], result: Any, at: PartOf | None) -> Any:
        """The expression of a call; None if it writes a part of a view's memory: in place, once that is there."""
        if at is None:
            return self.builder.emit(relax.call_tir(function, [*arguments], result))
        whole, joined = self.program.value(at.whole), self.joined.get(at.whole)
        type_ = relax.TensorType(whole.memory_shape, whole.dtype)
        if joined is None:
            call = relax.call_tir(function, [*arguments], type_)
        else:
            call = relax.call_tir_inplace(function, [*arguments, joined], [len(arguments)], type_)
        self.joined[at.whole] = self.builder.emit(call)
        return None


def _fused(module: Any) -> Any:
    """All that is not tuned legalised and fused by TVM's passes."""
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
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and not function.attrs.get("tirx.is_scheduled", False):
            module[variable] = schedule_generic(function, target)
    return module
