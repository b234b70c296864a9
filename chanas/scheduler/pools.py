"""Stages run for real: on pools of `concurrent.futures`, one for each unit of a resource, so that a worker that dies
takes no other's stage with it."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from chanas.errors import describe
from chanas.scheduler.board import Run
from chanas.scheduler.jobs import Outcome, UnitLostError, WorkerDiedError

PoolMaker = Callable[[int], Executor]
"""Makes the pool of a unit, by its number. Another pool is made when a worker has died."""

_NUM_CHARACTERS = 300


def thread_pool(unit: int) -> Executor:
    """A thread of this process: for work that waits for a device. What runs in it cannot be aborted."""
    return ThreadPoolExecutor(1)


class PoolExecutor:
    """Seconds of the real clock, and a pool for each unit. It closes as a context.

    Args:
        pools: by resource. Any executor of `concurrent.futures` will do, one that several units share, too.
    """

    def __init__(self, pools: Mapping[str, PoolMaker]) -> None:
        self._makers = dict(pools)
        self._pools: dict[tuple[str, int], Executor] = {}
        self._pids: dict[tuple[str, int], Future[int]] = {}
        self._running: set[Run] = set()
        self._ended: queue.SimpleQueue[tuple[Run, Future[Any], float] | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let running stages end, and end all workers."""
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)
        self._pools.clear()

    @property
    def now_s(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def start(self, run: Run) -> None:
        """Hand a stage's work to the pool of its unit."""
        place = (run.resource, run.unit)
        self._running.add(run)
        try:
            future = self._pool(place).submit(run.waiting.stage.work)
        except BrokenExecutor:  # the worker died while it had nothing to do
            self._drop(place)
            future = self._pool(place).submit(run.waiting.stage.work)
        future.add_done_callback(lambda done: self._ended.put((run, done, self.now_s)))

    def _pool(self, place: tuple[str, int]) -> Executor:
        if place not in self._pools:
            pool = self._pools[place] = self._makers[place[0]](place[1])
            if isinstance(pool, ProcessPoolExecutor):
                self._pids[place] = pool.submit(os.getpid)
        return self._pools[place]

    def _drop(self, place: tuple[str, int]) -> None:
        self._pids.pop(place, None)
        self._pools.pop(place).shutdown(wait=False)

    def abort(self, run: Run) -> bool:
        """Kill the process that runs a stage; a thread goes on to its end."""
        place = (run.resource, run.unit)
        pid = self._pids.get(place)
        if pid is None or run not in self._running:
            return False
        self._running.remove(run)
        with contextlib.suppress(BrokenExecutor, ProcessLookupError):  # it died by itself
            os.kill(pid.result(), signal.SIGKILL)
        self._drop(place)
        return True

    def wait(self, until_s: float | None) -> list[tuple[Run, Outcome]]:
        """Wait for ends, for `wake`, or until a time."""
        timeout_s = None if until_s is None else max(0.0, until_s - self.now_s)
        try:
            found = [self._ended.get(timeout=timeout_s)]
            while not self._ended.empty():
                found.append(self._ended.get())
        except queue.Empty:
            return []
        ended = [item for item in found if item is not None and item[0] in self._running]
        self._running -= {item[0] for item in ended}
        ended.sort(key=lambda item: (item[0].waiting.entry.order, item[0].waiting.order))
        return [(run, self._outcome(run, future, at_s)) for run, future, at_s in ended]

    def _outcome(self, run: Run, future: Future[Any], at_s: float) -> Outcome:
        seconds = at_s - run.start_s
        try:
            return Outcome(future.result(), seconds)
        except (BrokenExecutor, CancelledError):
            place = (run.resource, run.unit)
            if place in self._pools:
                self._drop(place)
            return Outcome(None, seconds, f"the worker on {run.resource} {run.unit} died", died=True)
        except WorkerDiedError as error:
            return Outcome(None, seconds, str(error), died=True, lost=isinstance(error, UnitLostError))
        except Exception as error:  # work of any kind
            return Outcome(None, seconds, describe(error, _NUM_CHARACTERS), cause=error)

    def wake(self) -> None:
        """End the waiting, from any thread."""
        self._ended.put(None)
