"""A tuning as a job of the scheduler: its turns, and the builds and timings that it asks for in them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from chanas.errors import SchedulerError
from chanas.prescheduler.measuring.answers import Answer, ErrorKind, WorkerError
from chanas.prescheduler.measuring.shared.client import Client
from chanas.prescheduler.measuring.shared.turns import Answered, Ask, Rest
from chanas.prescheduler.measuring.shared.workers import SharedWorkers, Slot
from chanas.scheduler.jobs import BUILD, HOST, LEARN, MEASURE, START, Expected, Outcome, Outlook, Stage

_START_S = 10.0
"""Guess: importing a compiler and a framework, opening a network."""


@dataclass(frozen=True)
class _Built:
    """The answer of a build, and the end of the turn in which the tuning passed it on, unless it was at work then."""

    answer: Answer
    rest: Rest | None


class TuningJob:
    """Stages of a tuning: it starts, then whatever it asks for, and a turn whenever there are timings to learn from.

    A turn takes all answers that are there when it begins. What was built is passed on to the device at once, by the
    slot that built it: the tuning needs a millisecond for that.

    Args:
        client: its process.
        workers: what carries out its requests.
        done: called with the facts that the tuning ends with.
    """

    def __init__(
        self, client: Client, workers: SharedWorkers, done: Callable[[dict[str, Any]], None] = lambda _result: None
    ) -> None:
        self._client, self._workers, self._done = client, workers, done
        self._at_work = threading.Lock()  # held by the slot whose turn it is
        self._answers: deque[Answered] = deque()  # filled by the scheduler's thread, emptied by that of a slot
        self._asks: dict[int, Ask] = {}
        self._unwanted: set[int] = set()
        self._has_turn = self._ended = False
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
        if outcome.error is not None:
            raise SchedulerError(outcome.error)
        self._num_open -= 1
        found = outcome.value
        if isinstance(found, Rest):
            self._has_turn = False
            self._take_rest(found)
        else:
            del self._asks[stage.token]
            if isinstance(found, _Built) and found.rest is not None:
                self._take_rest(found.rest)
            else:
                answer = found.answer if isinstance(found, _Built) else found
                self._answers.append(Answered(number=stage.token, answer=answer))
        if self._answers and not (self._has_turn or self._ended):
            self._offers.append(self._turn(LEARN))
        self._num_open += len(self._offers)
        if not (self._num_open or self._ended):
            raise SchedulerError(f"job '{self._client.name}' waits, but not for a build or a timing")

    def _take_rest(self, rest: Rest) -> None:
        if rest.error is not None:
            raise SchedulerError(rest.error)
        self._ended = rest.ended
        self._num_left = rest.num_left
        self._unwanted |= set(rest.withdrawn)
        if rest.renew:
            self._workers.timers.stop(self._client.name)
        if rest.ended:
            self._done(rest.result or {})
        for ask in rest.asks:
            self._asks[ask.number] = ask
            self._offers.append(self._time(ask) if ask.times else self._build(ask))

    def _turn(self, kind: str, expected_s: float | None = None) -> Stage:
        self._has_turn = True
        return Stage(kind, HOST, self._serve_turn, expected_s, HOST)

    def _build(self, ask: Ask) -> Stage:
        work = partial(self._serve_build, ask)
        return Stage(BUILD, HOST, work, next_resource=self._workers.times_on, token=ask.number)

    def _time(self, ask: Ask) -> Stage:
        work = partial(self._answer, ask)
        return Stage(MEASURE, self._workers.times_on, work, next_resource=HOST, token=ask.number)

    def _serve_turn(self, slot: Slot) -> Rest:
        """Compute, by the thread of a slot. Answers that come meanwhile are for the next turn."""
        with self._at_work:
            answers = [self._answers.popleft() for _ in range(len(self._answers))]
            return self._client.turn(slot.core, answers)

    def _serve_build(self, ask: Ask, slot: Slot) -> _Built:
        answer = self._answer(ask, slot)
        if not self._at_work.acquire(blocking=False):
            return _Built(answer, None)
        try:
            return _Built(answer, self._client.turn(slot.core, [Answered(number=ask.number, answer=answer)]))
        finally:
            self._at_work.release()

    def _answer(self, ask: Ask, slot: Slot) -> Answer:
        if ask.number in self._unwanted:
            return Answer(None, WorkerError(ErrorKind.STOPPED, "withdrawn"))
        return slot.answer(self._client.name, ask)

    def outlook(self, expected: Expected, num_units: Mapping[str, int]) -> Outlook:
        """The rest: what is asked for, and as many more builds as the tuning expects. All of it is timed and learned
        from. Alone its busiest resource would be busy all the time."""
        if self._ended:
            return Outlook({}, 0.0)
        num_builds = self._num_left + sum(not ask.times for ask in self._asks.values())
        num_timings = self._num_left + len(self._asks)
        work_s = {HOST: num_builds * expected(BUILD) + (1 + num_timings) * expected(LEARN)}
        times_on = self._workers.times_on
        work_s[times_on] = work_s.get(times_on, 0.0) + num_timings * expected(MEASURE)
        return Outlook(work_s, max(seconds / num_units[name] for name, seconds in work_s.items()))

    def close(self) -> None:
        """End its processes."""
        self._client.close()
        self._workers.timers.stop(self._client.name)
