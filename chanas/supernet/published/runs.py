"""A published supernet in a run directory, where the other stages find it like one that was trained there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chanas.core.arch import SearchSpace
from chanas.core.progress import announce
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest
from chanas.supernet.data.images import load_data
from chanas.supernet.data.sources import IMAGENET
from chanas.supernet.data.splits import save_splits
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.published.ofa import load_ofa
from chanas.supernet.training import checkpoint as ckpt
from chanas.supernet.training.evaluate import SupernetEvaluator
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.resume import refuse_existing
from chanas.supernet.training.state import Progress, setup_header

_FOR_A_LOOK = 500
_TRAINING = "transfer"  # what trains them further


@dataclass(frozen=True)
class ImportSummary:
    """The result of an import."""

    checkpoint: Path
    space: SearchSpace
    num_classes: int
    num_images: int
    """Images to recalibrate BN statistics and to measure accuracies with."""
    num_looked_at: int
    """The first ones of holdout, on which a first accuracy was measured."""
    top1_largest: float | None
    """Accuracy in [0, 1] of the largest sub-network on those; None without images."""


def import_ofa(
    run: RunDirectory, file: Path, images: Path | None = None, *, skip_bad: bool = False, overwrite: bool = False
) -> ImportSummary:
    """Leave the supernet of a published once-for-all checkpoint in `run.supernet`.

    Args:
        run: where to.
        file: the checkpoint.
        images: a folder of images of ImageNet's classes, as `chanas.supernet.data.imagenet` takes it.
        skip_bad: leave out images that cannot be used.
        overwrite: replace the supernet that is there.

    Raises:
        CheckpointError: the file is not such a checkpoint, or there is a supernet and `overwrite` is not set.
        DataError: the images cannot be used.
        ChanasError: the checkpoint cannot be written.
    """
    if not overwrite:
        refuse_existing(run)
    supernet, published = load_ofa(file), {"kind": "ofa", "file": file.name, "sha256": file_digest(file)}
    with one_writer(run.supernet):
        return keep(run, supernet, published, images, skip_bad)


def keep(
    run: RunDirectory,
    supernet: Supernet,
    published: dict[str, str],
    images: Path | None = None,
    skip_bad: bool = False,
) -> ImportSummary:
    """Leave a supernet of ImageNet's classes in `run.supernet`; `published` says what it is and where it is from.

    Raises:
        DataError: the images cannot be used.
        ChanasError: the checkpoint cannot be written.
    """
    space = supernet.space
    root = None if images is None else str(images)
    named = {"dataset": IMAGENET, "root": root, "skip_bad": skip_bad}
    config = TrainConfig.load(_TRAINING).changed(data=named, space=space.name)
    data = load_data(config.data, config.seed, progress=True)
    if images is not None:
        announce(
            [
                f"images     {data.inspection.lines()[0]}",
                *(f"           {line}" for line in data.inspection.lines()[1:]),
            ]
        )
    header = {
        **setup_header(space, config, data),
        **Progress().to_json(),
        "architecture": None,
        "scaler": None,
        "world_size": 1,
        "num_steps": 0,
        "done": True,
        "published": published,
    }
    ckpt.clear(run)
    ckpt.metrics_path(run).unlink(missing_ok=True)
    save_splits(ckpt.splits_path(run), data.splits)
    tensors = {f"supernet.{name}": tensor for name, tensor in supernet.state_dict().items()}
    ckpt.write_checkpoint(run, header, tensors, keep=0)
    num_images, num_looked_at = len(data.source.labels), len(data.indices("holdout", _FOR_A_LOOK))
    top1 = SupernetEvaluator.load(run).top1(space.largest, max_images=_FOR_A_LOOK) if num_images else None
    return ImportSummary(ckpt.checkpoint_path(run), space, data.num_classes, num_images, num_looked_at, top1)
