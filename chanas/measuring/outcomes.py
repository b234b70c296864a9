"""Results of measuring as data: outcomes of candidates, and the canary's readings."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reading:
    """One timing of the canary: seconds and their spread, and seconds relative to the run's median by then."""

    seconds: float
    spread_s: float
    drift: float
    created: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Outcome:
    """Seconds of a candidate, or why there are none; of several that were timed in turns, the outcome of each.

    `drift` is the canary's correction; the raw measurement was `seconds * drift`. `code` identifies the machine code;
    if another candidate compiled to the same code, `same_as` is its token and all figures are that candidate's.
    """

    seconds: float | None
    spread_s: float | None
    error: str | None
    max_error: float | None = None
    build_s: float = 0.0
    measure_s: float = 0.0
    members: tuple[Outcome, ...] = ()
    drift: float = 1.0
    code: str | None = None
    same_as: Any = None
    device: int | None = field(default=None, compare=False)
    """Index of the pool's device that timed it; None if it is unknown."""
    disagreement: float | None = None
    """Difference between the timings of several processes, relative to the largest; None if there was but one."""


def median_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """The last, with the median of all seconds; the spread is the largest of theirs or of what lies between them."""
    seconds = [o.seconds for o in outcomes if o.seconds is not None]
    if len(seconds) < 2:
        return outcomes[-1]
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return dataclasses.replace(
        outcomes[-1],
        seconds=statistics.median(seconds),
        spread_s=max(high - low, statistics.median(o.spread_s or 0.0 for o in outcomes)),
        drift=statistics.median(o.drift for o in outcomes),
    )
