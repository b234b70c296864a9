"""TVM's tracker: where servers on devices report, and clients ask for one by its key.

Its protocol is spoken here, as TVM's own client takes whatever comes: what a tracker says is read within a time and a
size, and checked.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictInt, StringConstraints, TypeAdapter, ValidationError

from chanas.errors import ConfigError, MeasureError, one_line

_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 22
_MAX_ENTRIES = 10_000
_MAX_CHARACTERS, _MAX_HOST = 200, 253

_MAGIC = struct.pack("<i", 0x2F271)
_LENGTH = struct.Struct("<i")
_REQUEST, _SUMMARY, _SUCCESS = 4, 6, 0
"""Words of the protocol of TVM's tracker (`tvm/rpc/base.py`)."""

_Text = Annotated[str, StringConstraints(strict=True, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
_Count = Annotated[StrictInt, Field(ge=0, le=1_000_000)]
_Port = Annotated[StrictInt, Field(ge=1, le=65535)]


class _Queue(BaseModel):
    free: _Count
    pending: _Count


class _Server(BaseModel):
    key: _Text
    addr: tuple[_Text, _Port]


class _Summary(BaseModel):
    """The answer about all devices: queues by key, and servers."""

    queue_info: Annotated[dict[_Text, _Queue], Field(max_length=_MAX_ENTRIES)]
    server_info: Annotated[list[_Server], Field(max_length=_MAX_ENTRIES)]


_Found = tuple[_Text, _Port, _Text]


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
    host = host.strip("[]")
    try:
        is_name = 0 < len(host.encode("idna")) <= _MAX_HOST and host.isprintable() and " " not in host
    except UnicodeError:  # a part that is empty or too long
        is_name = False
    if not is_name or not (port.isascii() and port.isdecimal() and len(port) < 6) or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"expected HOST:PORT of a tracker, such as 127.0.0.1:9190, got '{text}'")
    return Address(host, int(port))


def check_key(key: str) -> str:
    """The key of a kind of device. Raises ConfigError: files could not be called after it."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", key):
        raise ConfigError(f"expected a key of letters, digits, '.', '_' and '-', such as pi4, got '{key}'")
    return key


def _received(connection: socket.socket, num_bytes: int, until_s: float) -> bytes:
    """Exactly `num_bytes` bytes. Raises OSError: they do not come, or not in time."""
    found = bytearray()
    while len(found) < num_bytes:
        connection.settimeout(max(until_s - time.monotonic(), 1e-3))
        chunk = connection.recv(min(num_bytes - len(found), 1 << 16))
        if not chunk:
            raise ConnectionResetError("it ended the connection")
        found += chunk
    return bytes(found)


def _ask(address: Address, question: list[Any], answer: Any) -> Any:
    """The answer of a tracker, checked; None where it has none within the time.

    Raises:
        MeasureError: nothing answers there, or it is no tracker.
    """
    try:
        with socket.create_connection((address.host, address.port), _TIMEOUT_S) as connection:
            until_s = time.monotonic() + _TIMEOUT_S
            connection.sendall(_MAGIC)
            if _received(connection, len(_MAGIC), until_s) != _MAGIC:
                raise ValueError("other first bytes")
            body = json.dumps(question).encode()
            connection.sendall(_LENGTH.pack(len(body)) + body)
            try:
                first = _received(connection, _LENGTH.size, until_s)
            except TimeoutError:
                return None
            length = _LENGTH.unpack(first)[0]
            if not 0 < length <= _MAX_BYTES:
                raise ValueError(f"an answer of {length} bytes")
            status, found = json.loads(_received(connection, length, until_s))
            if status != _SUCCESS:
                raise ValueError("a refusal")
            return TypeAdapter(answer).validate_python(found)
    except OSError as error:
        raise MeasureError(
            f"no tracker answers at {address} ({error}); start one with `python -m tvm.exec.rpc_tracker "
            f"--host {address.host} --port {address.port} --port-end {address.port + 1}`, or check the address"
        ) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise MeasureError(f"what answers at {address} is no TVM tracker ({_why(error)}); check the address") from error


def _why(error: Exception) -> str:
    """Tell what is not as expected, without the strange bytes themselves."""
    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False, include_input=False)[0]
        return one_line(f"{'.'.join(map(str, fault['loc'][:1]))}: {fault['msg']}", _MAX_CHARACTERS)
    return one_line(error, _MAX_CHARACTERS)


def request_server(address: Address, key: str) -> tuple[str, int, str] | None:
    """Host, port and key of the server of a free device; None where none becomes free within some seconds.

    Raises:
        MeasureError: nothing answers there, or it is no tracker.
    """
    found: tuple[str, int, str] | None = _ask(address, [_REQUEST, key, "", 1], _Found)
    return found


def device_groups(address: Address) -> list[DeviceGroup]:
    """List a tracker's devices, by key.

    Raises:
        MeasureError: nothing answers there, or it is no tracker.
    """
    summary = _ask(address, [_SUMMARY], _Summary)
    if summary is None:
        raise MeasureError(f"the tracker at {address} does not answer within {_TIMEOUT_S:g} s; start it anew")
    queues: dict[str, _Queue] = summary.queue_info
    addresses: dict[str, list[str]] = {key: [] for key, queue in queues.items() if queue.pending}
    for server in summary.server_info:
        addresses.setdefault(server.key.partition(":")[2], []).append(":".join(map(str, server.addr)))
    empty = _Queue(free=0, pending=0)
    return [
        DeviceGroup(key, tuple(sorted(there)), min(queue.free, len(there)), queue.pending)
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
