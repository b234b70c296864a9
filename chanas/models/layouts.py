"""Programs whose tuned operators read and write maps in different forms: channel blocks of other lanes, or numbers of
another type. Wherever neighbours differ there is a change of form.

What only moves numbers (concatenations, slices and shuffles of channels, repeated pixels) and poolings by maximum write
the numbers that they read, in the form that these have; maps that lie in one memory have one form. All other operations
stay in the device's own layout and in float32.
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
from chanas.operators.precision import INT8
from chanas.operators.quantised import IDENTITY, Quantised, quantised
from chanas.operators.workload import Operator, Workload

_AT_MOST_1 = ("hsigmoid", "sigmoid")
"""Epilogues of gates that are at most 1."""
_BY_GROUP: dict[str, Operator] = {"groupconv": "blockconv", "blockconv": "groupconv"}
"""Convolutions of groups: one kernel is for those that fill vectors, the other for those that do not."""


def choices_in(program: Program, number: int, target: HardwareTarget) -> tuple[Workload, ...]:
    """The operators, of those that compute the tuned value `number`, that have schedules in the form of `target`; none
    of one that reads numbers by channel, which are packed for the device's own layout. Of an odd number of channels
    none in bfloat16: a product of pairs reads the lane beyond the last, which may hold anything. In int8 those alone
    that compute to the bit, of values whose numbers stand for something."""
    operation = program.operation(number)
    assert isinstance(operation, TunedOperation)
    values = [program.operation(read) for read in operation.reads if read >= len(program.inputs)]
    if any(not any(isinstance(read, int) for read in o.reads) for o in values):
        return ()
    is_int8 = target.dtype == INT8.dtype
    if is_int8 and not (_has_grids(program, number, operation) and _has_weights(program, number, operation)):
        return ()
    of_groups = [w for w in operation.choices if w.op in _BY_GROUP and w.groups > 1]
    every = (*operation.choices, *(dataclasses.replace(w, op=_BY_GROUP[w.op]) for w in of_groups))
    wide = is_int8 and program.stays_float32(number)
    typed = [dataclasses.replace(workload, dtype=target.dtype, wide=wide) for workload in every]
    whole = [w for w in typed if is_int8 or w.in_channels % w.input_precision.per_word == 0]
    return tuple(workload for workload in whole if has_schedules(workload, target))


def _has_grids(program: Program, number: int, operation: TunedOperation) -> bool:
    """True if an operator in int8 has numbers of which it is known what they stand for. A gate has to be at most 1:
    what it is multiplied with stays on its grid."""
    if operation.choices[0].reads_image and program.stays_float32(number):
        return False  # of such an operator nothing is in int8
    maps = [read for i, read in enumerate(operation.reads) if not operation.takes_gate(i)]
    if operation.choices[0].reads_image:
        maps = maps[1:]
    gates = [program.operation(read) for i, read in enumerate(operation.reads) if operation.takes_gate(i)]
    if any(not isinstance(g, TunedOperation) or g.choices[0].epilogue not in _AT_MOST_1 for g in gates):
        return False
    written = [] if program.stays_float32(number) else [number]
    return all(read in program.grids for read in (*maps, *written))


def _has_weights(program: Program, number: int, operation: TunedOperation) -> bool:
    """True if the weights of an operator in int8 are those that were given, or nearest ones do as well."""
    has_whole = operation.weight is not None and not operation.choices[0].reads_image
    return program.weights is None or not has_whole or number in program.weights


def in_forms(program: Program, forms: Mapping[int, Form], target: HardwareTarget) -> Program:
    """A program with some of its operators in other forms.

    Args:
        forms: of tuned operators and of what keeps the form that it reads, by the numbers of their values, of those
            that have one form together the first's; the others stay as they are.
        target: the device, in its own layout.
    """
    return renumbered(program, forms, target)[0]


def renumbered(
    program: Program, forms: Mapping[int, Form], target: HardwareTarget
) -> tuple[Program, Mapping[int, int]]:
    """The same, with the new number of each value in the form that it is written in."""
    changing = _Changing(program, forms, target)
    return changing.changed(), changing.became


def with_one_grid(program: Program) -> list[set[int]]:
    """The values whose numbers in int8 have to be of one grid: what operations that keep their form read and write."""
    together: dict[int, set[int]] = {}
    for number, first in program.keeping_form().items():
        own = {first, number, *(read for read in program.operation(number).reads if isinstance(read, int))}
        for value in tuple(own):
            own |= together.get(value, set())
        together |= dict.fromkeys(own, own)
    return list({id(values): values for values in together.values()}.values())


class _Changing:
    """A program so far; `became` has the new number of each value, in the form that it was written in."""

    def __init__(self, program: Program, forms: Mapping[int, Form], target: HardwareTarget) -> None:
        self.program, self.forms, self.target = program, forms, target
        self.made = Program(program.inputs, program.lanes, shifts=program.shifts)
        self.became = {v: v for v in range(len(program.inputs))}
        self._changes: dict[tuple[int, Form], int] = {}

    def changed(self) -> Program:
        in_memory = self._forms_in_memory()
        for number, operation in enumerate(self.program.operations, len(self.program.inputs)):
            made: Operation
            match operation:
                case TunedOperation():
                    made = self._tuned(number, operation, self.forms.get(number, operation.form))
                case MapView():
                    made = self._view(operation, in_memory[number])
                case TunedBlock():
                    made = dataclasses.replace(operation, reads=tuple(map(self._own, operation.reads)))
                case OtherOperation():
                    made = self._other(operation, self.forms.get(number, self.program.form))
            self.became[number] = self.made.add(made)
            self._keep_grid(number, self.became[number])
            if number in in_memory:  # right behind it, so that its place is written before the map is read
                self._in_form(number, in_memory[number])
        for number, at in self.program.parts.items():
            form = in_memory[number]
            self.made.parts[self._in_form(number, form)] = PartOf(self._in_form(at.whole, form), at.place)
        self.made.outputs = tuple(self.became[number] for number in self.program.outputs)
        self.made.names |= {self.became[number]: name for number, name in self.program.names.items()}
        return self.made

    def _tuned(self, number: int, operation: TunedOperation, form: Form) -> TunedOperation:
        if form == operation.form:
            choices = operation.choices
        else:
            choices = choices_in(self.program, number, form.on(self.target))
        workload = choices[0]
        reads = tuple(self._in_form(read, operation.read_in(i, form)) for i, read in enumerate(operation.reads))
        step = dataclasses.replace(operation.step, workload=workload, reads=reads)
        value = operation.value.in_form(self.program.written_in(number, form))
        numbers = self._numbers(number, operation, workload) if workload.is_quantised else None
        return dataclasses.replace(operation, step=step, value=value, choices=choices, numbers=numbers)

    def _forms_in_memory(self) -> dict[int, Form]:
        """The form of the memory that values are a part of, or that others are a part of."""
        parts, found = self.program.parts, dict[int, Form]()
        for number, first in self.program.keeping_form().items():
            if isinstance(self.program.operation(number), MapView):
                found[parts[number].whole] = self.forms.get(first, self.program.form)
        return found | {number: found[at.whole] for number, at in parts.items()}

    def _view(self, operation: MapView, form: Form) -> MapView:
        reads = tuple(self._in_form(read, form) for read in operation.reads)
        copied = tuple((self._in_form(read, form), part) for read, part in operation.copied)
        return dataclasses.replace(operation, reads=reads, value=operation.value.in_form(form), copied=copied)

    def _other(self, operation: OtherOperation, form: Form) -> OtherOperation:
        reads = tuple(self._in_form(read, form) if isinstance(read, int) else read for read in operation.reads)
        value = operation.value if form == self.program.form else operation.value.in_form(form)
        return dataclasses.replace(operation, reads=reads, value=value)

    def _numbers(self, number: int, operation: TunedOperation, workload: Workload) -> Quantised:
        """The meaning of the whole numbers of an operator in int8."""
        grids, bias = self.program.grids, operation.bias
        given = IDENTITY if workload.reads_image else grids[operation.reads[0]]
        residual = grids[operation.reads[-1]] if workload.residual else IDENTITY
        written = IDENTITY if workload.wide else grids[number]
        if bias is not None and number in self.program.shifts:
            bias = bias + self.program.shifts[number]
        whole = None if self.program.weights is None else self.program.weights.get(number)
        return quantised(workload, operation.weight, bias, given, written, residual, whole)

    def _keep_grid(self, number: int, new: int) -> None:
        """Note what the numbers of a value stand for by its new number."""
        if number in self.program.grids:
            self.made.grids[new] = self.program.grids[number]

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
            operation = others.in_form(written, value, form, self.target, self.program.grids.get(number))
            self._changes[written, form] = self.made.add(operation)
            self._keep_grid(number, self._changes[written, form])
        return self._changes[written, form]
