"""The machines that several tunings share: slots of this host that compile, each on a core of its own, and devices:
cores or the GPU of this machine, and devices that a tracker knows."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from chanas.core.target import HardwareTarget
from chanas.devices.cores import kept_off, split_cores, usable_cores
from chanas.devices.gpu_use import gpu_of
from chanas.errors import ConfigError
from chanas.measuring.fleet import Compute
from chanas.measuring.locks import device_lock
from chanas.measuring.messages import Answer
from chanas.measuring.remote.device import RemoteDevice
from chanas.measuring.remote.held import HeldDevices
from chanas.measuring.runner import POLL_S, RunnerLostError, look_for
from chanas.measuring.shared.cluster import RESOURCE, Cluster, check_cluster, open_cluster
from chanas.measuring.shared.turns import Ask
from chanas.measuring.worker.process import WorkerProcess, worker_command
from chanas.scheduler.jobs import DEVICE, HOST, WorkerDiedError
from chanas.scheduler.pools import PoolMaker
from chanas.scheduler.resources import Resource

Tell = Callable[[str, int], None]
"""Takes the unit of a resource out of service, or into it again."""


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
            return process.call(ask.request, ask.timeout_s)

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


Timer = LocalTimer | RemoteTimer
"""A device: it times for one tuning at a time, by the thread that serves it."""


@dataclass(frozen=True)
class Slot:
    """A unit of a resource: a core of the host and the process that compiles on it, a device, or both in one, which
    does one thing at a time; or a unit of a cluster, whose builds are passed on by the core."""

    unit: int = 0
    core: int = 0
    builder: WorkerProcess | None = None
    device: Timer | None = None
    cluster: Cluster | None = None

    def answer(self, job: str, ask: Ask) -> Answer:
        """Carry out a tuning's request.

        Raises:
            WorkerDiedError: the device was lost, or the worker killed: by somebody, or for want of memory. What a
                candidate does to its worker ends that in other ways.
        """
        if ask.times:
            assert self.device is not None
            answer = self.device.answer(job, ask)
        elif self.cluster is not None:
            answer = self.cluster.answer(ask)
        else:
            assert self.builder is not None
            answer = self.builder.call(ask.request, ask.timeout_s)
        if answer.error is not None and answer.error.signal == signal.SIGKILL:
            raise WorkerDiedError(answer.error.text)
        return answer


class _SlotThread(ThreadPoolExecutor):
    """The thread that serves a slot: it hands the slot to each work."""

    def __init__(self, slot: Slot) -> None:
        super().__init__(1)
        self._slot = slot

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(fn, self._slot, *args, **kwargs)


@dataclass(frozen=True)
class SharedWorkers:
    """Slots, and devices that are alike, as resources of a scheduler.

    times_on  the resource whose units are the devices; `HOST` where the slots are the devices
    overlap   something can be built while something is timed
    cluster   builds, and computes what cost models ask, where the slots don't
    """

    slots: tuple[Slot, ...]
    devices: tuple[Timer, ...]
    times_on: str = DEVICE
    overlap: bool = True
    cluster: Cluster | None = None

    @property
    def builds_on(self) -> str:
        """The resource that builds."""
        return HOST if self.cluster is None else RESOURCE

    @property
    def learns(self) -> bool:
        """The cluster computes what cost models ask."""
        return self.cluster is not None and self.cluster.learns

    @property
    def num_builders(self) -> int:
        """Builds at the same time."""
        return len(self.slots) if self.cluster is None else self.cluster.num_units

    def resources(self) -> list[Resource]:
        """Resources that stages need."""
        num_units = {HOST: len(self.slots), self.builds_on: self.num_builders, self.times_on: len(self.devices)}
        return [Resource(name, num) for name, num in num_units.items()]

    def pools(self) -> dict[str, PoolMaker]:
        """Pools of these resources, for `PoolExecutor`."""

        def device(unit: int) -> Executor:
            return _SlotThread(Slot(unit, device=self.devices[unit]))

        def cluster(unit: int) -> Executor:
            return _SlotThread(Slot(unit, self.slots[unit % len(self.slots)].core, cluster=self.cluster))

        return {RESOURCE: cluster, self.times_on: device, HOST: lambda unit: _SlotThread(self.slots[unit])}

    def renew(self, job: str) -> None:
        """Time for a tuning in new processes from now on."""
        for device in self.devices:
            device.renew(job)

    def stop(self, job: str) -> None:
        """Time no more for a tuning."""
        for device in self.devices:
            device.stop(job)

    def watch(self, lose: Tell, restore: Tell) -> None:
        """Tell of devices that are lost, and of those that are back."""

        def changed(unit: int, is_there: bool) -> None:
            (restore if is_there else lose)(self.times_on, unit)

        for unit, device in enumerate(self.devices):
            device.watch(partial(changed, unit))
        if self.cluster is not None:
            self.cluster.watch(lose, restore)

    def close(self) -> None:
        """End all processes; what they are asked is lost."""
        for device in self.devices:
            device.close()
        if self.cluster is not None:
            self.cluster.close()
        for slot in self.slots:
            if slot.builder is not None:
                slot.builder.close()


@contextlib.contextmanager
def open_kinds(
    target: HardwareTarget,
    local: Sequence[Sequence[int]],
    held: Mapping[str, HeldDevices],
    cluster: str | None = None,
    learn: Compute | None = None,
) -> Iterator[dict[str, SharedWorkers]]:
    """The workers of this machine, by the key of the devices that time; those of this machine have none ("").

    Host work runs on cores that are no device's. Where there are no others, each device of this machine is a slot, too:
    a core either times or does host work.

    Args:
        target: any of them: what compiles for all.
        local: the cores of each device of this machine.
        held: devices elsewhere, by their key.
        cluster: the address of one that builds (`open_cluster`).
        learn: what it computes for cost models.

    Raises:
        ConfigError: a device has cores that are not there, or no core is left beside one that a tracker knows.
    """
    own = usable_cores()
    missing = sorted({core for cores in local for core in cores} - {*own})
    if missing:
        raise ConfigError(f"expected cores among {', '.join(map(str, own))}, got {', '.join(map(str, missing))}")
    timing = {core for cores in local for core in cores}
    for found in held.values():
        if any(device.is_local for device in found.devices):
            timing |= {*split_cores(target.num_threads)[0]}
    hosts = [core for core in own if core not in timing]
    if cluster is not None:
        check_cluster(cluster)
    if not hosts and cluster is not None and cluster.startswith("local"):
        raise ConfigError("devices have all cores of this machine, so that none is left for a local cluster")
    if not (hosts or local):
        raise ConfigError("a device of the tracker is this machine and has all of it; name it by its cores instead")
    devices = tuple(LocalTimer(target, cores, beside=len(local) > 1) for cores in local)
    slots = tuple(
        Slot(unit, core, WorkerProcess(1, [core], worker_command(target)), device)
        for unit, (core, device) in enumerate(
            [(core, None) for core in hosts] or [(device.cores[0], device) for device in devices]
        )
    )
    with kept_off(sorted(timing)), contextlib.ExitStack() as stack:
        builds = None if cluster is None else stack.enter_context(open_cluster(cluster, len(slots), target, learn))
        overlap = builds is not None or bool(hosts) or len(slots) > 1
        kinds = {
            key: SharedWorkers(slots, tuple(map(RemoteTimer, found.devices)), f"{DEVICE}@{key}", cluster=builds)
            for key, found in held.items()
        }
        if devices:
            kinds[""] = SharedWorkers(slots, devices, DEVICE if hosts else HOST, overlap, builds)
        for workers in kinds.values():
            stack.callback(workers.close)
        yield kinds
