"""chanas/measuring/remote/tracker.py: what a tracker knows, and one line where there is none."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chanas.errors import ConfigError, MeasureError
from chanas.measuring.remote import tracker
from chanas.measuring.remote.tracker import (
    Address,
    DeviceGroup,
    check_key,
    device_groups,
    group_of,
    parse_address,
    request_server,
)

HERE = Address("127.0.0.1", 9190)
SUMMARY = {
    "queue_info": {"pi4": {"free": 1, "pending": 0}, "jetson": {"free": 0, "pending": 2}},
    "server_info": [
        {"key": "server:pi4", "addr": ["10.0.0.5", 4001]},
        {"key": "server:pi4", "addr": ["10.0.0.4", 4000]},
        {"key": "server:new", "addr": ["10.0.0.6", 4002]},
    ],
}


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9190", HERE), ("boards.lab:80", Address("boards.lab", 80)), ("[::1]:9190", Address("::1", 9190))],
)
def test_an_address_is_a_host_and_a_port(text: str, address: Address) -> None:
    assert parse_address(text) == address


HOSTS_OF_NO_NAME = ("a..b", "l" * 64, "a." * 200, "a\0b", "a b", "a\nb", "\ud800", ".a")


@pytest.mark.parametrize(
    "text",
    [
        *("", "9190", ":9190", "host:", "host:0", "host:65536", "host:-1", "host:http", f"host:{'1' * 5000}"),
        *(f"{host}:9190" for host in HOSTS_OF_NO_NAME),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected HOST:PORT of a tracker"):
        parse_address(text)


@pytest.mark.parametrize("key", ["", "-pi", "../pi", "a b", "pi/4", "x" * 65])
def test_a_key_that_no_file_can_be_called_after_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="expected a key"):
        check_key(key)


@contextlib.contextmanager
def answering(*parts: bytes, pause_s: float = 0.0) -> Iterator[Address]:
    """What takes one connection, and says these bytes whatever it hears."""

    def serve() -> None:
        with contextlib.suppress(OSError), listening.accept()[0] as connection:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
            while connection.recv(1000):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield Address(*listening.getsockname())
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def framed(content: bytes) -> bytes:
    return struct.pack("<i", 0x2F271) + struct.pack("<i", len(content)) + content


def told(answer: object) -> bytes:
    return framed(json.dumps(answer).encode())


def test_devices_come_by_key() -> None:
    with answering(told([0, SUMMARY])) as address:
        groups = device_groups(address)
    assert groups == [
        DeviceGroup("jetson", (), 0, 2),
        DeviceGroup("new", ("10.0.0.6:4002",), 0, 0),
        DeviceGroup("pi4", ("10.0.0.4:4000", "10.0.0.5:4001"), 1, 0),
    ]
    assert [g.num_busy for g in groups] == [0, 1, 1]
    assert group_of(groups, "pi4", HERE).num_free == 1
    with pytest.raises(
        MeasureError, match=r"no device of key 'jetson' at tracker 127.0.0.1:9190; it has: new, pi4; run"
    ):
        group_of(groups, "jetson", HERE)


def test_a_free_device_is_asked_for() -> None:
    with answering(told([0, ["10.0.0.4", 4000, "server:pi4:0.5"]])) as address:
        assert request_server(address, "pi4") == ("10.0.0.4", 4000, "server:pi4:0.5")


def test_a_device_that_does_not_become_free_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "_TIMEOUT_S", 0.2)
    with answering(framed(b"")[:4]) as address:
        assert request_server(address, "pi4") is None


def changed(**parts: Any) -> dict[str, Any]:
    return {**SUMMARY, **parts}


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        framed(b"")[:4] + struct.pack("<i", -1),
        framed(b"")[:4] + struct.pack("<i", 0x7FFFFFFF),
        framed(b"[" * 100_000),
        framed(b"\xff\xfe"),
        framed(b"NaN"),
        told(None),
        told([0]),
        told([-1, SUMMARY]),
        told([0, None]),
        told([0, {}]),
        told([0, changed(queue_info=[])]),
        told([0, changed(queue_info={"pi4": {"free": "1", "pending": 0}})]),
        told([0, changed(queue_info={"pi4": {"free": -1, "pending": 0}})]),
        told([0, changed(queue_info={"pi4\n\x1b[31m": {"free": 1, "pending": 0}})]),
        told([0, changed(queue_info={"x" * 300: {"free": 1, "pending": 0}})]),
        told([0, changed(server_info={})]),
        told([0, changed(server_info=[{"key": "server:pi4", "addr": ["10.0.0.5", 99999]}])]),
        told([0, changed(server_info=[{"key": "server:pi4", "addr": [None, 4001]}])]),
        told([0, changed(server_info=[{"key": "server:pi4", "addr": "10.0.0.5:4001"}])]),
        told([0, changed(server_info=[{"key": 7, "addr": ["10.0.0.5", 4001]}])]),
        told([0, changed(server_info=[{"key": "\ud800", "addr": ["10.0.0.5", 4001]}])]),
        told([0, changed(server_info=[{"key": "k", "addr": ["h", 1]}] * 10_001)]),
    ],
)
def test_what_a_stranger_says_is_one_line(said: bytes) -> None:
    with answering(said) as address, pytest.raises(MeasureError, match="no TVM tracker") as refused:
        device_groups(address)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(framed)))
@settings(max_examples=40, deadline=None)
def test_any_bytes_are_one_line(said: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracker, "_TIMEOUT_S", 0.02)
        with answering(said) as address, pytest.raises(MeasureError):
            device_groups(address)


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "_TIMEOUT_S", 0.2)
    said = told([0, SUMMARY])
    parts = [said[i : i + 1] for i in range(len(said))]
    with answering(*parts, pause_s=0.01) as address, pytest.raises(MeasureError, match="timed out"):
        device_groups(address)


def test_a_tracker_without_devices_is_said_to_have_none() -> None:
    with pytest.raises(MeasureError, match="it has no device at all"):
        group_of([], "pi4", HERE)


def test_a_tracker_that_is_not_there_is_one_line() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen: nobody else gets the port
        with pytest.raises(MeasureError, match=r"no tracker answers at 127.0.0.1:\d+ .*; start one with"):
            device_groups(Address("127.0.0.1", held.getsockname()[1]))
