"""Supernets for benchmarks: small enough to train many of them, and trained to a difference of one thing at a time.

A `Setting` holds what all runs of a data set share; a `Condition` is what they differ in. The seed decides the splits,
the initial weights, the order of images, and the resolution and sub-networks of every step, whatever the condition is:
two conditions of one seed are a pair. A run that was cut short continues from its checkpoint.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine_kind
from torch import Tensor
from torch.nn import functional as F

from chanas.core import genome
from chanas.core.arch import Architecture, SearchSpace
from chanas.files.run import RunDirectory
from chanas.network.static import StaticNetwork
from chanas.supernet.training.checkpoint import checkpoint_path
from chanas.supernet.training.evaluate import EvaluationImages, calibrated_subnet
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.train import Trainer

RUNS = Path("runs/benchmarks")
CHANGEABLE = ("batch_size", "gap_batch_size", "steps", "base_lr")  # of a setting, by options of these names
_ARCHITECTURE_STREAM = 31
_SLIM_WIDTHS = (8, 16, 24, 32, 40)


@dataclass(frozen=True)
class Condition:
    """What Eq. 3 is in a run. Without the gap term (λ = 0) the gap images are trained on, or left unused."""

    name: str
    gap_weight: float
    trains_on_gap: bool = False
    gap_form: str = "absolute"


FAIR = Condition("0 fair", 0.0, trains_on_gap=True)
UNFAIR = Condition("0 unfair", 0.0)
WEIGHTED = {weight: Condition(f"{weight:g}", weight) for weight in (0.15, 0.45, 1.0)}
HINGED = {weight: Condition(f"{weight:g} hinge", weight, gap_form="hinge") for weight in (0.45, 1.0)}


@dataclass(frozen=True)
class Setting:
    """What the runs of a data set share.

    A step sees `batch_size` train images and `gap_batch_size` gap images, in the proportion of the two splits, so that
    every image of either is seen as often. `max_images` bounds the images of a split that are measured on, and
    `base_lr` is the peak learning rate, whatever the batch.
    """

    space: SearchSpace
    data: dict[str, Any]
    batch_size: int
    gap_batch_size: int
    steps: int
    warmup_steps: int
    num_subnets: int
    base_lr: float
    weight_decay: float
    recalibration_images: int
    max_images: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "space": self.space.to_json()}


def slim_space() -> SearchSpace:
    """`mbv3-32` with half its channels and two lower resolutions; kernel size, depth and expand ratio stay elastic."""
    space = SearchSpace.load("mbv3-32")
    stages = tuple(dataclasses.replace(s, width=w) for s, w in zip(space.stages, _SLIM_WIDTHS, strict=True))
    return dataclasses.replace(
        space,
        name="mbv3-32-slim",
        resolutions=(12, 20),
        width_multipliers=(1.0,),
        stem_width=8,
        first_width=8,
        stages=stages,
        head_width=128,
        feature_width=128,
    )


def digits_setting() -> Setting:
    """Few images, none of them augmented, and enough passes over them that the training loss ends near its floor."""
    data = TrainConfig.load("digits").to_json()["data"]
    splits = {"gap": 0.034, "holdout": 0.15, "test": 0.68}  # 247 train, 60 gap, 269 holdout, 1,221 test images
    return Setting(
        space=slim_space(),
        data={**data, "splits": splits, "augment": {}},
        batch_size=32,
        gap_batch_size=8,
        steps=400,
        warmup_steps=40,
        num_subnets=3,
        base_lr=0.2,
        weight_decay=3e-5,
        recalibration_images=256,
    )


def cifar10_setting(root: Path | None) -> Setting:
    """CIFAR-10 with the usual mirrored and shifted images; meant for a GPU."""
    splits = {"gap": 0.1, "holdout": 0.15, "test": 0.2}  # the official test images stay the test split
    augment = {"shift": 0.125, "flip": True, "padding": "zeros"}
    statistics = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.247, 0.2435, 0.2616)}
    return Setting(
        space=SearchSpace.load("mbv3-32"),
        data={"dataset": "cifar10", "root": root and str(root), "splits": splits, "augment": augment, **statistics},
        batch_size=240,
        gap_batch_size=32,
        steps=12_000,
        warmup_steps=600,
        num_subnets=4,
        base_lr=0.32,
        weight_decay=1e-4,
        recalibration_images=2000,
        max_images=5000,
    )


def setting_of(options: argparse.Namespace) -> Setting:
    """The setting that the command line names; `--quick` trains for a few steps only."""
    if options.dataset == "cifar10" and options.root is None:
        raise SystemExit("--dataset cifar10 needs --root: the folder where torchvision's set lies (nothing is fetched)")
    setting = digits_setting() if options.dataset == "digits" else cifar10_setting(options.root)
    changed = {n: v for n in CHANGEABLE if (v := getattr(options, n)) is not None}
    setting = dataclasses.replace(setting, **changed)
    return dataclasses.replace(setting, steps=10, warmup_steps=2) if options.quick else setting


def add_options(parser: argparse.ArgumentParser, num_seeds: int) -> None:
    """The options that all benchmarks of supernets have."""
    parser.add_argument("--quick", action="store_true", help="two seeds of a few steps; nothing is written")
    parser.add_argument("--seeds", type=int, default=num_seeds, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--dataset", choices=("digits", "cifar10"), default="digits")
    parser.add_argument("--root", type=Path, help="folder of CIFAR-10")
    for name, kind in (("batch-size", int), ("gap-batch-size", int), ("steps", int), ("base-lr", float)):
        parser.add_argument(f"--{name}", type=kind, help="instead of the setting's; needs a --work of its own")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)


def train_config(setting: Setting, condition: Condition, seed: int, device: str, threads: int) -> TrainConfig:
    """The training config of a run. Every condition takes the same steps at the same learning rates."""
    # who trains on gap images sees as many images in a step as who compares losses on them
    batch_size = setting.batch_size + (setting.gap_batch_size if condition.trains_on_gap else 0)
    choices = ("kernel_sizes", "expand_ratios", "depths", "width_multipliers", "resolutions")
    phase = {
        "name": "sandwich",
        "steps": setting.steps,
        "base_lr": setting.base_lr,
        "warmup_steps": setting.warmup_steps,
        "num_subnets": setting.num_subnets,
        **dict.fromkeys(choices, "all"),
    }
    return TrainConfig.from_json(
        {
            "space": setting.space.name,
            "strategy": "sandwich",
            "data": setting.data,
            "batch_size": batch_size,
            "gap_batch_size": setting.gap_batch_size,
            "phases": [phase],
            "objective": {
                "gap_weight": condition.gap_weight,
                "gap_form": condition.gap_form,
                "add_gap_to_train": condition.trains_on_gap,
            },
            "optimizer": {
                "weight_decay": setting.weight_decay,
                "lr_batch_size": batch_size,  # so that learning rates don't scale with the batch
                "clip_norm": 5.0,
            },
            "recalibration_images": setting.recalibration_images,
            "checkpoint_every": 500,
            "evaluate_every": setting.steps,
            "seed": seed,
            "device": device,
            "num_threads": threads,
        }
    )


def trained(folder: Path, setting: Setting, config: TrainConfig) -> Trainer:
    """The trained supernet of a config with its images: from its checkpoint in `folder`, or trained now.

    Raises:
        CheckpointError: the checkpoint is of another space or config.
    """
    run = RunDirectory(folder)
    torch.set_num_threads(config.num_threads or 1)
    trainer = Trainer(run, setting.space, config, resume=checkpoint_path(run).exists())
    if trainer.state.progress.step < trainer.schedule.num_steps:
        trainer.train(progress=False)
    trainer.network.eval().requires_grad_(False)
    return trainer


def work_folder(given: Path | None, benchmark: str, dataset: str) -> Path:
    """Where finished runs of a benchmark are kept: each data set has a folder, unless one is given."""
    return RUNS / benchmark / dataset if given is None else given


def results_name(benchmark: str, options: argparse.Namespace) -> str:
    """The results of another data set or setting stand beside those of the digits."""
    changed = [f"{n.replace('_', '-')}-{v:g}" for n in CHANGEABLE if (v := getattr(options, n)) is not None]
    return "-".join([benchmark, *([] if options.dataset == "digits" else [options.dataset]), *changed])


def results_kind(options: argparse.Namespace) -> str:
    """The kind of machine that trained."""
    return machine_kind(torch.cuda.get_device_name() if options.device == "cuda" else None)


def same_terms(made_with: dict[str, Any]) -> dict[str, Any]:
    """What a finished run was made with, in the terms of today: options that came later are at their defaults."""
    if "config" not in made_with:
        return made_with
    return {**made_with, "config": TrainConfig.from_json(made_with["config"]).to_json()}


def supernet_folder(work: Path, condition: Condition, seed: int) -> Path:
    return work / f"lambda-{condition.name.replace(' ', '-')}-seed-{seed}"


def random_architectures(space: SearchSpace, num: int) -> list[Architecture]:
    """The first `num` of an endless row of distinct architectures drawn uniformly, the same in every call."""
    rng = np.random.default_rng(_ARCHITECTURE_STREAM)
    found: dict[Architecture, None] = {}
    while len(found) < num:
        found.update(dict.fromkeys(genome.decode(space, genome.sample(space, 1, rng))))
    return list(found)


def inherited(trainer: Trainer, architecture: Architecture, recalibrated: bool = True) -> StaticNetwork:
    """A sub-network in eval mode, with BN statistics of its own or with those that all sub-networks share."""
    if not recalibrated:
        return trainer.network.extract(architecture)
    images = trainer.config.recalibration_images
    return calibrated_subnet(trainer.network, architecture, trainer.images, images)


@torch.no_grad()
def judge(
    network: StaticNetwork, resolution: int, images: EvaluationImages, split: str, max_images: int | None
) -> tuple[float, float]:
    """Top-1 in [0, 1] and cross-entropy (no smoothing) of a network in eval mode on a split."""
    correct, loss, total = 0, 0.0, 0
    for x_nchw, labels in images.batches(split, resolution, max_images):
        logits: Tensor = network(x_nchw)
        correct += int((logits.argmax(1) == labels).sum())
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        total += len(labels)
    return correct / total, loss / total


def mean_and_deviation(values: Sequence[float] | Iterable[float]) -> tuple[float, float]:
    """Mean and standard deviation of a sample; NaN for the latter where there is one value."""
    array = np.asarray(list(values), dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else float("nan")


def confidence(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean of paired differences with its two-sided 95 % confidence interval by Student's t."""
    from scipy.stats import t

    mean, deviation = mean_and_deviation(differences)
    half = float(t.ppf(0.975, len(differences) - 1)) * deviation / len(differences) ** 0.5
    return mean, mean - half, mean + half
