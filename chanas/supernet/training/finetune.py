"""One sub-network trained on its own: further from the weights it inherited, or from scratch to compare."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chanas.core.arch import Architecture
from chanas.errors import ConfigError, DataError, StageOrderError
from chanas.files.run import RunDirectory
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.sources import named_images
from chanas.supernet.training.checkpoint import splits_path
from chanas.supernet.training.evaluate import SupernetEvaluator
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.resume import stored_setup, take_images
from chanas.supernet.training.train import Start, TrainSummary, train_supernet

EPOCHS = 25.0  # once-for-all's shorter fine-tuning (its "#25" networks)
FINETUNE_LR_SHARE = 0.1  # inherited weights are near a minimum: a tenth of the last phase's peak stays near it
WARMUP_SHARE = 0.05


@dataclass(frozen=True)
class FinetuneSummary:
    """The result of a call of `finetune`; accuracies in [0, 1] are on holdout."""

    architecture: Architecture
    top1_inherited: float | None
    """With the supernet's weights, before any training of its own; None on other images than the supernet's."""
    top1: float
    training: TrainSummary


@dataclass(frozen=True)
class Finetuning:
    """The way in which one architecture is trained on its own.

    epochs        passes over the train split, by default `EPOCHS`
    base_lr       peak learning rate for `optimizer.lr_batch_size` images; by default a tenth of the supernet's last
                  phase's, all of it on other images, and from scratch the highest of its phases
    from_scratch  start from fresh weights instead of the inherited ones
    seed          of order, augmentation and fresh weights; the supernet's by default
    images        to train on instead of the supernet's, of any classes: a folder (`FOLDER/CLASS/IMAGE`), tar shards or
                  a data set of Hugging Face by their path, or a set by its name; or the supernet's own, where they lie
                  now
    skip_bad      leave out those of `images` that cannot be used

    Raises:
        ConfigError: there is nothing to pass over, or to leave out.
    """

    epochs: float | None = None
    base_lr: float | None = None
    from_scratch: bool = False
    seed: int | None = None
    images: Path | str | None = None
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if self.epochs is not None and not self.epochs > 0:
            raise ConfigError(f"expected epochs above 0, got {self.epochs:g}")
        if self.skip_bad and self.images is None:
            raise ConfigError("--skip-bad goes with --images; of the supernet's own, the same are left out as there")


DEFAULT = Finetuning()


def finetune(
    run: RunDirectory,
    architecture: Architecture,
    recipe: Finetuning = DEFAULT,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> FinetuneSummary:
    """Train one architecture of the run's supernet, on the same splits or on other images, and leave it in
    `run.finetuned(...)`: a folder for each set of images.

    Args:
        run: holds the supernet.
        architecture: of its space.
        resume: continue an interrupted call, with what it was given; what `recipe` says has to be the same.
        overwrite: start anew.
        progress: show a progress bar.

    Raises:
        ArchitectureError: the architecture is not in the supernet's space.
        StageOrderError: there is no supernet yet.
        ChanasError: as `train_supernet` says.
    """
    if recipe.images is not None and _are_the_runs(recipe.images, run):
        recipe = replace(recipe, images=None, skip_bad=False)
    evaluator = SupernetEvaluator.load(run)
    inherited = evaluator.extract(architecture)
    own_run = run.finetuned(architecture.key, recipe.from_scratch, _folder_suffix(recipe.images))
    if resume:
        config = _resumed(stored_setup(own_run)[1], recipe)
        if recipe.images is None:
            config = config.changed(data={"root": evaluator.config.data.root})
    else:
        config = finetune_config(evaluator.config, recipe)
    start = Start(
        architecture, None if recipe.from_scratch else inherited, splits_path(run) if recipe.images is None else None
    )
    summary = train_supernet(
        own_run,
        evaluator.space,
        config,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
        start=start,
    )
    inherits_task = config.data == evaluator.config.data
    top1_inherited = evaluator.top1(architecture) if inherits_task else None
    return FinetuneSummary(architecture, top1_inherited, summary.top1["only"], summary)


def _are_the_runs(images: Path | str, run: RunDirectory) -> bool:
    """True if `images` are those of the supernet, which are taken from there from now on."""
    try:
        take_images(run, images)
    except (DataError, StageOrderError):
        return False
    return True


def _folder_suffix(images: Path | str | None) -> str:
    """The end of a folder's name, which tells sets of images apart; nothing for the supernet's own."""
    if images is None:
        return ""
    named = DataConfig.model_validate(named_images(images))  # with an absolute path
    place = named.dataset if named.root is None else str(named.root)
    stem = re.sub(r"[^\w.-]+", "_", Path(place).name)
    return f"-{stem}-{hashlib.sha256(f'{named.dataset} {place}'.encode()).hexdigest()[:8]}"


def _lengths(epochs: float) -> dict[str, float]:
    """The length of the one phase, and of its warmup."""
    return {"epochs": epochs, "warmup_epochs": WARMUP_SHARE * epochs}


def _resumed(stored: TrainConfig, recipe: Finetuning) -> TrainConfig:
    """The config of a checkpoint with what a recipe says besides, for `continues` to compare."""
    phase: dict[str, Any] = stored.phases[0].model_dump(mode="json")
    phase |= {} if recipe.epochs is None else _lengths(recipe.epochs)
    phase |= {} if recipe.base_lr is None else {"base_lr": recipe.base_lr}
    data = {"skip_bad": True} if recipe.skip_bad else None
    return stored.changed(data=data, phases=[phase], seed=stored.seed if recipe.seed is None else recipe.seed)


def finetune_config(stored: TrainConfig, recipe: Finetuning) -> TrainConfig:
    """The supernet's config with one phase: its data, batch, objective and optimiser, so that results compare."""
    base_lr, from_scratch = recipe.base_lr, recipe.from_scratch
    if base_lr is None:
        peaks = [phase.base_lr for phase in stored.phases]
        share = FINETUNE_LR_SHARE if recipe.images is None else 1.0  # the last layer's weights are fresh
        base_lr = max(peaks) if from_scratch else share * peaks[-1]
    phase = {
        "name": "from-scratch" if from_scratch else "finetune",
        **_lengths(EPOCHS if recipe.epochs is None else recipe.epochs),
        "base_lr": base_lr,
    }
    images: dict[str, Any] = {}
    if recipe.images is not None:  # of several sizes, maybe
        images = {**named_images(recipe.images), "skip_bad": recipe.skip_bad, "in_memory": False}
    return stored.changed(data=images, phases=[phase], seed=stored.seed if recipe.seed is None else recipe.seed)
