"""Programs whose tuned operators read and write maps in different forms: channel blocks of other lanes, or numbers of
another type. Wherever neighbours differ there is a change of form.

All other operations, and memory that maps are parts of, stay in the device's own layout and in float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from chanas.compiler.backends import has_schedules
from chanas.compiler.program import (
    Form,
    MapView,
    Operation,
    OtherOperation,
    PartOf,
    Program,
    TunedBlock,
    TunedOperation,
)
from chanas.core.target import HardwareTarget
from chanas.models import others
from chanas.operators.workload import Operator, Workload

_BY_GROUP: dict[str, Operator] = {"groupconv": "blockconv", "blockconv": "groupconv"}
"""Convolutions of groups: one kernel is for those that fill vectors, the other for those that do not."""


def choices_in(program: Program, operation: TunedOperation, target: HardwareTarget) -> tuple[Workload, ...]:
    """The operators, of those that compute the same, that have schedules in the form of `target`; none of one that
    reads numbers by channel, which are packed for the device's own layout. Of an odd number of channels none in
    bfloat16: a product of pairs reads the lane beyond the last, which may hold anything."""
    values = [program.operation(read) for read in operation.reads if read >= len(program.inputs)]
    if any(not any(isinstance(read, int) for read in o.reads) for o in values):
        return ()
    of_groups = [w for w in operation.choices if w.op in _BY_GROUP and w.groups > 1]
    every = (*operation.choices, *(dataclasses.replace(w, op=_BY_GROUP[w.op]) for w in of_groups))
    typed = [dataclasses.replace(workload, dtype=target.dtype) for workload in every]
    whole = [workload for workload in typed if workload.in_channels % workload.input_precision.per_word == 0]
    return tuple(workload for workload in whole if has_schedules(workload, target))


def in_forms(program: Program, forms: Mapping[int, Form], target: HardwareTarget) -> Program:
    """A program with some of its tuned operators in other forms.

    Args:
        forms: of operators, by the numbers of their values; the others stay as they are.
        target: the device, in its own layout.
    """
    return _Changing(program, forms, target).changed()


class _Changing:
    """A program so far; `became` has the new number of each value, in the form that it was written in."""

    def __init__(self, program: Program, forms: Mapping[int, Form], target: HardwareTarget) -> None:
        self.program, self.forms, self.target = program, forms, target
        self.made = Program(program.inputs, program.lanes)
        self.became = {v: v for v in range(len(program.inputs))}
        self._changes: dict[tuple[int, Form], int] = {}

    def changed(self) -> Program:
        in_memory = {*self.program.parts, *(at.whole for at in self.program.parts.values())}
        for number, operation in enumerate(self.program.operations, len(self.program.inputs)):
            made: Operation
            match operation:
                case TunedOperation():
                    made = self._tuned(operation, self.forms.get(number, operation.form))
                case MapView():
                    copied = tuple((self._own(read), part) for read, part in operation.copied)
                    made = dataclasses.replace(operation, reads=tuple(map(self._own, operation.reads)), copied=copied)
                case TunedBlock():
                    made = dataclasses.replace(operation, reads=tuple(map(self._own, operation.reads)))
                case OtherOperation():
                    reads = tuple(self._own(read) if isinstance(read, int) else read for read in operation.reads)
                    made = dataclasses.replace(operation, reads=reads)
            self.became[number] = self.made.add(made)
            if number in in_memory:
                self._own(number)  # right behind it, so that its place is written before the map is read
        self.made.parts |= {
            self._own(number): PartOf(self._own(at.whole), at.place) for number, at in self.program.parts.items()
        }
        self.made.outputs = tuple(self.became[number] for number in self.program.outputs)
        self.made.names |= {self.became[number]: name for number, name in self.program.names.items()}
        return self.made

    def _tuned(self, operation: TunedOperation, form: Form) -> TunedOperation:
        if form == operation.form:
            choices = operation.choices
        else:
            choices = choices_in(self.program, operation, form.on(self.target))
        reads = tuple(self._in_form(read, form) for read in operation.reads)
        step = dataclasses.replace(operation.step, workload=choices[0], reads=reads)
        return dataclasses.replace(operation, step=step, value=operation.value.in_form(form), choices=choices)

    def _own(self, number: int) -> int:
        """The new number of a value in the device's own layout and in float32."""
        return self._in_form(number, self.program.form)

    def _in_form(self, number: int, form: Form) -> int:
        """The new number of a value in a form; one that is plain stays so."""
        written = self.became[number]
        value = self.made.value(written)
        if not value.blocked or value.form == form:
            return written
        if (written, form) not in self._changes:
            operation = others.in_form(written, value, form, self.target.num_threads > 1)
            self._changes[written, form] = self.made.add(operation)
        return self._changes[written, form]
