"""The supernet's part of the Python API: train or import it, evaluate sub-networks, train one further
(`chanas.workflows.searching.search` too)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.core.arch import Architecture, SearchSpace
from chanas.errors import ConfigError, StageOrderError, unknown_name
from chanas.files.run import RunDirectory
from chanas.workflows.stages.stored import stored_task

if TYPE_CHECKING:
    from chanas.supernet.judge import Judged, Spread
    from chanas.supernet.published.runs import ImportSummary
    from chanas.supernet.training.finetune import FinetuneSummary, Finetuning
    from chanas.supernet.training.phases import TrainConfig
    from chanas.supernet.training.train import TrainSummary

DEFAULT_TRAINING, TRANSFER = "digits", "transfer"
PUBLISHED = ("ofa",)


@dataclass(frozen=True)
class Changes:
    """Differences of a training from its config; None is none.

    dataset      digits, imagefolder, hf, webdataset, or a torchvision set on disk
    root         where the data set lies
    images       instead of both: a folder of images, tar shards or a data set of Hugging Face by their path, or a set
                 by its name
    seed, device
    gap_weight   λ of equation 3
    init         run directory of a supernet whose weights training begins with; for other classes the last layer's are
                 fresh
    """

    dataset: str | None = None
    root: Path | None = None
    seed: int | None = None
    device: str | None = None
    gap_weight: float | None = None
    init: Path | None = None
    images: Path | str | None = None

    def made_to(self, config: TrainConfig) -> TrainConfig:
        """The config with its entries that are given here."""
        own: dict[str, Any] = {"seed": self.seed, "device": self.device}
        own = {key: value for key, value in own.items() if value is not None}
        if self.gap_weight is not None:
            own["objective"] = {**config.objective.model_dump(), "gap_weight": self.gap_weight}
        if self.images is not None and (self.dataset or self.root):
            raise ConfigError("name images by a path, or by dataset and root, not by both")
        root = None if self.root is None else str(self.root)
        images: dict[str, Any] = {"dataset": self.dataset, "root": root}
        if self.images is not None:
            from chanas.supernet.data.sources import named_images

            images |= named_images(self.images)
        return config.changed(data={k: v for k, v in images.items() if v is not None}, **own)


NO_CHANGES = Changes()


def train_supernet(
    run: RunDirectory,
    *,
    config: str | Path | None = None,
    space: str | Path | None = None,
    changes: Changes = NO_CHANGES,
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: bool = False,
    progress: bool = True,
) -> TrainSummary:
    """Train the supernet; `changes` override the training config, and resuming takes up what was stored. With other
    weights to begin with, the space is theirs and the config `transfer` where none is named.

    Raises:
        ChanasError: as `chanas.supernet.training.train.train_supernet` says.
    """
    from chanas.supernet.training.checkpoint import read_checkpoint
    from chanas.supernet.training.evaluate import read_supernet
    from chanas.supernet.training.phases import TrainConfig
    from chanas.supernet.training.resume import stored_setup
    from chanas.supernet.training.train import FRESH, Start
    from chanas.supernet.training.train import train_supernet as train

    inherited = None if changes.init is None else read_supernet(read_checkpoint(RunDirectory(changes.init)))
    if resume and config is None:
        loaded, settings = stored_setup(run)
    else:
        settings = TrainConfig.load(config or (DEFAULT_TRAINING if changes.init is None else TRANSFER))
        loaded = inherited.space if inherited and space is None else SearchSpace.load(space or settings.space)
    return train(
        run,
        loaded,
        changes.made_to(settings),
        resume=resume,
        overwrite=overwrite,
        tensorboard=tensorboard,
        progress=progress,
        start=FRESH if inherited is None else Start(inherited=inherited),
    )


def import_supernet(
    run: RunDirectory, kind: str, file: Path, *, images: Path | None = None, overwrite: bool = False
) -> ImportSummary:
    """Leave a supernet that others trained in the run; `kind` is one of `PUBLISHED`.

    Raises:
        ConfigError: the kind is unknown.
        ChanasError: as `chanas.supernet.published.runs.import_ofa` says.
    """
    from chanas.supernet.published.runs import import_ofa

    if kind not in PUBLISHED:
        raise ConfigError(unknown_name("kind of published supernet", kind, PUBLISHED))
    return import_ofa(run, file, images, overwrite=overwrite)


def finetune(
    run: RunDirectory,
    architecture: str,
    recipe: Finetuning | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> FinetuneSummary:
    """Train one architecture (a key, `largest` or `smallest`) of the run's supernet on its own.

    Raises:
        ChanasError: as `chanas.supernet.training.finetune.finetune` says.
    """
    from chanas.supernet.training.finetune import DEFAULT
    from chanas.supernet.training.finetune import finetune as train

    stored = stored_task(run)
    if stored is None:
        raise StageOrderError(
            f"there is no supernet in {run.root} to take weights from; run `chanas train-supernet` first"
        )
    space = stored[0]
    named = {"largest": space.largest, "smallest": space.smallest}
    chosen = named[architecture] if architecture in named else Architecture.from_key(architecture)
    return train(run, chosen, recipe or DEFAULT, resume=resume, overwrite=overwrite, progress=progress)


def evaluate(
    run: RunDirectory,
    architectures: Sequence[str] = ("largest", "smallest"),
    *,
    split: str = "holdout",
    seed: int = 0,
    device: str = "cpu",
    progress: bool = True,
) -> Iterator[Judged | Spread]:
    """Accuracies of sub-networks of the run's supernet, each as soon as it is there, with BN statistics of their own.

    Args:
        run: with a supernet, trained or on the way.
        architectures: keys, `largest`, `smallest`, or `random:20`; a `Spread` follows the random ones.
        split: train, gap, holdout or test.
        seed: of the random ones.
        device: cpu or cuda.
        progress: show a progress bar where there is more than one.

    Raises:
        ConfigError: an architecture or the device is not written as expected, or there is no GPU.
        ArchitectureError: an architecture is not in the supernet's space.
        DataError: there is no such split, or the images cannot be used.
        StageOrderError: there is no supernet yet.
    """
    import torch

    from chanas.supernet.judge import judge, parse_request
    from chanas.supernet.training.evaluate import SupernetEvaluator

    if device not in ("cpu", "cuda"):
        raise ConfigError(unknown_name("device", device, ("cpu", "cuda")))
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda is not there (torch finds no GPU); use cpu")
    supernet = SupernetEvaluator.load(run, device)
    requests = [parse_request(text, supernet.space, seed) for text in architectures]
    return judge(supernet, requests, split, progress)
