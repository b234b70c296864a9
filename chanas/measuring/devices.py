"""The device that times: this machine, or one elsewhere that a tracker knows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from chanas.core.target import LOCAL_TARGETS, HardwareTarget, in_batches
from chanas.core.usage import Place, Usage
from chanas.devices.gpu_use import GPU_TARGET, check_free
from chanas.devices.host import load_used
from chanas.errors import ConfigError

if TYPE_CHECKING:
    from chanas.measuring.fleet import OpenPool

HoldDevice = Callable[[Usage], AbstractContextManager[tuple[HardwareTarget, "OpenPool | None"]]]
"""Gets hold of what times, as `timing_device` does."""


@contextlib.contextmanager
def timing_device(usage: Usage) -> Iterator[tuple[HardwareTarget, OpenPool | None]]:
    """The target that is asked for, and how to time on it where it is not this machine.

    Raises:
        ConfigError: only one of a tracker and a key is given, or they are with a target that only describes a device,
            or a number of devices is without them.
        TargetError, MeasureError: the target, the tracker or the devices are not there, don't fit, or are in use.
    """
    place = usage.place
    check_place(usage.device, place)
    if place.rpc is None or place.key is None:
        hardware = load_used(usage)
        check_free([hardware], place.shared)
        yield hardware, None
        return
    from chanas.measuring.remote.held import held_devices

    with held_devices(usage) as devices:
        yield in_batches(devices.target, usage.batch), devices.pool


def check_place(device: str, place: Place) -> None:
    """Raises ConfigError: what says where to time doesn't go together."""
    rpc, key, num_devices = place.rpc, place.key, place.num_devices
    if rpc is None and key is None:
        if num_devices is not None:
            raise ConfigError("--devices goes with --rpc HOST:PORT and --key KEY: without them this machine times")
        return
    if rpc is None or key is None or device not in LOCAL_TARGETS:
        raise ConfigError(
            f"expected --rpc HOST:PORT and --key KEY together, and no --target but {GPU_TARGET} for a GPU: the device "
            "says what it is"
        )
    if num_devices is not None and num_devices < 1:
        raise ConfigError(f"expected at least 1 device, got {num_devices}")
    from chanas.measuring.remote.tracker import check_key, parse_address

    parse_address(rpc)
    check_key(key)
