"""Devices that several tunings share: cores or the GPU of this machine, and devices that a tracker knows."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from chanas.core.target import HardwareTarget
from chanas.devices.gpu_use import gpu_of
from chanas.measuring.locks import device_lock
from chanas.measuring.messages import Answer
from chanas.measuring.remote.device import RemoteDevice
from chanas.measuring.runner import POLL_S, RunnerLostError, look_for
from chanas.measuring.shared.turns import Ask
from chanas.measuring.worker.process import WorkerProcess, worker_command
from chanas.scheduler.jobs import WorkerDiedError


class Timer(Protocol):
    """A device: it times for one tuning at a time, by the thread that serves it."""

    def answer(self, job: str, ask: Ask) -> Answer:
        """Time for a tuning.

        Raises:
            WorkerDiedError: the device, or its worker, went away over it.
        """

    def renew(self, job: str) -> None:
        """Time in a new process for a tuning from now on, if this machine times."""

    def stop(self, job: str) -> None:
        """Time no more for a tuning."""

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Tell when the device is lost (False) and when it is there again (True)."""

    def close(self) -> None:
        """End all that is timed."""


def raise_if_killed(answer: Answer) -> Answer:
    """The answer of a worker, unless that was killed: by somebody, or for want of memory.

    Raises:
        WorkerDiedError: it was. What a candidate does to its worker ends that in other ways.
    """
    if answer.error is not None and answer.error.signal == signal.SIGKILL:
        raise WorkerDiedError(answer.error.text)
    return answer


class LocalTimer:
    """Cores of this machine, or its GPU, which time in a process for each tuning: it finds the caches and pages that it
    would find alone.

    Args:
        target: what it is.
        cores: which these processes have.
        beside: others may time on other cores meanwhile.
    """

    def __init__(self, target: HardwareTarget, cores: Sequence[int], *, beside: bool = False) -> None:
        self.cores = tuple(cores)
        self._target, self._gpu = target, gpu_of(target)
        self._locked = self.cores if beside else ()
        self._processes: dict[str, WorkerProcess] = {}
        self._changed = threading.Lock()
        self._closed = False

    def answer(self, job: str, ask: Ask) -> Answer:
        """Time for a tuning, not while another process times here; waiting for that is no part of it."""
        with self._changed:
            if job not in self._processes:
                process = WorkerProcess(self._target.num_threads, self.cores, worker_command(self._target))
                self._processes[job] = process
            process = self._processes[job]
        with device_lock(lambda: self._closed, self._gpu, self._locked):
            return raise_if_killed(process.call(ask.request, ask.timeout_s))

    def stop(self, job: str) -> None:
        """End the process of a tuning, and what it times; the next timing starts another."""
        with self._changed:
            process = self._processes.pop(job, None)
        if process is not None:
            process.close()

    renew = stop

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Tell nothing: this machine is not lost."""

    def close(self) -> None:
        """End all of them."""
        self._closed = True
        for job in list(self._processes):
            self.stop(job)


class RemoteTimer:
    """A device elsewhere, which is held. It times for all tunings in one process there. Once it is lost it is looked
    for until it is back, or another one of its key and kind in its place.

    Args:
        poll_s: seconds between two looks.
    """

    def __init__(self, device: RemoteDevice, poll_s: float = POLL_S) -> None:
        self._device, self._poll_s = device, poll_s
        self._tell: Callable[[bool], None] = lambda _is_there: None
        self._closed = threading.Event()
        self._job: str | None = None

    def answer(self, job: str, ask: Ask) -> Answer:
        """Time for a tuning.

        Raises:
            WorkerDiedError: the device was lost over it.
            MeasureError: it can't time at all.
        """
        self._job = job
        try:
            return self._device.call(ask.request, ask.timeout_s)
        except RunnerLostError as error:
            self._tell(False)
            threading.Thread(target=self._look_for_it, daemon=True).start()
            raise WorkerDiedError(f"a device of key '{self._device.key}' was lost: {error}") from error
        finally:
            self._job = None

    def _look_for_it(self) -> None:
        if look_for(self._device, lambda _reason: not self._closed.wait(self._poll_s)):
            self._tell(True)

    def renew(self, job: str) -> None:
        """Do nothing: the process there is one for all."""

    def stop(self, job: str) -> None:
        """Give up what it times for a tuning, and with it the session, which is taken anew."""
        if self._job == job:
            self._device.stop()

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Tell when the device is lost (False) and when it is there again (True)."""
        self._tell = changed

    def close(self) -> None:
        """Release the device."""
        self._closed.set()
        self._device.close()
