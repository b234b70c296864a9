"""chanas/prescheduler/measuring/remote/tracker.py: what a tracker knows, and one line where there is none."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from chanas.errors import ConfigError, MeasureError
from chanas.prescheduler.measuring.remote import tracker
from chanas.prescheduler.measuring.remote.tracker import (
    Address,
    DeviceGroup,
    check_key,
    device_groups,
    group_of,
    parse_address,
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


@pytest.mark.parametrize("text", ["", "9190", ":9190", "host:", "host:0", "host:65536", "host:-1", "host:http"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected HOST:PORT of a tracker"):
        parse_address(text)


@pytest.mark.parametrize("key", ["", "-pi", "../pi", "a b", "pi/4", "x" * 65])
def test_a_key_that_no_file_can_be_called_after_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="expected a key"):
        check_key(key)


def test_devices_come_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answering:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def summary(self) -> Any:
            return SUMMARY

    monkeypatch.setattr(tracker, "tracker_session", lambda _address: Answering())
    groups = device_groups(HERE)
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


def test_a_tracker_without_devices_is_said_to_have_none() -> None:
    with pytest.raises(MeasureError, match="it has no device at all"):
        group_of([], "pi4", HERE)


def test_a_tracker_that_is_not_there_is_one_line() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen: nobody else gets the port
        with pytest.raises(MeasureError, match=r"no tracker answers at 127.0.0.1:\d+ .*; start one with"):
            device_groups(Address("127.0.0.1", held.getsockname()[1]))
