"""Policies: which of the ready stages is started next.

`sequential`, `synchronous` and `interleaved` are those of D. Stiller, *A load-aware scheduler for large-scale neural
network autotuning* (2019), listings 3, 4 and 2; they know neither seconds nor priorities, users and deadlines.
`shortest`, `slack` and `lookahead` know them all; the last one alone may leave a unit idle that a stage is ready for.
"""

from __future__ import annotations

import functools
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from chanas.errors import ConfigError, unknown_name
from chanas.scheduler.board import Board, Entry, Policy, Run, Status, Waiting
from chanas.scheduler.jobs import Forecast, Foreseen
from chanas.scheduler.rollouts import Course, Now

PATIENCE_S = 3600.0
"""A stage that has waited so long goes before all others of its resource, so that none waits for ever."""

URGENT = 0.25
"""A job whose slack is a smaller share of its rest is urgent: estimates are not better than that."""

FEED_BELOW = 0.3
STARVE_BELOW = 0.1
"""A hungry resource matters to `Lookahead` where the time that it may idle is less than this share of the time that is
left; tried on a hundred random mixes, among 0.05 to 1."""

NUM_SCENARIOS, NUM_FIRST, NUM_ERRORS, NUM_CHOICES = 12, 3, 3.0, 4
"""Limits of what `Planned` tries: scenarios, those after which a choice that is no better is dropped, standard errors
by which another choice must be better, other stages; chosen on two dozen random mixes."""


class Interleaved:
    """First come, first served at each resource; of stages that became ready at once, the older job's first."""

    shares = False

    def choose(self, ready: list[Waiting], board: Board) -> Waiting | None:
        """The one that has waited longest."""
        return min(ready, key=lambda waiting: waiting.order)


class Sequential:
    """One job after the other, and in a job one stage after the other: what tuning is without a scheduler."""

    shares = False

    def choose(self, ready: list[Waiting], board: Board) -> Waiting | None:
        """The oldest job's next stage, when nothing runs."""
        if board.running:
            return None
        return min(ready, key=lambda waiting: (waiting.entry.order, waiting.order))


class Synchronous:
    """The same stage of all jobs at once, on the same resource: the most that jobs can be in each other's way.

    The jobs that are there when a group begins are its members, and the next group begins when all have ended. The
    thesis knows equal jobs alone, of which there are at least two. Here those that have more to do than others of their
    group go on in step, and a lone job runs alone, so that every job ends.
    """

    shares = True

    def __init__(self) -> None:
        self._members: set[Entry] = set()
        self._step: list[Waiting] = []

    def choose(self, ready: list[Waiting], board: Board) -> Waiting | None:
        """The next member's stage of this step; a step begins when the last one's stages have ended."""
        if not self._step and not board.running:
            self._members = {e for e in self._members if e in board.entries} or {w.entry for w in ready}
            firsts: dict[Entry, Waiting] = {}
            for waiting in sorted(ready, key=lambda w: (w.entry.order, w.order)):
                if waiting.entry in self._members:
                    firsts.setdefault(waiting.entry, waiting)
            self._step = list(firsts.values())
        while self._step:
            waiting = self._step.pop(0)
            if waiting in ready:
                return waiting
        return None


@dataclass(frozen=True)
class Outlooks:
    """The time ahead of all jobs, as it is expected.

    backlog_s  until all could have ended at the earliest
    alone_s    by job, its rest if it had all resources to itself
    spare_s    by resource, how long its units may idle in this time
    hungry     resources with fewer stages than units: those counted that run on it, wait for it or come to it next
    """

    backlog_s: float
    alone_s: Mapping[Entry, float]
    spare_s: Mapping[str, float]
    hungry: Collection[str]

    @classmethod
    def of(cls, board: Board) -> Outlooks:
        """Those of all jobs but paused ones, and those that will do no more."""
        outlooks = {entry: board.outlook(entry) for entry in board.entries if entry.status is Status.OPEN}
        num_units = {name: max(1, r.num_units) for name, r in board.resources.items()}
        load_s = {n: sum(o.work_s.get(n, 0.0) for o in outlooks.values()) / num for n, num in num_units.items()}
        alone_s = {entry: outlook.alone_s for entry, outlook in outlooks.items()}
        backlog_s = max([*load_s.values(), *alone_s.values()])
        spare_s = {name: backlog_s - seconds for name, seconds in load_s.items()}
        coming = [n for run in board.running for n in {run.resource, run.waiting.stage.next_resource}]
        coming += [waiting.stage.resource for waiting in board.waiting]
        hungry = {name for name, resource in board.resources.items() if coming.count(name) < resource.num_units}
        return cls(backlog_s, alone_s, spare_s, hungry)

    def slack_s(self, entry: Entry, now_s: float) -> float:
        """Seconds that a job can still wait and end in time. One without a deadline is due when all could have ended at
        the earliest."""
        left_s = self.backlog_s if entry.deadline_s is None else entry.deadline_s - now_s
        return left_s - self.alone_s[entry]

    def is_urgent(self, entry: Entry, now_s: float) -> bool:
        """Is there a deadline, and hardly more time than the job needs?"""
        return entry.deadline_s is not None and self.slack_s(entry, now_s) < URGENT * self.alone_s[entry]


