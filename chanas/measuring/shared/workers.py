"""The machines that several tunings share: slots of this host that compile, each on a core of its own, and devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from chanas.core.target import HardwareTarget
from chanas.devices.cores import kept_off, split_cores
from chanas.errors import ConfigError
from chanas.measuring.fleet import Compute
from chanas.measuring.messages import Answer
from chanas.measuring.remote.held import HeldDevices
from chanas.measuring.shared.cluster import RESOURCE, Cluster, check_cluster, open_cluster
from chanas.measuring.shared.timers import LocalTimer, RemoteTimer, Timer, raise_if_killed
from chanas.measuring.shared.turns import Ask
from chanas.measuring.worker.process import WorkerProcess, worker_command
from chanas.scheduler.jobs import DEVICE, HOST
from chanas.scheduler.pools import PoolMaker
from chanas.scheduler.resources import Resource

Tell = Callable[[str, int], None]
"""Takes the unit of a resource out of service, or into it again."""


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
            WorkerDiedError: the worker was killed, or the device lost.
        """
        if ask.times:
            assert self.device is not None
            return self.device.answer(job, ask)
        if self.cluster is not None:
            return self.cluster.answer(ask)
        assert self.builder is not None
        return raise_if_killed(self.builder.call(ask.request, ask.timeout_s))


Work = Callable[[Slot], Any]
"""The work of a stage on these machines."""


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
    own = split_cores(0)[1]
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
            key: SharedWorkers(slots, _remote(found), f"{DEVICE}@{key}", cluster=builds) for key, found in held.items()
        }
        if devices:
            kinds[""] = SharedWorkers(slots, devices, DEVICE if hosts else HOST, overlap, builds)
        for workers in kinds.values():
            stack.callback(workers.close)
        yield kinds


def _remote(held: HeldDevices) -> tuple[Timer, ...]:
    return tuple(RemoteTimer(device) for device in held.devices)
