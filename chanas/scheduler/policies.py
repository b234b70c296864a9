"""Policies: which of the ready stages is started next.

`sequential`, `synchronous` and `interleaved` are those of D. Stiller, *A load-aware scheduler for large-scale neural
network autotuning* (2019), listings 3, 4 and 2; they know neither seconds nor priorities, users and deadlines.
`shortest`, `slack` and `lookahead` know them all; the last one alone may leave a unit idle that a stage is ready for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from chanas.errors import ConfigError, unknown_name
from chanas.scheduler.board import Board, Entry, Policy, Status, Waiting

PATIENCE_S = 3600.0
"""A stage that has waited so long goes before all others of its resource, so that none waits for ever."""

URGENT = 0.25
"""A job whose slack is a smaller share of its rest is urgent: estimates are not better than that."""

FEED_BELOW = 0.3
STARVE_BELOW = 0.1
"""A hungry resource matters to `Lookahead` where the time that it may idle is less than this share of the time that is
left; tried on a hundred random mixes, among 0.05 to 1."""


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


POLICIES: dict[str, Callable[[], Policy]] = {
    "sequential": Sequential,
    "synchronous": Synchronous,
    "interleaved": Interleaved,
    "shortest": Shortest,
    "slack": Slack,
    "lookahead": Lookahead,
}


def policy(name: str) -> Policy:
    """A new policy of this name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in POLICIES:
        raise ConfigError(unknown_name("policy", name, POLICIES))
    return POLICIES[name]()
