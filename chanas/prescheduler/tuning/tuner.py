"""Tuners: what explores the schedule space of one operator, is asked for points and told what they took; and the
trials of an operator, which any tuner's points are part of.

Points that somebody suggests, such as those of a table of another device, are tried before a tuner is asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from chanas.compiler.space import Point, ScheduleSpace
from chanas.prescheduler.records.store import TuningRecord


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


class PriorUse(NamedTuple):
    """What a tuner makes of another device's records: how many there are, whether it goes by them, whether they said
    something about points that were tried, their rank correlation with these (None before it is known), and whether
    they were dropped."""

    num_records: int
    is_trusted: bool
    is_used: bool
    tau: float | None
    is_dropped: bool


class Tuner(Protocol):
    """Explores the schedule space of one operator. It is made with the records that there are."""

    def ask(self, num: int) -> list[Point]:
        """The next points to measure, at most `num`: distinct, legal, none that it has a record of. Empty only when
        none is left."""

    def tell(self, records: Sequence[TuningRecord]) -> None:
        """Take in measured points, failures and such as others suggested included."""

    def promise(self, rival_s: float = math.inf) -> float:
        """The improvement, in log seconds, that further points promise over the best so far, or over another operator
        that computes the same in `rival_s`. Infinite while nothing works, zero when nothing is left."""

    @property
    def prior(self) -> PriorUse | None:
        """What it makes of another device's records; None if it has none, or asks none."""


class Trials:
    """The trials of one operator: what its tuner asks for, as far as trials are granted.

    limit  points tried in all, kept records included; may be raised when they are used up
    """

    def __init__(
        self,
        space: ScheduleSpace[Any],
        tuner: Tuner,
        limit: int,
        kept: Sequence[TuningRecord] = (),
        suggested: Sequence[Point] = (),
        num_initial: int = DEFAULT_SEARCH.num_initial,
    ) -> None:
        self.space, self.tuner, self.limit = space, tuner, limit
        self._records = {r.point: r for r in kept if space.contains(r.point)}
        self._suggested = tuple(p for p in suggested if space.contains(p))
        self._num_initial = num_initial

    @property
    def prior(self) -> PriorUse | None:
        """What the tuner makes of another device's records."""
        return self.tuner.prior

    @property
    def trusts_prior(self) -> bool:
        """True if there are another device's records and the tuner goes by them."""
        return self.prior is not None and self.prior.is_trusted

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

    @property
    def noise(self) -> float:
        """Spread of the best record's seconds, as a share of them; zero without one."""
        best = self.best
        return 0.0 if best is None or not best.seconds else (best.spread_s or 0.0) / best.seconds

    def ask(self, num: int) -> list[Point]:
        """The next points to measure: distinct, legal, untried; at most `num`, but the initial set at once. Empty when
        the trials are used up."""
        num = min(num, self.num_left)
        if num == 0:
            return []
        if suggested := [p for p in self._suggested if p not in self._records]:
            return suggested[:num]
        return self.tuner.ask(min(max(num, self._num_initial - self.num_tried), self.num_left))

    def tell(self, records: Sequence[TuningRecord]) -> None:
        """Take in measured points, failures included."""
        self._records.update({r.point: r for r in records})
        self.tuner.tell(records)
