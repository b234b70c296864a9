"""The scheduler: it takes in jobs, starts the stages that the policy chooses, and hands their outcomes to the jobs."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from chanas.errors import ChanasError, SchedulerError, describe
from chanas.scheduler.board import Board, Entry, Executor, Policy, Run, Status, Waiting
from chanas.scheduler.jobs import Job, Outcome
from chanas.scheduler.resources import Resource
from chanas.scheduler.trace import Event, Span, Trace

MAX_DEATHS = 3
"""A stage whose workers died so often is the likely reason: it fails."""

_NUM_CHARACTERS = 200

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """A user's wishes for a job: the higher `priority` goes first, users are served in equal parts, and `deadline_s`
    is seconds on the clock of the executor."""

    user: str = ""
    priority: int = 0
    deadline_s: float | None = None


class Scheduler:
    """Jobs on resources.

    Methods that join, pause, resume, cancel and kill jobs may be called from any thread, before `run` and while it
    runs, and take effect at its next turn.

    Args:
        resources: everything that stages can need.
        policy: chooses.
        executor: a clock, and what runs stages (`SimulatedExecutor`, `PoolExecutor`).
        max_deaths: of a stage's workers, before the stage counts as failed.
        ended: called with each job that has ended, however; a stage of it whose result is for nobody may still run.
        is_patient: paused jobs are waited for, as somebody may resume them; else a run in which nothing else is left
            is an error.
        observe: called with each span. With it neither spans nor events nor ended jobs are kept, so that a scheduler
            may serve for months; to an ended job commands say that there is none.

    Attributes:
        return_within_s: how long jobs wait for a unit of a resource of which all are lost, before they fail.
    """

    def __init__(
        self,
        resources: Iterable[Resource],
        policy: Policy,
        executor: Executor,
        max_deaths: int = MAX_DEATHS,
        ended: Callable[[Entry], None] = lambda _entry: None,
        *,
        is_patient: bool = False,
        observe: Callable[[Span], None] | None = None,
    ) -> None:
        self.policy = policy
        self.executor = executor
        self.max_deaths = max_deaths
        self.is_patient = is_patient
        self.return_within_s = 0.0
        self._ended, self._observe = ended, observe
        self.board = Board({r.name: r for r in resources}, now_s=executor.now_s)
        self.trace = Trace({name: r.num_units for name, r in self.board.resources.items()})
        self.jobs: dict[str, Entry] = {}
        self._commands: deque[Callable[[], None]] = deque()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._orders = itertools.count()
        self._is_serving = False
        self._names: set[str] = set()
        self._given_up_s: dict[str, float] = {}  # when those who wait for a resource without any unit fail
        self._questions: list[Future[Any]] = []
        self._ending = threading.Lock()
        self._is_over = False

    # Commands

    def join(self, name: str, job: Job, terms: Terms | None = None) -> None:
        """Take in a job.

        Raises:
            SchedulerError: another job has, or had, this name. Other commands raise it where no job has it.
        """
        if name in self._names:
            raise SchedulerError(f"expected a new name for a job, got '{name}' again")
        self._names.add(name)
        self._command(lambda: self._join(name, job, terms or Terms()))

    def pause(self, name: str) -> None:
        """Start none of its stages until `resume`; those that run end."""
        self._check(name)
        self._command(lambda: self._set(name, Status.OPEN, Status.PAUSED, "paused"))

    def resume(self, name: str) -> None:
        """Go on with a paused job."""
        self._check(name)
        self._command(lambda: self._set(name, Status.PAUSED, Status.OPEN, "resumed"))

    def cancel(self, name: str) -> None:
        """Start no more of its stages; those that run end, and the job is told of them."""
        self._check(name)
        self._command(lambda: self._close(name, Status.CANCELLED))

    def kill(self, name: str) -> None:
        """End it now; stages that run are aborted where they can be, and their results dropped where they can't."""
        self._check(name)
        self._command(lambda: self._close(name, Status.KILLED))

    def lose(self, resource: str, unit: int) -> None:
        """Take a unit out of service; the stage on it is run again elsewhere."""
        self._command(lambda: self._lose(resource, unit))

    def restore(self, resource: str, unit: int) -> None:
        """Take a unit into service again."""
        self._command(lambda: self._restore(resource, unit))

    def at(self, time_s: float, command: Callable[[], None]) -> None:
        """Call something at a time of the executor's clock, such as `lambda: scheduler.pause("a")`."""
        self._command(lambda: heapq.heappush(self._due, (time_s, next(self._orders), command)))

    def ask(self, question: Callable[[], Answer]) -> Future[Answer]:
        """The answer to a question about jobs, asked by the thread that runs them; commands in it take effect before
        anything else happens. Cancelled where the run is over."""
        answer: Future[Answer] = Future()
        with self._ending:
            if self._is_over:
                answer.cancel()
                return answer
            self._questions.append(answer)

        def reply() -> None:
            self._questions.remove(answer)
            try:
                answer.set_result(question())
            except Exception as error:  # whoever asked hears of it
                answer.set_exception(error)

        self._command(reply)
        return answer

    def stop(self) -> None:
        """End `serve` as soon as every job has ended."""

        def stop() -> None:
            self._is_serving = False

        self._command(stop)

    def _check(self, name: str) -> None:
        if name not in self._names:
            raise SchedulerError(f"no job is named '{name}'")

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self.executor.wake()

    # The loop

    def serve(self) -> Trace:
        """Run jobs, and wait for more until `stop`."""
        self._is_serving = True
        return self.run()

    def run(self) -> Trace:
        """Run until every job has ended and nothing is due.

        Raises:
            SchedulerError: no stage runs or can be started, and nothing is due that would change that.
        """
        self._is_over = False
        try:
            return self._run()
        finally:
            with self._ending:
                self._is_over = True
                for question in self._questions:
                    question.cancel()

    def _run(self) -> Trace:
        while True:
            self._obey()
            self._start_stages()
            if self._commands:
                continue
            if not (self.board.entries or self.board.running or self._due or self._is_serving):
                return self.trace
            if not (self.board.running or self._next_s is not None or self._is_serving or self._may_be_resumed):
                raise SchedulerError(self._why_stuck())
            self._end_stages(self.executor.wait(self._next_s))

    @property
    def _next_s(self) -> float | None:
        """The next time at which something is due: a command, or that a resource without a unit is given up."""
        given_up_s = [at_s for at_s in self._given_up_s.values() if at_s > self.board.now_s]
        return min([*given_up_s, *(at_s for at_s, _, _ in self._due[:1])], default=None)

    @property
    def _may_be_resumed(self) -> bool:
        return self.is_patient and any(entry.status is Status.PAUSED for entry in self.board.entries)

    def _obey(self) -> None:
        self.board.now_s = self.executor.now_s
        while self._due and self._due[0][0] <= self.board.now_s:
            self._commands.append(heapq.heappop(self._due)[2])
        while self._commands:
            self._commands.popleft()()
        self._fail_without_units(*self._given_up_s)

    def _start_stages(self) -> None:
        """Start what the policy chooses until it chooses nothing."""
        board, resources = self.board, self.board.resources
        while True:
            has_room = {name: r.unit_for(shared=self.policy.shares) is not None for name, r in resources.items()}
            ready = [w for w in board.waiting if w.entry.status is Status.OPEN and has_room[w.stage.resource]]
            if any(w.avoid or w.stage.unit is not None for w in ready):  # those that may have to wait for another unit
                ready = [w for w in ready if self._unit_for(w) is not None]
            chosen = self.policy.choose(ready, board) if ready else None
            if chosen is None:
                return
            self._start(chosen)

    def _unit_for(self, waiting: Waiting) -> int | None:
        resource = self.board.resources[waiting.stage.resource]
        return resource.unit_for(waiting.avoid, self.policy.shares, waiting.stage.unit)

    def _start(self, waiting: Waiting) -> None:
        board, resource = self.board, self.board.resources[waiting.stage.resource]
        unit = self._unit_for(waiting)
        if unit is None:
            raise SchedulerError(f"the policy chose a stage of {waiting.entry.name}, but no {resource.name} is free")
        run = Run(waiting, unit, board.now_s, board.expected_s(waiting))
        resource.occupy(unit)
        board.waiting.remove(waiting)
        board.running.append(run)
        board.served_s[waiting.entry.user] += run.expected_s
        self.executor.start(run)

    def _end_stages(self, ended: list[tuple[Run, Outcome]]) -> None:
        self.board.now_s = self.executor.now_s
        for run, outcome in ended:
            self._end(run, outcome)

    def _end(self, run: Run, outcome: Outcome) -> None:
        """Free the unit, then run the stage again, or tell the job and take in what it offers next."""
        waiting, entry = run.waiting, run.waiting.entry
        resource = self.board.resources[run.resource]
        self.board.running.remove(run)
        resource.release(run.unit)
        self.board.served_s[entry.user] += outcome.seconds - run.expected_s
        ended = "dropped" if run.dropped else "died" if outcome.died else "failed" if outcome.error else "done"
        self._note_span(run, ended)
        if outcome.lost:
            self._lose(run.resource, run.unit)
        if run.dropped:
            return
        if outcome.died and entry.status is not Status.CANCELLED and waiting.num_deaths + 1 < self.max_deaths:
            waiting.num_deaths += 1
            waiting.avoid |= {run.unit}
            waiting.since_s = self.board.now_s
            self.board.waiting.append(waiting)
            self._fail_without_units(run.resource)
            return
        if outcome.error is None:
            self.board.estimates.learn(entry.name, waiting.stage.kind, outcome.seconds)
        self._tell(entry, waiting, outcome)

    def _tell(self, entry: Entry, waiting: Waiting, outcome: Outcome) -> None:
        entry.num_open -= 1
        entry.outlook = None
        try:
            entry.job.take(waiting.stage, outcome)
        except Exception as error:  # a job of any kind: its fault ends it alone
            self._fail(entry, error)
            return
        self._take_offers(entry)

    def _take_offers(self, entry: Entry) -> None:
        if entry.ended_s is not None:
            return
        if entry.status is Status.CANCELLED:
            if not entry.num_open:
                self._note_end(entry)
            return
        try:
            stages = entry.job.offer()
            unknown = {s.resource for s in stages} - self.board.resources.keys()
            if unknown:
                raise SchedulerError(f"no resource named {', '.join(sorted(unknown))}")
        except Exception as error:
            self._fail(entry, error)
            return
        for stage in stages:
            self.board.waiting.append(Waiting(entry, stage, next(self._orders), self.board.now_s))
            entry.num_open += 1
        if not entry.num_open:
            entry.status = Status.COMPLETE
            self._note_end(entry)
        self._fail_without_units(*{s.resource for s in stages})

    # Changes of jobs

    def _join(self, name: str, job: Job, terms: Terms) -> None:
        board = self.board
        at_work = [board.served_s[e.user] for e in board.entries]
        board.served_s[terms.user] = max(board.served_s.get(terms.user, 0.0), min(at_work, default=0.0))
        entry = Entry(
            job=job,
            name=name,
            order=next(self._orders),
            joined_s=board.now_s,
            user=terms.user,
            priority=terms.priority,
            deadline_s=terms.deadline_s,
        )
        self.jobs[name] = entry
        board.entries.append(entry)
        self._note("joined", name, terms.user)
        self._take_offers(entry)

    def _set(self, name: str, before: Status, after: Status, what: str) -> None:
        entry = self.jobs.get(name)
        if entry is None or entry.status is not before:
            return
        entry.status = after
        self._note(what, name)
        for waiting in self._waiting_of(entry):
            waiting.since_s = self.board.now_s

    def _close(self, name: str, status: Status) -> None:
        """End a job: its ready stages are dropped, and with `KILLED` those that run, too."""
        entry = self.jobs.get(name)
        if entry is None or entry.ended_s is not None:
            return
        entry.status = status
        self._drop_waiting(entry)
        if status is Status.KILLED:
            self._drop_running(entry)
        if not entry.num_open:
            self._note_end(entry)

    def _fail(self, entry: Entry, error: Exception) -> None:
        entry.status, entry.cause = Status.FAILED, error
        entry.error = str(error) if isinstance(error, ChanasError) else describe(error, _NUM_CHARACTERS)
        self._drop_waiting(entry)
        self._drop_running(entry)
        self._note_end(entry)

    def _waiting_of(self, entry: Entry) -> list[Waiting]:
        return [w for w in self.board.waiting if w.entry is entry]

    def _drop_waiting(self, entry: Entry) -> None:
        entry.num_open -= len(self._waiting_of(entry))
        self.board.waiting[:] = [w for w in self.board.waiting if w.entry is not entry]

    def _drop_running(self, entry: Entry) -> None:
        for run in [r for r in self.board.running if r.waiting.entry is entry]:
            run.dropped = True
            entry.num_open -= 1
            if self.executor.abort(run):
                self._end(run, Outcome(seconds=self.board.now_s - run.start_s))

    # Changes of resources

    def _lose(self, resource: str, unit: int) -> None:
        board = self.board
        board.resources[resource].lose(unit)
        self._note("lost", f"{resource} {unit}")
        if not board.resources[resource].num_units:
            self._given_up_s[resource] = board.now_s + self.return_within_s
        for run in [r for r in board.running if (r.resource, r.unit) == (resource, unit)]:
            if self.executor.abort(run):
                seconds = board.now_s - run.start_s
                self._end(run, Outcome(seconds=seconds, error=f"{resource} {unit} was lost", died=True))
        self._fail_without_units(resource)

    def _restore(self, resource: str, unit: int) -> None:
        self.board.resources[resource].restore(unit)
        self._given_up_s.pop(resource, None)
        self._note("restored", f"{resource} {unit}")

    def _fail_without_units(self, *resources: str) -> None:
        """End the jobs that wait for a resource of which no unit is left, nor comes back in time."""
        for name in resources:
            if self.board.now_s >= self._given_up_s.get(name, math.inf):
                for entry in list(dict.fromkeys(w.entry for w in self.board.waiting if w.stage.resource == name)):
                    self._fail(entry, SchedulerError(f"no {name} is left"))

    # Notes

    def _note(self, what: str, name: str, detail: str = "") -> None:
        if self._observe is None:
            self.trace.events.append(Event(self.board.now_s, what, name, detail))

    def _note_end(self, entry: Entry) -> None:
        entry.ended_s = self.board.now_s
        self.board.entries.remove(entry)
        self.board.estimates.forget(entry.name)
        self._note(entry.status.value, entry.name, entry.error or "")
        if self._observe is not None:
            del self.jobs[entry.name]
            self._names.discard(entry.name)
        self._ended(entry)

    def _note_span(self, run: Run, ended: str) -> None:
        entry, stage = run.waiting.entry, run.waiting.stage
        span = Span(entry.name, entry.user, stage.kind, run.resource, run.unit, run.start_s, self.board.now_s, ended)
        (self._observe or self.trace.spans.append)(span)

    def _why_stuck(self) -> str:
        states = ", ".join(f"{e.name} {e.status}" for e in self.board.entries)
        return f"nothing runs and nothing can be started; jobs: {states}; resume or cancel those that are paused"