class Ranked(ABC):
    """The stage of the lowest rank, after what comes before every rank, in this order:

    1. a stage that has waited longer than `patience_s`, the longest first
    2. the higher priority
    3. the user who was served the fewest seconds
    4. a job whose deadline is close: its slack is less than `URGENT` of what it still needs
    """

    shares = False

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s

    @abstractmethod
    def rank(self, waiting: Waiting, board: Board, outlooks: Outlooks) -> tuple[float, ...]:
        """Numbers; the lowest go first, and of equal ones the stage that has waited longest."""

    def choose(self, ready: list[Waiting], board: Board) -> Waiting | None:
        """The first by all of this."""
        outlooks = Outlooks.of(board)
        return min(ready, key=lambda waiting: self._key(waiting, board, outlooks))

    def _key(self, waiting: Waiting, board: Board, outlooks: Outlooks) -> tuple[float, ...]:
        entry, waited_s = waiting.entry, board.now_s - waiting.since_s
        if waited_s > self.patience_s:
            return (-waited_s,)
        is_urgent = outlooks.is_urgent(entry, board.now_s)
        first = (0.0, -entry.priority, board.served_s[entry.user], not is_urgent)
        return (*first, *self.rank(waiting, board, outlooks), waiting.order)


def _feeds(waiting: Waiting, outlooks: Outlooks) -> bool:
    """Is the job's next stage one for another resource, which has too little to do?"""
    stage = waiting.stage
    return stage.next_resource != stage.resource and stage.next_resource in outlooks.hungry


class Shortest(Ranked):
    """First a stage that feeds a hungry resource, then the shortest expected one. No device is idle while something can
    be built for it."""

    def rank(self, waiting: Waiting, board: Board, outlooks: Outlooks) -> tuple[float, ...]:
        """Feeding, then seconds."""
        return (not _feeds(waiting, outlooks), board.expected_s(waiting))


class Slack(Ranked):
    """First a stage that feeds a hungry resource, then one of the job with the least slack: without deadlines, of the
    longest rest. No device is idle while something can be built for it."""

    def rank(self, waiting: Waiting, board: Board, outlooks: Outlooks) -> tuple[float, ...]:
        """Feeding, then slack."""
        return (not _feeds(waiting, outlooks), outlooks.slack_s(waiting.entry, board.now_s))


class Lookahead(Ranked):
    """`Slack` with two thoughts about what comes next.

    A hungry resource is fed first only where it has little time to spare; and where it has almost none, other resources
    first serve the jobs that bring it the most work for a second of theirs. And a unit is held free for a job with less
    slack that will need it before the stage that could start now has ended, where waiting would cost that job
    more time than it can spare, and holding costs the resource less.
    """

    def rank(self, waiting: Waiting, board: Board, outlooks: Outlooks) -> tuple[float, ...]:
        """Feeding, seconds for a second of the hungry resource's work, then slack."""
        stage, entry = waiting.stage, waiting.entry
        left_s, spare_s = outlooks.backlog_s, outlooks.spare_s
        feeds = _feeds(waiting, outlooks) and spare_s[str(stage.next_resource)] <= FEED_BELOW * left_s
        work_s = board.outlook(entry).work_s
        own_s = work_s.get(stage.resource, 0.0)
        starved = [n for n in outlooks.hungry if n != stage.resource and spare_s[n] < STARVE_BELOW * left_s]
        price = sum(own_s / max(work_s.get(name, 0.0), 1e-9) for name in sorted(starved))
        return (not feeds, price, outlooks.slack_s(entry, board.now_s))

    def choose(self, ready: list[Waiting], board: Board) -> Waiting | None:
        """The first that no unit should be held free from."""
        outlooks = Outlooks.of(board)
        for waiting in sorted(ready, key=lambda waiting: self._key(waiting, board, outlooks)):
            if board.now_s - waiting.since_s > self.patience_s or not self._blocks(waiting, board, outlooks):
                return waiting
        return None

    def _blocks(self, waiting: Waiting, board: Board, outlooks: Outlooks) -> bool:
        """Would this stage keep a job with less slack waiting, at a higher cost than that of an idle unit?"""
        resource, now_s = board.resources[waiting.stage.resource], board.now_s
        end_s = now_s + board.expected_s(waiting)
        slack_s = outlooks.slack_s(waiting.entry, now_s)
        ends_s = [max(now_s, r.start_s + r.expected_s) for r in board.running if r.resource == resource.name]
        for run in board.running:
            entry, comes_s = run.waiting.entry, max(now_s, run.start_s + run.expected_s)
            its_slack_s = outlooks.slack_s(entry, now_s) if entry in outlooks.alone_s else slack_s
            if run.waiting.stage.next_resource != resource.name or its_slack_s >= slack_s or comes_s >= end_s:
                continue
            if resource.num_free - 1 + sum(end <= comes_s for end in ends_s) > 0:
                continue  # there will be another unit for it
            delay_s = min([end_s, *(end for end in ends_s if end > comes_s)]) - comes_s
            idle_s = (comes_s - now_s) / resource.num_units
            if max(0.0, delay_s - its_slack_s) > max(0.0, idle_s - outlooks.spare_s[resource.name]):
                return True
        return False


