"""A pool that builds on this machine's cores and times on devices elsewhere: stands where a `WorkerPool` stands."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from chanas.core.target import HardwareTarget
from chanas.core.usage import TargetName
from chanas.devices.cores import kept_off, split_cores
from chanas.errors import ChanasError, ConfigError, MeasureError, TargetError
from chanas.measuring.local.pool import Task, TaskPool, no_answer
from chanas.measuring.messages import Answer, WorkerError
from chanas.measuring.remote.device import (
    MAX_LOSSES,
    POLL_S,
    RETURN_WITHIN_S,
    Description,
    DeviceLostError,
    RemoteDevice,
    check_alike,
    describe_loss,
)
from chanas.measuring.remote.tracker import Address, check_key
from chanas.measuring.worker.process import WorkerProcess, worker_command

# Devices that are taken at a time: each has a process of its own here, which has to start.
_TAKEN_AT_A_TIME = 8

logger = logging.getLogger(__name__)


class RemotePool(TaskPool):
    """Compiling workers on the cores here, and devices that time, each one thing at a time.

    What a device was timing when it was lost goes back to the head of the queue, for that device once it is back or
    for another one at once. `overlap`: builds and timings may go on at the same time. A device that is this very
    machine keeps its cores to itself. `builder` is what Python runs in the workers that compile, if not the usual.
    """

    def __init__(
        self,
        devices: Sequence[RemoteDevice],
        num_threads: int,
        return_within_s: float = RETURN_WITHIN_S,
        builder: Sequence[str] | None = None,
    ) -> None:
        timing, others = split_cores(num_threads)
        is_local = any(d.is_local for d in devices)
        self.timing_cores = timing if is_local else []
        self.overlap = not is_local or bool(others)
        cores = (others or timing) if is_local else [*timing, *others]
        super().__init__([WorkerProcess(1, [core], builder) for core in cores])
        self.num_devices = len(devices)
        self._devices = list(devices)
        self._return_within_s = return_within_s
        self._away = {number for number, device in enumerate(devices) if not device.is_connected}
        self._all_away_since: float | None = None
        self._failure: ChanasError | None = None
        self._serve(*(partial(self._serve_timings, number) for number in range(len(devices))))

    def _submit(self, queue: deque[Task], task: Task) -> Future[Answer]:
        future = super()._submit(queue, task)
        self._fail_all()
        return future

    # ---- timing -----------------------------------------------------------------------------------------------------
    def _serve_timings(self, number: int) -> None:
        while self._is_back(number):
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next(number) is not None)
                task = self._next(number)
                if self._closed or task is None:
                    return
                self._timings.remove(task)
            if not task.future.running() and not task.future.set_running_or_notify_cancel():
                continue
            try:
                answer = self._devices[number].attempt(task.request, task.timeout_s)
            except DeviceLostError as lost:
                self._put_back(task, number, str(lost))
            except BaseException as error:  # the future's owner hears of it, like from any executor
                task.future.set_exception(error)
            else:
                self._note_timing(answer.wall_s)
                task.future.set_result(dataclasses.replace(answer, device=number))

    def _next(self, number: int) -> Task | None:
        """The first that waits for this device, for any, or for one that is away."""
        mine = (None, number, *self._away)
        return next((task for task in self._timings if task.device in mine), None)

    def _put_back(self, task: Task, number: int, reason: str) -> None:
        """A device was lost over a task."""
        task.num_losses += 1
        with self._changed:
            self._away.add(number)
            if self._closed:
                task.future.set_result(no_answer(task.request))
            elif task.num_losses < MAX_LOSSES:
                self._timings.appendleft(task)
            else:
                task.future.set_result(Answer(None, describe_loss(task.request, reason), device=number))
            self._changed.notify_all()

    # ---- devices that come and go -----------------------------------------------------------------------------------
    def _is_back(self, number: int) -> bool:
        """Wait until the device is held, or another one in its place; false when the pool is closed or has failed.

        While others time it is looked for as long as it takes; without any of them no longer than a lost device is
        waited for.
        """
        device = self._devices[number]
        while not device.is_connected:
            with self._changed:
                if self._closed or self._failure is not None:
                    return False
                if len(self._away) == self.num_devices and self._all_away_since is None:
                    self._all_away_since = time.monotonic()
            try:
                found: Description | WorkerError = device.try_connect()
            except (ChanasError, OSError) as error:  # of another kind, say: the right one may come yet
                found = WorkerError.of(error)
            with self._changed:
                if not isinstance(found, WorkerError):
                    break
                since = self._all_away_since
                if since is not None and time.monotonic() - since > self._return_within_s:
                    self._failure = self._failure or device.gone(found, self._return_within_s)
                else:
                    self._changed.wait_for(lambda: self._closed, POLL_S)
            self._fail_all()
        with self._changed:
            self._away.discard(number)
            self._all_away_since = None
            return not self._closed

    def _fail_all(self) -> None:
        """Tell everyone who waits for a timing that there is no device any more, once that is so."""
        with self._changed:
            if self._failure is None:
                return
            waiting = list(self._timings)
            self._timings.clear()
            self._changed.notify_all()
        for task in waiting:
            if task.future.running() or task.future.set_running_or_notify_cancel():
                task.future.set_exception(self._failure)

    def close(self) -> None:
        """End all workers at once and release devices that are timing; calls in progress are lost."""
        super().close()
        timing = self._threads[len(self._builders) :]
        for thread, device in zip(timing, self._devices, strict=True):
            thread.join(0.1)
            while thread.is_alive():
                device.stop()
                thread.join(0.1)


@dataclasses.dataclass(frozen=True)
class HeldDevices:
    """Devices of one kind that are ours until the end of `held_devices`; `target` is what they say of themselves."""

    devices: tuple[RemoteDevice, ...]
    target: HardwareTarget
    return_within_s: float = RETURN_WITHIN_S

    @contextlib.contextmanager
    def pool(self, target: HardwareTarget) -> Iterator[RemotePool]:
        """Time on them, and build here for `target`, which is their own."""
        with (
            RemotePool(self.devices, target.num_threads, self.return_within_s, worker_command(target)) as pool,
            kept_off(pool.timing_cores),
        ):
            yield pool


@contextlib.contextmanager
def held_devices(
    tracker: Address,
    key: str,
    num_threads: int = 1,
    dtype: str = "f32",
    num_devices: int | None = None,
    *,
    target: str = "cpu",
    shared: bool = False,
    return_within_s: float = RETURN_WITHIN_S,
) -> Iterator[HeldDevices]:
    """Devices of a key; when all are busy, one is waited for. Their table is called after the key: `cpu@pi4`.

    Args:
        tracker: who knows them.
        key: what they are asked for by.
        num_threads, dtype: how they are used.
        num_devices: how many, waited for where they are busy; by default all that are free and of one kind.
        target: what they are, `cpu` or `cuda`.
        shared: GPUs may be in use by other processes there.
        return_within_s: how long a device that is busy or was lost is waited for.

    Raises:
        ConfigError: the tracker has fewer than `num_devices`.
        MeasureError: the tracker or a device of the key isn't there, or none becomes free.
        TargetError: it can't be used so, has another version or kind of processor than this side, or one of the
            `num_devices` is of another kind than the others.
    """
    check_key(key)
    with contextlib.ExitStack() as stack:

        def device() -> RemoteDevice:
            one = RemoteDevice(
                tracker, key, num_threads, dtype, target=target, shared=shared, return_within_s=return_within_s
            )
            stack.callback(one.close)
            return one

        first = device()
        description = first.connect()
        if num_devices is not None and num_devices > first.num_devices:
            raise ConfigError(
                f"expected {num_devices} devices of key '{key}' at tracker {tracker}, it has {first.num_devices}; "
                "start `chanas device serve` on more, or ask for fewer with --devices"
            )
        num_more = first.num_free if num_devices is None else num_devices - 1
        more = _connected([device() for _ in range(num_more)], description, key, is_required=num_devices is not None)
        name = str(TargetName(description.target.name, key=key))
        yield HeldDevices(
            (first, *more), dataclasses.replace(description.target, name=name), return_within_s=return_within_s
        )


def _connected(
    devices: Sequence[RemoteDevice], like: Description, key: str, *, is_required: bool
) -> list[RemoteDevice]:
    """Connect to the devices that can be taken and are like the first one; release the others.

    Raises:
        ChanasError: one could not be taken although all of them are required.
    """

    def fits(device: RemoteDevice) -> bool:
        try:
            check_alike(like, device.connect(None if is_required else 0.0), key)
        except (MeasureError, TargetError) as error:
            device.close()
            if is_required:
                raise
            logger.warning("a device of key '%s' is left out: %s", key, error)
            return False
        return True

    with ThreadPoolExecutor(_TAKEN_AT_A_TIME) as threads:
        try:
            return [device for device, does in zip(devices, threads.map(fits, devices), strict=True) if does]
        except BaseException:
            for device in devices:  # no thread waits any longer
                device.close()
            raise
