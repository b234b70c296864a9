"""Accuracies of architectures that a user names, and how far each can be trusted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.core import genome
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.progress import progress_bar
from chanas.errors import ArchitectureError, ConfigError
from chanas.network.accuracy import wilson_interval
from chanas.supernet.training.evaluate import SupernetEvaluator

MAX_RANDOM = 100_000


@dataclass(frozen=True)
class Request:
    """A requested architecture, or several drawn at random."""

    text: str
    architectures: tuple[Architecture, ...]
    is_random: bool = False


@dataclass(frozen=True)
class Judged:
    """One architecture on one split."""

    architecture: Architecture
    request: str
    """The text that named it, such as `largest`."""
    step: int
    """Training steps that the supernet had."""
    num_macs: int
    num_params: int
    split: str
    num_images: int
    num_correct: int

    @property
    def top1(self) -> float:
        """Accuracy in [0, 1]."""
        return self.num_correct / self.num_images

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the accuracy on all images of this kind with 95 % confidence."""
        return wilson_interval(self.num_correct, self.num_images)

    def to_json(self) -> dict[str, Any]:
        return {
            "architecture": self.architecture.key,
            "request": self.request,
            "step": self.step,
            "num_macs": self.num_macs,
            "num_params": self.num_params,
            "split": self.split,
            "num_images": self.num_images,
            "num_correct": self.num_correct,
            "top1": self.top1,
            "interval_95": list(self.interval),
        }


@dataclass(frozen=True)
class Spread:
    """Accuracies in [0, 1] of the architectures that one request drew at random."""

    request: str
    split: str
    num_architectures: int
    mean: float
    deviation: float | None
    """Standard deviation (of a sample); None for a single architecture."""
    lowest: float
    highest: float

    @classmethod
    def of(cls, judged: Sequence[Judged]) -> Spread:
        """Sum up the results of one request, at least one."""
        top1 = np.array([one.top1 for one in judged])
        deviation = float(top1.std(ddof=1)) if len(top1) > 1 else None
        request, split = judged[0].request, judged[0].split
        return cls(request, split, len(top1), float(top1.mean()), deviation, float(top1.min()), float(top1.max()))

    def to_json(self) -> dict[str, Any]:
        return {
            "request": self.request,
            "split": self.split,
            "num_architectures": self.num_architectures,
            "top1_mean": self.mean,
            "top1_deviation": self.deviation,
            "top1_lowest": self.lowest,
            "top1_highest": self.highest,
        }


def parse_request(text: str, space: SearchSpace, seed: int = 0) -> Request:
    """Parse `largest`, `smallest`, `random:20` or an architecture's key into architectures of a space.

    Random ones are drawn as `chanas.core.genome.sample` does, without repeats; the first ones of `random:20` are
    `random:5`.

    Raises:
        ConfigError: there is no such name, or as many architectures cannot be drawn.
        ArchitectureError: the key is of an architecture that is not in the space.
    """
    if text in ("largest", "smallest"):
        return Request(text, (space.largest if text == "largest" else space.smallest,))
    if text.partition(":")[0] == "random":
        return Request(text, _draw(text, space, seed), is_random=True)
    try:
        architecture = Architecture.from_plain_key(text)
    except ArchitectureError:
        raise ConfigError(
            f"expected largest, smallest, random:20 or an architecture key such as {space.smallest.key}, got '{text}'"
        ) from None
    space.check(architecture)
    return Request(text, (architecture,))


def _draw(text: str, space: SearchSpace, seed: int) -> tuple[Architecture, ...]:
    match = re.fullmatch(r"random:(\d{1,9})", text, re.ASCII)
    limit = min(MAX_RANDOM, space.num_architectures)
    if match is None or not 1 <= (num := int(match[1])) <= limit:
        raise ConfigError(f"expected random:N with N from 1 to {limit} in space '{space.name}', got '{text}'")
    rng = np.random.default_rng(seed)
    found: dict[Architecture, None] = {}
    while len(found) < num:
        found.update(dict.fromkeys(genome.decode(space, genome.sample(space, num, rng))))
    return tuple(found)[:num]


def judge(
    supernet: SupernetEvaluator, requests: Sequence[Request], split: str = "holdout", progress: bool = True
) -> Iterator[Judged | Spread]:
    """Evaluate what was asked for, in order; each result as soon as it is there, and a `Spread` after random ones.

    Args:
        supernet: trained, or on the way.
        requests: of the supernet's space.
        split: where the images are from.
        progress: show a progress bar where there is more than one architecture.

    Raises:
        DataError: there is no such split.
        ArchitectureError: an architecture is not in the supernet's space.
    """
    num_images = len(supernet.data.indices(split))
    total = sum(len(request.architectures) for request in requests)
    with progress_bar(total, "evaluate", "net", progress and total > 1) as bar:
        for request in requests:
            group = []
            for architecture in request.architectures:
                top1 = supernet.top1(architecture, split)
                judged = Judged(
                    architecture=architecture,
                    request=request.text,
                    step=supernet.step,
                    num_macs=architecture.num_macs(supernet.space, supernet.num_classes),
                    num_params=architecture.num_params(supernet.space, supernet.num_classes),
                    split=split,
                    num_images=num_images,
                    num_correct=round(top1 * num_images),
                )
                group.append(judged)
                bar.update()
                yield judged
            if request.is_random:
                yield Spread.of(group)
