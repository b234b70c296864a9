"""The finalists: which architectures are proven, and which of them wins.

An architecture is named the winner only when its whole compiled network was measured inside the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chanas.arch import Architecture, SearchSpace
from chanas.errors import ChanasError, InfeasibleError, MeasureError
from chanas.genome import FloatArray, Genomes, encode
from chanas.units import format_latency


class Proof(Protocol):
    """What was found when an architecture was compiled whole.

    measured_latency_s, spread_s  median and spread on the target
    top1_holdout                  in [0, 1]; NaN where there are no weights to evaluate
    max_error                     largest difference of outputs from PyTorch's
    error                         why there is no measurement, or None; the figures then mean nothing
    """

    @property
    def architecture(self) -> Architecture: ...
    @property
    def measured_latency_s(self) -> float: ...
    @property
    def spread_s(self) -> float: ...
    @property
    def top1_holdout(self) -> float: ...
    @property
    def max_error(self) -> float: ...
    @property
    def error(self) -> str | None: ...


@dataclass(frozen=True)
class ProofRecord:
    """A `Proof` as plain data."""

    architecture: Architecture
    measured_latency_s: float = float("nan")
    spread_s: float = float("nan")
    top1_holdout: float = float("nan")
    max_error: float = float("nan")
    error: str | None = None


class Prove(Protocol):
    """Compiles each architecture whole, compares it with PyTorch, measures it on the target, evaluates it on holdout.

    Gives one proof per architecture, in order. A failure is a proof with its `error`, never an exception.
    """

    def __call__(self, architectures: Sequence[Architecture], /) -> Sequence[Proof]: ...


@dataclass(frozen=True)
class Finalist:
    """An architecture that was proven, beside what was predicted of it."""

    architecture: Architecture
    predicted_latency_s: float
    predicted_top1: float
    predicted_top1_spread: float
    proof: Proof
    round: int

    @property
    def top1(self) -> float:
        """On holdout; the predicted one where there is none."""
        return self.proof.top1_holdout if np.isfinite(self.proof.top1_holdout) else self.predicted_top1

    @property
    def ratio(self) -> float:
        """Measured over predicted latency."""
        return self.proof.measured_latency_s / self.predicted_latency_s

    def to_json(self) -> dict[str, Any]:
        failed = self.proof.error is not None
        measured = ("measured_latency_s", "spread_s", "top1_holdout", "max_error")
        values = {n: None if failed else _number(getattr(self.proof, n)) for n in measured}
        return {
            "key": self.architecture.key,
            "predicted": {
                "latency_s": self.predicted_latency_s,
                "top1": self.predicted_top1,
                "top1_spread": self.predicted_top1_spread,
            },
            "measured": {
                "latency_s": values["measured_latency_s"],
                "spread_s": values["spread_s"],
                "top1_holdout": values["top1_holdout"],
                "max_error": values["max_error"],
            },
            "error": self.proof.error,
            "round": self.round,
        }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def pick(genomes: Genomes, value: FloatArray, num: int, min_distance: int) -> list[int]:
    """Positions of up to `num` rows of int16[N, L], by descending value, that differ in `min_distance` genes.

    Rows that are closer come in only when there are too few others; equal rows never do.
    """
    order = np.argsort(-value, kind="stable").tolist()
    chosen: list[int] = []
    for distance in range(min_distance, 0, -1):
        for i in order:
            if len(chosen) == num:
                return chosen
            if all(np.count_nonzero(genomes[i] != genomes[j]) >= distance for j in chosen):
                chosen.append(i)
    return chosen


def proven(prove: Prove, architectures: Sequence[Architecture]) -> Sequence[Proof]:
    """What `prove` answers, checked. Raises ChanasError: it is not a proof of each architecture, in order."""
    proofs = prove(architectures)
    if [p.architecture.key for p in proofs] != [a.key for a in architectures]:
        raise ChanasError(
            f"expected a proof for each of {len(architectures)} finalists in order, got {len(proofs)} others"
        )
    return proofs


Propose = Callable[[float, set[str]], list[tuple[Architecture, float, float, float]]]


def prove_rounds(
    propose: Propose, prove: Prove, budget_s: float, first_limit_s: float, max_rounds: int
) -> tuple[Finalist, list[Finalist]]:
    """The winner and all finalists: rounds of `propose(limit_s, tried)` and `prove`, until one measures inside.

    `propose` gives (architecture, predicted latency, predicted top-1, its spread) of architectures not yet tried; after
    a round in which none measured inside `budget_s`, the limit is tightened by the worst measured-over-predicted ratio.
    Of those inside, the best accuracy wins, the faster one when equal.

    Raises:
        MeasureError: no finalist could be compiled and measured.
        InfeasibleError: none measured inside the budget; the message names the fastest that was measured.
    """
    finalists: list[Finalist] = []
    limit_s = first_limit_s
    for number in range(1, max_rounds + 1):
        proposed = propose(limit_s, {f.architecture.key for f in finalists})
        if not proposed:
            break
        proofs = proven(prove, [architecture for architecture, *_ in proposed])
        finalists += [Finalist(*facts, proof, number) for facts, proof in zip(proposed, proofs, strict=True)]
        measured = [f for f in finalists if f.proof.error is None]
        inside = [f for f in measured if f.proof.measured_latency_s <= budget_s]
        if inside:
            return max(inside, key=lambda f: (f.top1, -f.proof.measured_latency_s)), finalists
        if measured:
            limit_s = min(limit_s, budget_s / max(f.ratio for f in measured))
    measured = [f for f in finalists if f.proof.error is None]
    if not measured:
        first = finalists[0].proof.error if finalists else "there was none"
        raise MeasureError(f"none of {len(finalists)} finalists could be compiled and measured; the first: {first}")
    fastest = min(measured, key=lambda f: f.proof.measured_latency_s)
    raise InfeasibleError(
        f"none of {len(measured)} finalists measured inside the budget of {format_latency(budget_s)}: the smallest "
        f"reached is {format_latency(fastest.proof.measured_latency_s)} ({fastest.architecture.key}); raise the budget"
    )


def genome_of(space: SearchSpace, architecture: Architecture) -> list[int]:
    """The genome of one architecture as plain integers."""
    return [int(g) for g in encode(space, [architecture])[0]]
