"""The end of all jobs if a stage is started now: tried ahead on their forecasts, on a clock of its own.

From the first choice on a fixed rule chooses: of the ready stages the one with the longest expected rest of its job
behind it, unless one with a longer rest will be ready for the unit before this one has ended. Stages take as long as
their jobs expect, times factors that are drawn once: each scenario has others, and all choices have the same.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chanas.scheduler.jobs import Forecast

SPREAD = 0.2
"""The spread of stages of random mixes; estimates are hardly better."""

_NUM_FACTORS = 1024
_OVERDUE = 0.12
"""A stage that has run for longer than it takes in a scenario goes on for this share of what was expected: about what
is left of a log-normal time on average then."""

_NONE = -1


@dataclass(frozen=True)
class Now:
    """The state that a rollout begins with; stages are numbers (`Course.number`).

    left     of each segment, how many chains have not ended
    free     units by resource
    ready    stages that may start, of each job
    running  stages under way, with the seconds that they have run
    foreign  resources and seconds to go of stages under way whose jobs are not of the course
    work_s   by resource, expected seconds of all stages that are not under way
    """

    left: list[int]
    free: list[int]
    ready: Sequence[int]
    running: Sequence[tuple[int, float]]
    foreign: Sequence[tuple[int, float]]
    work_s: list[float]


class Course:
    """The stages of some jobs from the beginning to the end, as arrays.

    Args:
        forecasts: of the jobs.
        priorities: of the jobs; the higher one's stages go first.
        num_units: of each resource.
        num_stages: how many are started in a rollout.
        spread: standard deviation of the logarithm of what a stage takes over what was expected.
    """

    def __init__(
        self,
        forecasts: Sequence[Forecast],
        priorities: Sequence[int],
        num_units: Mapping[str, int],
        num_stages: int = 20,
        spread: float = SPREAD,
    ) -> None:
        self.names = {name: i for i, name in enumerate(num_units)}
        self.num_stages = num_stages
        self._num_units = dict(num_units)
        self._units = list(num_units.values())
        self._resource: list[int] = []
        self._seconds: list[float] = []
        self._tail: list[float] = []  # seconds from a stage's start to the end of its job, at least
        self._rank: list[tuple[int, float]] = []  # the least goes first
        self._next: list[int] = []  # in the chain
        self._segment: list[int] = []
        self._firsts: list[list[int]] = []  # of each segment; none after a job's last one
        self._first_segment: list[int] = []
        for forecast, priority in zip(forecasts, priorities, strict=True):
            self._add(forecast, priority)
        rng = random.Random(0)
        self._factors = [math.exp(rng.gauss(0.0, spread) - spread**2 / 2) for _ in range(_NUM_FACTORS)]

    def _add(self, forecast: Forecast, priority: int) -> None:
        self._first_segment.append(len(self._firsts))
        after_s = sum(forecast.alone_s)
        for segment, alone_s in zip(forecast.segments, forecast.alone_s, strict=True):
            after_s -= alone_s
            self._firsts.append([])
            behind_s = [0.0] * len(self._units)  # work of the chains that come later
            tails = []
            for chain in reversed(segment):
                tails.append(self._tails(chain, behind_s, max(0.0, after_s)))
                for name, seconds in chain:
                    behind_s[self.names[name]] += seconds
            for chain, own in zip(segment, reversed(tails), strict=True):
                self._firsts[-1].append(len(self._next))
                for i, ((name, seconds), tail_s) in enumerate(zip(chain, own, strict=True)):
                    self._resource.append(self.names[name])
                    self._seconds.append(seconds)
                    self._tail.append(tail_s)
                    self._rank.append((-priority, -tail_s))
                    self._next.append(_NONE if i + 1 == len(chain) else len(self._next) + 1)
                    self._segment.append(len(self._firsts) - 1)
        self._firsts.append([])

    def _tails(self, chain: Sequence[tuple[str, float]], behind_s: Sequence[float], after_s: float) -> list[float]:
        """For each stage of a chain the seconds from its start to the job's end, where those behind it are served after
        it."""
        tails: list[float] = []
        for i in range(len(chain)):
            begun_s, rest_s = 0.0, sum(seconds for _, seconds in chain[i:])
            longest_s = rest_s
            for name, seconds in chain[i:]:
                number = self.names[name]
                rest_s -= seconds
                longest_s = max(longest_s, begun_s + behind_s[number] / self._units[number] + seconds + rest_s)
                begun_s += seconds
            tails.append(longest_s + after_s)
        return tails

    def number(self, job: int, forecast: Forecast, chain: int) -> int:
        """The stage of a chain that waits or runs."""
        return self._firsts[self._first_segment[job] + forecast.index][chain] + forecast.places[chain]

    def left(self, forecasts: Sequence[Forecast]) -> list[int]:
        """Chains of each segment that have not ended (`Now.left`)."""
        left = [len(firsts) for firsts in self._firsts]
        for first, forecast in zip(self._first_segment, forecasts, strict=True):
            if forecast.index < len(forecast.segments):
                left[first + forecast.index] = forecast.num_left
        return left

    def tail_s(self, stage: int) -> float:
        """Seconds from the start of a stage to the end of its job, at least."""
        return self._tail[stage]

    def seconds(self, stage: int) -> float:
        """Expected seconds of a stage."""
        return self._seconds[stage]

    def following(self, stage: int, left: Sequence[int]) -> int | None:
        """The resource of the stage that will be ready as soon as a stage has ended; None where nothing will."""
        coming = self._following(stage, left)
        return None if coming == _NONE else self._resource[coming]

    def _following(self, stage: int, left: Sequence[int]) -> int:
        segment = self._segment[stage]
        if self._next[stage] != _NONE or left[segment] != 1 or not self._firsts[segment + 1]:
            return self._next[stage]
        return self._firsts[segment + 1][0]

    def end_s(self, now: Now, resource: int, stage: int | None, scenario: int) -> float:
        """Seconds from now until all jobs could have ended at the earliest, seen from when `num_stages` were started.

        Args:
            resource: that of which a unit is free now.
            stage: started on it; None: the unit waits until a stage ends.
            scenario: which factors apply.
        """
        return _Clock(self, now, scenario).run(resource, stage)


class _Clock:
    """One rollout: it jumps from end to end."""

    def __init__(self, course: Course, now: Now, scenario: int) -> None:
        self._course, self._shift = course, 337 * scenario
        self._left, self._free, self._work_s = now.left[:], now.free[:], now.work_s[:]
        self._now_s = 0.0
        self._ready: list[list[tuple[tuple[int, float], int]]] = [[] for _ in self._free]
        self._coming: list[list[tuple[tuple[int, float], float]]] = [[] for _ in self._free]
        self._ends: list[tuple[float, int, int]] = []  # seconds, resource, stage
        for stage in now.ready:
            self._get_ready(stage)
        for stage, since_s in now.running:
            left_s = self._seconds_of(stage) - since_s
            self._end_at(stage, left_s if left_s > 0.0 else _OVERDUE * course._seconds[stage])
        for resource, left_s in now.foreign:
            heapq.heappush(self._ends, (left_s, resource, _NONE))

    def _seconds_of(self, stage: int) -> float:
        return self._course._seconds[stage] * self._course._factors[(7 * stage + self._shift) % _NUM_FACTORS]

    def _get_ready(self, stage: int) -> None:
        heapq.heappush(self._ready[self._course._resource[stage]], (self._course._rank[stage], stage))

    def _end_at(self, stage: int, end_s: float) -> None:
        course = self._course
        heapq.heappush(self._ends, (end_s, course._resource[stage], stage))
        coming = course._following(stage, self._left)
        if coming != _NONE:
            self._coming[course._resource[coming]].append((course._rank[coming], end_s))

    def _start(self, resource: int, stage: int) -> None:
        self._free[resource] -= 1
        self._work_s[resource] -= self._course._seconds[stage]
        self._end_at(stage, self._now_s + self._seconds_of(stage))

    def run(self, resource: int, stage: int | None) -> float:
        """Go from the choice to the bound of what is left."""
        num_left = self._course.num_stages
        if stage is not None:
            self._ready[resource].remove((self._course._rank[stage], stage))
            heapq.heapify(self._ready[resource])
            self._start(resource, stage)
        held = resource if stage is None else _NONE
        while True:
            for i, ready in enumerate(self._ready):
                if ready and self._free[i] > 0 and i != held:
                    num_left -= self._start_all(i)
            held = _NONE
            if not self._ends or num_left <= 0:
                return self._bound_s()
            self._now_s = self._ends[0][0]
            for coming in self._coming:
                if coming:
                    coming[:] = [each for each in coming if each[1] > self._now_s]
            while self._ends and self._ends[0][0] <= self._now_s:
                self._take(*heapq.heappop(self._ends)[1:])

    def _start_all(self, resource: int) -> int:
        """Start what the rule starts on a resource; how many stages."""
        ready, coming, num = self._ready[resource], self._coming[resource], 0
        while ready and self._free[resource] > 0:
            rank, stage = ready[0]
            if coming:
                until_s = self._now_s + self._course._seconds[stage]
                if sum(other < rank and at_s < until_s for other, at_s in coming) >= self._free[resource]:
                    break
            heapq.heappop(ready)
            self._start(resource, stage)
            num += 1
        return num

    def _take(self, resource: int, stage: int) -> None:
        self._free[resource] += 1
        if stage == _NONE:
            return
        course = self._course
        if course._next[stage] != _NONE:
            self._get_ready(course._next[stage])
            return
        segment = course._segment[stage]
        self._left[segment] -= 1
        if not self._left[segment]:
            for first in course._firsts[segment + 1]:
                self._get_ready(first)

    def _bound_s(self) -> float:
        """No rule can be faster from here on: the longest rest of a job, and all work over the units."""
        course, now_s = self._course, self._now_s
        bound_s = now_s
        work_s = self._work_s[:]
        for ready in self._ready:
            for _, stage in ready:
                bound_s = max(bound_s, now_s + course._tail[stage])
        for end_s, resource, stage in self._ends:
            work_s[resource] += end_s - now_s
            if stage != _NONE:
                bound_s = max(bound_s, end_s + course._tail[stage] - course._seconds[stage])
        return max(bound_s, *(now_s + s / units for s, units in zip(work_s, course._units, strict=True)))
