"""Builders and timers with time limits, side by side: processes of this machine compile, and processes of this machine
or devices elsewhere time.

`concurrent.futures` and TVM's own pool lose the whole pool to a crash, or enforce a time limit from inside the process
that hangs; here the parent holds the limit and only the guilty worker is replaced. Failures are values, not exceptions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from chanas.core.target import HardwareTarget
from chanas.devices.cores import kept_off, split_cores
from chanas.devices.gpu_use import gpu_of
from chanas.errors import ChanasError, MeasureError
from chanas.files.scratch import scratch_folder
from chanas.measuring.locks import device_lock
from chanas.measuring.messages import Answer, ErrorKind, Request, WorkerError
from chanas.measuring.runner import POLL_S, RETURN_WITHIN_S, Runner, RunnerLostError, look_for, stays_away
from chanas.measuring.worker.process import WorkerProcess, worker_command

MAX_LOSSES = 3
"""Timers that may be lost over one request, before the candidate itself counts as failed."""

Compute = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes a question and gives its answer, both JSON."""


class Pool(Protocol):
    """Builds on cores here and times on devices: this machine (`WorkerPool`) or others (`remote.held`).

    A timing is made by the device that is named, from 0 on, as long as that one is there, and by any one otherwise.
    """

    num_builders: int
    num_devices: int
    overlap: bool
    timing_s: float
    building_s: float
    compute: Compute | None
    """Has what a cost model asks computed elsewhere; None: it is computed where it is asked."""

    def build(self, request: Request, timeout_s: float) -> Future[Answer]: ...

    def measure(self, request: Request, timeout_s: float, device: int | None = None) -> Future[Answer]: ...

    def renew_timers(self) -> None: ...

    def expect(self, num_builds: int) -> None: ...


Lock = Callable[[], AbstractContextManager[None]]
OpenPool = Callable[[HardwareTarget], AbstractContextManager[Pool]]
"""Opens a pool for a target."""


class Awaited(Future[Answer]):
    """An answer that comes only when somebody waits for it: `settle` brings one of several such answers about."""

    def __init__(self, settle: Callable[[Sequence[Future[Any]]], None]) -> None:
        super().__init__()
        self.settle = settle

    def result(self, timeout: float | None = None) -> Answer:
        """Bring it about, however long it takes."""
        if not self.done():
            self.settle([self])
        return super().result(timeout)


def wait_for_one(futures: Iterable[Future[Any]]) -> set[Future[Any]]:
    """Wait until one of the futures of a pool is done; returns those that are."""
    futures = list(futures)
    awaited = next((f for f in futures if isinstance(f, Awaited)), None)
    if awaited is not None and not any(future.done() for future in futures):
        awaited.settle(futures)
    return wait(futures, return_when=FIRST_COMPLETED).done


@dataclass(eq=False)
class Task:
    """One request that waits for a builder or a timer; `num_losses` counts timers that were lost over it."""

    request: Request
    timeout_s: float
    device: int | None = None
    future: Future[Answer] = field(default_factory=Future)
    num_losses: int = 0

    def give_up(self) -> None:
        """Answer that nobody waits for it any more."""
        error = WorkerError(ErrorKind.STOPPED, f"{self.request.call} was given up")
        self.future.set_result(Answer(None, error))


