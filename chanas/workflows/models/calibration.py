"""Networks in int8: what their numbers stand for, from a folder of pictures, and what that costs in accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chanas.errors import ConfigError, DataError

if TYPE_CHECKING:
    from chanas.compiler.cpu.module import Chosen
    from chanas.compiler.program import Program
    from chanas.core.target import HardwareTarget
    from chanas.models.calibration.calibrate import Calibrated
    from chanas.models.graph import Graph
    from chanas.models.sources.model import Array
    from chanas.prescheduler.session import Session
    from chanas.prescheduler.tuning.warm_start import WarmStart

MOST_PICTURES, FEWEST_PICTURES = 300, 8


@dataclass(frozen=True)
class Agreement:
    """A network partly in int8 beside the same one in float32, on the pictures that it was calibrated with.

    num_int8, num_operators  operators in int8, and all that are tuned
    error, allowed           squared error of the outputs as a part of their squares, and the largest that was allowed
    num_same, num_pictures   pictures of which the largest output is the same
    """

    num_int8: int
    num_operators: int
    error: float
    allowed: float
    num_same: int
    num_pictures: int

    def line(self) -> str:
        """The comparison for people; the choice goes by an estimate of the error, which may be too low."""
        more = f", more than the {self.allowed:.2%} by which it was chosen" if self.error > self.allowed else ""
        return (
            f"{self.num_int8} of {self.num_operators} operators; against float32, on the pictures of the calibration: "
            f"the largest output is the same for {self.num_same} of {self.num_pictures}, squared error {self.error:.2%}"
            f"{more}"
        )


def int8_entry(calibrated: Calibrated, agreement: Agreement | None) -> dict[str, Any]:
    """Content of `tuned.json` about int8."""
    return {
        "method": calibrated.method,
        "errors": dict(calibrated.errors),
        "error": calibrated.error,
        "num_inputs": len(calibrated.outputs),
        "agreement": None if agreement is None else dataclasses.asdict(agreement),
    }


def read_pictures(folder: Path, graph: Graph, preprocess: Mapping[str, Any] | None, name: str) -> list[list[Array]]:
    """The inputs of a network for pictures of a folder and below, at most `MOST_PICTURES`, spread over it by name.

    Raises:
        ConfigError: the network does not take a picture, or it is not known how they are prepared.
        DataError: there are too few, or one cannot be read or is the same number everywhere.
    """
    from chanas.network.pictures import read_picture
    from chanas.network.preprocess import PRESETS, Preprocess
    from chanas.supernet.data.folders.walk import walk

    if len(graph.inputs) != 1 or graph.inputs[0].dtype != "float32":
        raise ConfigError(f"{name} is calibrated with pictures, and has not one float32 input alone")
    if preprocess is None:
        raise ConfigError(
            f"it is not known how pictures are prepared for {name}; give --preprocess {', '.join(PRESETS)}"
        )
    if not folder.is_dir():
        raise DataError(f"expected a folder of pictures to calibrate with, got {folder}")
    files = [folder / found for found, _ in walk(folder).images]
    if len(files) < FEWEST_PICTURES:
        raise DataError(f"expected at least {FEWEST_PICTURES} pictures to calibrate with, {folder} has {len(files)}")
    places = np.linspace(0, len(files) - 1, min(len(files), MOST_PICTURES)).round().astype(int)
    prepare, shape = Preprocess.from_json(dict(preprocess)), graph.inputs[0].shape
    images = [read_picture(files[place], str(files[place])).image for place in places]
    if all(np.asarray(image).reshape(-1, 3).std(axis=0).max() == 0.0 for image in images):
        raise DataError(f"every picture of {folder} has one colour; calibrate with such as the network is for")
    return [[prepare(image).reshape(shape)] for image in images]


def calibrated(
    program: Program,
    inputs: Sequence[Sequence[Array]],
    session: Session,
    device: HardwareTarget,
    prior: Callable[[HardwareTarget], WarmStart | None],
) -> Calibrated:
    """Calibrate a network in the device's own form, with the schedules that are known or likely."""
    from chanas.models.calibration.calibrate import calibrate

    return calibrate(
        program, inputs, device, _Known(session, device, prior), session.pool, session.scratch, session.progress
    )


@dataclass(frozen=True)
class _Known:
    """The schedules of operators in any form, as far as they are known, and likely ones."""

    session: Session
    device: HardwareTarget
    prior: Callable[[HardwareTarget], WarmStart | None]

    def __call__(self, program: Program) -> Chosen:
        from chanas.prescheduler.program import first_choices

        found: dict[Any, Any] = {}
        for form in dict.fromkeys(operation.form for operation in program.tuned):
            target = form.on(self.device)
            with self.session.on(target) as session:
                found |= first_choices(program, target, session.store, self.prior(target))
        return {key: (chosen.workload, chosen.point) for key, chosen in found.items()}


def compare_int8(
    program: Program,
    chosen: Chosen,
    calibrated: Calibrated,
    inputs: Sequence[Sequence[Array]],
    target: HardwareTarget,
    session: Session,
    allowed: float,
) -> Agreement:
    """Check each operator in int8 where it stands (`check_numbers`), and compare the network with float32.

    Args:
        allowed: the effort's `max_error`.

    Raises:
        MeasureError: an operator computes other numbers than its emulation.
    """
    from chanas.models.calibration.check import check_numbers, numbers_to_check
    from chanas.models.calibration.probe import Probe

    numbers = list(dict.fromkeys((*numbers_to_check(program), *program.outputs)))
    probe = Probe(program, numbers, chosen, target, session.pool, session.scratch, "compared")
    num_int8 = check_numbers(program, chosen, probe.values(inputs[0]))
    wrong = size = 0.0
    num_same = 0
    for x, expected in zip(inputs, calibrated.outputs, strict=True):
        found = [probe.values(x)[n] for n in program.outputs]
        for one, other in zip(found, expected, strict=True):
            if other.dtype.kind == "f":
                wrong += float(((one.astype(np.float64) - other) ** 2).sum())
                size += float((other.astype(np.float64) ** 2).sum())
        num_same += int(found[0].argmax() == expected[0].argmax())
    error = wrong / size if size else 0.0
    return Agreement(num_int8, len(program.tuned), error, allowed, num_same, len(inputs))
