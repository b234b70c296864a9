"""TVM's tracker: where servers on devices report, and clients ask for one by its key."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chanas.devices.lean_tvm import torch_hidden
from chanas.errors import ConfigError, MeasureError

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Address:
    """Host and port of a tracker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class DeviceGroup:
    """The devices of one key: `addresses` of their servers, how many of them are free, how many clients wait."""

    key: str
    addresses: tuple[str, ...]
    num_free: int
    num_waiting: int

    @property
    def num_busy(self) -> int:
        return len(self.addresses) - self.num_free


def parse_address(text: str) -> Address:
    """HOST:PORT as an address. Raises ConfigError: it is none."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"expected HOST:PORT of a tracker, such as 127.0.0.1:9190, got '{text}'")
    return Address(host.strip("[]"), int(port))


def check_key(key: str) -> str:
    """The key of a kind of device. Raises ConfigError: files could not be called after it."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", key):
        raise ConfigError(f"expected a key of letters, digits, '.', '_' and '-', such as pi4, got '{key}'")
    return key


@contextlib.contextmanager
def tracker_session(address: Address, timeout_s: float = _TIMEOUT_S) -> Iterator[Any]:
    """TVM's session with a tracker; sockets made in the body have the timeout.

    Raises:
        MeasureError: nothing answers there, or it is no tracker.
    """
    before = socket.getdefaulttimeout()
    session = None
    try:
        socket.create_connection((address.host, address.port), timeout_s).close()  # TVM would retry for a minute
        socket.setdefaulttimeout(timeout_s)
        with torch_hidden():
            from tvm import rpc
        session = rpc.connect_tracker(address.host, address.port)
        yield session
    except (OSError, struct.error) as error:
        raise MeasureError(
            f"no tracker answers at {address} ({error}); start one with `python -m tvm.exec.rpc_tracker "
            f"--host {address.host} --port {address.port} --port-end {address.port + 1}`, or check the address"
        ) from error
    except RuntimeError as error:
        if "is not RPC Tracker" not in str(error):
            raise
        raise MeasureError(f"what answers at {address} is no TVM tracker; check the address") from error
    finally:
        socket.setdefaulttimeout(before)
        if session is not None:
            session.close()


def device_groups(address: Address) -> list[DeviceGroup]:
    """List a tracker's devices, by key.

    Raises:
        MeasureError: nothing answers there, or it is no tracker.
    """
    with tracker_session(address) as session:
        return _groups(session.summary())


def _groups(summary: dict[str, Any]) -> list[DeviceGroup]:
    queues = summary["queue_info"]
    addresses: dict[str, list[str]] = {key: [] for key, queue in queues.items() if queue["pending"]}
    for server in summary["server_info"]:
        key = server["key"].partition(":")[2]
        addresses.setdefault(key, []).append(":".join(map(str, server["addr"])))
    empty = {"free": 0, "pending": 0}
    return [
        DeviceGroup(key, tuple(sorted(there)), min(queue["free"], len(there)), queue["pending"])
        for key, there in sorted(addresses.items())
        for queue in [queues.get(key, empty)]
    ]


def group_of(groups: list[DeviceGroup], key: str, address: Address) -> DeviceGroup:
    """The devices of a key. Raises MeasureError: there is none; the message names the keys that are there."""
    for group in groups:
        if group.key == key and group.addresses:
            return group
    known = [g.key for g in groups if g.addresses]
    there = f"it has: {', '.join(known)}" if known else "it has no device at all"
    raise MeasureError(
        f"no device of key '{key}' at tracker {address}; {there}; run "
        f"`chanas device serve --tracker {address} --key {key}` on one"
    )
