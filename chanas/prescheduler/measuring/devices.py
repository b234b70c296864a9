"""The device that times: this machine, or one elsewhere that a tracker knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from chanas.core.target import LOCAL_TARGETS, HardwareTarget, in_batches
from chanas.devices.gpu_use import GPU_TARGET, check_free
from chanas.devices.host import load_target
from chanas.errors import ConfigError

if TYPE_CHECKING:
    from chanas.prescheduler.measuring.local.pool import OpenPool


@contextlib.contextmanager
def timing_device(
    target: str,
    num_threads: int,
    dtype: str,
    rpc: str | None,
    key: str | None,
    num_devices: int | None = None,
    *,
    batch: int = 1,
    shared: bool = False,
) -> Iterator[tuple[HardwareTarget, OpenPool | None]]:
    """The target that is asked for, and how to time on it where it is not this machine.

    Args:
        target: what `chanas.devices.host.load_target` knows.
        num_threads, dtype, batch: how it is used.
        rpc, key: a tracker's HOST:PORT, and what devices elsewhere are asked for by.
        num_devices: how many of them; by default all that are free and alike.
        shared: a GPU is timed on although another process uses it.

    Raises:
        ConfigError: only one of `rpc` and `key` is given, or they are with a target that only describes a device, or a
            number of devices is without them.
        TargetError, MeasureError: the target, the tracker or the devices are not there, don't fit, or are in use.
    """
    check_place(target, rpc, key, num_devices)
    if rpc is None or key is None:
        hardware = load_target(target, num_threads, dtype, batch)
        check_free([hardware], shared)
        yield hardware, None
        return
    from chanas.prescheduler.measuring.remote.pool import held_devices
    from chanas.prescheduler.measuring.remote.tracker import parse_address

    held = held_devices(parse_address(rpc), key, num_threads, dtype, num_devices, target=target, shared=shared)
    with held as devices:
        yield in_batches(devices.target, batch), devices.pool


def table_name(target: str, num_threads: int, dtype: str, key: str, batch: int = 1) -> str:
    """What the table of a key's devices is called: `cpu@pi4`, `cpu-2t-bf16@pi4` for two threads, `cuda-f16@h200`."""
    threads = "" if num_threads == 1 else f"-{num_threads}t"
    images = "" if batch == 1 else f"-b{batch}"
    return f"{target}{threads}{'' if dtype == 'f32' else f'-{dtype}'}{images}@{key}"


def check_place(target: str, rpc: str | None, key: str | None, num_devices: int | None = None) -> None:
    """Raises ConfigError: what says where to time doesn't go together."""
    if rpc is None and key is None:
        if num_devices is not None:
            raise ConfigError("--devices goes with --rpc HOST:PORT and --key KEY: without them this machine times")
        return
    if rpc is None or key is None or target not in LOCAL_TARGETS:
        raise ConfigError(
            f"expected --rpc HOST:PORT and --key KEY together, and no --target but {GPU_TARGET} for a GPU: the device "
            "says what it is"
        )
    if num_devices is not None and num_devices < 1:
        raise ConfigError(f"expected at least 1 device, got {num_devices}")
    from chanas.prescheduler.measuring.remote.tracker import check_key, parse_address

    parse_address(rpc)
    check_key(key)
