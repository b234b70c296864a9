"""Worker processes with time limits: one that times, on cores of its own, and others that compile meanwhile.

`concurrent.futures` and TVM's own pool lose the whole pool to a crash, or enforce a time limit from inside the process
that hangs; here the parent holds the limit and only the guilty worker is replaced. Failures are values, not exceptions.
"""

from __future__ import annotations

import contextlib
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
from chanas.errors import MeasureError
from chanas.files.scratch import scratch_folder
from chanas.measuring.local.locks import device_lock
from chanas.measuring.messages import Answer, ErrorKind, Ping, Request, WorkerError
from chanas.measuring.worker.process import START_TIMEOUT_S, WorkerProcess, worker_command

Compute = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes a question and gives its answer, both JSON."""


class Pool(Protocol):
    """Builds on cores here and times on devices: this machine (`WorkerPool`) or others (`remote.pool`).

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
    """One request that waits for a core or for a device; `num_losses` counts devices that were lost over it."""

    request: Request
    timeout_s: float
    device: int | None = None
    future: Future[Answer] = field(default_factory=Future)
    num_losses: int = 0


def no_answer(request: Request) -> Answer:
    """The answer to a request that nobody waits for any more."""
    return Answer(None, WorkerError(ErrorKind.STOPPED, f"{request.call} was given up"))


class TaskPool:
    """Two queues, of builds and of timings, and the threads that serve them; who times is for subclasses to say.

    Every future gets an answer, an exception, or is cancelled when the pool is closed.
    """

    num_devices = 1
    compute: Compute | None = None

    def __init__(self, builders: Sequence[WorkerProcess]) -> None:
        self.num_builders = len(builders)
        self.timing_s = self.building_s = 0.0
        """Seconds spent so far, those of building summed over the workers."""
        self._builders = list(builders)
        self._timings: deque[Task] = deque()
        self._builds: deque[Task] = deque()
        self._pings: dict[WorkerProcess, Task] = {}  # of `warm_up`, each for one worker alone
        self._num_free_builders = len(builders)
        self._closed = False
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def _serve(self, *timing: Callable[[], None]) -> None:
        """Begin: a thread for each builder, and one for each of these functions."""
        functions: list[Callable[[], None]] = [*(partial(self._serve_builds, b) for b in self._builders), *timing]
        self._threads = [threading.Thread(target=function, daemon=True) for function in functions]
        for thread in self._threads:
            thread.start()

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

    def expect(self, num_builds: int) -> None:
        """Be told that so many builds will come, as far as is known now: for those who share out machines."""

    def _submit(self, queue: deque[Task], task: Task) -> Future[Answer]:
        with self._changed:
            if self._closed:
                raise MeasureError(f"the pool that was asked for {task.request.call} is closed")
            queue.append(task)
            self._changed.notify_all()
        return task.future

    def _serve_builds(self, worker: WorkerProcess) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or worker in self._pings or self._builds)
                if self._closed:
                    return
                task = self._pings.pop(worker, None) or self._builds.popleft()
                self._num_free_builders -= 1
            self._carry_out(task, worker, self._note_building)
            with self._changed:
                self._num_free_builders += 1

    def _note_building(self, wall_s: float) -> None:
        with self._changed:
            self.building_s += wall_s

    def _note_timing(self, wall_s: float) -> None:
        with self._changed:
            self.timing_s += wall_s

    @staticmethod
    def _carry_out(
        task: Task,
        worker: WorkerProcess,
        note: Callable[[float], None] = lambda _wall_s: None,
        lock: AbstractContextManager[None] | None = None,
    ) -> None:
        """Run a task with `lock` held and give its future what came of it; `note` gets its seconds without waiting."""
        if not task.future.set_running_or_notify_cancel():
            return
        start = time.monotonic()
        try:
            with lock or contextlib.nullcontext():
                start = time.monotonic()
                answer = worker.call(task.request, task.timeout_s)
        except BaseException as error:  # the future's owner hears of it, like from any executor
            note(time.monotonic() - start)
            task.future.set_exception(error)
        else:
            note(time.monotonic() - start)
            task.future.set_result(answer)

    def _workers(self) -> list[WorkerProcess]:
        return list(self._builders)

    def warm_up(self) -> None:
        """Start all workers now, side by side.

        Each is started by the thread that serves it: a worker ends with the thread that started it (`worker`).
        """
        tasks = {worker: Task(Ping(), START_TIMEOUT_S) for worker in self._workers()}
        with self._changed:
            self._pings.update(tasks)
            self._changed.notify_all()
        for task in tasks.values():
            task.future.result()

    def close(self) -> None:
        """End all workers at once; calls in progress are lost."""
        with self._changed:
            self._closed = True
            waiting = [*self._pings.values(), *self._timings, *self._builds]
            self._pings.clear()
            self._timings.clear()
            self._builds.clear()
            self._changed.notify_all()
        for task in waiting:
            if not task.future.cancel() and not task.future.done():  # one that goes back to the queue after a loss
                task.future.set_result(no_answer(task.request))
        for worker in self._workers():
            worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WorkerPool(TaskPool):
    """One timing worker and a few compiling ones. `overlap` tells whether they may work at the same time.

    Where they may, the timing cores compile too (in one more worker) while there is nothing to time and every other
    core is busy: two cores then share all of the work. Never while something is timed on them.
    """

    def __init__(self, target: HardwareTarget) -> None:
        timing, compiling = split_cores(target.num_threads)
        self.overlap = bool(compiling)
        self._gpu = gpu_of(target)
        command = worker_command(target)
        self._timer = WorkerProcess(target.num_threads, timing, command)
        super().__init__([WorkerProcess(1, [core], command) for core in compiling or timing])
        self._stand_in = WorkerProcess(1, timing[:1], command) if compiling else None
        self._serve(self._serve_timings)

    def _serve_timings(self) -> None:
        mine = [worker for worker in (self._timer, self._stand_in) if worker is not None]
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or self._pings.keys() & set(mine) or self._timings or self._can_stand_in
                )
                if self._closed:
                    return
                pings = [(self._pings.pop(worker), worker) for worker in mine if worker in self._pings]
            for ping, greeted in pings:
                self._carry_out(ping, greeted)
            with self._changed:
                if self._closed or not (self._timings or self._can_stand_in):
                    continue
                times = bool(self._timings)
                task = (self._timings if times else self._builds).popleft()
            worker = self._timer if times else self._stand_in
            assert worker is not None
            # building here would disturb another process that times on these cores as much as timing would
            note = self._note_timing if times else self._note_building
            self._carry_out(task, worker, note, device_lock(lambda: self._closed, self._gpu))

    def renew_timers(self) -> None:
        self._timer.stop()

    @property
    def _can_stand_in(self) -> bool:
        """True if a build waits and no compiling worker is free for it."""
        return self._stand_in is not None and len(self._builds) > self._num_free_builders

    def _workers(self) -> list[WorkerProcess]:
        return [self._timer, *self._builders, *([self._stand_in] if self._stand_in else [])]


@contextlib.contextmanager
def open_workers(target: HardwareTarget, open_pool: OpenPool | None = None) -> Iterator[tuple[Pool, Path]]:
    """A pool, with the cores that time kept free of this process, and a folder for what is made on the way.

    `open_pool` is for devices that are not this machine.
    """
    timing_cores = [] if open_pool else split_cores(target.num_threads)[0]
    with (open_pool or WorkerPool)(target) as pool, kept_off(timing_cores), scratch_folder() as scratch:
        yield pool, scratch
