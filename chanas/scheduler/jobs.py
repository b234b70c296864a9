"""A job as the scheduler sees it: stages, the resource that each needs, and what it is told when one of them ends.

A tuning job goes in rounds, *select → build → measure → learn*. A stage that waits for nothing is offered; a job that
builds ahead of its measurements offers several at once, one in strict rounds a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chanas.errors import ChanasError

START, SELECT, BUILD, MEASURE, LEARN = "start", "select", "build", "measure", "learn"
HOST, DEVICE = "host", "device"

RESOURCES = {SELECT: HOST, BUILD: HOST, MEASURE: DEVICE, LEARN: HOST}
"""The resource that each stage of a round needs."""


class WorkerDiedError(ChanasError):
    """The worker that a stage ran on died over it: the stage is run again, elsewhere where that can be had."""


class UnitLostError(WorkerDiedError):
    """The machine that a stage ran on is gone: the stage is run again elsewhere, and the machine gets no other."""


@dataclass(frozen=True, eq=False)
class Stage:
    """A part of a job that runs on one resource without a break.

    kind           start, select, build, measure or learn
    resource       the name of the resource that it needs
    work           called by a worker, without arguments unless the pool of its unit has some for it; what it returns is
                   handed to the job
    expected_s     the job's own guess; None where it has none
    next_resource  needed by the stage that follows; None for the last one
    token          anything by which the job knows the stage again
    unit           of the resource: the one that is to run it as long as it is in service; None: any
    """

    kind: str
    resource: str
    work: Callable[..., Any]
    expected_s: float | None = None
    next_resource: str | None = None
    token: Any = None
    unit: int | None = None


@dataclass(frozen=True)
class Outcome:
    """The end of a stage: what its work returned, or why there is nothing.

    seconds  from its start to its end
    error    one line, where the work failed or its worker died
    died     the worker or the device died; with `lost`, it does not come back
    cause    what the work raised
    """

    value: Any = None
    seconds: float = 0.0
    error: str | None = None
    died: bool = False
    lost: bool = False
    cause: Exception | None = None


@dataclass(frozen=True)
class Outlook:
    """A job's expected rest, stages under way included.

    work_s   seconds of all its stages, by resource
    alone_s  seconds from now to its end, if it had all resources to itself
    """

    work_s: Mapping[str, float]
    alone_s: float


Expected = Callable[[str], float]
"""Seconds that a stage of this kind is expected to take in this job."""


class Job(Protocol):
    """A job. The scheduler calls it from one thread, so that its methods should be quick; work belongs into stages."""

    def offer(self) -> Sequence[Stage]:
        """Stages that may start and were not offered before. A job with none under way that offers none is complete."""

    def take(self, stage: Stage, outcome: Outcome) -> None:
        """A stage has ended, well or not. An exception ends the job."""

    def outlook(self, expected: Expected, num_units: Mapping[str, int]) -> Outlook:
        """The job's expected rest, on resources of so many units."""
