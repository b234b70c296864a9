"""The grids of a network's values, and the biases of its operators in int8, from inputs that it is run on.

1. The network in float32 is run on all inputs: what its values are.
2. Each method of `ranges` gives every value a grid. The network in int8 is run on some inputs with each, and the grids
   with which its outputs are nearest are taken.
3. Biases take away what rounding adds to the sums of each channel on average, operator by operator, each after those
   before it were corrected (Nagel et al., Data-free quantization through weight equalization and bias correction,
   ICCV 2019, with measured means in place of derived ones). They stay as they were where that does not help.
4. The error that is left is shared out among operators by the noise that each adds: what rounding its weights and its
   output changes, as a part of its output's variance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from chanas.compiler.cases import convolution
from chanas.compiler.cpu.module import Chosen
from chanas.compiler.program import Form, Program, TunedOperation
from chanas.core.progress import progress_bar
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, DataError
from chanas.measuring.fleet import Pool
from chanas.models.calibration.check import as_map, taken
from chanas.models.calibration.probe import Probe
from chanas.models.calibration.ranges import METHODS, Histogram
from chanas.models.layouts import choices_in, renumbered
from chanas.models.sources.model import Array
from chanas.operators.quantised import Grid, finished, whole_weights
from chanas.operators.workload import Workload

NUM_COMPARED, NUM_FOR_LOSSES = 32, 4
"""Inputs that methods are compared with, and biases corrected; and those that losses are estimated with."""
_LEAST_SIGNAL = 1e-12
Inputs = Sequence[Array]


@dataclass(frozen=True)
class Calibrated:
    """A program whose operators may be in int8.

    program    with the grids of its values
    method     of `METHODS`, by which its grids were found
    errors     squared error of the outputs as a part of their squares, by method, all operators in int8 that can be
    error      the same with the method and the corrected biases
    losses     of each operator that can be in int8, what of this error is its
    outputs    in float32 for each input
    """

    program: Program
    method: str
    errors: Mapping[str, float]
    error: float
    losses: Mapping[int, float]
    outputs: Sequence[Sequence[Array]]

    def lines(self) -> list[str]:
        """The calibration for people."""
        tried = ", ".join(f"{name} {error:.2%}" for name, error in self.errors.items())
        return [
            f"ranges by {self.method}, of {len(self.outputs)} inputs; squared error of the outputs by method: {tried}",
            f"{self.error:.2%} with corrected biases, all operators in int8 that can be",
        ]


class Schedules(Protocol):
    """Schedules of a program's operators, such as they are known before tuning."""

    def __call__(self, program: Program) -> Chosen:
        """The choices of operators and points, for operators in any form."""


def calibrate(
    program: Program,
    inputs: Sequence[Inputs],
    device: HardwareTarget,
    schedules: Schedules,
    pool: Pool,
    folder: Path,
    progress: bool = True,
) -> Calibrated:
    """Calibrate a program in the device's own layout, in float32.

    Args:
        inputs: of the network, each for one call.
        device: in int8.

    Raises:
        ConfigError: no operator can be in int8.
        DataError: a value is no number for some input.
        MeasureError: it does not compile.
    """
    return _Calibration(program, inputs, device, program.form.on(device), schedules, pool, folder, progress).result()


