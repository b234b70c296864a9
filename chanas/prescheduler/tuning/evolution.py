"""Exploration of one operator's schedule space with a cost model (paper, section 3.5, figure 9).

The order of events: an initial set H at random (or, once the cost model knows similar operators, the points that it
thinks best); then rounds of starting from good points of H, mutating and crossing, scoring the children with the cost
model, and measuring the best of them.

With a prior (`warm_start`) H is made of what was best on another device, and of points from further down the ranking
that its records predict. When the seconds of H are ordered otherwise than predicted, the prior is dropped; when that
was so of most operators before, it is not asked (`cost_model/guards`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.effort import DEFAULT_SEARCH, Search
from chanas.core.statistics import expected_improvement
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.guards import Guard
from chanas.prescheduler.tuning.cost_model.history import CostModel, Prior
from chanas.prescheduler.tuning.mutate import breed
from chanas.prescheduler.tuning.tuner import PriorUse

# Untried points that are drawn at random, beside bred ones, to see whether there is something left to gain.
_IMPROVEMENT_POINTS = 192
# A prior is judged by at least so many valid points of the first batch, and dropped below this rank correlation.
_NUM_JUDGED = 4


class Evolution:
    """The `Tuner` of this module's evolution with a cost model."""

    def __init__(
        self,
        space: ScheduleSpace[Any],
        model: CostModel,
        kept: Sequence[TuningRecord],
        seed: int,
        prior: Prior | None = None,
        search: Search = DEFAULT_SEARCH,
    ) -> None:
        self.space = space
        self._model, self._search = model, search
        self._rng = np.random.default_rng(seed)
        self._records = {r.point: r for r in kept if space.contains(r.point)}
        self._prior, self._prior_dropped = prior, False
        self._predicted: dict[Point, float] = {}
        self._guard = Guard(_NUM_JUDGED, lambda _: search.min_tau)
        if prior is not None:
            model.history.add_elsewhere(space, prior)
        self._judge_prior(list(self._records.values()))
        model.observe(space, list(self._records.values()))

    @property
    def prior(self) -> PriorUse | None:
        """The use of the other device's records. They are trusted if they were right about this operator or,
        before that is known, about most others."""
        if self._prior is None:
            return None
        tau = self._guard.value
        unguarded = self._search.min_tau <= -1.0
        trusted = not self._prior_dropped and (tau is not None or unguarded or not self._prior.trust.is_lost)
        return PriorUse(len(self._prior.points), trusted, tau, self._prior_dropped)

    def ask(self, num: int) -> list[Point]:
        """The next points to measure, at most `num`: distinct, legal, untried."""
        num = min(num, self._room)
        valid = [r for r in self._records.values() if r.seconds is not None]
        tried = frozenset(self._records)
        if num <= 0:
            return []
        if len(self._records) < self._search.num_initial or not valid:
            use = self.prior
            if use is not None and not use.is_trusted:
                self._drop_prior()
            elif self._prior is not None and not self._prior.trust.is_established:
                return self._first_batch(self._prior, num, len(valid))
            candidates = self._untried()
        else:
            seconds = np.array([r.seconds for r in valid])
            candidates = breed(
                self.space,
                [r.point for r in valid],
                seconds,
                self._search.num_children,
                self._rng,
                self._search.gamma,
                self._search.crossover_share,
                tried,
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
        untried = self._untried()
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

    def _untried(self) -> list[Point]:
        """Untried points in random order; of a space that is too large to be listed some, and the prior's besides."""
        points = self.space.shuffled(self._rng)
        if self._prior is not None and not self._prior_dropped and not self.space.is_listed:
            points = list(dict.fromkeys([*points, *(p for some in self._prior.points for p in some)]))
        return [p for p in points if p not in self._records]

    def _judge_prior(self, records: Sequence[TuningRecord]) -> None:
        """Compare the order of the records with the other device's prediction, before the model has seen them."""
        if self._prior is None or self._guard.has_judged or self._prior_dropped:
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

    def _drop_prior(self) -> None:
        """Go on as without the other device's records, where there are any."""
        if self._prior is not None and not self._prior_dropped:
            self._prior_dropped = True
            self._model.history.drop_elsewhere(self.space)

    @property
    def _room(self) -> int:
        """Points that were never tried."""
        return self.space.num_points - len(self._records)

    def promise(self, rival_s: float = math.inf) -> float:
        """Improvement over the best that the cost model expects of the most promising untried point, on log seconds.

        Where another operator computes the same in `rival_s`, over the better of both. Infinite while no point works
        and there is no rival, zero when all are tried. Draws from a generator of its own, so that asking changes no
        proposal.
        """
        valid = [r for r in self._records.values() if r.seconds is not None]
        if self._room == 0:
            return 0.0
        if not valid:
            return math.inf if math.isinf(rival_s) else 0.0
        rng, tried = np.random.default_rng(len(self._records)), frozenset(self._records)
        seconds = np.array([r.seconds for r in valid], dtype=np.float64)
        points = [p for p in self.space.sample(_IMPROVEMENT_POINTS + len(tried), rng) if p not in tried]
        if len(points) < self._room:  # others are left
            points += breed(
                self.space,
                [r.point for r in valid],
                seconds,
                self._search.num_children,
                rng,
                self._search.gamma,
                self._search.crossover_share,
                tried,
            )
        mean, deviation = self._model.predict(self.space, points)
        best = math.log(min(seconds.min(), rival_s)) - float(np.log(seconds).mean())  # means are centred like this
        return float(expected_improvement(best, mean, deviation).max())

    def tell(self, records: Sequence[TuningRecord]) -> None:
        """Take in measured points, failures included."""
        self._judge_prior(records)
        self._records.update({r.point: r for r in records})
        self._model.observe(self.space, records)
