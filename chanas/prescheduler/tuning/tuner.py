"""Tuners: what explores the schedule space of one operator, is asked for points and told what they took; and the
trials of an operator, which any tuner's points are part of.

Points that somebody suggests, such as those of a table of another device, are tried before a tuner is asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.effort import DEFAULT_SEARCH
from chanas.prescheduler.records.store import TuningRecord


class PriorUse(NamedTuple):
    """The use that a tuner makes of another device's records: how many there are, whether it goes by them, their rank
    correlation with the seconds here (None before it is known), and whether they were dropped."""

    num_records: int
    is_trusted: bool
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
        """The use of another device's records; None if it has none, or asks none."""


class Trials:
    """The trials of one operator: what its tuner asks for, as far as trials are granted.

    limit     points tried in all, kept records included; may be raised when they are used up
    patience  trials without a better point after which there are no more; None: however many
    """

    def __init__(
        self,
        space: ScheduleSpace[Any],
        tuner: Tuner,
        limit: int,
        kept: Sequence[TuningRecord] = (),
        suggested: Sequence[Point] = (),
        num_initial: int = DEFAULT_SEARCH.num_initial,
        patience: int | None = None,
    ) -> None:
        self.space, self.tuner, self.limit, self.patience = space, tuner, limit, patience
        self._records = {r.point: r for r in kept if space.contains(r.point)}
        self._num_kept = len(self._records)
        self._suggested = tuple(dict.fromkeys(p for p in suggested if space.means(p)))
        self._num_initial = num_initial

    @property
    def prior(self) -> PriorUse | None:
        """The use that the tuner makes of another device's records."""
        return self.tuner.prior

    @property
    def trusts_prior(self) -> bool:
        """True if there are another device's records and the tuner goes by them."""
        return self.prior is not None and self.prior.is_trusted

    @property
    def num_tried(self) -> int:
        return len(self._records)

    @property
    def has_begun(self) -> bool:
        """True if there were no records before, or points were tried since."""
        return self._num_kept == 0 or self.num_tried > self._num_kept

    @property
    def num_left(self) -> int:
        """Trials still to be made."""
        return 0 if self.is_stopped else max(0, min(self.limit, self.space.num_points) - self.num_tried)

    @property
    def is_stopped(self) -> bool:
        """True if so many of the last points were no better than those before that no more are tried."""
        best = self.best
        if self.patience is None or best is None:
            return False
        return self.num_tried - 1 - list(self._records).index(best.point) >= self.patience

    @property
    def room(self) -> int:
        """Points that were never tried, and may be."""
        return 0 if self.is_stopped else self.space.num_points - self.num_tried

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
