"""Exploration of one operator's schedule space (paper, section 3.5, figure 9), as a state that is asked and told.

The order of events: an initial set H at random (or, once the cost model knows similar operators, the points that it
thinks best); then rounds of starting from good points of H, mutating and crossing, scoring the children with the cost
model, and measuring the best of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chanas.prescheduler.cost_model.base import CostModel
from chanas.prescheduler.mutate import breed
from chanas.prescheduler.records import TuningRecord
from chanas.prescheduler.space import Point, ScheduleSpace


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneConfig:
    """How one operator is explored."""

    num_trials: int = 16
    """Schedule points tried in all, kept records included."""
    num_initial: int = 4
    """Size of the initial set H."""
    batch_size: int = 4
    """The top k: points measured between two questions to the cost model."""
    num_children: int = 48
    """Children bred and scored for each batch."""
    gamma: float = 8.0
    """γ of the start probability exp(−γ (E* − E_p) / E*)."""
    exploration: float = 0.5
    """Standard deviations subtracted from the predicted log seconds when children are ranked."""
    random_share: float = 0.1
    """Share of a batch that is drawn at random, so that no part of the space is out of reach."""


class OperatorTuner:
    """Proposes points for one workload and learns from what was measured."""

    def __init__(
        self, space: ScheduleSpace, model: CostModel, config: TuneConfig, kept: Sequence[TuningRecord], seed: int
    ) -> None:
        self.space = space
        self._model, self._config = model, config
        self._rng = np.random.default_rng(seed)
        self._records = {r.point: r for r in kept if space.contains(r.point)}
        model.observe(space, list(self._records.values()))

    @property
    def num_tried(self) -> int:
        return len(self._records)

    @property
    def num_left(self) -> int:
        """Trials still to be made."""
        return max(0, min(self._config.num_trials, len(self.space.points)) - self.num_tried)

    @property
    def best(self) -> TuningRecord | None:
        """The fastest valid record."""
        valid = [r for r in self._records.values() if r.seconds is not None]
        return min(valid, key=lambda r: r.seconds or 0.0, default=None)

    @property
    def best_s(self) -> float | None:
        return None if self.best is None else self.best.seconds

    def propose(self) -> list[Point]:
        """The next points to measure: distinct, legal, untried; empty when the trials are used up."""
        num = min(self._config.batch_size, self.num_left)
        valid = [r for r in self._records.values() if r.seconds is not None]
        tried = frozenset(self._records)
        if num == 0:
            return []
        if len(self._records) < self._config.num_initial or not valid:
            num = min(max(num, self._config.num_initial - len(self._records)), self.num_left)
            candidates = [p for p in self.space.sample(len(self.space.points), self._rng) if p not in tried]
        else:
            seconds = np.array([r.seconds for r in valid])
            candidates = breed(
                self.space,
                [r.point for r in valid],
                seconds,
                self._config.num_children,
                self._rng,
                self._config.gamma,
                exclude=tried,
            )
            if len(candidates) < num:
                rest = [p for p in self.space.sample(len(self.space.points), self._rng) if p not in tried]
                candidates = list(dict.fromkeys([*candidates, *rest]))[: max(num, self._config.num_children)]
        mean, deviation = self._model.predict(self.space, candidates)
        score = mean - self._config.exploration * deviation
        num_random = int(self._rng.binomial(num, self._config.random_share))
        order = np.argsort(score, kind="stable")
        chosen = list(order[: num - num_random])
        chosen += list(self._rng.permutation(order[num - num_random :])[:num_random])
        return [candidates[i] for i in chosen]

    def observe(self, records: Sequence[TuningRecord]) -> None:
        """Take in measured points, failures included."""
        self._records.update({r.point: r for r in records})
        self._model.observe(self.space, records)
