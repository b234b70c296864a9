"""The grids of a network's values, and the biases of its operators in int8, from inputs that it is run on.

1. The network in float32 is run on all inputs: what its values are.
2. Each method of `ranges` gives every value a grid. The network in int8 is run on some inputs with each, and the grids
   with which its outputs are nearest are taken.
3. Biases take away what rounding adds to the sums of each channel on average, operator by operator, each after those
   before it were corrected (Nagel et al., Data-free quantization through weight equalization and bias correction,
   ICCV 2019, with measured means in place of derived ones). They stay as they were where that does not help.
4. The error that is left is shared out among operators by the noise that each adds: what rounding its weights and its
   output changes, as a part of its output's variance.
5. A choice of operators in int8 has its biases corrected anew, and its error is measured.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from chanas.compiler.cpu.module import Chosen
from chanas.compiler.emulation import convolution
from chanas.compiler.program import Form, Program, TunedOperation
from chanas.core.arrays import Array
from chanas.core.progress import progress_bar
from chanas.core.statistics import spread
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, DataError
from chanas.measuring.fleet import Pool
from chanas.models.calibration.check import as_map, taken
from chanas.models.calibration.mixed import (
    NO_SHIFTS,
    Agreement,
    InFloat32,
    Inputs,
    Mixed,
    Shifts,
    read_maps,
)
from chanas.models.calibration.probe import Probe
from chanas.models.calibration.ranges import METHODS, Histogram
from chanas.models.layouts import choices_in, in_forms, with_one_grid
from chanas.operators.quantised import Grid, finished

NUM_COMPARED, NUM_FOR_BIASES, NUM_FOR_LOSSES = 32, 16, 4
"""Inputs that methods are compared with, that biases are corrected with, and that losses are estimated with."""
_LEAST_SIGNAL = 1e-12


@dataclass(frozen=True)
class _Here:
    """The device in int8, and what compiles and runs programs on it."""

    device: HardwareTarget
    pool: Pool
    folder: Path
    progress: bool

    def mixed(self, floats: InFloat32, forms: Mapping[int, Form], grids: Mapping[int, Grid], chosen: Chosen) -> Mixed:
        return Mixed(floats, forms, grids, self.device, chosen, self.pool, self.folder)


class Schedules(Protocol):
    """Schedules of a program's operators, such as they are known before tuning."""

    def __call__(self, program: Program) -> Chosen:
        """The choices of operators and points, for operators in any form."""


@dataclass(frozen=True)
class Calibration:
    """A program whose operators may be in int8.

    program    in float32, with the grids of its values
    method     of `METHODS`, by which its grids were found
    errors     squared error of the outputs as a part of their squares, by method, all operators in int8 that can be
    error      the same with the method and the corrected biases
    losses     of each operator that can be in int8, what of this error is its
    measure_s  seconds that `measured` takes about
    """

    program: Program
    method: str
    errors: Mapping[str, float]
    error: float
    losses: Mapping[int, float]
    measure_s: float
    _floats: InFloat32
    _here: _Here

    @property
    def num_inputs(self) -> int:
        return len(self._floats.inputs)

    def lines(self) -> list[str]:
        """The calibration for people."""
        tried = ", ".join(f"{name} {error:.2%}" for name, error in self.errors.items())
        return [
            f"ranges by {self.method}, of {self.num_inputs} inputs; squared error of the outputs by method: {tried}",
            f"{self.error:.2%} with corrected biases, all operators in int8 that can be",
        ]

    def to_json(self) -> dict[str, Any]:
        """Content of `tuned.json` about the calibration."""
        return {
            "method": self.method,
            "errors": dict(self.errors),
            "error": self.error,
            "num_inputs": self.num_inputs,
        }

    def measured(self, forms: Mapping[int, Form], chosen: Chosen, allowed: float) -> tuple[Shifts, Agreement]:
        """The program with operators in other forms, its biases corrected and each operator in int8 compared with its
        emulation: what is added to biases (`Program.shifts`), and what the whole is worth.

        Args:
            forms: of tuned operators, by the numbers of their values.
            chosen: operators and schedules in these forms.
            allowed: the largest error.

        Raises:
            MeasureError: it does not compile, or an operator computes other numbers than its emulation.
        """
        grids = self.program.grids
        mixed = self._here.mixed(self._floats, forms, grids, chosen)
        shifts, _ = _corrected(mixed, grids, self._here.progress)
        return shifts, mixed.agreement(allowed)