class Fleet:
    """Two queues, of builds and of timings, and a thread for each runner that serves them.

    What a timer was timing when it was lost goes back to the head of the queue, for that timer once it is back or for
    another one at once. Every future gets an answer, an exception, or is cancelled when the fleet is closed.

    Args:
        builders: processes that compile.
        timers: what times: devices elsewhere, or with a `lock` processes of this machine, which end with the fleet.
        overlap: builds and timings may go on at the same time.
        lock: held while a timer of this machine works; waiting for it is no part of a call's time.
        stand_in: compiles too, where the first timer times, while there is nothing to time and no builder is free.
        key: of the devices, for errors.
        return_within_s: how long timers are waited for when all of them are away.
    """

    compute: Compute | None = None

    def __init__(
        self,
        builders: Sequence[WorkerProcess],
        timers: Sequence[Runner],
        *,
        overlap: bool,
        lock: Lock | None = None,
        stand_in: WorkerProcess | None = None,
        key: str = "",
        return_within_s: float = RETURN_WITHIN_S,
    ) -> None:
        self.num_builders, self.num_devices, self.overlap = len(builders), len(timers), overlap
        self.timing_s = self.building_s = 0.0
        """Seconds spent so far, those of building summed over the workers."""
        self._builders, self._timers, self._stand_in = list(builders), list(timers), stand_in
        self._lock, self._key, self._return_within_s = lock, key, return_within_s
        self._timings: deque[Task] = deque()
        self._builds: deque[Task] = deque()
        self._num_free_builders = len(builders)
        self._away = {number for number, timer in enumerate(timers) if not timer.is_there}
        self._all_away_since: float | None = None
        self._failure: ChanasError | None = None
        self._closed = False
        self._changed = threading.Condition()
        functions: list[Callable[[], None]] = [partial(self._serve_builds, b) for b in builders]
        functions += [partial(self._serve_timings, number) for number in range(len(timers))]
        self._threads = [threading.Thread(target=function, daemon=True) for function in functions]
        for thread in self._threads:
            thread.start()

    # ---- asking -----------------------------------------------------------------------------------------------------
    def build(self, request: Request, timeout_s: float) -> Future[Answer]:
        """Compile on any free core."""
        return self._submit(self._builds, Task(request, timeout_s))

    def measure(self, request: Request, timeout_s: float, device: int | None = None) -> Future[Answer]:
        """Time on a device, where one timing comes after the other, and not while another process times there.

        Waiting for that process is no part of the call's time.
        """
        return self._submit(self._timings, Task(request, timeout_s, device))

    def renew_timers(self) -> None:
        """Time in a new process from now on, if this machine times; no timing may be in progress.

        In which pages of memory the weights of a network lie is drawn anew with each process, and where they compete
        for places in a cache, its time differs from process to process.
        """
        if self._lock is not None:
            for timer in self._timers:
                timer.stop()

    def expect(self, num_builds: int) -> None:
        """Be told that so many builds will come, as far as is known now: for those who share out machines."""

    def _submit(self, queue: deque[Task], task: Task) -> Future[Answer]:
        with self._changed:
            if self._closed:
                raise MeasureError(f"the pool that was asked for {task.request.call} is closed")
            queue.append(task)
            self._changed.notify_all()
        self._fail_all()
        return task.future

    # ---- serving ----------------------------------------------------------------------------------------------------
    def _serve_builds(self, worker: WorkerProcess) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._builds)
                if self._closed:
                    return
                task = self._builds.popleft()
                self._num_free_builders -= 1
            self._carry_out(task, worker)
            with self._changed:
                self._num_free_builders += 1

    def _serve_timings(self, number: int) -> None:
        while self._is_back(number):
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next(number) is not None)
                found = self._next(number)
                if self._closed or found is None:
                    return
                queue, task = found
                queue.remove(task)
            if queue is self._timings:
                self._carry_out(task, self._timers[number], number, lock=self._lock)
            elif self._stand_in is not None:
                # building here would disturb another process that times on these cores as much as timing would
                self._carry_out(task, self._stand_in, lock=self._lock)

    def _next(self, number: int) -> tuple[deque[Task], Task] | None:
        """The next task of a timer's thread, and the queue that it is in: the first that waits for this timer, for any,
        or for one that is away; where there is none, a build that no builder is free for."""
        mine = (None, number, *self._away)
        task = next((task for task in self._timings if task.device in mine), None)
        if task is not None:
            return self._timings, task
        if number == 0 and self._stand_in is not None and len(self._builds) > self._num_free_builders:
            return self._builds, self._builds[0]
        return None

    def _carry_out(self, task: Task, runner: Runner, number: int | None = None, *, lock: Lock | None = None) -> None:
        """Run a task and give its future what came of it; `number` is that of the timer, if it is a timing."""
        if not task.future.running() and not task.future.set_running_or_notify_cancel():
            return
        start = time.monotonic()
        try:
            with contextlib.nullcontext() if lock is None else lock():
                start = time.monotonic()
                answer = runner.call(task.request, task.timeout_s)
        except RunnerLostError as lost:
            assert number is not None
            self._put_back(task, number, str(lost))
        except BaseException as error:  # the future's owner hears of it, like from any executor
            self._note(time.monotonic() - start, number)
            task.future.set_exception(error)
        else:
            is_elsewhere = number is not None and self._lock is None  # where it may have waited for others
            self._note(answer.wall_s if is_elsewhere else time.monotonic() - start, number)
            task.future.set_result(dataclasses.replace(answer, device=number or 0))

    def _note(self, seconds: float, number: int | None) -> None:
        with self._changed:
            if number is None:
                self.building_s += seconds
            else:
                self.timing_s += seconds

    # ---- timers that come and go ------------------------------------------------------------------------------------
    def _put_back(self, task: Task, number: int, reason: str) -> None:
        """A timer was lost over a task."""
        task.num_losses += 1
        with self._changed:
            self._away.add(number)
            if self._closed:
                task.give_up()
            elif task.num_losses < MAX_LOSSES:
                self._timings.appendleft(task)
            else:
                text = f"the device was lost {MAX_LOSSES} times in {task.request.call}, the last time: {reason}"
                task.future.set_result(Answer(None, WorkerError(ErrorKind.CRASH, text), device=number))
            self._changed.notify_all()

    def _is_back(self, number: int) -> bool:
        """Wait until a timer is there, or another one in its place; false when the fleet is closed or has failed.

        While others time it is looked for as long as it takes; without any of them no longer than `return_within_s`.
        """

        def goes_on(reason: WorkerError) -> bool:
            with self._changed:
                since = self._all_away_since
                if since is not None and time.monotonic() - since > self._return_within_s:
                    what = f"no device of key '{self._key}' came back"
                    self._failure = self._failure or stays_away(what, self._return_within_s, reason)
                else:
                    self._changed.wait_for(lambda: self._closed, POLL_S)
            self._fail_all()
            return self._waits()

        if not self._timers[number].is_there and not (self._waits() and look_for(self._timers[number], goes_on)):
            return False
        with self._changed:
            self._away.discard(number)
            self._all_away_since = None
            return not self._closed

    def _waits(self) -> bool:
        """True as long as a timer that is away is looked for; it begins to count when the last one is."""
        with self._changed:
            if len(self._away) == self.num_devices and self._all_away_since is None:
                self._all_away_since = time.monotonic()
            return not self._closed and self._failure is None

    def _fail_all(self) -> None:
        """Tell everyone who waits for a timing that there is no timer any more, once that is so."""
        with self._changed:
            if self._failure is None:
                return
            waiting = list(self._timings)
            self._timings.clear()
            self._changed.notify_all()
        for task in waiting:
            if task.future.running() or task.future.set_running_or_notify_cancel():
                task.future.set_exception(self._failure)

    # ---- beginning and end ------------------------------------------------------------------------------------------
    def _workers(self) -> list[Runner]:
        """The processes of this machine."""
        timers = [] if self._lock is None else self._timers
        return [*timers, *self._builders, *([self._stand_in] if self._stand_in else [])]

    def close(self) -> None:
        """End all workers at once and release devices that are timing; calls in progress are lost."""
        with self._changed:
            self._closed = True
            waiting = [*self._timings, *self._builds]
            self._timings.clear()
            self._builds.clear()
            self._changed.notify_all()
        for task in waiting:
            if not task.future.cancel() and not task.future.done():  # one that goes back to the queue after a loss
                task.give_up()
        for worker in self._workers():
            worker.close()
        for thread, timer in zip(self._threads[len(self._builders) :], self._timers, strict=True):
            thread.join(0.1)
            while thread.is_alive():
                timer.stop()
                thread.join(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WorkerPool(Fleet):
    """One timing process and a few compiling ones of this machine.

    Where both may work at the same time, the timing cores compile too (in one more process) while there is nothing to
    time and every other core is busy: two cores then share all of the work. Never while something is timed on them.
    """

    def __init__(self, target: HardwareTarget) -> None:
        timing, compiling = split_cores(target.num_threads)
        command, gpu = worker_command(target), gpu_of(target)
        timer = WorkerProcess(target.num_threads, timing, command)
        builders = [WorkerProcess(1, [core], command) for core in compiling or timing]
        stand_in = WorkerProcess(1, timing[:1], command) if compiling else None
        lock = partial(device_lock, lambda: self._closed, gpu)
        super().__init__(builders, [timer], overlap=bool(compiling), lock=lock, stand_in=stand_in)


@contextlib.contextmanager
def open_workers(target: HardwareTarget, open_pool: OpenPool | None = None) -> Iterator[tuple[Pool, Path]]:
    """A pool, with the cores that time kept free of this process, and a folder for what is made on the way.

    `open_pool` is for devices that are not this machine.
    """
    timing_cores = [] if open_pool else split_cores(target.num_threads)[0]
    with (open_pool or WorkerPool)(target) as pool, kept_off(timing_cores), scratch_folder() as scratch:
        yield pool, scratch
