"""Configurations to measure next on a new device, chosen by those that were measured there and on others
(`TransferSearch`), and the trials that this would have saved on a device where all were measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chanas.core.arrays import FloatArray
from chanas.core.statistics import spearman
from chanas.core.units import format_latency
from chanas.errors import ConfigError, DataError, printable
from chanas.files.device_columns import LATENCY
from chanas.prescheduler.tuning.configurations import ConfigurationTable
from chanas.prescheduler.tuning.transfer import ALL, ALONE, TransferSearch

# A search is for few measurements: each costs as many operations as the square of how many there were.
_MAX_MEASURED = 1000
# Opinions whose weights are worth a word.
_SHOWN_WEIGHT = 0.05
CLOSE = {5: 1.05, 1: 1.01}
"""By percent: a search is so close whose best takes at most so many times as long as the best of all."""


# ---- what to measure next -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Proposal:
    """Configurations to measure next on a device.

    rows          of the table, the most promising first
    predicted_ms  of each row; None while nothing has worked on the device
    weights       by other device, how far what was measured is as on it alone
    weight_all    of the mean of all others
    weight_none   of nothing but what was measured on the device itself
    """

    table: ConfigurationTable
    device: str
    rows: tuple[int, ...]
    predicted_ms: tuple[float, ...] | None
    weights: Mapping[str, float]
    weight_all: float
    weight_none: float

    @property
    def best(self) -> int | None:
        """The row of the fastest configuration that was measured on the device; None where none works."""
        own = self.table.of(self.device)
        return int(np.argmin(np.where(np.isnan(own), np.inf, own))) if np.isfinite(own).any() else None

    def save(self, path: Path) -> None:
        """Write the table with the proposed configurations first; with their latencies filled in it is the table for
        the next proposal.

        Raises:
            ChanasError: the file cannot be written.
        """
        self.table.save(path, self.device, self.rows)

    def lines(self) -> Iterator[str]:
        """The proposal for people."""
        own, parameters = self.table.of(self.device), self.table.parameters
        measured, failed = int((~np.isnan(own)).sum()), int(np.isposinf(own).sum())
        yield f"space      {len(own)} configurations of {len(parameters)} parameters"
        for name in self.table.names:
            yield f"left out   column {printable(name)}, whose words name rows and don't describe them"
        yield f"measured   {measured} on {self.device}" + (f", {failed} of them failed" if failed else "")
        opinions = [*self.weights.items(), ("the mean of all", self.weight_all)]
        opinions.append((f"{self.device} alone", self.weight_none))
        shown = sorted(((n, w) for n, w in opinions if w >= _SHOWN_WEIGHT), key=lambda pair: -pair[1])
        yield "weights    " + ", ".join(f"{name} {weight:.2f}" for name, weight in shown)
        if self.best is not None:
            latency = format_latency(1e-3 * math.exp(own[self.best]))
            yield f"best       {latency}: {self.table.told(self.best)}"
        for place, row in enumerate(self.rows):
            doubt = "" if self.predicted_ms is None else f" (about {format_latency(1e-3 * self.predicted_ms[place])})"
            yield f"next       {self.table.told(row)}{doubt}"
        if not self.rows:
            yield f"next       none: all configurations were measured on {self.device}"

    def to_json(self) -> dict[str, Any]:
        """The same as JSON."""
        own = self.table.of(self.device)
        best = self.best
        predicted = self.predicted_ms or (None,) * len(self.rows)
        return {
            "device": self.device,
            "num_configurations": len(own),
            "num_measured": int((~np.isnan(own)).sum()),
            "num_failed": int(np.isposinf(own).sum()),
            "left_out": list(self.table.names),
            "weights": dict(self.weights),
            "weight_all": self.weight_all,
            "weight_none": self.weight_none,
            "best": None
            if best is None
            else {"configuration": self.table.configuration(best), "ms": math.exp(own[best])},
            "next": [
                {"configuration": self.table.configuration(row), "predicted_ms": ms}
                for row, ms in zip(self.rows, predicted, strict=True)
            ],
        }


def propose(
    table: ConfigurationTable, device: str, num: int = 8, sources: Sequence[str] = (), seed: int = 0
) -> Proposal:
    """Choose the `num` configurations to measure next on a device, by what was measured there and on the `sources`,
    which are all other devices unless they are named.

    Raises:
        ConfigError: the table has no such device, or `num` is below 1.
        DataError: more was measured on the device than a search goes by.
    """
    if num < 1:
        raise ConfigError(f"expected --num of at least 1, got {num}")
    own, others = table.of(device), table.others(device, sources)
    known = np.flatnonzero(~np.isnan(own)).tolist()
    if len(known) > _MAX_MEASURED:
        raise DataError(
            f"expected at most {_MAX_MEASURED} configurations that were measured on {device} in {table.path}, got "
            f"{len(known)}; --simulate plays a search on them"
        )
    search = TransferSearch(table.x, table.sources(others), np.random.default_rng(seed))
    search.tell([(row, float(own[row])) for row in known])
    predicted, promising = search.model.predict(), search.scores()
    rows = sorted(search.ask(num), key=lambda row: -promising[row])  # those at random are not the first
    weights = search.model.weights()
    return Proposal(
        table,
        device,
        tuple(rows),
        tuple(np.exp(predicted[rows]).tolist()) if math.isfinite(search.best) else None,
        {name: weights.get(place, 0.0) for place, name in enumerate(others)},
        weights.get(ALL, 0.0),
        weights[ALONE],
    )


# ---- searches that are played ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Played:
    """Searches on a device where the configurations were measured, with other devices and without any.

    rank_correlations  Spearman's, by other device; 0 where there is none
    limit              trials after which a search ended
    helped, alone      by percent, the mean number of trials until a search came so close to the best of all; one that
                       did not counts as one more than `limit`
    """

    table: ConfigurationTable
    device: str
    num: int
    rank_correlations: Mapping[str, float]
    limit: int
    num_seeds: int
    helped: Mapping[int, float]
    alone: Mapping[int, float]

    def lines(self) -> Iterator[str]:
        """The searches for people."""
        left_out = len(self.table.log_latencies) - self.num
        others = f", {left_out} not measured on {self.device} left out" if left_out else ""
        yield f"space      {self.num} configurations of {len(self.table.parameters)} parameters{others}"
        orders = sorted(self.rank_correlations.items(), key=lambda pair: -pair[1])
        yield f"alike      {', '.join(f'{name} {value:.2f}' for name, value in orders)} (rank correlations)"
        yield f"played     {self.num_seeds} searches of at most {self.limit} trials; {self.limit + 1}: not found"
        for percent, helped in self.helped.items():
            alone, share = self.alone[percent], helped / self.alone[percent]
            yield f"within {percent} % {helped:.1f} trials with other devices, {alone:.1f} without: {share:.2f}"

    def to_json(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "device": self.device,
            "num_configurations": self.num,
            "rank_correlations": dict(self.rank_correlations),
            "num_trials": self.limit,
            "num_seeds": self.num_seeds,
        } | {
            f"within_{percent}_percent": {
                "helped": helped,
                "alone": self.alone[percent],
                "share": helped / self.alone[percent],
            }
            for percent, helped in self.helped.items()
        }


def simulate(
    table: ConfigurationTable,
    device: str,
    sources: Sequence[str] = (),
    num_trials: int = 100,
    num_seeds: int = 5,
    seed: int = 0,
) -> Played:
    """Play searches on the configurations that were measured on a device, as if they were not known; a value that is
    served counts as one trial.

    Raises:
        ConfigError: the table has no such device, or a number is below 1.
        DataError: there is no other device, or fewer than two configurations work on this one.
    """
    for name, value in (("trials", num_trials), ("seeds", num_seeds)):
        if value < 1:
            raise ConfigError(f"expected --{name} of at least 1, got {value}")
    own, others = table.of(device), table.others(device, sources)
    if not others:
        raise DataError(f"expected columns DEVICE{LATENCY} of other devices than {device} in {table.path}, got none")
    if (num := int(np.isfinite(own).sum())) < 2:
        raise DataError(f"expected at least 2 configurations that work on {device} in {table.path}, got {num}")
    rows = np.flatnonzero(~np.isnan(own))
    x, truth, known = table.x[rows], own[rows], table.sources(others)[rows]

    def mean_trials(with_sources: FloatArray) -> dict[int, float]:
        seeds = [np.random.default_rng([seed, number]) for number in range(num_seeds)]
        curves = [gaps(play(x, with_sources, truth, rng, num_trials), truth) for rng in seeds]
        return {p: float(np.mean([trials_until(curve, close) for curve in curves])) for p, close in CLOSE.items()}

    alike = {name: spearman(column, truth) or 0.0 for name, column in zip(others, known.T, strict=True)}
    helped, alone = mean_trials(known), mean_trials(known[:, :0])
    return Played(table, device, len(rows), alike, num_trials, num_seeds, helped, alone)


def play(x: FloatArray, sources: FloatArray, truth: FloatArray, rng: np.random.Generator, num_trials: int) -> list[int]:
    """Play one search and return the points in the order in which it tried them, at most `num_trials`.

    Args:
        x: float64[N, F].
        sources: float64[N, S] of log latencies on other devices.
        truth: float64[N] of those on this one, infinite where one does not work.
    """
    search, tried = TransferSearch(x, sources, rng), list[int]()
    for _ in range(min(num_trials, len(truth))):
        (index,) = search.ask(1)
        search.tell([(index, float(truth[index]))])
        tried.append(index)
    return tried


def gaps(tried: Sequence[int], truth: FloatArray) -> list[float]:
    """Latencies of the best after 1, 2, … trials over that of the best of all; infinite while nothing works."""
    return [math.exp(best - truth.min()) for best in np.minimum.accumulate(truth[list(tried)]).tolist()]


def trials_until(curve: Sequence[float], close: float) -> int:
    """Trials until the gap is at most `close`; one more than there are when it never is."""
    return next((i + 1 for i, gap in enumerate(curve) if gap <= close), len(curve) + 1)
