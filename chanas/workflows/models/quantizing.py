"""A searched network in int8: tuned as any other is, calibrated with the train images of its run, and judged on those
that the run judges networks on."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chanas.bundle.codesign import CoDesign
from chanas.core.effort import NetworkEffort
from chanas.core.progress import named_wait
from chanas.core.statistics import spread
from chanas.core.units import format_latency
from chanas.core.usage import Usage
from chanas.errors import CheckpointError, DataError, StageOrderError
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.measuring.locks import device_lock
from chanas.models.calibration.ranges import MOST_INPUTS
from chanas.workflows.models.calibration import FEWEST_PICTURES
from chanas.workflows.models.chain import DEFAULT_EFFORT, DEFAULT_FOLDER, BuiltModel, Model
from chanas.workflows.models.network_file import time_beside
from chanas.workflows.models.saving import SavedModel, check_place, default_folder

if TYPE_CHECKING:
    from torch import Tensor

    from chanas.bundle.tuned import TunedNetwork
    from chanas.core.arrays import Array
    from chanas.supernet.data.images import ImageData

CALIBRATION, JUDGED = "train", ("holdout", "test")
"""The splits of a run's images that a network is calibrated with, and judged on."""


@dataclass(frozen=True)
class SplitAccuracy:
    """Top-1 accuracies in [0, 1] on the images of a split: of PyTorch in float32, and of the compiled network."""

    split: str
    num_images: int
    top1_float32: float
    top1_int8: float


@dataclass(frozen=True)
class Judgement:
    """A network in int8 beside the bundle that it was made from.

    calibration  what it was calibrated with, in words
    num_int8     operators in int8, of `num_operators` that are tuned
    accuracies   on the splits of the run that have images; none where these are not known: `why_none`
    bundle_s, int8_s  median seconds of the bundle's module and of the network, in turns; None where the bundle has no
                 module for as many threads of this machine
    """

    calibration: str
    num_int8: int
    num_operators: int
    accuracies: tuple[SplitAccuracy, ...] = ()
    why_none: str = ""
    bundle_s: float | None = None
    int8_s: float | None = None

    def lines(self) -> Iterator[str]:
        """The judgement for people."""
        yield f"calibrated {self.calibration}; {self.num_int8} of {self.num_operators} operators in int8"
        if not self.num_int8:
            yield "warning    of what was tried, no operator makes the network faster in int8: none is"
        for found in self.accuracies:
            yield (
                f"accuracy   {found.split} top-1 {found.top1_float32:.2%} in float32, {found.top1_int8:.2%} in int8, "
                f"of {found.num_images} images"
            )
        if self.why_none:
            yield f"accuracy   not known: {self.why_none}"
        if self.bundle_s is None or self.int8_s is None:
            yield "beside     the bundle has no module for so many threads of this machine"
        else:
            yield (
                f"beside     the bundle's module {format_latency(self.bundle_s)}, int8 {format_latency(self.int8_s)}: "
                f"{self.bundle_s / self.int8_s:.2f}x as fast, in turns"
            )


@dataclass(frozen=True)
class Quantized:
    """A bundle's network in int8, compiled, in its folder, and judged."""

    built: BuiltModel
    saved: SavedModel
    judgement: Judgement


