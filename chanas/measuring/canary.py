"""Watch the machine's speed: one fixed operator is timed again and again among the candidates.

Clock rates and neighbours change within a run of hours; two candidates that were timed an hour apart are comparable
only as far as the machine was the same. The canary's drift (its seconds relative to its median over the run) tells:
what was timed under a drift beyond the noise is divided by it, and under a large one it is timed again. Where several
devices time, each has a canary of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from chanas.compiler.backends import case_of, schedule_space
from chanas.core.target import HardwareTarget
from chanas.devices.timing import CANARY
from chanas.measuring.fleet import Pool
from chanas.measuring.messages import Answer, Build, Measure, OperatorAt, Reading
from chanas.operators.workload import Workload

# Some 50 us of arithmetic from the nearest caches: what is left of its noise is the machine's own.
WORKLOAD = Workload("pointwise", 14, 128, 128, epilogue="relu")
EVERY_S = 2.0
"""Seconds of measuring between two readings, at most."""
FRESH_S = 0.5
"""Maximum age in seconds of a reading that speaks for everything timed since, when there is nothing else to time."""
NOISE = 0.03
"""A drift of up to this share (or of the reading's own spread, where that is larger) says nothing."""
LIMIT = 0.25
"""Drift, as a share, beyond which a timing is repeated."""
_MAX_TRIES = 3
_NUM_FIRST = 3  # readings before anything else, so that there is a median to drift from
_TIMEOUT_S = 30.0


@dataclass
class _Operator:
    """The timed operator, compiled once for all devices of a run."""

    target: HardwareTarget
    scratch: Path
    works: bool | None = None

    def timing(self, pool: Pool) -> Measure | None:
        """The request of its timing; None when it can't be compiled."""
        library, case = self.scratch / "canary.so", self.scratch / "canary.npz"
        if self.works is None:
            case_of(WORKLOAD, self.target).save(case)
            point = schedule_space(WORKLOAD, self.target).middle
            build = Build(target=self.target, what=OperatorAt(WORKLOAD, point), path=library)
            self.works = pool.build(build, _TIMEOUT_S).result().error is None
        return Measure(library=library, case=case, settings=CANARY) if self.works else None


class Canary:
    """Drift of one run on one device, the first one; `on` gives those of the others. `keep` gets every reading."""

    def __init__(self, target: HardwareTarget, scratch: Path, keep: Callable[[Reading], None] = lambda _: None) -> None:
        self.readings: list[Reading] = []
        self.num_corrected = self.num_again = 0
        self._operator, self._keep = _Operator(target, scratch), keep
        self._device = 0
        self._all: dict[int, Canary] = {0: self}
        self._since_s = 0.0
        self._lasts = False

    def on(self, device: int) -> Canary:
        """The canary of a device of the pool: it drifts by itself."""
        if device not in self._all:
            other = Canary(self._operator.target, self._operator.scratch, self._keep)
            other._operator, other._device, other._all = self._operator, device, self._all
            self._all[device] = other
        return self._all[device]

    # ---- timing it --------------------------------------------------------------------------------------------------
    def read(self, pool: Pool) -> list[Future[Answer]]:
        """Queue a reading on its device (several at the start of a run); none when the canary does not work."""
        timing = self._operator.timing(pool)
        self._since_s = 0.0
        if timing is None:
            return []
        num = 1 if self.readings else _NUM_FIRST
        return [pool.measure(timing, _TIMEOUT_S, self._device) for _ in range(num)]

    def observe(self, answer: Answer) -> None:
        """Take in a reading; one that failed tells nothing about the others and is left out."""
        if answer.error is not None:
            return
        seconds = answer.timing.seconds
        median_s = statistics.median([*(r.seconds for r in self.readings), seconds])
        self.readings.append(Reading(seconds, answer.timing.spread_s, seconds / median_s))
        self._lasts = self._lasts and self.is_disturbed
        self._keep(self.readings[-1])

    @property
    def is_fresh(self) -> bool:
        """True if the last reading is recent enough to speak for everything timed since. A disturbed one speaks for
        nothing that is timed after it: what it hit may be over."""
        is_recent = bool(self.readings) and time.time() - self.readings[-1].created < FRESH_S
        return is_recent and not self.is_disturbed

    # ---- what it means ----------------------------------------------------------------------------------------------
    def is_due(self, measured_s: float = 0.0) -> bool:
        """True if a reading is due after `measured_s` more seconds of measuring."""
        self._since_s += measured_s
        return self._operator.works is not False and (not self.readings or self._since_s >= EVERY_S)

    @property
    def correction(self) -> float:
        """The divisor of seconds measured now: the last drift, or 1 while it is within the noise."""
        if not self.readings:
            return 1.0
        last = self.readings[-1]
        return last.drift if abs(last.drift - 1.0) > max(NOISE, last.spread_s / last.seconds) else 1.0

    @property
    def is_disturbed(self) -> bool:
        return bool(self.readings) and abs(self.readings[-1].drift - 1.0) > LIMIT

    def wants_again(self, num_tries: int) -> bool:
        """True if a timing just made, the `num_tries`-th of its candidate, has to be repeated.

        A disturbance that outlasts the tries is how the machine is now: nothing is repeated until it is over.
        """
        self._lasts = self._lasts or (self.is_disturbed and num_tries >= _MAX_TRIES)
        again = self.is_disturbed and not self._lasts
        self.num_again += again
        return again

    def describe(self) -> str:
        """One line for people, over all devices."""
        everyone = [canary for canary in self._all.values() if canary.readings]
        if not everyone:
            return "no canary was read"
        drifts = [r.drift - 1.0 for canary in everyone for r in canary.readings]
        medians = [statistics.median(r.seconds for r in canary.readings) for canary in everyone]
        apart = f"; {len(medians)} devices, {max(medians) / min(medians) - 1.0:.1%} apart" if len(medians) > 1 else ""
        return (
            f"{min(drifts):+.1%} to {max(drifts):+.1%} over {len(drifts)} readings; "
            f"{sum(c.num_corrected for c in everyone)} timings corrected, {sum(c.num_again for c in everyone)} "
            f"repeated{apart}"
        )