def calibrate(
    program: Program,
    inputs: Sequence[Inputs],
    device: HardwareTarget,
    schedules: Schedules,
    pool: Pool,
    folder: Path,
    progress: bool = True,
) -> Calibration:
    """Calibrate a program in the device's own layout, in float32.

    Args:
        inputs: of the network, each for one call.
        device: in int8.
        folder: where libraries are written.

    Raises:
        ConfigError: no operator can be in int8.
        DataError: a value is no number for some input.
        MeasureError: it does not compile.
    """
    here = _Here(device, pool, folder, progress)
    floats, seen = _in_float32(program, inputs, schedules, here)
    candidates = {name: _grids(seen, find) for name, find in METHODS.items()}
    first = dataclasses.replace(program, grids=candidates["min-max"])
    forms = {n: Form.of(device) for n in program.tuned_numbers() if choices_in(first, n, device)}
    if not forms:
        raise ConfigError("no operator of the network can be in int8; tune it without --dtype int8")
    forms |= {n: Form.of(device) for n in {*first.keeping_form().values()} if first.kept_in(n, Form.of(device))}
    start_s = time.monotonic()
    mixed = here.mixed(floats, forms, first.grids, schedules(in_forms(first, forms, device)))
    errors, compared = {}, spread(len(inputs), NUM_COMPARED).tolist()
    for name, grids in candidates.items():
        mixed.renew(grids)
        errors[name] = mixed.error(compared)
    method = min(errors, key=lambda name: errors[name])
    grids = candidates[method]
    _, error = _corrected(mixed, grids, progress, errors[method])
    losses = _losses(mixed, error)
    made = dataclasses.replace(program, grids=grids)
    return Calibration(made, method, errors, error, losses, time.monotonic() - start_s, floats, here)


def _in_float32(
    program: Program, inputs: Sequence[Inputs], schedules: Schedules, here: _Here
) -> tuple[InFloat32, dict[int, Histogram]]:
    """Outputs and means of the program, and the numbers of each value that tuned operators read or write.

    Raises:
        DataError: a value is no number for some input.
    """
    numbers = _maps(program)
    own = program.form.on(here.device)
    probe = Probe(program, [*numbers, *program.outputs], schedules(program), own, here.pool, here.folder, "float32")
    for_biases = set(spread(len(inputs), NUM_FOR_BIASES).tolist())
    read = sorted({n for o in program.tuned for n in read_maps(o) if n in numbers})
    outputs, means = list[Sequence[Array]](), dict[int, Mapping[int, Array]]()
    seen = {n: Histogram() for n in probe.numbers}
    for together in with_one_grid(program):
        seen |= dict.fromkeys(together & seen.keys(), Histogram())
    with progress_bar(len(inputs), "calibrating", "input", here.progress) as bar:
        for place, x in enumerate(inputs):
            values = probe.values(x)
            for n, histogram in seen.items():
                found = values.numbers(n)
                if not np.isfinite(found).all():
                    raise DataError("a value of the network is no number for an input that it is calibrated with")
                histogram.add(found)
            outputs.append([values[n] for n in program.outputs])
            if place in for_biases:
                means[place] = {n: values.means(n) for n in read}
            bar.update()
    return InFloat32(program, inputs, outputs, means), seen


def _maps(program: Program) -> list[int]:
    """The values in channel blocks that tuned operators, and what keeps their form, read or write."""
    found = {*program.tuned_numbers(), *program.keeping_form()}
    found |= {read for n in tuple(found) for read in program.operation(n).reads if isinstance(read, int)}
    return sorted(n for n in found if program.value(n).blocked)


def _grids(seen: Mapping[int, Histogram], find: Callable[[Histogram], Grid]) -> dict[int, Grid]:
    """A grid for each histogram, which some values have in common."""
    found = {id(histogram): find(histogram) for histogram in {id(h): h for h in seen.values()}.values()}
    return {number: found[id(histogram)] for number, histogram in seen.items()}


def _corrected(
    mixed: Mixed, grids: Mapping[int, Grid], progress: bool, before: float | None = None
) -> tuple[Shifts, float]:
    """Numbers to add to biases, none where they do not help, and the error of some inputs with them. `before` is the
    error without them, where it is known."""
    mixed.renew(grids)
    compared = spread(len(mixed.floats.inputs), NUM_COMPARED).tolist()
    before = mixed.error(compared) if before is None else before
    shifts = mixed.corrected(grids, progress)
    after = mixed.error(compared)
    if after < before:
        return shifts, after
    mixed.renew(grids)
    return NO_SHIFTS, before


def _losses(mixed: Mixed, error: float) -> dict[int, float]:
    """The part of the outputs' error that each operator in int8 has: its own noise, of what it reads there."""
    noise, signal = dict.fromkeys(mixed.in_int8, 0.0), dict.fromkeys(mixed.in_int8, 0.0)
    for place in spread(len(mixed.floats.inputs), NUM_FOR_LOSSES).tolist():
        values = mixed.values(mixed.floats.inputs[place])
        for number in mixed.in_int8:
            made = mixed.program.operation(mixed.became[number])
            assert isinstance(made, TunedOperation)
            plain = _plain_output(made, [values[read] for read in made.reads])
            written = as_map(values[mixed.became[number]]).reshape(plain.shape)
            noise[number] += float(((written - plain) ** 2).sum())
            signal[number] += float(plain.var() * plain.size)
    shares = {number: noise[number] / max(signal[number], _LEAST_SIGNAL) for number in noise}
    total = sum(shares.values())
    return {number: error * share / total if total else 0.0 for number, share in shares.items()}


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
