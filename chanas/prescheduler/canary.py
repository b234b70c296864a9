"""Whether the machine is as fast as it was: one fixed operator, timed again and again among the candidates.

Clock rates and neighbours change within a run of hours; two candidates that were timed an hour apart are comparable
only as far as the machine was the same. The canary's drift (its seconds relative to its median over the run) tells:
what was timed under a drift beyond the noise is divided by it, and under a large one it is timed again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chanas.prescheduler.pool import Answer, Pool
from chanas.prescheduler.reference import operator_case
from chanas.prescheduler.space import schedule_space
from chanas.prescheduler.workload import Workload
from chanas.target import HardwareTarget

# Some 50 us of arithmetic from the nearest caches: what is left of its noise is the machine's own.
WORKLOAD = Workload("pointwise", 14, 128, 128, epilogue="relu")
EVERY_S = 2.0
"""Seconds of measuring between two readings, at most."""
FRESH_S = 0.5
"""How old a reading may be to speak for what was timed since, when there is nothing else to time."""
NOISE = 0.03
"""A drift of up to this share (or of the reading's own spread, where that is larger) says nothing."""
LIMIT = 0.25
"""What was timed under a drift beyond this share is timed again."""
_MAX_TRIES = 3
_NUM_FIRST = 3  # readings before anything else, so that there is a median to drift from
_REPEATS, _MIN_REPEAT_S, _TIMEOUT_S = 7, 0.0005, 30.0


@dataclass(frozen=True)
class Reading:
    """One timing of the canary: seconds and their spread, and seconds relative to the run's median by then."""

    seconds: float
    spread_s: float
    drift: float
    created: float = field(default_factory=time.time)


class Canary:
    """Drift of one run. `keep` gets every reading."""

    def __init__(self, target: HardwareTarget, scratch: Path, keep: Callable[[Reading], None] = lambda _: None) -> None:
        self.readings: list[Reading] = []
        self.num_corrected = self.num_again = 0
        self._target, self._scratch, self._keep = target, scratch, keep
        self._since_s = 0.0
        self._library: Path | None = None
        self._works, self._lasts = True, False

    # ---- timing it --------------------------------------------------------------------------------------------------
    def read(self, pool: Pool) -> list[Future[Answer]]:
        """Queue a reading on the timing core (several at the start of a run); none when the canary does not work."""
        if self._library is None:
            self._build(pool)
        self._since_s = 0.0
        if not self._works:
            return []
        arguments = {
            "library": str(self._library),
            "case": str(self._scratch / "canary.npz"),
            "repeats": _REPEATS,
            "min_repeat_s": _MIN_REPEAT_S,
        }
        return [pool.measure("measure", arguments, _TIMEOUT_S) for _ in range(1 if self.readings else _NUM_FIRST)]

    def _build(self, pool: Pool) -> None:
        self._library = self._scratch / "canary.so"
        operator_case(WORKLOAD, self._target.vector_lanes).save(self._scratch / "canary.npz")
        points = schedule_space(WORKLOAD, self._target).points
        arguments: dict[str, Any] = {
            "target": self._target.to_json(),
            "workload": WORKLOAD.to_json(),
            "point": points[len(points) // 2],
            "library": str(self._library),
        }
        self._works = pool.build("build_operator", arguments, _TIMEOUT_S).result().error is None

    def observe(self, answer: Answer) -> None:
        """Take in a reading; one that failed tells nothing about the others and is left out."""
        if answer.error is not None or "seconds" not in answer.result:
            return
        seconds = float(answer.result["seconds"])
        median_s = statistics.median([*(r.seconds for r in self.readings), seconds])
        self.readings.append(Reading(seconds, float(answer.result["spread_s"]), seconds / median_s))
        self._lasts = self._lasts and self.is_disturbed
        self._keep(self.readings[-1])

    @property
    def is_fresh(self) -> bool:
        """Whether the last reading is recent enough to speak for what was timed since."""
        return bool(self.readings) and time.time() - self.readings[-1].created < FRESH_S

    # ---- what it means ----------------------------------------------------------------------------------------------
    def is_due(self, measured_s: float = 0.0) -> bool:
        """Whether it is time for a reading, after `measured_s` more seconds of measuring."""
        self._since_s += measured_s
        return self._works and (not self.readings or self._since_s >= EVERY_S)

    @property
    def correction(self) -> float:
        """What seconds measured now are divided by: the last drift, or 1 while it is within the noise."""
        if not self.readings:
            return 1.0
        last = self.readings[-1]
        return last.drift if abs(last.drift - 1.0) > max(NOISE, last.spread_s / last.seconds) else 1.0

    @property
    def is_disturbed(self) -> bool:
        return bool(self.readings) and abs(self.readings[-1].drift - 1.0) > LIMIT

    def wants_again(self, num_tries: int) -> bool:
        """Whether what was timed just now, for the `num_tries`-th time, has to be timed once more.

        A disturbance that outlasts the tries is how the machine is now: nothing is repeated until it is over.
        """
        self._lasts = self._lasts or (self.is_disturbed and num_tries >= _MAX_TRIES)
        again = self.is_disturbed and not self._lasts
        self.num_again += again
        return again

    def describe(self) -> str:
        """One line for people."""
        if not self.readings:
            return "no canary was read"
        drifts = [r.drift - 1.0 for r in self.readings]
        return (
            f"{min(drifts):+.1%} to {max(drifts):+.1%} over {len(drifts)} readings; {self.num_corrected} timings "
            f"corrected, {self.num_again} repeated"
        )