class _Calibration:
    def __init__(
        self,
        program: Program,
        inputs: Sequence[Inputs],
        device: HardwareTarget,
        own: HardwareTarget,
        schedules: Schedules,
        pool: Pool,
        folder: Path,
        progress: bool,
    ) -> None:
        self.program, self.inputs, self.device, self.own = program, inputs, device, own
        self.schedules, self.pool, self.folder, self.progress = schedules, pool, folder, progress
        places = np.linspace(0, len(inputs) - 1, min(len(inputs), NUM_COMPARED)).round().astype(int)
        self.compared = [inputs[place] for place in places]
        numbers = _maps(program)
        self.numbers = [*numbers, *(o for o in program.outputs if o not in numbers)]
        self.forms: dict[int, Form] = {}
        self.new: Mapping[int, int] = {}
        self.expected: list[Mapping[int, Array]] = []
        self.outputs: list[Sequence[Array]] = []

    def result(self) -> Calibrated:
        floats = self._probe(self.program, self.numbers, self.own, "float32")
        seen = self._seen(floats)
        candidates = {name: {n: find(h) for n, h in seen.items()} for name, find in METHODS.items()}
        self.expected = [floats.values(x) for x in self.compared]
        first = candidates["min-max"]
        able = self._able(dataclasses.replace(self.program, grids=dict(first)))
        self.forms = dict.fromkeys(able, Form.of(self.device))
        whole = self._whole(first, {})
        probe = self._probe(whole, [self.new[n] for n in self.numbers], self.device, "int8")
        errors = {}
        for name, grids in candidates.items():
            probe.renew(self._whole(grids, {}))
            errors[name] = self._error(probe)
        method = min(errors, key=lambda name: errors[name])
        grids = candidates[method]
        shifts = self._shifts(probe, grids)
        error = self._error(probe)
        if not error < errors[method]:
            shifts, error = {}, errors[method]
        whole = self._whole(grids, shifts)
        probe.renew(whole)
        program = dataclasses.replace(self.program, grids=dict(grids), shifts=shifts)
        return Calibrated(program, method, errors, error, self._losses(probe, whole, error), self.outputs)

    def _probe(self, program: Program, numbers: Sequence[int], target: HardwareTarget, name: str) -> Probe:
        """The program with these of its values given back."""
        return Probe(program, numbers, self.schedules(program), target, self.pool, self.folder, name)

    def _seen(self, floats: Probe) -> dict[int, Histogram]:
        """The numbers of each value."""
        ends = dict.fromkeys(self.numbers, (0.0, 0.0))
        with progress_bar(2 * len(self.inputs), "calibrating", "input", self.progress) as bar:
            for x in self.inputs:
                for n, value in floats.values(x).items():
                    if not np.isfinite(value).all():
                        raise DataError("a value of the network is no number for an input that it is calibrated with")
                    low, high = ends[n]
                    ends[n] = (min(low, float(value.min())), max(high, float(value.max())))
                bar.update()
            seen = {n: Histogram.between(*found) for n, found in ends.items()}
            for x in self.inputs:
                values = floats.values(x)
                for n, value in values.items():
                    seen[n].add(value)
                self.outputs.append([values[n] for n in self.program.outputs])
                bar.update()
        return seen

    def _able(self, program: Program) -> list[int]:
        """The operators that can be in int8."""
        found = [n for n in program.tuned_numbers() if choices_in(program, n, self.device)]
        if not found:
            raise ConfigError("no operator of the network can be in int8; tune it without --dtype int8")
        return found

    def _whole(self, grids: Mapping[int, Grid], shifts: Mapping[int, Array]) -> Program:
        """The program with all operators in int8 that can be; notes the numbers that its values have there."""
        program = dataclasses.replace(self.program, grids=dict(grids), shifts=dict(shifts))
        whole, self.new = renumbered(program, self.forms, self.device)
        return whole

    def _shifts(self, probe: Probe, grids: Mapping[int, Grid]) -> dict[int, Array]:
        """The numbers to add to the biases of operators in int8. An operator's inputs are those that it has after the
        operators before it were corrected."""
        shifts: dict[int, Array] = {}
        operators = [n for n in self.forms if self._multiplies(n)]
        with progress_bar(len(operators), "correcting biases", "operator", self.progress) as bar:
            for number in operators:
                probe.renew(self._whole(grids, shifts))
                shifts[number] = self._shift(probe, number)
                bar.update()
        probe.renew(self._whole(grids, shifts))
        return shifts

    def _operation(self, number: int) -> TunedOperation:
        operation = self.program.operation(number)
        assert isinstance(operation, TunedOperation)
        return operation

    def _multiplies(self, number: int) -> bool:
        """True of an operator whose weights are whole numbers in int8."""
        workload = self._operation(number).choices[0]
        return workload.has_weights and not workload.reads_image

    def _shift(self, probe: Probe, number: int) -> Array:
        """float32[C_out]: the mean sum of each channel in float32, less the one in int8."""
        operation = self._operation(number)
        weight = operation.weight
        assert weight is not None
        workload = operation.choices[0]
        numbers, steps = whole_weights(weight, in_pairs=not workload.is_channelwise)
        of_float = np.zeros(len(weight))
        of_int8 = np.zeros(len(weight))
        rounded = numbers * steps.reshape(-1, 1, 1, 1)
        for x, expected in zip(self.compared, self.expected, strict=True):
            found = probe.values(x)
            of_float += _mean_sums(workload, weight, self._input_means(operation, expected, {}))
            of_int8 += _mean_sums(workload, rounded, self._input_means(operation, found, self.new))
        return ((of_float - of_int8) / len(self.compared)).astype(np.float32)

    def _losses(self, probe: Probe, whole: Program, error: float) -> dict[int, float]:
        """The part of the outputs' error that each operator in int8 has: its own noise, of what it reads there."""
        noise, signal = dict.fromkeys(self.forms, 0.0), dict.fromkeys(self.forms, 0.0)
        for x in self.compared[:NUM_FOR_LOSSES]:
            found = probe.values(x)
            for number in self.forms:
                made = whole.operation(self.new[number])
                assert isinstance(made, TunedOperation)
                values = [x[0] if read < len(x) else found[self.new[read]] for read in self._operation(number).reads]
                plain = _plain_output(made, values)
                written = as_map(found[self.new[number]]).reshape(plain.shape)
                noise[number] += float(((written - plain) ** 2).sum())
                signal[number] += float(plain.var() * plain.size)
        shares = {number: noise[number] / max(signal[number], _LEAST_SIGNAL) for number in self.forms}
        total = sum(shares.values())
        return {number: error * share / total if total else 0.0 for number, share in shares.items()}

    def _input_means(self, operation: TunedOperation, values: Mapping[int, Array], new: Mapping[int, int]) -> Array:
        """float64[C]: the mean of each channel that is multiplied with weights."""
        read, *extras = operation.reads
        axis = self.program.value(read).channel_axis
        x = np.moveaxis(values[new.get(read, read)], axis, 0)
        means = x.reshape(len(x), -1).mean(axis=1, dtype=np.float64)
        if operation.choices[0].scaled:
            means = means * values[new.get(extras[0], extras[0])].reshape(-1)
        return np.asarray(means)

    def _error(self, probe: Probe) -> float:
        """Squared error of the outputs as a part of their squares."""
        wrong = size = 0.0
        for x, expected in zip(self.compared, self.expected, strict=True):
            found = probe.values(x)
            for n in self.program.outputs:
                if expected[n].dtype.kind == "f":
                    wrong += float(((found[self.new[n]] - expected[n]) ** 2).sum())
                    size += float((expected[n].astype(np.float64) ** 2).sum())
        return wrong / size if size else 0.0


