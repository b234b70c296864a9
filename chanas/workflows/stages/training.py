"""The supernet's part of the Python API: train or import it, evaluate sub-networks, train one further
(`chanas.workflows.searching.search` too)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    from chanas.supernet.training.train import Start, TrainSummary

DEFAULT_TRAINING, TRANSFER = "digits", "transfer"
PUBLISHED = ("ofa",)


@dataclass(frozen=True)
class Changes:
    """Differences of a training from its config; None is none.

    dataset      digits, imagefolder, hf, webdataset, or a torchvision set on disk
    root         where the data set lies
    images       instead of both: a folder of images, tar shards or a data set of Hugging Face by their path, or a set
                 by its name
    skip_bad     leave out images that cannot be used
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
    skip_bad: bool = False

    def made_to(self, config: TrainConfig) -> TrainConfig:
        """The config with its entries that are given here."""
        own: dict[str, Any] = {"seed": self.seed, "device": self.device}
        own = {key: value for key, value in own.items() if value is not None}
        if self.gap_weight is not None:
            own["objective"] = {**config.objective.model_dump(), "gap_weight": self.gap_weight}
        made = config.changed(data=self.named_data(), **own)
        if made.data.dataset == DEFAULT_TRAINING and self.root is not None:
            raise ConfigError(
                f"--root goes with --dataset KIND, of what lies there, and the data set is {DEFAULT_TRAINING}, which "
                "comes with scikit-learn; or name the images alone with --images PATH"
            )
        return made

    def named_data(self) -> dict[str, Any]:
        """The given fields of a config's `data`.

        Raises:
            ConfigError: images are named in two ways.
            DataError: there is nothing at their path.
        """
        if self.images is not None and (self.dataset or self.root):
            other = "--dataset" if self.dataset else "--root"
            raise ConfigError(f"expected --images PATH, or --dataset KIND with --root FOLDER; got --images and {other}")
        root = None if self.root is None else str(self.root)
        data: dict[str, Any] = {"dataset": self.dataset, "root": root, "skip_bad": self.skip_bad or None}
        if self.images is not None:
            from chanas.supernet.data.sources import named_images

            data |= named_images(self.images)
        return {key: value for key, value in data.items() if value is not None}


NO_CHANGES = Changes()


@dataclass(frozen=True)
class Recipe:
    """A training's space and config; `lines` give the reason where they were chosen by the images."""

    space: SearchSpace
    config: TrainConfig
    start: Start
    lines: tuple[str, ...] = ()


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
    """Train the supernet; `changes` override the training config, and resuming takes up what was stored.

    Without a config it is the preset `digits` where no images are named, `transfer` with other weights to begin with,
    whose space and normalisation stay, and else the preset for the images (`chanas.supernet.training.presets`).

    Raises:
        ChanasError: as `chanas.supernet.training.train.train_supernet` says.
    """
    recipe = recipe_of(run, config, space, changes, resume)
    from chanas.core.progress import announce
    from chanas.supernet.training.train import train_supernet as train

    if progress:
        announce(recipe.lines)
    return train(
        run,
        recipe.space,
        recipe.config,
        resume=resume,
        overwrite=overwrite,
        tensorboard=tensorboard,
        progress=progress,
        start=recipe.start,
    )


def plan_supernet(
    run: RunDirectory,
    *,
    config: str | Path | None = None,
    space: str | Path | None = None,
    changes: Changes = NO_CHANGES,
    resume: bool = False,
    overwrite: bool = False,
) -> list[str]:
    """The lines that `train_supernet` prints before it begins, with the same arguments; nothing is written.

    Raises:
        ChanasError: as `train_supernet` says.
    """
    recipe = recipe_of(run, config, space, changes, resume)
    from chanas.supernet.training.train import plan_supernet as plan

    made = plan(run, recipe.space, recipe.config, resume=resume, overwrite=overwrite, start=recipe.start)
    return [*recipe.lines, *made.lines()]


