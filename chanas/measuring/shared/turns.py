"""A tuning that computes in turns, in a process of its own, beside others on shared machines.

A turn begins with the answers that have come since the last one, and ends when the tuning has nothing to do but to
wait: a JSON line for each. The scheduler's process has a `Client` for it. In its own process whoever waits for an
answer of its pool ends the turn (`SharedPool`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from chanas.core.codec import from_json, to_json
from chanas.devices.cores import move_to
from chanas.errors import ChanasError, MeasureError, SchedulerError, describe, shortage
from chanas.measuring.fleet import Awaited, Compute
from chanas.measuring.messages import Answer, Learn, Request

_LEAVE_S = 5.0
"""Seconds that a tuning may take to keep what it has measured when it is ended."""
LEARN_TIMEOUT_S = 600.0
"""Many times what a fit to some hundred records takes."""
_NUM_CHARACTERS = 300


Answered = tuple[int, Answer]
"""The number of a request, and its answer."""


# ---- messages -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request to a worker, by the number that its answer will have; one that `times` is for the `device` of this
    number as long as that is there, or for any."""

    number: int
    times: bool
    timeout_s: float
    request: Request
    device: int | None = None


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The beginning of a turn, on one core, with answers by the numbers of their requests."""

    core: int
    answers: tuple[Answered, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rest:
    """The end of a turn.

    asks       requests, in the order in which they were made
    withdrawn  numbers of earlier ones that are not wanted any more
    renew      the device is to time in a new process from now on
    num_left   builds that will be asked for later, as far as is known
    ended      the tuning is over: nothing follows
    error      why, where it failed
    lacking    what the machine was short of, where it failed because of that
    result     facts about what it made, by name
    """

    asks: tuple[Ask, ...] = ()
    withdrawn: tuple[int, ...] = ()
    renew: bool = False
    num_left: int = 0
    ended: bool = False
    error: str | None = None
    lacking: str | None = None
    result: dict[str, Any] | None = None


# ---- the end that the scheduler has ---------------------------------------------------------------------------------
class ProcessKilledError(SchedulerError):
    """A tuning's process that was killed, for want of memory, say: another one can go on from its records."""


class Client:
    """A tuning in a process of its own.

    Args:
        name: of its job, for errors.
        command: what Python runs: it serves turns (`main`).
        plan: handed to the process, as JSON.
        log: gets what it prints.
        folder: in which it works; None: this process's.
    """

    def __init__(
        self, name: str, command: Sequence[str], plan: Mapping[str, Any], log: Path, folder: Path | None = None
    ) -> None:
        self.name, self.log, self._folder = name, log, folder
        self._command, self._plan = tuple(command), dict(plan)
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def turn(self, core: int, answers: Sequence[Answered]) -> Rest:
        """Let it compute on a core until it waits.

        Raises:
            ProcessKilledError: the process was killed; the next turn starts another one.
            SchedulerError: it ended by itself.
        """
        if self._process is None:
            self._process = self._start(core)
            if self._closed:  # by another thread, before there was a process that it could end
                self.close()
        process, turn = self._process, Turn(core=core, answers=tuple(answers))
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(to_json(turn)).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError):  # ValueError: `close` has closed the pipe
            line = b""
        if not line:
            raise self._why_ended(process)
        rest: Rest = from_json(Rest, json.loads(line))
        if rest.ended:  # its last work is to end
            self.close()
        return rest

    def _why_ended(self, process: subprocess.Popen[bytes]) -> SchedulerError:
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_LEAVE_S)
        if self._closed or code is None or code >= 0:
            return SchedulerError(f"the process of job '{self.name}' has ended; {self.log} says more")
        self._process = None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what a dead process has not read can't be flushed
                    pipe.close()
        text = f"the process of job '{self.name}' was killed by signal {-code}"
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(f"{text}\n")
        return ProcessKilledError(text)

    def _start(self, core: int) -> subprocess.Popen[bytes]:
        if self._closed:
            raise SchedulerError(f"job '{self.name}' has ended")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, *self._command],
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C is for the scheduler alone
            )
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, [core])
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._plan).encode() + b"\n")
        return process

    def close(self) -> None:
        """End the process: it keeps what it has measured, and is killed if that takes too long."""
        self._closed = True
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError, ValueError):
            process.stdin.close()
        try:
            process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


# ---- the end that the tuning has ------------------------------------------------------------------------------------
Exchange = Callable[[Rest], Turn]
"""Ends a turn, and waits for the next one."""
Tuning = Callable[[dict[str, Any], Exchange], dict[str, Any]]
"""Tunes as a plan says, on a pool that ends its turns (`SharedPool`); returns facts about what it made."""


