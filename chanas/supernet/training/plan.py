"""The plan of a training: images, splits, passes over them, and about how long they take on this machine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.units import format_estimate
from chanas.supernet.data.images import ImageData
from chanas.supernet.data.loader import training_batches
from chanas.supernet.data.splits import SPLITS
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.training.phases import Schedule, StepPlan

FEW_PASSES = 8
"""Passes over the training images below which a supernet from fresh weights is far from what it could be."""
FEW_PER_CLASS = 50
"""Training images of a class below which fresh weights learn little that holds for other images."""
_FORWARD_SHARE = 1 / 3  # of a forward and a backward pass
_NUM_SAMPLED = 32
_REPEATS = 2
_TIMED_PIXELS = 32 * 32 * 64


@dataclass(frozen=True)
class TrainingPlan:
    """The plan of a training.

    space      whose sub-networks are trained
    data       the images
    schedule   the steps
    start      the first of them: above 0 where a training is continued
    seconds    that the steps from `start` on and the evaluations take here, about
    threads    of PyTorch
    is_fresh   weights are fresh, not taken from another training
    """

    space: SearchSpace
    data: ImageData
    schedule: Schedule
    start: int
    seconds: float
    threads: int
    is_fresh: bool

    @property
    def num_passes(self) -> float:
        """Passes over the training images."""
        return self.schedule.num_steps * self.schedule.config.batch_size / self.schedule.num_train

    def lines(self) -> list[str]:
        """The plan in words, the most important first."""
        config, num_steps = self.schedule.config, self.schedule.num_steps
        splits = ", ".join(f"{name} {len(self.data.indices(name))}" for name in SPLITS)
        only = self.schedule.only
        what = f"architecture {only.key}" if only is not None else f"space {self.space.name}"
        resolutions = self.space.resolutions if only is None else (only.resolution,)
        pixels = ", ".join(map(str, resolutions))
        gap = config.loader.gap_batch_size
        per_step = f"{config.batch_size}{f' + {gap} gap' if gap else ''} images"
        where = "a GPU" if config.device == "cuda" else f"this machine with {self.threads} thread(s)"
        begin = f"from step {self.start} of them on, " if self.start else ""
        images, *others = self.data.inspection.lines()
        return [
            f"images     {images}",
            *(f"           {line}" for line in others),
            f"splits     {splits}",
            f"network    {what}, {self.data.num_classes} classes, input of {pixels} pixels{self._scaling(resolutions)}",
            f"training   {self.schedule.num_train} images × {self.num_passes:.3g} passes = {num_steps} steps of "
            f"{per_step}; {begin}{format_estimate(self.seconds)} on {where}",
            *(f"warning    {line}" for line in self._warnings()),
        ]

    def _scaling(self, resolutions: tuple[int, ...]) -> str:
        """The enlargement of images that are smaller than the network's input."""
        side = min(self.data.inspection.median_size)
        return f" (images of {side} are enlarged)" if 0 < side < min(resolutions) else ""

    def _warnings(self) -> list[str]:
        """Warnings about few passes or images."""
        if not self.is_fresh:
            return []
        lines = []
        if self.num_passes < FEW_PASSES:
            lines.append(
                f"{self.num_passes:.2g} passes over the images are few: expect a low accuracy; train longer with more "
                "epochs in a --config of your own, or on a GPU"
            )
        labels = self.data.source.labels[self.data.indices("train")]
        fewest = int(np.bincount(labels, minlength=self.data.num_classes).min())
        if fewest < FEW_PER_CLASS:
            lines.append(
                f"{fewest} training images of a class are few for fresh weights: begin with published ones "
                "(`chanas import-supernet`, then `train-supernet --init`), or add images"
            )
        return lines


def estimate_s(network: Supernet, data: ImageData, schedule: Schedule, start: int, device: torch.device) -> float:
    """Seconds of the steps from `start` on and of the evaluations, about: the largest and the smallest sub-network are
    timed for a moment, others lie between them by their multiply-accumulates."""
    config, space, only = schedule.config, network.space, schedule.only
    num_left = schedule.num_steps - start
    if num_left <= 0:
        return 0.0
    cost = _image_cost(network, device, only)
    sampled = np.unique(np.linspace(start, schedule.num_steps - 1, _NUM_SAMPLED).astype(int)).tolist()
    plans = [schedule.plan(step) for step in sampled]
    num_images = config.batch_size + config.loader.gap_batch_size
    step_s = num_images * float(np.mean([sum(cost(a) for _, a in plan.subnets) for plan in plans]))
    step_s += _loading_s(data, schedule, plans[-1], device)
    judged = (space.largest, space.smallest) if only is None else (only,)
    looked_at = min(config.recalibration_images, schedule.num_train) + len(data.indices("holdout"))
    evaluation_s = _FORWARD_SHARE * looked_at * sum(cost(a) for a in judged)
    num_evaluations = num_left // config.evaluate_every + 1
    return num_left * step_s + num_evaluations * evaluation_s


def rehearse(network: Supernet, architecture: Architecture, device: torch.device) -> tuple[Callable[[], None], int]:
    """A forward and a backward pass of a sub-network that leave nothing behind, and the number of their images: so many
    that they take about a second at most."""
    subnet = network.extract(architecture).to(device).train()
    side = architecture.resolution
    num_images = max(2, _TIMED_PIXELS // side**2)
    images = torch.zeros((num_images, network.space.in_channels, side, side), device=device)
    images = images.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        subnet(images).sum().backward()

    return step, num_images


def _image_cost(network: Supernet, device: torch.device, only: Architecture | None) -> Callable[[Architecture], float]:
    """Seconds of a forward and a backward pass of one image, by the architecture."""
    space, num_classes = network.space, network.num_classes
    ends = (space.smallest, space.largest) if only is None else (only, only)
    seconds = [_time_image(network, architecture, device) for architecture in ends]
    macs = [architecture.num_macs(space, num_classes) for architecture in ends]

    def cost(architecture: Architecture) -> float:
        if macs[0] == macs[1]:
            return seconds[1]
        share = (architecture.num_macs(space, num_classes) - macs[0]) / (macs[1] - macs[0])
        return max(0.0, seconds[0] + share * (seconds[1] - seconds[0]))

    return cost


def _time_image(network: Supernet, architecture: Architecture, device: torch.device) -> float:
    step, num_images = rehearse(network, architecture, device)
    step()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return min(times) / num_images


def _loading_s(data: ImageData, schedule: Schedule, plan: StepPlan, device: torch.device) -> float:
    """Seconds until a step's images are there; processes that decode them share the cores with the training."""
    alone = dataclasses.replace(data, config=data.config.model_copy(update={"num_workers": 0}))
    began = time.perf_counter()
    next(training_batches(alone, schedule.config.loader, [(plan.step, plan.resolution)], device=device))
    return time.perf_counter() - began