class Planned(Ranked):
    """`Lookahead`, whose choice is tried ahead beside the others that there are (`rollouts`), on jobs that know all
    their stages before; where one does not, `Slack`.

    Each of the ready stages of a resource, and leaving its unit idle until a stage ends, is tried in the same
    scenarios, which differ in how long stages take. Another choice is preferred where it is better by so many standard
    errors of the mean difference that this is no accident. Priorities, users and urgent deadlines come first as ever:
    what is compared are stages that are alike in these.

    Args:
        num_scenarios: that each choice is tried in.
    """

    def __init__(self, patience_s: float = PATIENCE_S, num_scenarios: int = NUM_SCENARIOS) -> None:
        super().__init__(patience_s)
        self._default, self._blind = Lookahead(patience_s), Slack(patience_s)
        self._num_scenarios = num_scenarios
        self._entries: tuple[Entry, ...] = ()
        self._num_units: dict[str, int] = {}
        self._course = Course([], [], {})
        self._idle: dict[str, tuple[float, list[Run]]] = {}  # by resource, since when and until one of which ends

    def rank(self, waiting: Waiting, board: Board, outlooks: Outlooks) -> tuple[float, ...]:
        """The rank of `Lookahead`."""
        return self._default.rank(waiting, board, outlooks)

    def choose(self, ready: list[Waiting], board: Board) -> Waiting | None:
        """The first choice of `Lookahead`, or what promises to be better."""
        entries = tuple(entry for entry in board.entries if entry.status is Status.OPEN)
        if not all(isinstance(entry.job, Foreseen) for entry in entries):
            return self._blind.choose(ready, board)
        ready = [waiting for waiting in ready if not self._is_idle(waiting.stage.resource, board)]
        first = self._default.choose(ready, board) if ready else None
        if not ready or (first is not None and board.now_s - first.since_s > self.patience_s):
            return first
        plan = _Plan.of(self._course_of(entries, board), entries, board)
        for name in dict.fromkeys(waiting.stage.resource for waiting in ready):
            if first is not None and first.stage.resource != name:
                continue
            own = [waiting for waiting in ready if waiting.stage.resource == name]
            chosen = self._best(first, self._alike(own, first, board), plan, board)
            if chosen is not None:
                return chosen
            self._idle[name] = board.now_s, plan.coming(name)
        return None if first is None else self.choose(ready, board)

    def _is_idle(self, resource: str, board: Board) -> bool:
        since_s, runs = self._idle.get(resource, (-1.0, []))
        return since_s == board.now_s and all(run in board.running for run in runs)

    def _course_of(self, entries: tuple[Entry, ...], board: Board) -> Course:
        num_units = {name: max(1, r.num_units) for name, r in board.resources.items()}
        if entries != self._entries or num_units != self._num_units:
            forecasts = [forecast_of(entry, board) for entry in entries]
            self._course = Course(forecasts, [entry.priority for entry in entries], num_units)
            self._entries, self._num_units = entries, num_units
        return self._course

    def _alike(self, ready: list[Waiting], first: Waiting | None, board: Board) -> list[Waiting]:
        """The stages that may be chosen instead of the first: no less important, and one of each job and kind."""
        outlooks = Outlooks.of(board)
        keys = {waiting: self._key(waiting, board, outlooks)[:4] for waiting in ready}
        key = min(keys.values()) if first is None else keys[first]
        found: dict[tuple[Entry, str], Waiting] = {}
        for waiting in sorted((w for w in ready if keys[w] == key), key=lambda w: (w is not first, w.order)):
            found.setdefault((waiting.entry, waiting.stage.kind), waiting)
        return list(found.values())

    def _best(self, first: Waiting | None, alike: list[Waiting], plan: _Plan, board: Board) -> Waiting | None:
        """The stage to start; None: none, until one ends."""
        others = sorted((w for w in alike if w is not first), key=lambda w: -plan.tail_s(w))[:NUM_CHOICES]
        name = alike[0].stage.resource
        longest_s = max(board.expected_s(waiting) for waiting in alike)
        coming = [run for run in plan.coming(name) if run.start_s + run.expected_s < board.now_s + longest_s]
        choices: list[Waiting | None] = [first, *others]
        if first is None and not coming:
            return others[0]
        if first is not None and coming:
            choices.append(None)
        if len(choices) == 1:
            return first
        best, best_s = first, 0.0
        end_s = functools.cache(lambda choice, scenario: plan.end_s(name, choice, scenario))
        for choice in choices[1:]:
            gains = [end_s(choice, i) - end_s(first, i) for i in range(NUM_FIRST)]
            if statistics.fmean(gains) >= 0.0:
                continue
            gains += [end_s(choice, i) - end_s(first, i) for i in range(NUM_FIRST, self._num_scenarios)]
            gain_s = statistics.fmean(gains)
            error_s = statistics.stdev(gains) / math.sqrt(len(gains))
            if gain_s + NUM_ERRORS * error_s < -1e-9 and gain_s < best_s:
                best, best_s = choice, gain_s
        return best