class SharedPool:
    """Builds and timings that others carry out. Whoever waits for an answer ends the turn.

    Args:
        exchange: ends a turn.
        num_builders: slots of the host.
        overlap: builds and timings may go on at the same time.
        num_devices: that time.
        learns: what cost models ask is computed elsewhere, too.
    """

    def __init__(
        self, exchange: Exchange, num_builders: int, overlap: bool, num_devices: int = 1, *, learns: bool = False
    ) -> None:
        self.num_builders, self.overlap, self.num_devices = num_builders, overlap, num_devices
        self.timing_s = self.building_s = 0.0
        self.compute: Compute | None = self._compute if learns else None
        self._exchange = exchange
        self._numbers = itertools.count()
        self._open: dict[int, tuple[Ask, Future[Answer]]] = {}
        self._asks: list[Ask] = []
        self._renew = False
        self._num_left = 0

    def expect(self, num_builds: int) -> None:
        """Tell, at the end of the turn, that so many builds will come."""
        self._num_left = num_builds

    def build(self, request: Request, timeout_s: float) -> Future[Answer]:
        """Compile on a slot of the host."""
        self._num_left = max(0, self._num_left - 1)
        return self._ask(request, timeout_s, times=False)

    def measure(self, request: Request, timeout_s: float, device: int | None = None) -> Future[Answer]:
        """Time on the device of this number, or on any."""
        return self._ask(request, timeout_s, times=True, device=device)

    def renew_timers(self) -> None:
        """Time in a new process from now on."""
        self._renew = True

    def _compute(self, question: dict[str, Any]) -> dict[str, Any]:
        answer = self._ask(Learn(question=question), LEARN_TIMEOUT_S, times=False).result()
        if answer.error is not None:
            raise MeasureError(f"what was learned elsewhere was lost: {answer.error}; run the same command again")
        found: dict[str, Any] = answer.result
        return found

    def _ask(self, request: Request, timeout_s: float, *, times: bool, device: int | None = None) -> Future[Answer]:
        number = next(self._numbers)
        ask = Ask(number=number, times=times, timeout_s=timeout_s, request=request, device=device)
        future = Awaited(self._settle)
        self._open[ask.number] = ask, future
        self._asks.append(ask)
        return future

    def _settle(self, futures: Sequence[Future[Any]]) -> None:
        """End turns until one of the futures is done."""
        while not any(future.done() for future in futures):
            turn = self._exchange(self._rest())
            for number, answer in turn.answers:
                ask, future = self._open.pop(number)
                if ask.times:
                    self.timing_s += answer.wall_s
                else:
                    self.building_s += answer.wall_s
                if future.set_running_or_notify_cancel():
                    future.set_result(answer)

    def _rest(self) -> Rest:
        asked = {ask.number for ask in self._asks}
        cancelled = {number for number, (_, future) in self._open.items() if future.cancelled()}
        for number in cancelled & asked:  # nobody has heard of these
            del self._open[number]
        asks, self._asks = tuple(ask for ask in self._asks if ask.number not in cancelled), []
        renew, self._renew = self._renew, False
        return Rest(asks=asks, withdrawn=tuple(sorted(cancelled - asked)), renew=renew, num_left=self._num_left)


def serve_turns(lines: IO[str], rests: IO[str], tune: Tuning, move: Callable[[set[int]], None] = move_to) -> None:
    """Tune in turns; how it ends is the last thing that is told.

    Args:
        lines: the plan comes from here, then the turns.
        rests: their ends go here.
        move: takes this process to a core.

    Raises:
        KeyboardInterrupt: there is no further turn, as with Ctrl-C: what was measured is kept.
    """

    def next_line() -> Any:
        line = lines.readline()
        if not line:
            raise KeyboardInterrupt
        return json.loads(line)

    def begin() -> Turn:
        turn: Turn = from_json(Turn, next_line())
        move({turn.core})
        return turn

    def end(rest: Rest) -> None:
        rests.write(json.dumps(to_json(rest)) + "\n")
        rests.flush()

    def exchange(rest: Rest) -> Turn:
        end(rest)
        return begin()

    plan = next_line()
    begin()
    try:
        rest = Rest(ended=True, result=tune(plan, exchange))
    except ChanasError as error:
        rest = Rest(ended=True, error=str(error), lacking=shortage(error))
    except Exception as error:
        with contextlib.suppress(OSError):  # the log may have no room either
            traceback.print_exc()
        rest = Rest(ended=True, error=describe(error, _NUM_CHARACTERS), lacking=shortage(error))
    end(rest)


def main(tune: Tuning) -> None:
    """Serve the turns of standard input; whatever is printed goes to standard error."""
    rests = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        serve_turns(sys.stdin, rests, tune)
    except KeyboardInterrupt:
        sys.exit(130)