def _maps(program: Program) -> list[int]:
    """The values in channel blocks that tuned operators read or write."""
    found = {n: None for o in program.tuned for n in o.reads} | dict.fromkeys(program.tuned_numbers())
    return sorted(n for n in found if program.value(n).blocked)


def _plain_output(operation: TunedOperation, values: Sequence[Array]) -> Array:
    """The output of an operator in int8, [B, C, H, W], if neither its weights nor its output were rounded."""
    workload, by = operation.choices[0], operation.numbers
    assert by is not None
    numbers, gate, residual = taken(operation, workload, values)
    x = numbers if workload.reads_image else by.input.decode(numbers)
    x = x if gate is None else x * gate[:, :, None, None]
    if workload.op == "pool":
        sums = x.mean(axis=(2, 3), keepdims=True)
    else:
        assert operation.weight is not None
        assert operation.bias is not None
        sums = convolution(workload)(x, operation.weight) + operation.bias[:, None, None]
    found: Array = finished(dataclasses.replace(workload, wide=True), by, sums.astype(np.float32), residual)
    return found


def _mean_sums(workload: Workload, weight: Array, means: Array) -> Array:
    """float64[C_out]: sums of products with the means of the inputs, as if maps had no borders."""
    by_input = weight.reshape(*weight.shape[:2], -1).sum(axis=2, dtype=np.float64)
    groups = workload.num_groups
    outputs = by_input.reshape(groups, -1, by_input.shape[1])
    sums: Array = np.einsum("goc,gc->go", outputs, means.reshape(groups, -1)).reshape(-1)
    return sums
