"""A program with some of its operators in int8 beside the same one in float32: their biases corrected, its error, and
each operator compared with its emulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from chanas.compiler.cpu.module import Chosen
from chanas.compiler.program import Form, Program, TunedOperation
from chanas.core.arrays import Array
from chanas.core.progress import progress_bar
from chanas.core.target import HardwareTarget
from chanas.measuring.fleet import Pool
from chanas.models.calibration.check import check_numbers, numbers_to_check
from chanas.models.calibration.probe import Probe, Values
from chanas.models.layouts import renumbered
from chanas.operators.precision import INT8
from chanas.operators.quantised import Grid, WholeWeights, whole_weights
from chanas.operators.workload import Workload

Inputs = Sequence[Array]
Shifts = Mapping[int, Array]
NO_SHIFTS: Shifts = MappingProxyType({})
BESIDE_FLOAT32 = "float32, on the pictures of the calibration"


@dataclass(frozen=True)
class InFloat32:
    """A program in float32 and what it computes.

    program  in the device's own layout
    inputs   of each call
    outputs  of each call
    means    of the values that operators read, float64[C] of each channel, by the places of some inputs: biases are
             corrected with these
    """

    program: Program
    inputs: Sequence[Inputs]
    outputs: Sequence[Sequence[Array]]
    means: Mapping[int, Mapping[int, Array]]


@dataclass(frozen=True)
class Agreement:
    """A network partly in int8 beside the same one in float32, on the inputs that it was calibrated with, or beside
    the file that it is quantised in.

    num_int8, num_operators  operators in int8, and all that are tuned
    error, allowed           squared error of the outputs as a part of their squares, and the largest that was allowed;
                             None: any
    num_same, num_pictures   pictures, or other inputs, of which the largest output is the same
    beside                   what it was compared with, on which inputs
    """

    num_int8: int
    num_operators: int
    error: float
    allowed: float | None
    num_same: int
    num_pictures: int
    beside: str = BESIDE_FLOAT32

    @property
    def is_allowed(self) -> bool:
        return self.allowed is None or self.error <= self.allowed

    def line(self) -> str:
        """The comparison for people."""
        more = "" if self.is_allowed else f", more than the {self.allowed:.2%} that is allowed"
        return (
            f"{self.num_int8} of {self.num_operators} operators; against {self.beside}: "
            f"the largest output is the same for {self.num_same} of {self.num_pictures}, squared error {self.error:.2%}"
            f"{more}"
        )


class Mixed:
    """A program some of whose operators are in other forms, compiled with the values of interest given back.

    forms   of operators and of what keeps its form, by the numbers of their values in float32
    became  the new number of each value, in the form that it is written in

    Args:
        grids: of values that may be in int8.
        chosen: operators and schedules in their forms.

    Raises:
        MeasureError: it does not compile.
    """

    def __init__(
        self,
        floats: InFloat32,
        forms: Mapping[int, Form],
        grids: Mapping[int, Grid],
        device: HardwareTarget,
        chosen: Chosen,
        pool: Pool,
        folder: Path,
    ) -> None:
        self.floats, self.forms, self.device, self.chosen = floats, forms, device, chosen
        self._weights = dict(floats.program.weights or self._nearest_weights())
        program = self._renew(grids, NO_SHIFTS)
        given_back = [self.became[n] for n in (*self._read(), *floats.program.outputs)]
        self.probe = Probe(program, [*given_back, *numbers_to_check(program)], chosen, device, pool, folder, "int8")

    def renew(self, grids: Mapping[int, Grid], shifts: Shifts = NO_SHIFTS) -> None:
        """Take other grids and other biases."""
        self.probe.renew(self._renew(grids, shifts))

    def _renew(self, grids: Mapping[int, Grid], shifts: Shifts) -> Program:
        own = dataclasses.replace(self.floats.program, grids=dict(grids), shifts=dict(shifts), weights=self._weights)
        program, self.became = renumbered(own, self.forms, self.device)
        return program

    @property
    def program(self) -> Program:
        return self.probe.program

    @property
    def in_int8(self) -> list[int]:
        """The operators in int8, by the numbers of their values in float32."""
        tuned = self.floats.program.tuned_numbers()
        return [number for number, form in self.forms.items() if form.dtype == INT8.dtype and number in tuned]

    def values(self, x: Inputs) -> Values:
        """The values for an input, by the numbers that they have here."""
        return self.probe.values(x)

    # ---- biases ------------------------------------------------------------------------------------------------------
    def corrected(self, grids: Mapping[int, Grid], progress: bool) -> dict[int, Array]:
        """Numbers to add to the biases of operators in int8, which have them now: what rounding adds to the sum of each
        channel on average. An operator's inputs are those that it has after the operators before it were corrected."""
        shifts: dict[int, Array] = {}
        operators = [number for number in self.in_int8 if _multiplies(self._operation(number))]
        with progress_bar(len(operators), "correcting biases", "operator", progress) as bar:
            for number in operators:
                self.renew(grids, shifts)
                shifts[number] = self._shift(number)
                bar.update()
        self.renew(grids, shifts)
        return shifts

    def _shift(self, number: int) -> Array:
        """float32[C_out]: the mean sum of each channel in float32, less the one in int8."""
        operation, floats = self._operation(number), self.floats
        weight, workload = operation.weight, operation.choices[0]
        assert weight is not None
        numbers, steps = self._weights[number]
        rounded = numbers * steps.reshape(-1, 1, 1, 1)
        before, after = [], []
        for place, means in floats.means.items():
            values = self.values(floats.inputs[place])
            there = {read: values.means(self.became[read]) for read in read_maps(operation)}
            before.append(_input_means(operation, means))
            after.append(_input_means(operation, there))
        in_float32 = mean_sums(workload, weight, np.mean(before, axis=0))
        shift: Array = (in_float32 - mean_sums(workload, rounded, np.mean(after, axis=0))).astype(np.float32)
        return shift

    def _nearest_weights(self) -> Iterator[tuple[int, WholeWeights]]:
        """The whole weights of operators in int8, by their values; they stay the same with all grids and biases."""
        for number in self.in_int8:
            operation = self._operation(number)
            if operation.weight is not None and _multiplies(operation):
                in_pairs = not operation.choices[0].is_channelwise
                yield number, whole_weights(operation.weight, in_pairs=in_pairs)

    def _operation(self, number: int) -> TunedOperation:
        operation = self.floats.program.operation(number)
        assert isinstance(operation, TunedOperation)
        return operation

    def _read(self) -> list[int]:
        """The values whose means are of interest."""
        operations = map(self._operation, self.in_int8)
        return sorted({read for o in operations if _multiplies(o) for read in read_maps(o)})

    # ---- what it is worth --------------------------------------------------------------------------------------------
    def error(self, places: Sequence[int]) -> float:
        """Squared error of the outputs as a part of their squares, of some inputs."""
        return self._compared(places)[0]

    def agreement(self, allowed: float | None, beside: str = BESIDE_FLOAT32) -> Agreement:
        """The program beside float32, or whatever gave the outputs, each operator in int8 compared with its emulation.

        Raises:
            MeasureError: an operator computes other numbers than its emulation.
        """
        floats = self.floats
        num_int8 = check_numbers(self.program, self.chosen, self.values(floats.inputs[0]))
        error, num_same = self._compared(range(len(floats.inputs)))
        return Agreement(num_int8, len(self.program.tuned), error, allowed, num_same, len(floats.inputs), beside)

    def _compared(self, places: Sequence[int]) -> tuple[float, int]:
        """The squared error, and of how many inputs the largest output is the same."""
        wrong = size = 0.0
        num_same = 0
        for place in places:
            values, expected = self.values(self.floats.inputs[place]), self.floats.outputs[place]
            found = [values[self.became[n]] for n in self.floats.program.outputs]
            for one, other in zip(found, expected, strict=True):
                if other.dtype.kind == "f":
                    wrong += float(((one.astype(np.float64) - other) ** 2).sum())
                    size += float((other.astype(np.float64) ** 2).sum())
            num_same += int(found[0].argmax() == expected[0].argmax())
        return wrong / size if size else 0.0, num_same


def _multiplies(operation: TunedOperation) -> bool:
    """True of an operator whose weights are whole numbers in int8."""
    workload = operation.choices[0]
    return workload.has_weights and not workload.reads_image


def read_maps(operation: TunedOperation) -> tuple[int, ...]:
    """The values that an operator multiplies: its input, and a number for each channel of that, where it has one."""
    return operation.reads[: 2 if operation.choices[0].scaled else 1]


def _input_means(operation: TunedOperation, means: Mapping[int, Array]) -> Array:
    """float64[C]: the mean of each channel that is multiplied with weights."""
    found = [means[read] for read in read_maps(operation)]
    return found[0] if len(found) == 1 else found[0] * found[1]


def mean_sums(workload: Workload, weight: Array, means: Array) -> Array:
    """float64[C_out]: sums of products with the means of the inputs, as if maps had no borders."""
    by_input = weight.reshape(*weight.shape[:2], -1).sum(axis=2, dtype=np.float64)
    groups = workload.num_groups
    outputs = by_input.reshape(groups, -1, by_input.shape[1])
    sums: Array = np.einsum("goc,gc->go", outputs, means.reshape(groups, -1)).reshape(-1)
    return sums