def quantize(
    place: str | Path,
    *,
    images: Path | None = None,
    out: Path | None = None,
    threads: int = 1,
    effort: NetworkEffort = DEFAULT_EFFORT,
    progress: bool = True,
) -> Quantized:
    """Tune the network of a bundle, or of the newest one of a run, in int8 where that is faster, and save it as
    `chanas tune` does, with what it is worth. Records are those of the run.

    Args:
        images: a folder of pictures to calibrate with, by default that of the effort; without either, train images of
            the run are.
        out: the folder of the result; by default one in the run, by the name of the bundle.

    Raises:
        CheckpointError: there is no bundle, it is damaged, or has no weights.
        DataError: there are no images to calibrate with, or too few.
        ChanasError: as `LoadedModel.tune`, `TunedModel.build` and `BuiltModel.save`.
    """
    bundle = CoDesign.load(place)
    bundle.check_weights("there is nothing to make int8; search with a supernet")
    run, usage = run_of(bundle.path), Usage(threads=threads, dtype="int8")
    records = run or RunDirectory(DEFAULT_FOLDER)
    data, inputs, why_none = None, None, ""
    try:
        data = _data_of(bundle, run)
    except (CheckpointError, DataError, StageOrderError) as error:
        why_none = str(error)
    images = images or (None if effort.calibration is None else Path(effort.calibration))
    if images is not None:
        words = f"with pictures of {images}"
        effort = dataclasses.replace(effort, calibration=str(images))
    elif data is None:
        raise DataError(f"{why_none}; give --images FOLDER, pictures such as the network is for")
    else:
        inputs = _train_inputs(data, bundle)
        words = f"with {len(inputs)} of {len(data.indices(CALIBRATION))} {CALIBRATION} images of {records.root}"
    with named_wait(f"reading {bundle.path}", progress):
        loaded = Model.load(bundle.path).for_pictures({})
    folder = out or default_folder(records.root, loaded.opened.origin["name"], usage)
    check_place(folder, records.root)
    with one_writer(folder, other="name another --out"):
        tuned = loaded.tune(usage, calibration=inputs, effort=effort, run=records, folder=folder, progress=progress)
        with named_wait("compiling the whole network, comparing and timing it", progress):
            built = tuned.build()
        saved = built.save(folder)
        operators = [operation.numbers is not None for operation in built.tuned.program.tuned]
        judgement = Judgement(words, sum(operators), len(operators), why_none=why_none)
        network = saved.open()
        if data is not None:
            with named_wait(f"classifying the images of {' and '.join(JUDGED)}", progress):
                accuracies = tuple(_accuracies(data, bundle, network))
            why_none = "" if accuracies else f"{records.root} has no images for it"
            judgement = dataclasses.replace(judgement, accuracies=accuracies, why_none=why_none)
        if (own := _module_for(bundle, threads)) is not None:
            with device_lock(), named_wait("timing it beside the bundle's module", progress):
                bundle_s, int8_s = time_beside(own, lambda image: functools.partial(network.run, image))
            judgement = dataclasses.replace(judgement, bundle_s=bundle_s, int8_s=int8_s)
        saved.add(quantized=dataclasses.asdict(judgement))
    return Quantized(built, saved, judgement)


def run_of(bundle: Path) -> RunDirectory | None:
    """The run that a bundle lies in; None of one that lies elsewhere."""
    parent = bundle.parent if bundle.parent.name else bundle.absolute().parent
    run = RunDirectory(parent.parent if parent.name == "bundles" else parent)
    return run if run.records.exists() or (run.supernet / "checkpoint.json").exists() else None


def _data_of(bundle: CoDesign, run: RunDirectory | None) -> ImageData:
    """The images of a bundle's run, with their splits.

    Raises:
        DataError: it lies in no run, or the run's images, or what is made of them, are others now.
        ChanasError: as `SupernetEvaluator.load` says.
    """
    from chanas.supernet.training.evaluate import SupernetEvaluator

    if run is None:
        raise DataError(f"bundle {bundle.path} lies in no run whose images would be known")
    data = SupernetEvaluator.load(run).data
    if data.splits.digest != bundle.document["hashes"].get("splits"):
        raise DataError(f"the images of {run.root} are split otherwise than when bundle {bundle.path} was searched")
    if data.preprocess(bundle.architecture.resolution) != bundle.preprocess:
        raise DataError(f"the images of {run.root} are prepared otherwise than those of bundle {bundle.path}")
    return data


def _train_inputs(data: ImageData, bundle: CoDesign) -> list[list[Array]]:
    """Train images, as they are prepared to be classified, spread over all of them.

    Raises:
        DataError: there are too few, or one cannot be decoded.
    """
    train = data.indices(CALIBRATION)
    if len(train) < FEWEST_PICTURES:
        raise DataError(
            f"expected at least {FEWEST_PICTURES} {CALIBRATION} images to calibrate with, bundle {bundle.path} has "
            f"{len(train)}; give --images FOLDER"
        )
    chosen = train[spread(len(train), MOST_INPUTS)]
    return [[image[None]] for image in data.images(chosen, bundle.architecture.resolution)]


def _accuracies(data: ImageData, bundle: CoDesign, network: TunedNetwork) -> Iterator[SplitAccuracy]:
    import torch

    from chanas.supernet.training.evaluate import EvaluationImages, top1

    def compiled(images_nchw: Tensor) -> Tensor:
        return torch.from_numpy(np.concatenate([network.run(image[None])[0] for image in images_nchw.numpy()]))

    images, resolution = EvaluationImages(data, torch.device("cpu")), bundle.architecture.resolution
    float32 = bundle.torch_module()
    for split in JUDGED:
        if num := len(data.indices(split)):
            found = (top1(judged, resolution, images, split, None) for judged in (float32, compiled))
            yield SplitAccuracy(split, num, *found)


def _module_for(bundle: CoDesign, threads: int) -> CoDesign | None:
    """The bundle with its module for so many threads of this machine."""
    parts = (CoDesign.load(bundle.path, name) for name in bundle.targets)
    return next((p for p in parts if p.runs_here and p.target.gpu is None and p.target.num_threads == threads), None)
