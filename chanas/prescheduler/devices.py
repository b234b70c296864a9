"""The device that times: this machine, or one elsewhere that a tracker knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from chanas.errors import ConfigError
from chanas.target import HardwareTarget, load_target

if TYPE_CHECKING:
    from chanas.prescheduler.pool import OpenPool


@contextlib.contextmanager
def timing_device(
    target: str, num_threads: int, dtype: str, rpc: str | None, key: str | None
) -> Iterator[tuple[HardwareTarget, OpenPool | None]]:
    """The target that is asked for, and how to time on it where it is not this machine.

    Raises:
        ConfigError: only one of `rpc` and `key` is given, or they are with another target than cpu.
        TargetError, MeasureError: the target, the tracker or the devices are not there or don't fit.
    """
    if rpc is None and key is None:
        yield load_target(target, num_threads, dtype), None
        return
    if rpc is None or key is None or target != "cpu":
        raise ConfigError(
            "expected --rpc HOST:PORT and --key KEY together, and no --target: the device says what it is"
        )
    from chanas.prescheduler.remote_pool import held_device
    from chanas.prescheduler.tracker import parse_address

    with held_device(parse_address(rpc), key, num_threads, dtype) as device:
        yield device.target, device.pool
