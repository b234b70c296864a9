"""Networks in int8: calibrated with a folder of pictures, or quantised already."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chanas.core.statistics import spread
from chanas.errors import ConfigError, DataError, TargetError
from chanas.models.calibration.ranges import MOST_INPUTS

if TYPE_CHECKING:
    from chanas.compiler.cpu.module import Chosen
    from chanas.compiler.program import Program
    from chanas.core.arrays import Array
    from chanas.core.effort import NetworkEffort
    from chanas.core.target import HardwareTarget
    from chanas.models.calibration.calibrate import Calibration
    from chanas.models.calibration.given import Given
    from chanas.models.calibration.mixed import Agreement
    from chanas.models.graph import Graph
    from chanas.models.quantised import QuantisedGraph
    from chanas.models.sources.model import OpenedModel
    from chanas.prescheduler.session import Session
    from chanas.prescheduler.tuning.warm_start import WarmStart

FEWEST_PICTURES = 8


def int8_entry(calibration: Calibration | Given, agreement: Agreement | None) -> dict[str, Any]:
    """Content of `tuned.json` about int8."""
    return {**calibration.to_json(), "agreement": None if agreement is None else dataclasses.asdict(agreement)}


def quantised_graph(
    opened: OpenedModel, target: HardwareTarget, has_pictures: bool, is_here: bool = True
) -> QuantisedGraph | None:
    """A network that is quantised already without its roundings, for a use in int8; None for another use, and of any
    other network.

    Raises:
        ConfigError: it is quantised already, and there are pictures to calibrate it with.
        TargetError: it is, and the target is elsewhere.
    """
    from chanas.models.quantised import without_roundings
    from chanas.models.reading.quantised import reads_steps
    from chanas.models.reading.reader import read_graph

    if target.dtype != "int8" or not any(reads_steps(node.op_type) for node in opened.proto.graph.node):
        return None
    found = without_roundings(read_graph(opened.proto, opened.inputs))
    if found is not None and has_pictures:
        raise ConfigError(
            f"{opened.name} is quantised already, and has its ranges in the file; leave out --calibration, or give the "
            "file that it was made of"
        )
    if found is not None and not is_here:
        raise TargetError("networks in int8 are compared on this machine; leave out --rpc with --dtype int8")
    return found


def check_int8(target: HardwareTarget, effort: NetworkEffort, has_pictures: bool, is_here: bool) -> None:
    """Check what is asked of a network that is not quantised already.

    Raises:
        ConfigError: there are pictures to calibrate it with, or a largest error, and no int8; or int8 and no pictures.
        TargetError: it is to be in int8, and the target is elsewhere.
    """
    if (target.dtype == "int8") != has_pictures:
        raise ConfigError("--dtype int8 and --calibration FOLDER go together: pictures say what its numbers stand for")
    if target.dtype != "int8" and effort.max_error != type(effort)().max_error:
        raise ConfigError("--max-error bounds what int8 loses; leave it out, or ask for --dtype int8")
    if target.dtype == "int8" and not is_here:
        raise TargetError("networks are calibrated on this machine; leave out --rpc with --dtype int8")


def read_pictures(folder: Path, graph: Graph, preprocess: Mapping[str, Any] | None, name: str) -> list[list[Array]]:
    """The inputs of a network for pictures of a folder and below, at most `MOST_INPUTS`, spread over it by name.

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
    places = spread(len(files), MOST_INPUTS)
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
) -> Calibration:
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