def recipe_of(
    run: RunDirectory, config: str | Path | None, space: str | Path | None, changes: Changes, resume: bool
) -> Recipe:
    """The training that `train_supernet` does for its arguments."""
    from chanas.supernet.training.phases import TrainConfig

    # what is wrong with options and files is told before PyTorch is imported, which takes seconds
    data = changes.named_data()
    settings = None if config is None else TrainConfig.load(config)
    loaded = None if space is None else SearchSpace.load(space)
    from chanas.supernet.training.checkpoint import read_checkpoint
    from chanas.supernet.training.evaluate import read_supernet
    from chanas.supernet.training.resume import stored_setup
    from chanas.supernet.training.train import FRESH, Start

    saved = None if changes.init is None else read_checkpoint(RunDirectory(changes.init))
    if resume and settings is None:
        stored_space, settings = stored_setup(run)
        begun = FRESH if saved is None else Start(inherited=read_supernet(saved))
        return Recipe(loaded or stored_space, changes.made_to(settings), begun)
    lines: tuple[str, ...] = ()
    if settings is None and saved is not None:
        seen = TrainConfig.from_json(saved.header["config"], "checkpoint config").data
        settings = TrainConfig.load(TRANSFER).changed(data={"mean": seen.mean, "std": seen.std})
    elif settings is None and data.get("dataset", DEFAULT_TRAINING) == DEFAULT_TRAINING:
        settings = TrainConfig.load(DEFAULT_TRAINING)
    elif settings is None:
        settings, lines = _fitted(data)
    made = changes.made_to(settings)
    if saved is None:
        return Recipe(loaded or SearchSpace.load(settings.space), made, FRESH, lines)
    inherited = read_supernet(saved)
    return Recipe(loaded or inherited.space, made, Start(inherited=inherited), lines)


def _fitted(data: Mapping[str, Any]) -> tuple[TrainConfig, tuple[str, ...]]:
    """The config for the images that `data` names, and why."""
    from chanas.supernet.data.data_config import DataConfig, validated
    from chanas.supernet.data.sources import inspect_source
    from chanas.supernet.training.presets import config_for, describe_choice

    named = validated(DataConfig, data, "images")
    inspection = inspect_source(named, progress=True)[1]
    config = config_for(inspection)
    return config, (describe_choice(inspection, config),)


def import_supernet(
    run: RunDirectory,
    kind: str,
    file: Path,
    *,
    images: Path | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
) -> ImportSummary:
    """Leave a supernet that others trained in the run; `kind` is one of `PUBLISHED`. With `skip_bad`, images that
    cannot be used are left out.

    Raises:
        ConfigError: the kind is unknown.
        ChanasError: as `chanas.supernet.published.runs.import_ofa` says.
    """
    from chanas.supernet.published.runs import import_ofa

    if kind not in PUBLISHED:
        raise ConfigError(unknown_name("kind of published supernet", kind, PUBLISHED))
    return import_ofa(run, file, images, skip_bad=skip_bad, overwrite=overwrite)


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
    chosen = named[architecture] if architecture in named else Architecture.from_plain_key(architecture)
    return train(run, chosen, recipe or DEFAULT, resume=resume, overwrite=overwrite, progress=progress)


def take_images(run: RunDirectory, images: Path | str) -> None:
    """Take the images that the run's supernet was trained on from another place, from now on.

    Raises:
        StageOrderError: there is no supernet yet.
        DataError: the images are others.
    """
    from chanas.supernet.training.resume import take_images as take

    take(run, images)


def evaluate(
    run: RunDirectory,
    architectures: Sequence[str] = ("largest", "smallest"),
    *,
    split: str = "holdout",
    seed: int = 0,
    device: str = "cpu",
    images: Path | str | None = None,
    progress: bool = True,
) -> Iterator[Judged | Spread]:
    """Accuracies of sub-networks of the run's supernet, each as soon as it is there, with BN statistics of their own.

    Args:
        run: with a supernet, trained or on the way.
        architectures: keys, `largest`, `smallest`, or `random:20`; a `Spread` follows the random ones.
        split: train, gap, holdout or test.
        seed: of the random ones.
        device: cpu or cuda.
        images: where the images of the run lie now, if they were moved; later commands know it, too.
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
    if images is not None:
        take_images(run, images)
    supernet = SupernetEvaluator.load(run, device)
    requests = [parse_request(text, supernet.space, seed) for text in architectures]
    return judge(supernet, requests, split, progress)
