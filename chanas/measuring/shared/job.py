"""A tuning as a job of the scheduler: its turns, and the builds and timings that it asks for in them."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from chanas.errors import SchedulerError, ShortageError
from chanas.measuring.messages import Answer, ErrorKind, Learn, WorkerError
from chanas.measuring.shared.turns import Answered, Ask, Client, ProcessKilledError, Rest
from chanas.measuring.shared.workers import SharedWorkers, Slot
from chanas.scheduler.jobs import BUILD, HOST, LEARN, MEASURE, START, Expected, Outcome, Outlook, Stage

_START_S = 10.0
"""Guess: importing a compiler and a framework, opening a network."""

MAX_STARTS = 4
"""Processes that a tuning may have: whatever kills so many of them is the tuning's own fault."""


@dataclass(frozen=True)
class _Token:
    """The process that a stage is for, and the number of its request, if it is none of the tuning's turns."""

    start: int
    number: int = -1


@dataclass(frozen=True)
class _Built:
    """The answer of a build, and the end of the turn in which the tuning passed it on, unless it was at work then."""

    answer: Answer
    rest: Rest | ProcessKilledError | None


class TuningJob:
    """Stages of a tuning: it starts, then whatever it asks for, and a turn whenever there are timings to learn from.

    A turn takes all answers that are there when it begins. What was built is passed on to the device at once, by the
    slot that built it: the tuning needs a millisecond for that.

    A process that is killed is followed by another, which goes on from what was recorded; stages for the one before do
    nothing from then on.

    Args:
        client: its process.
        workers: what carries out its requests.
        done: called with the facts that the tuning ends with.
        first_device: the unit that is the tuning's first device: where several tunings begin with different ones, no
            device has to do more than the others.
    """

    def __init__(
        self,
        client: Client,
        workers: SharedWorkers,
        done: Callable[[dict[str, Any]], None] = lambda _result: None,
        first_device: int = 0,
    ) -> None:
        self._client, self._workers, self._done = client, workers, done
        self._first_device = first_device
        self._at_work = threading.Lock()  # held by the slot whose turn it is
        self._answers: deque[Answered] = deque()  # filled by the scheduler's thread, emptied by that of a slot
        self._asks: dict[int, Ask] = {}
        self._unwanted: set[int] = set()
        self._has_turn = self._ended = False
        self._num_starts = 1
        self._killed: ProcessKilledError | None = None
        self._num_open = 1
        self._num_left = 0
        self._offers: list[Stage] = [self._turn(START, _START_S)]

    def offer(self) -> list[Stage]:
        """Stages that have become ready."""
        offers, self._offers = self._offers, []
        return offers

    def take(self, stage: Stage, outcome: Outcome) -> None:
        """Ask for what the tuning asked for, or keep an answer for its next turn.

        Raises:
            SchedulerError: the tuning failed, or its process or a worker could not go on.
        """
        self._num_open -= 1
        if stage.token.start == self._num_starts:
            if outcome.error is not None and not (outcome.died and stage.token.number in self._asks):
                raise SchedulerError(outcome.error) from outcome.cause
            crash = WorkerError(ErrorKind.CRASH, f"{outcome.error}, as those before it")
            self._take(stage.token.number, outcome.value if outcome.error is None else Answer(None, crash))
        if self._answers and not (self._has_turn or self._ended):
            self._offers.append(self._turn(LEARN))
        self._num_open += len(self._offers)
        if not (self._num_open or self._ended):
            raise SchedulerError(f"job '{self._client.name}' waits, but not for a build or a timing")

    def _take(self, number: int, found: Rest | ProcessKilledError | _Built | Answer) -> None:
        if isinstance(found, Rest | ProcessKilledError):
            self._has_turn = False
            self._take_rest(found)
            return
        del self._asks[number]
        if isinstance(found, _Built) and found.rest is not None:
            self._take_rest(found.rest)
        else:
            answer = found.answer if isinstance(found, _Built) else found
            self._answers.append((number, answer))

    def _start_again(self, error: ProcessKilledError) -> None:
        if self._num_starts == MAX_STARTS:
            raise SchedulerError(f"{error}, as were the {MAX_STARTS - 1} before it")
        with self._at_work:
            self._num_starts, self._killed = self._num_starts + 1, None
            self._answers.clear()
        self._asks, self._unwanted = {}, set()
        self._workers.stop(self._client.name)
        self._offers = [self._turn(START, _START_S)]

    def _take_rest(self, rest: Rest | ProcessKilledError) -> None:
        if isinstance(rest, ProcessKilledError):
            self._start_again(rest)
            return
        if rest.error is not None:
            raise SchedulerError(rest.error) if rest.lacking is None else ShortageError(rest.error, rest.lacking)
        self._ended = rest.ended
        self._num_left = rest.num_left
        self._unwanted |= set(rest.withdrawn)
        if rest.renew:
            self._workers.renew(self._client.name)
        if rest.ended:
            self._done(rest.result or {})
        for ask in rest.asks:
            self._asks[ask.number] = ask
            self._offers.append(self._time(ask) if ask.times else self._build(ask))

    def _turn(self, kind: str, expected_s: float | None = None) -> Stage:
        self._has_turn = True
        token = _Token(self._num_starts)
        return Stage(kind, HOST, partial(self._serve_turn, token), expected_s, HOST, token)

    def _build(self, ask: Ask) -> Stage:
        token = _Token(self._num_starts, ask.number)
        if isinstance(ask.request, Learn):  # what follows in the tuning is more than a millisecond: a turn
            work_there = partial(self._answer, token, ask)
            return Stage(LEARN, self._workers.builds_on, work_there, next_resource=HOST, token=token)
        work = partial(self._serve_build, token, ask)
        return Stage(BUILD, self._workers.builds_on, work, next_resource=self._workers.times_on, token=token)

    def _time(self, ask: Ask) -> Stage:
        token = _Token(self._num_starts, ask.number)
        work, num = partial(self._time_it, token, ask), len(self._workers.devices)
        unit = None if ask.device is None else (ask.device + self._first_device) % num
        return Stage(MEASURE, self._workers.times_on, work, next_resource=HOST, token=token, unit=unit)

    def _serve_turn(self, token: _Token, slot: Slot) -> Rest | ProcessKilledError:
        """Compute, by the thread of a slot. Answers that come meanwhile are for the next turn."""
        with self._at_work:
            return self._compute(token, slot)

    def _serve_build(self, token: _Token, ask: Ask, slot: Slot) -> _Built:
        answer = self._answer(token, ask, slot)
        if not self._at_work.acquire(blocking=False):
            return _Built(answer, None)
        try:
            return _Built(answer, self._compute(token, slot, (ask.number, answer)))
        finally:
            self._at_work.release()

    def _compute(self, token: _Token, slot: Slot, built: Answered | None = None) -> Rest | ProcessKilledError:
        if token.start != self._num_starts:
            return Rest()  # nothing comes of it: the process that it was for was killed
        if self._killed is not None:
            return self._killed
        answers = [self._answers.popleft() for _ in range(len(self._answers))] if built is None else [built]
        try:
            return self._client.turn(slot.core, answers)
        except ProcessKilledError as error:
            self._killed = error
            return error

    def _time_it(self, token: _Token, ask: Ask, slot: Slot) -> Answer:
        device = (slot.unit - self._first_device) % len(self._workers.devices)
        return dataclasses.replace(self._answer(token, ask, slot), device=device)

    def _answer(self, token: _Token, ask: Ask, slot: Slot) -> Answer:
        if token.start != self._num_starts or ask.number in self._unwanted:
            return Answer(None, WorkerError(ErrorKind.STOPPED, "withdrawn"))
        return slot.answer(self._client.name, ask)

    def outlook(self, expected: Expected, num_units: Mapping[str, int]) -> Outlook:
        """The rest: what is asked for, and as many more builds as the tuning expects. All of it is timed and learned
        from. Alone its busiest resource would be busy all the time."""
        if self._ended:
            return Outlook({}, 0.0)
        asks = [ask for ask in self._asks.values() if not isinstance(ask.request, Learn)]
        num_builds = self._num_left + sum(not ask.times for ask in asks)
        num_timings = self._num_left + len(asks)
        work_s = {HOST: (1 + num_timings) * expected(LEARN)}
        for name, seconds in (
            (self._workers.builds_on, num_builds * expected(BUILD)),
            (self._workers.times_on, num_timings * expected(MEASURE)),
        ):
            work_s[name] = work_s.get(name, 0.0) + seconds
        return Outlook(work_s, max(seconds / num_units[name] for name, seconds in work_s.items()))

    def close(self) -> None:
        """End its processes."""
        self._client.close()
        self._workers.stop(self._client.name)
