"""Traits that set the networks of several targets apart (paper, figure 12): which differences are more than chance."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chanas.core.arch import Architecture, SearchSpace


@dataclass(frozen=True)
class Trait:
    """A number of an architecture.

    name  heads its row             text  the number for people
    more  what networks with a larger number are or have, such as "have larger kernels"; empty: nothing is told of it
    unit  stands behind numbers in a sentence
    """

    name: str
    of: Callable[[Architecture], float]
    text: Callable[[float], str]
    more: str = ""
    unit: str = ""


def _blocks(architecture: Architecture) -> list[tuple[int, int]]:
    return [block for stage in architecture.stages for block in stage]


def _share_of(kernel_size: int) -> Callable[[Architecture], float]:
    return lambda a: statistics.fmean(k == kernel_size for k, _ in _blocks(a))


def _plain(value: float) -> str:
    return f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def traits(space: SearchSpace) -> tuple[Trait, ...]:
    """Compute the traits of the architectures of a space."""
    largest = space.kernel_sizes[-1]
    return (
        Trait("resolution", lambda a: float(a.resolution), _plain, "take larger images", "pixels"),
        Trait("width multiplier", lambda a: a.width_multiplier, _plain, "are wider"),
        Trait("blocks", lambda a: float(sum(a.depths)), _plain, "are deeper", "blocks"),
        Trait("mean kernel size", lambda a: statistics.fmean(k for k, _ in _blocks(a)), _plain, "have larger kernels"),
        *(
            Trait(f"share of {k}×{k}", _share_of(k), _percent, f"have more {k}×{k} kernels" if k == largest else "")
            for k in reversed(space.kernel_sizes)
        ),
        Trait("mean expand ratio", lambda a: statistics.fmean(e for _, e in _blocks(a)), _plain, "expand more"),
    )


CLEAR = 0.9
"""Chance from which on it is told that one group is above another."""


def chance_above(a: Sequence[float], b: Sequence[float]) -> float:
    """Estimate the probability that a random member of `a` is above one of `b`; equal ones count half."""
    wins = sum((x > y) + 0.5 * (x == y) for x in a for y in b)
    return wins / (len(a) * len(b))


def sentences(trait: Trait, values: Mapping[str, Sequence[float]]) -> list[str]:
    """One for each target whose networks are above others' with a chance of CLEAR, and where it reads as more too."""
    known = {name: group for name, group in values.items() if group and trait.more}
    means = {name: statistics.fmean(group) for name, group in known.items()}
    texts = {name: trait.text(mean) for name, mean in means.items()}
    out = []
    for name in sorted(known, key=lambda n: -means[n]):
        chances = {b: chance_above(known[name], known[b]) for b in known if b != name}
        below = [b for b, chance in chances.items() if chance >= CLEAR and texts[b] != texts[name]]
        if below:
            theirs, against = " and ".join(below), " and ".join(texts[b] for b in below)
            numbers = f"{texts[name]} against {against} {trait.unit}".rstrip()
            least = 100 * min(chances[b] for b in below)
            told = f"The networks for {name} {trait.more} than those for {theirs}: {numbers} on average"
            out.append(f"{told}, and so in {least:.0f} of 100 pairs.")
    return out
