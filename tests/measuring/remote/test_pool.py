"""chanas/measuring/remote/pool.py: builds here, timings on other devices, and nobody is left waiting."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import chanas
from chanas.devices.cores import split_cores
from chanas.errors import ChanasError, ConfigError, MeasureError, TargetError
from chanas.measuring.messages import Answer, ErrorKind, Measure, WorkerError
from chanas.measuring.remote import pool as module
from chanas.measuring.remote.device import Description, DeviceLostError
from chanas.measuring.remote.pool import RemotePool, held_devices
from chanas.measuring.remote.tracker import Address

from ...compiler.workbench import HOST

TIMING, OTHERS = split_cores(1)
WITHIN_S = 20.0


class Device:
    """Stands where a `RemoteDevice` stands. It times when its gate is open, and is lost over what is in `fatal`."""

    def __init__(self, is_local: bool = False) -> None:
        self.is_local = is_local
        self.is_connected = True
        self.comes_back = True
        self.breaks = False
        self.fatal: set[str] = set()
        self.asked: list[str] = []
        self.gate, self.reached = threading.Event(), threading.Event()
        self.gate.set()

    def attempt(self, request: Any, _timeout_s: float) -> Answer:
        self.asked.append(request.library.name)
        self.reached.set()
        assert self.gate.wait(WITHIN_S)
        if request.library.name in self.fatal:
            self.is_connected = False
            raise DeviceLostError("reset by peer")
        if self.breaks:
            raise MeasureError("a device of key 'pi4' can't time")
        return Answer(request.call, None, 2.0)

    def try_connect(self) -> str | WorkerError:
        self.is_connected = self.comes_back
        return "back" if self.comes_back else WorkerError(ErrorKind.RAISED, "no route to it")

    def gone(self, reason: WorkerError, within_s: float) -> MeasureError:
        return MeasureError(f"no device came back within {within_s:g} s ({reason})")

    def stop(self) -> None:
        self.gate.set()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)


def pool_of(*devices: Device, return_within_s: float = 0.1) -> RemotePool:
    return RemotePool(devices, 1, return_within_s)  # type: ignore[arg-type]


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def pool(device: Device) -> Iterator[RemotePool]:
    with pool_of(device) as remote:
        yield remote


def asked(pool: RemotePool, names: Sequence[str], device: int | None = None) -> list[Any]:
    return [pool.measure(Measure(library=Path(name), case=Path("case")), 1.0, device) for name in names]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# ---- one device -----------------------------------------------------------------------------------------------------
def test_timings_come_in_order_from_the_device(pool: RemotePool, device: Device) -> None:
    assert [f.result(WITHIN_S) for f in asked(pool, "abc")] == 3 * [Answer("measure", None, 2.0)]
    assert device.asked == ["a", "b", "c"]
    assert pool.timing_s == 6.0


def test_a_device_that_cannot_time_is_told_to_who_asked(pool: RemotePool, device: Device) -> None:
    device.breaks = True
    with pytest.raises(MeasureError, match="can't time"):
        asked(pool, "a")[0].result(WITHIN_S)


def test_closing_waits_for_no_timing(pool: RemotePool, device: Device) -> None:
    device.gate.clear()
    futures = asked(pool, "ab")
    device.reached.wait(WITHIN_S)
    pool.close()
    assert [futures[0].done(), futures[1].cancelled()] == [True, True]
    with pytest.raises(MeasureError, match="closed"):
        asked(pool, "c")


def test_all_cores_build_for_a_device_elsewhere(pool: RemotePool) -> None:
    assert (pool.num_builders, pool.timing_cores, pool.overlap) == (len(TIMING + OTHERS), [], True)


def test_a_device_that_is_this_machine_keeps_its_cores() -> None:
    with pool_of(Device(), Device(is_local=True)) as pool:
        assert (pool.timing_cores, pool.overlap, pool.num_builders) == (TIMING, bool(OTHERS), len(OTHERS or TIMING))


# ---- several devices ------------------------------------------------------------------------------------------------
def test_devices_time_side_by_side() -> None:
    one, other = Device(), Device()
    for each in (one, other):
        each.gate.clear()
    with pool_of(one, other) as pool:
        futures = asked(pool, "abcd")
        until(lambda: len(one.asked) == len(other.asked) == 1)
        for each in (one, other):
            each.gate.set()
        answers = [f.result(WITHIN_S) for f in futures]
    assert sorted(one.asked + other.asked) == ["a", "b", "c", "d"]
    assert [name in other.asked for name in "abcd"] == [a.device == 1 for a in answers]


def test_what_is_for_one_device_is_timed_by_no_other() -> None:
    one, other = Device(), Device()
    one.gate.clear()
    with pool_of(one, other) as pool:
        mine, theirs = asked(pool, "ab", device=0), asked(pool, "cd", device=1)
        assert [f.result(WITHIN_S).device for f in theirs] == [1, 1]
        assert not any(f.done() for f in mine)
        one.gate.set()
        assert [f.result(WITHIN_S).device for f in mine] == [0, 0]


def test_a_lost_device_loses_only_what_it_timed_and_others_take_what_was_its_own() -> None:
    one, other = Device(), Device()
    one.comes_back, one.fatal = False, {"b"}
    with pool_of(one, other) as pool:
        answers = [f.result(WITHIN_S) for f in asked(pool, "abcd", device=0)]
    assert [(a.device, a.error) for a in answers] == [(0, None), (1, None), (1, None), (1, None)]
    assert (one.asked, other.asked) == (["a", "b"], ["b", "c", "d"])


def test_a_device_that_comes_back_goes_on() -> None:
    one, other = Device(), Device()
    one.comes_back, one.fatal = False, {"a"}
    with pool_of(one, other, return_within_s=0.0) as pool:
        assert asked(pool, "a", device=0)[0].result(WITHIN_S).device == 1
        time.sleep(0.05)  # as long as another one times, it is looked for
        one.comes_back = True
        until(lambda: one.is_connected)
        assert asked(pool, "b", device=0)[0].result(WITHIN_S).device == 0


def test_what_takes_every_device_with_it_is_a_failed_candidate() -> None:
    one, other = Device(), Device()
    for each in (one, other):
        each.fatal = {"a"}
    with pool_of(one, other) as pool:
        bad, good = asked(pool, "ab")
        assert (
            str(bad.result(WITHIN_S).error)
            == "crash: the device was lost 3 times in measure, the last time: reset by peer"
        )
        assert good.result(WITHIN_S).error is None


def test_the_run_ends_with_one_line_when_all_stay_away() -> None:
    one, other = Device(), Device()
    for each in (one, other):
        each.comes_back, each.fatal = False, {"a"}
    with pool_of(one, other) as pool:
        futures = asked(pool, "ab")
        for future in futures[:1]:
            with pytest.raises(MeasureError, match=r"^no device came back within 0.1 s \(no route to it\)$"):
                future.result(WITHIN_S)
        with pytest.raises(MeasureError, match="no device came back"):
            asked(pool, "c")[0].result(WITHIN_S)


def test_a_pool_that_is_closed_while_a_device_is_looked_for_leaves_nobody_waiting(device: Device) -> None:
    device.comes_back, device.fatal = False, {"a"}
    with pool_of(device, return_within_s=600.0) as pool:
        futures = asked(pool, "ab")
        until(lambda: not device.is_connected)
        time.sleep(0.02)
    assert str(futures[0].result(WITHIN_S).error) == "stopped: measure was given up"
    assert futures[1].cancelled()


# ---- taking them ----------------------------------------------------------------------------------------------------
HERE = Description(HOST, "1", chanas.__version__, "znver4", "x86_64", "b")
TOASTER = dataclasses.replace(HERE, target=dataclasses.replace(HOST, device="a toaster", fingerprint="0123456789ab"))
TRACKER = Address("tracker", 1)


class Tracker:
    """What a tracker would give: descriptions of free devices, or errors, one after the other."""

    def __init__(self, *there: Description | ChanasError, num_busy: int = 0) -> None:
        self.free, self.num_busy = list(there), num_busy
        self.held: list[Any] = []
        self.lock = threading.Lock()

    def device(self, *_: Any, **__: Any) -> Any:
        tracker = self

        class Taken(Device):
            def connect(self, within_s: float | None = None) -> Description:
                with tracker.lock:
                    found = tracker.free.pop(0) if tracker.free else MeasureError(f"busy for {within_s} s")
                    if isinstance(found, ChanasError):
                        raise found
                    tracker.held.append(self)
                    self.num_free = len(tracker.free)
                    self.num_devices = len(tracker.free) + len(tracker.held) + tracker.num_busy
                    return found

            def close(self) -> None:
                with tracker.lock:
                    if self in tracker.held:
                        tracker.held.remove(self)

        return Taken()


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tracker]:
    def of(*there: Any, num_busy: int = 0) -> Tracker:
        made = Tracker(*there, num_busy=num_busy)
        monkeypatch.setattr(module, "RemoteDevice", made.device)
        return made

    return of


def test_all_that_are_free_are_taken_and_given_back(tracker: Any) -> None:
    there = tracker(HERE, HERE, HERE, num_busy=2)
    with held_devices(TRACKER, "pi4") as held:
        assert (len(held.devices), held.target.name) == (3, "cpu@pi4")
        assert len(there.held) == 3
        with held.pool(held.target) as pool:
            assert pool.num_devices == 3
    assert there.held == []


def test_as_many_as_are_asked_for_are_taken(tracker: Any) -> None:
    there = tracker(HERE, HERE, HERE)
    with held_devices(TRACKER, "pi4", num_devices=2) as held:
        assert (len(held.devices), len(there.free)) == (2, 1)


def test_one_that_was_taken_meanwhile_is_not_waited_for(tracker: Any, caplog: pytest.LogCaptureFixture) -> None:
    tracker(HERE, MeasureError("busy: all 2 of them are in use"))
    with held_devices(TRACKER, "pi4") as held:
        assert len(held.devices) == 1
    assert "a device of key 'pi4' is left out: busy" in caplog.text


def test_one_of_another_kind_is_left_out_by_name_and_given_back(tracker: Any, caplog: pytest.LogCaptureFixture) -> None:
    there = tracker(HERE, TOASTER, HERE)
    with held_devices(TRACKER, "pi4") as held:
        assert (len(held.devices), len(there.held)) == (2, 2)
    assert f"{HOST.device} ({HOST.fingerprint}) and a toaster (0123456789ab); give each kind a key" in caplog.text


def test_one_of_another_kind_is_refused_where_it_is_asked_for(tracker: Any) -> None:
    there = tracker(HERE, TOASTER)
    with (
        pytest.raises(TargetError, match=r"the devices of key 'pi4' are of different kinds: .* and a toaster"),
        held_devices(TRACKER, "pi4", num_devices=2),
    ):
        pass
    assert there.held == []


def test_more_than_there_are_is_one_line(tracker: Any) -> None:
    there = tracker(HERE, HERE, num_busy=1)
    message = "expected 4 devices of key 'pi4' at tracker tracker:1, it has 3"
    with pytest.raises(ConfigError, match=message), held_devices(TRACKER, "pi4", num_devices=4):
        pass
    assert there.held == []


OTHER_TVM = TargetError("the device has TVM 2, here it is 1; install the same on both")
NOBODY = MeasureError("no device of key 'pi4' at tracker tracker:1; it has: jetson")


@pytest.mark.parametrize("error", [OTHER_TVM, NOBODY])
def test_without_a_first_device_there_is_one_line(tracker: Any, error: ChanasError) -> None:
    tracker(error)
    with pytest.raises(type(error), match=str(error)), held_devices(TRACKER, "pi4"):
        pass


def test_one_with_another_compiler_is_left_out_by_name(tracker: Any, caplog: pytest.LogCaptureFixture) -> None:
    tracker(HERE, OTHER_TVM)
    with held_devices(TRACKER, "pi4") as held:
        assert len(held.devices) == 1
    assert f"is left out: {OTHER_TVM}" in caplog.text
