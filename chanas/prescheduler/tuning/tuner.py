"""Exploration of one operator's schedule space (paper, section 3.5, figure 9), as a state that is asked and told.

The order of events: an initial set H at random (or, once the cost model knows similar operators, the points that it
thinks best); then rounds of starting from good points of H, mutating and crossing, scoring the children with the cost
model, and measuring the best of them.

Points that somebody suggests, such as those of a table of another device, are tried before all others. With a prior
(`warm_start`) H is made of what was best on another device, and of points from further down the ranking that its
records predict. When the seconds of H are ordered otherwise than predicted, the prior is dropped; when that was so of
most operators before, it is not asked (`cost_model/guards`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.statistics import expected_improvement
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.guards import Guard
from chanas.prescheduler.tuning.cost_model.history import CostModel, Prior
from chanas.prescheduler.tuning.mutate import breed

# Untried points that are drawn at random, beside bred ones, to see whether there is something left to gain.
_IMPROVEMENT_POINTS = 192
# A prior is judged by at least so many valid points of the first batch, and dropped below this rank correlation.
_NUM_JUDGED = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """Constants of the exploration of one operator."""

    num_initial: int = 4
    """Size of the initial set H."""
    batch_size: int = 4
    """The top k: points measured between two questions to the cost model."""
    num_children: int = 48
    """Children bred and scored for each batch."""
    num_drawn: int = 512
    """Untried points drawn at random and scored beside the children: of most operators' spaces, all that are left."""
    gamma: float = 8.0
    """γ of the start probability exp(−γ (E* − E_p) / E*)."""
    exploration: float = 0.5
    """Standard deviations subtracted from the predicted log seconds when children are ranked."""
    random_share: float = 0.1
    """Share of a batch that is drawn at random, so that no part of the space is out of reach."""
    spread_share: float = 0.5
    """Share of the initial set that is spread over the ranking that a prior predicts, so that it can be judged."""
    min_tau: float = 0.0
    """A prior whose forecast of the first points correlates less than this with their seconds (Kendall) is dropped."""


DEFAULT_SEARCH = Search()


class Tuner(Protocol):
    """Explores the schedule space of one operator: it is asked for points, and told what they took."""

    def ask(self, num: int) -> list[Point]:
        """The next points to measure, about `num`; empty when none is left to be tried."""

    def tell(self, records: Sequence[TuningRecord]) -> None:
        """Take in measured points, failures included."""

    def promise(self, rival_s: float = math.inf) -> float:
        """The improvement, in log seconds, that further points promise over the best so far, or over another operator
        that computes the same in `rival_s`. Infinite while nothing works, zero when nothing is left."""


