"""A clock that jumps from event to event: what a policy makes of jobs with given stage times, in no time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chanas.errors import SchedulerError
from chanas.scheduler.board import Policy, Run
from chanas.scheduler.engine import Scheduler
from chanas.scheduler.jobs import Job, Outcome
from chanas.scheduler.mock import Sleep
from chanas.scheduler.resources import Resource
from chanas.scheduler.trace import Trace


@dataclass(slots=True)
class _Progress:
    """A run at the time `since_s`, when what shares its unit last changed."""

    left_s: float
    since_s: float
    end_s: float


class SimulatedExecutor:
    """Stages whose work is `Sleep` take so many seconds; several on one unit share it in equal parts, which
    is the least that they can slow each other down."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._progress: dict[Run, _Progress] = {}

    @property
    def now_s(self) -> float:
        """Simulated seconds."""
        return self._now_s

    def start(self, run: Run) -> None:
        """Begin to count.

        Raises:
            SchedulerError: the work of the stage has no given time.
        """
        work = run.waiting.stage.work
        if not isinstance(work, Sleep):
            raise SchedulerError(f"expected a stage with given seconds (Sleep), got {work}: it cannot be simulated")
        num_before = len(self._beside(run))
        self._progress[run] = _Progress(work.seconds, self._now_s, self._now_s + work.seconds)
        self._share(run, num_before)

    def abort(self, run: Run) -> bool:
        """Forget a run; one that ends at this moment has ended."""
        if run not in self._progress:
            return False
        num_before = len(self._beside(run))
        del self._progress[run]
        self._share(run, num_before)
        return True

    def _beside(self, run: Run) -> list[_Progress]:
        """Runs on the same unit of the same resource, itself included."""
        return [p for other, p in self._progress.items() if other.unit == run.unit and other.resource == run.resource]

    def _share(self, changed: Run, num_before: int) -> None:
        """Tell the runs on a unit their new ends, now that it serves more or fewer than before."""
        beside = self._beside(changed)
        if num_before == 0:
            return  # a run that is alone from its start ends when it would
        for progress in beside:
            progress.left_s -= (self._now_s - progress.since_s) / num_before
            progress.since_s = self._now_s
            progress.end_s = self._now_s + progress.left_s * len(beside)

    def wait(self, until_s: float | None) -> list[tuple[Run, Outcome]]:
        """Jump to the next end, or to `until_s` if that is earlier.

        Raises:
            SchedulerError: nothing runs, and there is no time to jump to.
        """
        next_s = min((p.end_s for p in self._progress.values()), default=None)
        if next_s is None or (until_s is not None and until_s < next_s):
            if until_s is None:
                raise SchedulerError("nothing runs and nothing is due, so that a simulated clock has no next time")
            self._now_s = max(self._now_s, until_s)
            return []
        self._now_s = next_s
        ended = [run for run, progress in self._progress.items() if progress.end_s == next_s]
        num_before = [len(self._beside(run)) for run in ended]
        for run in ended:
            del self._progress[run]
        for run, num in zip(ended, num_before, strict=True):
            self._share(run, num)
        ended.sort(key=lambda run: (run.waiting.entry.order, run.waiting.order))
        return [(run, Outcome(seconds=next_s - run.start_s)) for run in ended]

    def wake(self) -> None:
        """Do nothing: a simulation has one thread."""


def simulate(jobs: Iterable[Job], resources: Iterable[Resource], policy: Policy) -> Trace:
    """All jobs, named 0, 1, …, from the beginning to the end of the last."""
    scheduler = Scheduler(resources, policy, SimulatedExecutor())
    for number, job in enumerate(jobs):
        scheduler.join(str(number), job)
    return scheduler.run()
