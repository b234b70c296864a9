"""The machine that several tunings share: slots of the host that compile, each on a core of its own, and the device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from chanas.core.target import HardwareTarget
from chanas.devices.cores import kept_off, split_cores
from chanas.devices.gpu_use import gpu_of
from chanas.prescheduler.measuring.answers import Answer
from chanas.prescheduler.measuring.local.locks import device_lock
from chanas.prescheduler.measuring.local.worker_process import WorkerProcess, worker_command
from chanas.prescheduler.measuring.shared.turns import Ask
from chanas.scheduler.jobs import DEVICE, HOST
from chanas.scheduler.pools import PoolMaker
from chanas.scheduler.resources import Resource


class Timers:
    """Processes that time, one for each tuning: it finds the caches and pages that it would find alone."""

    def __init__(self, target: HardwareTarget) -> None:
        self._target = target
        self._cores = split_cores(target.num_threads)[0]
        self._gpu = gpu_of(target)
        self._processes: dict[str, WorkerProcess] = {}
        self._changed = threading.Lock()
        self._closed = False

    def answer(self, job: str, ask: Ask) -> Answer:
        """Time for a tuning, not while another process times on this machine; waiting for that is no part of it."""
        with self._changed:
            if job not in self._processes:
                process = WorkerProcess(self._target.num_threads, self._cores, worker_command(self._target))
                self._processes[job] = process
            process = self._processes[job]
        with device_lock(lambda: self._closed, self._gpu):
            return process.call(ask.read(), ask.timeout_s)

    def stop(self, job: str) -> None:
        """End the process of a tuning, and what it times; the next timing starts another."""
        with self._changed:
            process = self._processes.pop(job, None)
        if process is not None:
            process.close()

    def close(self) -> None:
        """End all of them."""
        self._closed = True
        for job in list(self._processes):
            self.stop(job)


@dataclass(frozen=True)
class Slot:
    """A core of the host, and the process that compiles on it; or, without a core, the device."""

    timers: Timers
    core: int = 0
    builder: WorkerProcess | None = None

    def answer(self, job: str, ask: Ask) -> Answer:
        """Carry out a tuning's request."""
        if ask.times or self.builder is None:
            return self.timers.answer(job, ask)
        return self.builder.call(ask.read(), ask.timeout_s)


Work = Callable[[Slot], Any]
"""The work of a stage on this machine."""


class _SlotThread(ThreadPoolExecutor):
    """The thread that serves a slot: it hands the slot to each work."""

    def __init__(self, slot: Slot) -> None:
        super().__init__(1)
        self._slot = slot

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(fn, self._slot, *args, **kwargs)


@dataclass(frozen=True)
class SharedWorkers:
    """Slots and the device as resources of a scheduler. Where the device needs all cores, there is one slot, which is
    the device too."""

    timers: Timers
    slots: tuple[Slot, ...]
    overlap: bool

    @property
    def times_on(self) -> str:
        """The resource that times."""
        return DEVICE if self.overlap else HOST

    def resources(self) -> list[Resource]:
        """Resources that stages need."""
        host = Resource(HOST, len(self.slots))
        return [host, Resource(DEVICE)] if self.overlap else [host]

    def pools(self) -> dict[str, PoolMaker]:
        """Pools of these resources, for `PoolExecutor`."""

        def host(unit: int) -> Executor:
            return _SlotThread(self.slots[unit])

        return {HOST: host, DEVICE: lambda _unit: _SlotThread(Slot(self.timers))}

    def close(self) -> None:
        """End all processes; what they are asked is lost."""
        self.timers.close()
        for slot in self.slots:
            if slot.builder is not None:
                slot.builder.close()


@contextlib.contextmanager
def open_shared_workers(target: HardwareTarget) -> Iterator[SharedWorkers]:
    """The workers of this machine, with the cores that time kept free of this process."""
    timing, compiling = split_cores(target.num_threads)
    timers = Timers(target)
    slots = [Slot(timers, c, WorkerProcess(1, [c], worker_command(target))) for c in compiling or timing[:1]]
    workers = SharedWorkers(timers, tuple(slots), bool(compiling))
    try:
        with kept_off(timing):
            yield workers
    finally:
        workers.close()