def forecast_of(entry: Entry, board: Board) -> Forecast:
    """A job's forecast of all its stages.

    Raises:
        TypeError: it does not know them.
    """
    if not isinstance(entry.job, Foreseen):
        raise TypeError(f"job {entry.name} does not know its stages")
    num_units = {name: max(1, r.num_units) for name, r in board.resources.items()}
    return entry.job.forecast(lambda kind: board.estimates.expected_of_kind_s(entry.name, kind), num_units)


@dataclass(frozen=True)
class _Plan:
    """Jobs as they are now, to be tried ahead."""

    course: Course
    now: Now
    numbers: Mapping[Waiting, int]
    runs: Sequence[Run]

    @classmethod
    def of(cls, course: Course, entries: Sequence[Entry], board: Board) -> _Plan:
        """The plan of a board: all that waits and runs, and the work that is left."""
        forecasts = {entry: forecast_of(entry, board) for entry in entries}
        jobs = {entry: job for job, entry in enumerate(entries)}

        def number(waiting: Waiting) -> int:
            return course.number(jobs[waiting.entry], forecasts[waiting.entry], waiting.stage.token)

        own = [run for run in board.running if run.waiting.entry in jobs]
        waiting = [w for w in board.waiting if w.entry in jobs]
        numbers = {w: number(w) for w in [*waiting, *(run.waiting for run in own)]}
        foreign = [
            (course.names[r.resource], max(0.0, r.start_s + r.expected_s - board.now_s))
            for r in board.running
            if r.waiting.entry not in jobs
        ]
        work_s = [0.0] * len(course.names)
        for entry in entries:
            for name, seconds in board.outlook(entry).work_s.items():
                work_s[course.names[name]] += seconds
        for run in own:
            work_s[course.names[run.resource]] -= course.seconds(numbers[run.waiting])
        now = Now(
            course.left(list(forecasts.values())),
            [board.resources[name].num_free for name in course.names],
            [numbers[w] for w in waiting],
            [(numbers[run.waiting], board.now_s - run.start_s) for run in own],
            foreign,
            work_s,
        )
        return cls(course, now, numbers, own)

    def tail_s(self, waiting: Waiting) -> float:
        """Seconds from the start of a stage to the end of its job, at least."""
        return self.course.tail_s(self.numbers[waiting])

    def coming(self, resource: str) -> list[Run]:
        """The stages under way after which another one needs the resource."""
        number, left = self.course.names[resource], self.now.left
        return [run for run in self.runs if self.course.following(self.numbers[run.waiting], left) == number]

    def end_s(self, resource: str, waiting: Waiting | None, scenario: int) -> float:
        """The end of all jobs after a choice (`Course.end_s`)."""
        stage = None if waiting is None else self.numbers[waiting]
        return self.course.end_s(self.now, self.course.names[resource], stage, scenario)


POLICIES: dict[str, Callable[[], Policy]] = {
    "sequential": Sequential,
    "synchronous": Synchronous,
    "interleaved": Interleaved,
    "shortest": Shortest,
    "slack": Slack,
    "lookahead": Lookahead,
    "planned": Planned,
}


def policy(name: str) -> Policy:
    """A new policy of this name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in POLICIES:
        raise ConfigError(unknown_name("policy", name, POLICIES))
    return POLICIES[name]()
