"""The finalists: which architectures are proven, and which of them wins.

An architecture is named the winner only when its whole compiled network was measured inside the budget.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from chanas.core.arch import Architecture
from chanas.core.arrays import FloatArray
from chanas.core.genome import Genomes
from chanas.core.units import format_latency
from chanas.errors import ChanasError, InfeasibleError, MeasureError, TargetError

logger = logging.getLogger(__name__)

# A further round pays only if it may widen a limit by 5 %, and a finalist came within 5 % of the present one.
_WORTH_A_ROUND = 1.05


@dataclass(frozen=True)
class Timing:
    """Median and spread on a target, by its name."""

    target: str
    latency_s: float
    spread_s: float


@dataclass(frozen=True)
class Proof:
    """The measurements of an architecture that was compiled whole.

    timings       on each target in order; empty where nothing was measured
    top1_holdout  in [0, 1]; NaN where there are no weights to evaluate
    max_error     largest difference of outputs from PyTorch's
    error         why there is no measurement, or None
    """

    architecture: Architecture
    timings: tuple[Timing, ...] = ()
    top1_holdout: float = float("nan")
    max_error: float = float("nan")
    error: str | None = None

    @property
    def measured_s(self) -> tuple[float, ...]:
        """Measured seconds on each target in order."""
        return tuple(t.latency_s for t in self.timings)


class Prove(Protocol):
    """Compiles each architecture whole, compares it with PyTorch, measures it on every target, evaluates it on holdout.

    Gives one proof per architecture, in order. A failure is a proof with its `error`, never an exception.
    """

    def __call__(self, architectures: Sequence[Architecture], /) -> Sequence[Proof]: ...


class Proposal(NamedTuple):
    """An architecture to prove, and what is predicted of it: seconds on each target in order, top-1 and its spread."""

    architecture: Architecture
    predicted_s: tuple[float, ...]
    predicted_top1: float
    predicted_top1_spread: float


@dataclass(frozen=True)
class Finalist:
    """A proposal that was proven, and in which round."""

    proposal: Proposal
    proof: Proof
    round: int

    @property
    def architecture(self) -> Architecture:
        return self.proposal.architecture

    @property
    def predicted_s(self) -> tuple[float, ...]:
        """Predicted seconds on each target in order."""
        return self.proposal.predicted_s

    @property
    def measured_s(self) -> tuple[float, ...]:
        """Measured seconds on each target in order."""
        return self.proof.measured_s

    @property
    def top1(self) -> float:
        """Accuracy on holdout; the predicted one if there is none."""
        known = self.proof.top1_holdout
        return known if np.isfinite(known) else self.proposal.predicted_top1

    @property
    def ratios(self) -> tuple[float, ...]:
        """Measured over predicted latency, on each target in order."""
        return tuple(m / p for m, p in zip(self.measured_s, self.predicted_s, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Entry of `search/result.json`: latencies of the first target, and those of the others in `further`."""
        proof, proposal = self.proof, self.proposal
        figures = {n: None if proof.error else _number(getattr(proof, n)) for n in ("top1_holdout", "max_error")}
        timing = proof.timings[0] if proof.timings else None
        return {
            "key": self.architecture.key,
            "predicted": {
                "latency_s": self.predicted_s[0],
                "top1": proposal.predicted_top1,
                "top1_spread": proposal.predicted_top1_spread,
            },
            "measured": {
                "latency_s": None if timing is None else _number(timing.latency_s),
                "spread_s": None if timing is None else _number(timing.spread_s),
                **figures,
            },
            "further": [
                {"target": t.target, "predicted_s": p, "measured_s": t.latency_s, "spread_s": t.spread_s}
                for t, p in list(zip(proof.timings, self.predicted_s, strict=False))[1:]
            ],
            "error": proof.error,
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


def prove_all(prove: Prove, architectures: Sequence[Architecture]) -> Sequence[Proof]:
    """Call `prove` and check its answer. Raises ChanasError: it is not a proof of each architecture, in order."""
    proofs = prove(architectures)
    if [p.architecture.key for p in proofs] != [a.key for a in architectures]:
        raise ChanasError(
            f"expected a proof for each of {len(architectures)} finalists in order, got {len(proofs)} others"
        )
    return proofs


Propose = Callable[[tuple[float, ...], set[str]], list[Proposal]]


def prove_rounds(
    propose: Propose,
    prove: Prove,
    budgets_s: Mapping[str, float],
    first_limits_s: tuple[float, ...],
    max_rounds: int,
    *,
    widen: bool = True,
    enough: float = math.inf,
) -> tuple[Finalist, list[Finalist]]:
    """The winner and all finalists: rounds of `propose(limits_s, tried)` and `prove`, until the best measures inside.

    `propose` gives architectures not yet tried; `budgets_s` are seconds by target, the limits are in their order. Of
    those that measured inside every budget, the best accuracy wins, the faster one when equal; accuracies from
    `enough` on are equal. While there is none, or the limits move and a more accurate one was outside or all left room,
    another round follows, in which only what is predicted to beat the winner so far is proven. Its limits are the
    budgets over the worst measured-over-predicted ratio: tighter on targets where one was outside, wider (unless
    `widen` is false) where all were inside and one came near the limit. Where the device is lost in such a round, the
    winner so far stands.

    Where an accuracy is wanted (`enough` is finite), budgets are guesses of the search: where none inside has it, the
    fastest one that has it wins.

    Raises:
        ChanasError: a proof is not of every target.
        MeasureError: no finalist could be compiled and measured, or the device is lost before one is inside.
        InfeasibleError: none measured inside the budgets; the message names the nearest that was measured.
    """
    finalists: list[Finalist] = []
    winner: Finalist | None = None
    limits_s, budgets = first_limits_s, tuple(budgets_s.values())
    for number in range(1, max_rounds + 1):
        proposed = propose(limits_s, {f.architecture.key for f in finalists})
        if winner is not None:
            proposed = [p for p in proposed if p.predicted_top1 > winner.proposal.predicted_top1]
        if not proposed:
            break
        try:
            proofs = prove_all(prove, [p.architecture for p in proposed])
        except (MeasureError, TargetError) as lost:
            if winner is None:
                raise
            logger.warning("the winner is that of %d round(s) of finalists: %s", number - 1, lost)
            break
        finalists += [Finalist(p, proof, number) for p, proof in zip(proposed, proofs, strict=True)]
        measured = [f for f in finalists if f.proof.error is None]
        if any(len(f.measured_s) != len(budgets) for f in measured):
            raise ChanasError(f"expected finalists measured on each of {', '.join(budgets_s)}")
        inside = [f for f in measured if all(m <= b for m, b in zip(f.measured_s, budgets, strict=True))]
        winner = max(inside, key=lambda f: (min(f.top1, enough), [-s for s in f.measured_s]), default=None)
        following_s = _following_limits(limits_s, budgets, measured, widen)
        moves = [new - old for new, old in zip(following_s, limits_s, strict=True)]
        is_best = winner is not None and all(min(f.top1, enough) <= winner.top1 for f in measured)
        if winner is not None and max(moves) <= 0.0 and (is_best or min(moves) == 0.0):
            break
        limits_s = following_s
    accurate = [f for f in finalists if f.proof.error is None and f.top1 >= enough]
    if accurate and (winner is None or winner.top1 < enough):
        winner = min(accurate, key=lambda f: f.measured_s)
    if winner is None:
        raise _none_inside(finalists, budgets_s)
    return winner, finalists


def _none_inside(finalists: Sequence[Finalist], budgets_s: Mapping[str, float]) -> ChanasError:
    """Return the error for a search without a winner: nothing could be measured, or the nearest that was is outside."""
    budgets = tuple(budgets_s.values())
    measured = [f for f in finalists if f.proof.error is None]
    if not measured:
        first = finalists[0].proof.error if finalists else "there was none"
        return MeasureError(f"none of {len(finalists)} finalists could be compiled and measured; the first: {first}")
    nearest = min(measured, key=lambda f: max(m / b for m, b in zip(f.measured_s, budgets, strict=True)))
    several = len(budgets) > 1
    asked = " and ".join(format_latency(b) + (f" on {name}" if several else "") for name, b in budgets_s.items())
    reached = " and ".join(map(format_latency, nearest.measured_s))
    return InfeasibleError(
        f"none of {len(measured)} finalists measured inside the budget{'s' if several else ''} of {asked}: "
        f"the {'nearest' if several else 'smallest'} reached is {reached} ({nearest.architecture.key}); raise the "
        f"budget{'s' if several else ''}"
    )


def _following_limits(
    limits_s: tuple[float, ...], budgets_s: tuple[float, ...], measured: Sequence[Finalist], widen: bool
) -> tuple[float, ...]:
    """Return the limits to predict with on each target, so that the worst measured there would have met its budget."""
    limits = []
    for i, (limit_s, budget_s) in enumerate(zip(limits_s, budgets_s, strict=True)):
        fitting_s = budget_s / max((f.ratios[i] for f in measured), default=1.0)
        is_near = any(_WORTH_A_ROUND * f.predicted_s[i] > limit_s for f in measured)
        if any(f.measured_s[i] > budget_s for f in measured):
            limits.append(min(limit_s, fitting_s))
        elif widen and is_near and fitting_s > _WORTH_A_ROUND * limit_s:
            limits.append(fitting_s)
        else:
            limits.append(limit_s)
    return tuple(limits)


def unmeasured_proofs(
    architectures: Sequence[Architecture], evaluate: Callable[[Architecture], float] | None
) -> list[Proof]:
    """Proofs without any latency, for a device that is not here; with the accuracies, where they can be evaluated."""
    return [Proof(a, top1_holdout=float("nan") if evaluate is None else evaluate(a)) for a in architectures]


def pick_by_prediction(propose: Propose, prove: Prove, limits_s: tuple[float, ...]) -> tuple[Finalist, list[Finalist]]:
    """The winner and all finalists of one round in which no latency is measured: the predicted ones stand alone.

    Raises:
        InfeasibleError: nothing was proposed.
    """
    proposed = propose(limits_s, set())
    if not proposed:
        raise InfeasibleError("the search found no network inside the limits; raise one of them")
    proofs = prove_all(prove, [p.architecture for p in proposed])
    finalists = [Finalist(p, proof, 1) for p, proof in zip(proposed, proofs, strict=True)]
    return max(finalists, key=lambda f: f.top1), finalists
