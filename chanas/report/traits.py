"""What sets the networks of several targets apart (paper, figure 12): traits of architectures, and which differences
are more than chance."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chanas.arch import Architecture, SearchSpace


@dataclass(frozen=True)
class Trait:
    """A number of an architecture.

    name     heads its row          text   the number for people
    more     what networks with a larger number are or have, such as "have larger kernels"
    """

    name: str
    of: Callable[[Architecture], float]
    text: Callable[[float], str]
    more: str


def _blocks(architecture: Architecture) -> list[tuple[int, int]]:
    return [block for stage in architecture.stages for block in stage]


def _share_of(kernel_size: int) -> Callable[[Architecture], float]:
    return lambda a: statistics.fmean(k == kernel_size for k, _ in _blocks(a))


def _plain(value: float) -> str:
    return f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def traits(space: SearchSpace) -> tuple[Trait, ...]:
    """Of all architectures of a space; those of whole sub-spaces come first."""
    shares = (
        Trait(f"share of {k}×{k}", _share_of(k), _percent, f"have more {k}×{k} kernels")
        for k in reversed(space.kernel_sizes)
    )
    return (
        *sub_space_traits(),
        Trait("blocks", lambda a: float(sum(a.depths)), _plain, "are deeper (blocks)"),
        Trait("mean kernel size", lambda a: statistics.fmean(k for k, _ in _blocks(a)), _plain, "have larger kernels"),
        *shares,
        Trait("mean expand ratio", lambda a: statistics.fmean(e for _, e in _blocks(a)), _plain, "expand more"),
    )


def sub_space_traits() -> tuple[Trait, Trait]:
    """Traits that all members of a sub-space share."""
    return (
        Trait("resolution", lambda a: float(a.resolution), _plain, "take larger images (pixels)"),
        Trait("width multiplier", lambda a: a.width_multiplier, _plain, "are wider (width multiplier)"),
    )


def clearly_above(values: Mapping[str, Sequence[float]]) -> dict[str, list[str]]:
    """For each group, those of which it is clearly above: every one of its values above every one of theirs."""
    known = {name: group for name, group in values.items() if group}
    return {a: [b for b in known if min(known[a]) > max(known[b])] for a in known}


def sentences(trait: Trait, values: Mapping[str, Sequence[float]]) -> list[str]:
    """One for each target whose networks are clearly above others' in a trait, and where it reads as more too."""
    means = {name: trait.text(statistics.fmean(group)) for name, group in values.items() if group}
    out = []
    for name, below in clearly_above(values).items():
        told = [b for b in below if means[b] != means[name]]
        if told:
            theirs = " and ".join(told)
            against = " and ".join(means[b] for b in told)
            told_of = f"The networks for {name} {trait.more} than those for {theirs}"
            out.append(f"{told_of}: {means[name]} against {against} on average.")
    return out
