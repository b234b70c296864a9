"""Devices of a key, held for a while, and the pool that times on them: stands where a `WorkerPool` stands."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from chanas.core.target import HardwareTarget
from chanas.core.usage import TargetName, Usage
from chanas.devices.cores import kept_off, split_cores
from chanas.errors import ConfigError, MeasureError, TargetError
from chanas.measuring.fleet import Fleet
from chanas.measuring.remote.device import Description, RemoteDevice, check_alike
from chanas.measuring.runner import RETURN_WITHIN_S
from chanas.measuring.worker.process import WorkerProcess, worker_command

# Devices that are taken at a time: each has a process of its own here, which has to start.
_TAKEN_AT_A_TIME = 8

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class HeldDevices:
    """Devices of one kind that are ours until the end of `held_devices`; `target` is what they say of themselves."""

    devices: tuple[RemoteDevice, ...]
    target: HardwareTarget

    @contextlib.contextmanager
    def pool(self, target: HardwareTarget) -> Iterator[Fleet]:
        """Time on them, and build here for `target`, which is their own. A device that is this very machine keeps its
        cores to itself."""
        timing, others = split_cores(target.num_threads)
        is_local = any(device.is_local for device in self.devices)
        cores, command = (others or timing) if is_local else [*timing, *others], worker_command(target)
        fleet = Fleet(
            [WorkerProcess(1, [core], command) for core in cores],
            self.devices,
            overlap=not is_local or bool(others),
            key=self.devices[0].key,
        )
        with fleet, kept_off(timing if is_local else []):
            yield fleet


@contextlib.contextmanager
def held_devices(usage: Usage) -> Iterator[HeldDevices]:
    """Devices of a key; when all are busy, one is waited for. Their table is called after the key: `cpu@pi4`.

    Args:
        usage: how they are used, and where they are. Without a `num_devices` all are taken that are free and of one
            kind; as many as it says are waited for where they are busy.

    Raises:
        ConfigError: the usage has no tracker and key, or the tracker has fewer devices.
        MeasureError: the tracker or a device of the key isn't there, or none becomes free.
        TargetError: it can't be used so, has another version or kind of processor than this side, or one of the
            `num_devices` is of another kind than the others.
    """
    with contextlib.ExitStack() as stack:

        def device() -> RemoteDevice:
            one = RemoteDevice(usage)
            stack.callback(one.close)
            return one

        place, num_devices = usage.place, usage.place.num_devices
        first = device()
        key, description = first.key, first.connect()
        if num_devices is not None and num_devices > first.num_devices:
            raise ConfigError(
                f"expected {num_devices} devices of key '{key}' at tracker {place.rpc}, it has {first.num_devices}; "
                "start `chanas device serve` on more, or ask for fewer with --devices"
            )
        num_more = first.num_free if num_devices is None else num_devices - 1
        more = _connected([device() for _ in range(num_more)], description, key, is_required=num_devices is not None)
        name = str(TargetName(description.target.name, key=key))
        yield HeldDevices((first, *more), dataclasses.replace(description.target, name=name))


def _connected(
    devices: Sequence[RemoteDevice], like: Description, key: str, *, is_required: bool
) -> list[RemoteDevice]:
    """Connect to the devices that can be taken and are like the first one; release the others.

    Raises:
        ChanasError: one could not be taken although all of them are required.
    """

    def fits(device: RemoteDevice) -> bool:
        try:
            check_alike(like, device.connect(RETURN_WITHIN_S if is_required else 0.0), key)
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
