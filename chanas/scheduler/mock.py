"""Jobs with given stage times, to try policies with: no compiler, no device, and on a simulated clock no time."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from chanas.scheduler.bounds import Task, head_tail_bound_s
from chanas.scheduler.jobs import (
    BUILD,
    DEVICE,
    HOST,
    LEARN,
    MEASURE,
    RESOURCES,
    SELECT,
    Expected,
    Outcome,
    Outlook,
    Stage,
)

SPREAD = 0.2
"""Standard deviation of the logarithm of a stage's seconds in random mixes."""


@dataclass(frozen=True)
class Sleep:
    """Work that takes so long and does nothing. A simulated clock reads the number."""

    seconds: float

    def __call__(self) -> float:
        time.sleep(self.seconds)
        return self.seconds


@dataclass(frozen=True)
class MockStage:
    """A stage with the seconds that it takes, and those that its job expects."""

    kind: str
    seconds: float
    expected_s: float


Chain = tuple[MockStage, ...]
Segment = tuple[Chain, ...]


class MockJob:
    """Segments one after the other, each of chains side by side, each of stages one after the other.

    `((a,),), ((b, c), (d, e)), ((f,),)`: first a; then b and d, and after each of them c or e; when both are done, f.

    Attributes:
        num_failed: how many stages failed; a failed one counts as ended.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        self.num_failed = 0
        self._index = -1
        self._places: list[int] = []  # in each chain of the segment at work, how many stages have ended
        self._offers: list[Stage] = []
        self._rests_s: dict[tuple[int, ...], list[float]] = {}
        self._left_s = dict.fromkeys(RESOURCES.values(), 0.0)
        for stage in self.stages():
            self._left_s[RESOURCES[stage.kind]] += stage.expected_s
        self._begin_segment()

    def stages(self) -> Iterator[MockStage]:
        """All of them, in order."""
        return (stage for segment in self.segments for chain in segment for stage in chain)

    def _begin_segment(self) -> None:
        self._index += 1
        if self._index < len(self.segments):
            self._places = [0] * len(self.segments[self._index])
            self._offers = [self._stage(number) for number in range(len(self._places))]

    def _stage(self, number: int) -> Stage:
        """The next stage of a chain; what follows the segment's last one is the next segment's first."""
        chain, place = self.segments[self._index][number], self._places[number]
        following = [*chain[place + 1 :], *(s for segment in self.segments[self._index + 1 :][:1] for s in segment[0])]
        next_resource = RESOURCES[following[0].kind] if following else None
        stage = chain[place]
        return Stage(stage.kind, RESOURCES[stage.kind], Sleep(stage.seconds), stage.expected_s, next_resource, number)

    def offer(self) -> list[Stage]:
        """Stages that have become ready."""
        offers, self._offers = self._offers, []
        return offers

    def take(self, stage: Stage, outcome: Outcome) -> None:
        """Count a stage as ended."""
        number, segment = stage.token, self.segments[self._index]
        self.num_failed += outcome.error is not None
        self._left_s[stage.resource] -= segment[number][self._places[number]].expected_s
        self._places[number] += 1
        if self._places[number] < len(segment[number]):
            self._offers.append(self._stage(number))
        elif all(place == len(chain) for place, chain in zip(self._places, segment, strict=True)):
            self._begin_segment()

    def outlook(self, expected: Expected, num_units: Mapping[str, int]) -> Outlook:
        """The rest, by the seconds that the job expects of its stages."""
        key = tuple(num_units.values())
        if key not in self._rests_s:
            alone_s = [
                head_tail_bound_s(self._tasks(segment, [s.expected_s for chain in segment for s in chain]), num_units)
                for segment in self.segments
            ]
            self._rests_s[key] = [*reversed(list(itertools.accumulate(reversed(alone_s), initial=0.0)))]
        if self._index >= len(self.segments):
            return Outlook(dict(self._left_s), 0.0)
        left = tuple(c[place:] for c, place in zip(self.segments[self._index], self._places, strict=True))
        tasks = self._tasks(left, [s.expected_s for chain in left for s in chain])
        return Outlook(dict(self._left_s), head_tail_bound_s(tasks, num_units) + self._rests_s[key][self._index + 1])

    def _tasks(
        self, segment: Segment, seconds: Sequence[float], before_s: float = 0.0, after_s: float = 0.0
    ) -> list[Task]:
        """The stages of a segment, with what comes before and after it."""
        tasks, given = list[Task](), iter(seconds)
        for chain in segment:
            own = list(itertools.islice(given, len(chain)))
            for i, stage in enumerate(chain):
                head_s, tail_s = before_s + sum(own[:i]), sum(own[i + 1 :]) + after_s
                tasks.append(Task(RESOURCES[stage.kind], own[i], head_s, tail_s))
        return tasks

    def line(self) -> list[tuple[str, float]] | None:
        """Resource and seconds of its stages; None where some are side by side."""
        if any(len(segment) > 1 for segment in self.segments):
            return None
        return [(RESOURCES[stage.kind], stage.seconds) for stage in self.stages()]

    def tasks(self, num_units: Mapping[str, int]) -> list[Task]:
        """All stages by the seconds that they do take, for bounds. Heads and tails are those of the job alone on these
        resources: eight measurements on one device are one after the other."""
        seconds = [[s.seconds for chain in segment for s in chain] for segment in self.segments]
        alone_s = [
            head_tail_bound_s(self._tasks(segment, own), num_units)
            for segment, own in zip(self.segments, seconds, strict=True)
        ]
        before_s, after_s, tasks = 0.0, sum(alone_s), list[Task]()
        for segment, own, whole_s in zip(self.segments, seconds, alone_s, strict=True):
            after_s -= whole_s
            tasks += self._tasks(segment, own, before_s, max(0.0, after_s))
            before_s += whole_s
        return tasks


def strict_rounds(num_rounds: int, means_s: Mapping[str, float], spread: float = 0.0, seed: int = 0) -> MockJob:
    """Rounds of one select, build, measure and learn after the other, as in the thesis; kinds without a mean are left
    out.

    Args:
        spread: standard deviation of the logarithm of a stage's seconds; the job expects the mean.
    """
    rng = random.Random(seed)
    kinds = [kind for kind in RESOURCES if kind in means_s]
    return MockJob([((_stage(kind, means_s, spread, rng),),) for _ in range(num_rounds) for kind in kinds])


def batched_rounds(
    num_rounds: int, batch_size: int, means_s: Mapping[str, float], spread: float = 0.0, seed: int = 0
) -> MockJob:
    """Rounds whose candidates are built ahead: select, then each candidate's build and its measurement, then learn."""
    rng, segments = random.Random(seed), list[Segment]()

    def chain(*kinds: str) -> Chain:
        return tuple(_stage(kind, means_s, spread, rng) for kind in kinds)

    for _ in range(num_rounds):
        segments += [(chain(SELECT),), tuple(chain(BUILD, MEASURE) for _ in range(batch_size)), (chain(LEARN),)]
    return MockJob(segments)