class OperatorTuner:
    """The `Tuner` of this module's evolution with a cost model."""

    def __init__(
        self,
        space: ScheduleSpace[Any],
        model: CostModel,
        num_trials: int,
        kept: Sequence[TuningRecord],
        seed: int,
        prior: Prior | None = None,
        suggested: Sequence[Point] = (),
        search: Search = DEFAULT_SEARCH,
    ) -> None:
        self.space = space
        self._model, self._search = model, search
        self._rng = np.random.default_rng(seed)
        self._records = {r.point: r for r in kept if space.contains(r.point)}
        self._num_kept = len(self._records)
        self.limit = num_trials
        """Points tried in all, kept records included; may be raised when they are used up."""
        self._suggested = tuple(p for p in suggested if space.contains(p))
        self._prior = prior
        self._predicted: dict[Point, float] = {}
        self._guard = Guard(_NUM_JUDGED, lambda _: search.min_tau)
        self.prior_dropped = False
        if prior is not None:
            model.history.add_elsewhere(space, prior)
        self._judge_prior(list(self._records.values()))
        model.observe(space, list(self._records.values()))

    @property
    def prior(self) -> Prior | None:
        """The other device's records; there even when they were dropped."""
        return self._prior

    @property
    def uses_prior(self) -> bool:
        """True if there is a prior and it says something about the points tried here: not if all were tried before."""
        return self._prior is not None and (self._num_kept == 0 or self.num_tried > self._num_kept)

    @property
    def trusts_prior(self) -> bool:
        """True if there is a prior that was right about this operator or, before that is known, about most others."""
        if self._prior is None or self.prior_dropped:
            return False
        unguarded = self._search.min_tau <= -1.0
        return self.tau is not None or unguarded or not self._prior.trust.is_lost

    @property
    def num_tried(self) -> int:
        return len(self._records)

    @property
    def num_left(self) -> int:
        """Trials still to be made."""
        return max(0, min(self.limit, self.space.num_points) - self.num_tried)

    @property
    def room(self) -> int:
        """Points that were never tried."""
        return self.space.num_points - self.num_tried

    @property
    def best(self) -> TuningRecord | None:
        """The fastest valid record."""
        valid = [r for r in self._records.values() if r.seconds is not None]
        return min(valid, key=lambda r: r.seconds or 0.0, default=None)

    @property
    def best_s(self) -> float | None:
        return None if self.best is None else self.best.seconds

    def ask(self, num: int) -> list[Point]:
        """The next points to measure: distinct, legal, untried; at most `num`, but the initial set at once. Empty when
        the trials are used up."""
        num = min(num, self.num_left)
        valid = [r for r in self._records.values() if r.seconds is not None]
        tried = frozenset(self._records)
        if num == 0:
            return []
        if suggested := [p for p in self._suggested if p not in tried]:
            return suggested[:num]
        if len(self._records) < self._search.num_initial or not valid:
            num = min(max(num, self._search.num_initial - len(self._records)), self.num_left)
            if not self.trusts_prior:
                self._drop_prior()
            elif self._prior is not None and not self._prior.trust.is_established:
                return self._first_batch(self._prior, num, len(valid))
            candidates = [p for p in self.space.shuffled(self._rng) if p not in tried]
        else:
            seconds = np.array([r.seconds for r in valid])
            candidates = breed(
                self.space,
                [r.point for r in valid],
                seconds,
                self._search.num_children,
                self._rng,
                self._search.gamma,
                exclude=tried,
            )
            drawn = [p for p in self.space.shuffled(self._rng) if p not in tried]
            candidates = list(dict.fromkeys([*candidates, *drawn[: max(num, self._search.num_drawn)]]))
        mean, deviation = self._model.predict(self.space, candidates)
        score = mean - self._search.exploration * deviation
        num_random = int(self._rng.binomial(num, self._search.random_share))
        order = np.argsort(score, kind="stable")
        chosen = list(order[: num - num_random])
        chosen += list(self._rng.permutation(order[num - num_random :])[:num_random])
        return [candidates[i] for i in chosen]

    def _first_batch(self, prior: Prior, num: int, num_valid: int) -> list[Point]:
        """Choose the points that were best on the other device, and others evenly spaced over its predicted ranking: of
        the whole initial set, of which some may be there."""
        untried = [p for p in self.space.shuffled(self._rng) if p not in self._records]
        score = dict(zip(untried, self._model.predict(self.space, untried)[0].tolist(), strict=True))
        left = ([p for p in points if p in score] for points in prior.points)
        best = list(dict.fromkeys(min(points, key=score.__getitem__) for points in left if points))
        whole = max(num_valid + num, self._search.num_initial)
        num_spread = min(round(self._search.spread_share * whole), max(0, whole - 1))
        chosen = best[: min(num, max(0, whole - num_spread - num_valid))]
        rest = [p for p in untried if p not in set(chosen)]
        predicted = self._model.predict_from_prior(self.space, rest) if rest else None
        if predicted is not None:
            rest = [rest[i] for i in np.argsort(predicted, kind="stable")]
        missing = min(num - len(chosen), len(rest))
        places = (np.arange(missing) + 1) * len(rest) // (missing + 1)
        return [*chosen, *(rest[i] for i in places)]

    def _judge_prior(self, records: Sequence[TuningRecord]) -> None:
        """Compare the order of the records with the other device's prediction, before the model has seen them."""
        if self._prior is None or self._guard.has_judged or self.prior_dropped:
            return
        predicted = self._model.predict_from_prior(self.space, [r.point for r in records]) if records else None
        if predicted is not None:
            self._predicted.update(zip((r.point for r in records), predicted.tolist(), strict=True))
        known = {**self._records, **{r.point: r for r in records}}
        judged = [(self._predicted[p], r.seconds) for p, r in known.items() if r.seconds and p in self._predicted]
        self._guard.judge(*np.array(judged, dtype=np.float64).reshape(-1, 2).T)
        if (tau := self._guard.value) is not None:
            self._prior.trust.note(self.space.workload.key, tau)
        if self._guard.is_lost:
            self._drop_prior()

    @property
    def tau(self) -> float | None:
        """Kendall's rank correlation of the prior's forecast and the first seconds; None before they are there."""
        return self._guard.value

    def _drop_prior(self) -> None:
        """Go on as without the other device's records, where there are any."""
        if self._prior is not None and not self.prior_dropped:
            self.prior_dropped = True
            self._model.history.drop_elsewhere(self.space)

    def promise(self, rival_s: float = math.inf) -> float:
        """Improvement over the best that the cost model expects of the most promising untried point, on log seconds.

        Where another operator computes the same in `rival_s`, over the better of both. Infinite while no point works
        and there is no rival, zero when all are tried. Draws from a generator of its own, so that asking changes no
        proposal.
        """
        valid = [r for r in self._records.values() if r.seconds is not None]
        if self.room == 0:
            return 0.0
        if not valid:
            return math.inf if math.isinf(rival_s) else 0.0
        rng, tried = np.random.default_rng(self.num_tried), frozenset(self._records)
        seconds = np.array([r.seconds for r in valid], dtype=np.float64)
        points = [p for p in self.space.sample(_IMPROVEMENT_POINTS + len(tried), rng) if p not in tried]
        if len(points) < self.room:  # others are left
            points += breed(
                self.space,
                [r.point for r in valid],
                seconds,
                self._search.num_children,
                rng,
                self._search.gamma,
                exclude=tried,
            )
        mean, deviation = self._model.predict(self.space, points)
        best = math.log(min(seconds.min(), rival_s)) - float(np.log(seconds).mean())  # means are centred like this
        return float(expected_improvement(best, mean, deviation).max())

    @property
    def noise(self) -> float:
        """Spread of the best record's seconds, as a share of them; zero without one."""
        best = self.best
        return 0.0 if best is None or not best.seconds else (best.spread_s or 0.0) / best.seconds

    def tell(self, records: Sequence[TuningRecord]) -> None:
        """Take in measured points, failures included."""
        self._judge_prior(records)
        self._records.update({r.point: r for r in records})
        self._model.observe(self.space, records)
