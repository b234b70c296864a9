"""The state that policies choose by: jobs, the stages that wait, those that run, and what they run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from chanas.scheduler.estimates import Estimates
from chanas.scheduler.jobs import Job, Outcome, Outlook, Stage
from chanas.scheduler.resources import Resource


class Status(StrEnum):
    """The state of a job."""

    OPEN = "open"
    PAUSED = "paused"
    COMPLETE = "complete"
    CANCELLED = "cancelled"
    KILLED = "killed"
    FAILED = "failed"


@dataclass(eq=False, slots=True, kw_only=True)
class Entry:
    """A job in the scheduler.

    order       of registration
    user        whose seconds its stages are counted as
    priority    the higher one's stages go first
    deadline_s  on the clock of the executor; None: as soon as possible
    error       why it failed, in one line; `cause` is the exception
    """

    job: Job
    name: str
    order: int
    joined_s: float
    user: str = ""
    priority: int = 0
    deadline_s: float | None = None
    status: Status = Status.OPEN
    ended_s: float | None = None
    error: str | None = None
    cause: Exception | None = None
    num_open: int = 0
    """Stages that wait or run."""
    outlook: Outlook | None = None
    """None: not asked since a stage ended."""


@dataclass(eq=False, slots=True)
class Waiting:
    """A stage that may start as soon as it is chosen.

    order     of all stages, as they became ready
    since_s   when it did
    avoid     units that died under it
    """

    entry: Entry
    stage: Stage
    order: int
    since_s: float
    num_deaths: int = 0
    avoid: frozenset[int] = frozenset()


@dataclass(eq=False, slots=True)
class Run:
    """A stage on a unit of its resource, since `start_s`."""

    waiting: Waiting
    unit: int
    start_s: float
    expected_s: float
    dropped: bool = False
    """Its job was killed: the result is for nobody."""

    @property
    def resource(self) -> str:
        """The name of the resource."""
        return self.waiting.stage.resource


@dataclass(eq=False)
class Board:
    """All of it. Policies read it, the engine writes.

    entries   jobs that have not ended, in order of registration
    waiting   ready stages, in the order in which they became ready; those of paused jobs are in it, too
    served_s  seconds of all resources by user; a user that joins begins at the least of those at work
    """

    resources: Mapping[str, Resource]
    estimates: Estimates = field(default_factory=Estimates)
    entries: list[Entry] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    running: list[Run] = field(default_factory=list)
    served_s: dict[str, float] = field(default_factory=dict)
    now_s: float = 0.0

    def expected_s(self, waiting: Waiting) -> float:
        """Seconds that a stage is expected to take."""
        return self.estimates.expected_s(waiting.entry.name, waiting.stage)

    def outlook(self, entry: Entry) -> Outlook:
        """A job's expected rest; seconds that its stages under way have run already are not taken off."""
        if entry.outlook is None:
            name = entry.name
            num_units = {r.name: max(1, r.num_units) for r in self.resources.values()}
            entry.outlook = entry.job.outlook(lambda kind: self.estimates.expected_of_kind_s(name, kind), num_units)
        return entry.outlook


class Policy(Protocol):
    """The choice of what runs next."""

    shares: bool
    """A unit may be given stages while it serves one: they slow each other down."""

    def choose(self, ready: list[Waiting], board: Board) -> Waiting | None:
        """One of the ready stages, to be started now; None to wait until something changes. Asked again after each
        start. Without `shares`, `ready` has only stages of which a unit is free."""


class Executor(Protocol):
    """A clock, and what runs stages."""

    @property
    def now_s(self) -> float:
        """Seconds on its clock."""

    def start(self, run: Run) -> None:
        """Begin with the stage of a run."""

    def abort(self, run: Run) -> bool:
        """End a run now, without an outcome. False: it cannot be ended, or has ended, and its outcome will come."""

    def wait(self, until_s: float | None) -> list[tuple[Run, Outcome]]:
        """Wait until runs end, `wake` is called or the clock reaches `until_s`. Returns what has ended, in order of
        registration and readiness."""

    def wake(self) -> None:
        """End the waiting, from another thread."""