def _stage(kind: str, means_s: Mapping[str, float], spread: float, rng: random.Random) -> MockStage:
    return MockStage(kind, _seconds(means_s[kind], spread, rng), means_s[kind])


def _seconds(mean_s: float, spread: float, rng: random.Random) -> float:
    """Log-normal with this mean."""
    return mean_s * math.exp(rng.gauss(0.0, spread) - spread**2 / 2) if spread else mean_s


@dataclass(frozen=True)
class Mix:
    """Jobs for the same machines. They are made anew for each run, as a job can be run once."""

    num_units: Mapping[str, int]
    jobs: Callable[[], list[MockJob]]


def random_mix(seed: int) -> Mix:
    """A mix as a service may meet it: 2 to 12 jobs of 4 to 24 rounds, in half of the mixes strict ones, in half of them
    with 2 to 8 candidates built ahead; 1 to 4 slots on the host, 1 or 2 devices; mean seconds of a stage log-uniform
    between 1 and 30 for each job and kind, in batches for all their builds or measurements together; stages vary by
    20 % around their means.
    """
    rng = random.Random(seed)
    num_units = {HOST: rng.randint(1, 4), DEVICE: rng.randint(1, 2)}
    plans = []
    for _ in range(rng.randint(2, 12)):
        means_s = {kind: math.exp(rng.uniform(0.0, math.log(30.0))) for kind in RESOURCES}
        plans.append((rng.randint(4, 24), rng.randint(2, 8), means_s, rng.getrandbits(32)))
    is_strict = rng.random() < 0.5

    def jobs() -> list[MockJob]:
        made = []
        for num_rounds, batch_size, means_s, job_seed in plans:
            if is_strict:
                made.append(strict_rounds(num_rounds, means_s, SPREAD, job_seed))
            else:
                shares = {k: s / batch_size if k in (BUILD, MEASURE) else s for k, s in means_s.items()}
                made.append(batched_rounds(num_rounds, batch_size, shares, SPREAD, job_seed))
        return made

    return Mix(num_units, jobs)
