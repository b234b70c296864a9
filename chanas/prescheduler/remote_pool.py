"""A pool that builds on this machine's cores and times on a device elsewhere: stands where a `WorkerPool` stands."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from chanas.errors import MeasureError
from chanas.prescheduler.pool import Answer, WorkerProcess, kept_off, split_cores
from chanas.prescheduler.remote import RETURN_WITHIN_S, RemoteDevice
from chanas.prescheduler.tracker import Address, check_key
from chanas.target import HardwareTarget


@dataclasses.dataclass(frozen=True)
class _Task:
    """One call that waits for a core or for the device."""

    name: str
    arguments: dict[str, Any]
    timeout_s: float
    future: Future[Answer]


class RemotePool:
    """Compiling workers on the cores here, and a device that times. `overlap`: both may work at the same time.

    A device that is this very machine keeps its cores to itself.
    """

    def __init__(self, device: RemoteDevice, num_threads: int) -> None:
        timing, others = split_cores(num_threads)
        self.timing_cores = timing if device.is_local else []
        self.overlap = not device.is_local or bool(others)
        cores = (others or timing) if device.is_local else [*timing, *others]
        self.num_builders = len(cores)
        self._device = device
        self._builders = [WorkerProcess(1, [core]) for core in cores]
        self._builds: deque[_Task] = deque()
        self._timings: deque[_Task] = deque()
        self.timing_s = self.building_s = 0.0
        """Seconds spent so far, those of building summed over the workers."""
        self._closed = False
        self._changed = threading.Condition()
        self._building = [threading.Thread(target=self._serve_builds, args=(b,), daemon=True) for b in self._builders]
        self._timing = threading.Thread(target=self._serve_timings, daemon=True)
        for thread in (*self._building, self._timing):
            thread.start()

    def build(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Future[Answer]:
        """Compile on any free core here."""
        return self._submit(self._builds, name, arguments, timeout_s)

    def measure(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Future[Answer]:
        """Time on the device, one after the other; the limit is of the timing itself, once the device is free for it.

        Raises (through the future):
            MeasureError: the device was lost, and none came back.
        """
        return self._submit(self._timings, name, arguments, timeout_s)

    def _submit(self, queue: deque[_Task], name: str, arguments: dict[str, Any], timeout_s: float) -> Future[Answer]:
        future: Future[Answer] = Future()
        with self._changed:
            if self._closed:
                raise MeasureError(f"the pool that was asked for {name} is closed")
            queue.append(_Task(name, arguments, timeout_s, future))
            self._changed.notify_all()
        return future

    def _serve_builds(self, worker: WorkerProcess) -> None:
        for wall_s in self._served(self._builds, worker):
            with self._changed:
                self.building_s += wall_s

    def _serve_timings(self) -> None:
        for wall_s in self._served(self._timings, self._device):
            with self._changed:
                self.timing_s += wall_s

    def _served(self, queue: deque[_Task], server: WorkerProcess | RemoteDevice) -> Iterator[float]:
        """Seconds of one task after the other, until the pool is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or queue)
                if self._closed:
                    return
                task = queue.popleft()
            if not task.future.set_running_or_notify_cancel():
                continue
            try:
                answer = server.call(task.name, task.arguments, task.timeout_s)
            except BaseException as error:  # the future's owner hears of it, like from any executor
                task.future.set_exception(error)
                continue
            yield answer.wall_s
            task.future.set_result(answer)

    def close(self) -> None:
        """End all workers at once, and let go of the device where it is timing; what was under way is lost."""
        with self._changed:
            self._closed = True
            waiting = [*self._builds, *self._timings]
            self._changed.notify_all()
        for task in waiting:
            task.future.cancel()
        for worker in self._builders:
            worker.close()
        self._timing.join(0.1)
        if self._timing.is_alive():
            self._device.stop()
        self._timing.join()

    def __enter__(self) -> RemotePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclasses.dataclass(frozen=True)
class HeldDevice:
    """A device that is ours until the end of `held_device`; `target` is what it says of itself."""

    device: RemoteDevice
    target: HardwareTarget

    @contextlib.contextmanager
    def pool(self, target: HardwareTarget) -> Iterator[RemotePool]:
        """Time on it, and build here for `target`, which is its own."""
        with RemotePool(self.device, target.num_threads) as pool, kept_off(pool.timing_cores):
            yield pool


@contextlib.contextmanager
def held_device(
    tracker: Address, key: str, num_threads: int = 1, dtype: str = "f32", *, return_within_s: float = RETURN_WITHIN_S
) -> Iterator[HeldDevice]:
    """A free device of a key; when all are busy, one is waited for. Its table is called after the key: `cpu@pi4`.

    Raises:
        MeasureError: the tracker or a device of the key isn't there, or none becomes free.
        TargetError: it can't be used so, or has another version or kind of processor than this side.
    """
    check_key(key)
    device = RemoteDevice(tracker, key, num_threads, dtype, return_within_s=return_within_s)
    try:
        target = device.connect().target
        yield HeldDevice(device, dataclasses.replace(target, name=f"{target.name}@{key}"))
    finally:
        device.close()
