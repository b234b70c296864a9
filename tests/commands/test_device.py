"""chanas/commands/device.py and `chanas prescheduler --rpc`: what is printed, and one line for bad input."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chanas import workflows
from chanas.commands.main import app
from chanas.core.usage import Place, Usage
from chanas.devices.host import load_target
from chanas.errors import ChanasError, MeasureError
from chanas.files.run import RunDirectory
from chanas.measuring.remote import device as remote
from chanas.measuring.remote import held as remote_pool
from chanas.measuring.remote import tracker
from chanas.measuring.remote.held import HeldDevices
from chanas.measuring.remote.tracker import DeviceGroup
from chanas.prescheduler.tables import lut


def printed(*arguments: str) -> list[str]:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return str(done.output).splitlines()


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[DeviceGroup]:
    """What the tracker has."""
    there: list[DeviceGroup] = []
    monkeypatch.setattr(tracker, "device_groups", lambda _address: there)
    return there


def test_list_shows_who_is_free_and_who_is_busy(groups: list[DeviceGroup]) -> None:
    groups += [DeviceGroup("jetson", (), 0, 2), DeviceGroup("pi4", ("10.0.0.4:4000", "10.0.0.5:4001"), 1, 0)]
    head, *rows = printed("device", "list", "--tracker", "127.0.0.1:9190")
    assert head.split() == ["key", "devices", "free", "busy", "waiting", "servers"]
    assert [row.split() for row in rows] == [
        ["jetson", "0", "0", "0", "2"],
        ["pi4", "2", "1", "1", "0", "10.0.0.4:4000", "10.0.0.5:4001"],
    ]


def test_list_asks_a_device_of_each_key_what_it_is(groups: list[DeviceGroup], monkeypatch: pytest.MonkeyPatch) -> None:
    groups += [DeviceGroup("jetson", (), 0, 2), DeviceGroup("h200", ("10.0.0.4:4000",), 1, 0)]
    monkeypatch.setattr(remote, "what_it_is", lambda address, key: f"GPU of {key} at {address}")
    _, *rows = printed("device", "list", "--tracker", "127.0.0.1:9190", "--describe")
    assert [row.split(maxsplit=1)[0] for row in rows[:2]] == ["jetson", "h200"]
    assert rows[2].strip() == "GPU of h200 at 127.0.0.1:9190"


def test_a_tracker_without_devices_says_so(groups: list[DeviceGroup]) -> None:
    assert printed("device", "list", "--tracker", "127.0.0.1:9190") == ["the tracker has no device"]


def test_the_device_says_what_is_tuned_for_and_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = load_target("cpu")
    asked: dict[str, Any] = {}
    held = HeldDevices((), target)
    usage = Usage("cuda", dtype="f16", place=Place(rpc="127.0.0.1:9190", key="h200", num_devices=3, shared=True))

    @contextlib.contextmanager
    def hold(usage: Usage) -> Iterator[HeldDevices]:
        asked["device"] = usage
        yield held

    def fill(_run: RunDirectory, _task: Any, hardware: Any, *_: Any, open_pool: Any, **_options: Any) -> Any:
        asked["filled"] = (hardware, open_pool)
        raise MeasureError("far enough")

    monkeypatch.setattr(remote_pool, "held_devices", hold)
    monkeypatch.setattr(lut, "preschedule", fill)
    with pytest.raises(ChanasError, match="far enough"):
        workflows.preschedule(
            RunDirectory(tmp_path),
            space="mbv3",
            usage=usage,
            progress=False,
        )
    assert asked == {"device": usage, "filled": (target, held.pool)}
