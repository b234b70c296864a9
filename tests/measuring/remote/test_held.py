"""chanas/measuring/remote/held.py: as many devices of a kind as are asked for are taken, and given back."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import chanas
from chanas.core.usage import Place, Usage
from chanas.devices.cores import split_cores
from chanas.errors import ChanasError, ConfigError, MeasureError, TargetError
from chanas.measuring.remote import held as module
from chanas.measuring.remote.device import Description
from chanas.measuring.remote.held import held_devices

from ...compiler.workbench import HOST

TIMING, OTHERS = split_cores(1)
WITHIN_S = 20.0


# ---- taking them ----------------------------------------------------------------------------------------------------
HERE = Description(HOST, "1", chanas.__version__, "znver4", "x86_64", "b")
TOASTER = dataclasses.replace(HERE, target=dataclasses.replace(HOST, device="a toaster", fingerprint="0123456789ab"))
PI4, TWO = (Usage(place=Place("tracker:1", "pi4", num)) for num in (None, 2))


class Tracker:
    """What a tracker would give: descriptions of free devices, or errors, one after the other."""

    def __init__(self, *there: Description | ChanasError, num_busy: int = 0) -> None:
        self.free, self.num_busy, self.is_local = list(there), num_busy, False
        self.held: list[Any] = []
        self.lock = threading.Lock()

    def device(self, *_: Any, **__: Any) -> Any:
        tracker = self

        class Taken:
            key, is_local, is_there = "pi4", tracker.is_local, True

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
    with held_devices(PI4) as held:
        assert (len(held.devices), held.target.name) == (3, "cpu@pi4")
        assert len(there.held) == 3
        with held.pool(held.target) as pool:
            assert pool.num_devices == 3
    assert there.held == []


@pytest.mark.parametrize("is_local", [False, True])
def test_a_device_that_is_this_machine_keeps_its_cores_and_all_build_for_others(tracker: Any, is_local: bool) -> None:
    tracker(HERE).is_local = is_local
    before = os.sched_getaffinity(0)
    with held_devices(PI4) as held, held.pool(held.target) as pool:
        assert (pool.num_builders, pool.overlap) == (
            (len(OTHERS or TIMING), bool(OTHERS)) if is_local else (len(TIMING + OTHERS), True)
        )
        assert os.sched_getaffinity(0) == (({*OTHERS} or before) if is_local else before)


def test_as_many_as_are_asked_for_are_taken(tracker: Any) -> None:
    there = tracker(HERE, HERE, HERE)
    with held_devices(TWO) as held:
        assert (len(held.devices), len(there.free)) == (2, 1)


OTHER_TVM = TargetError("the device has TVM 2, here it is 1; install the same on both")
NOBODY = MeasureError("no device of key 'pi4' at tracker tracker:1; it has: jetson")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (MeasureError("busy: all 2 of them are in use"), "busy"),  # taken by somebody else meanwhile
        (TOASTER, f"{HOST.device} ({HOST.fingerprint}) and a toaster (0123456789ab); give each kind a key"),
        (OTHER_TVM, str(OTHER_TVM)),
    ],
    ids=["taken", "of another kind", "with another compiler"],
)
def test_one_that_cannot_be_had_is_left_out_by_name(
    tracker: Any, caplog: pytest.LogCaptureFixture, other: Any, why: str
) -> None:
    there = tracker(HERE, other, HERE)
    with held_devices(PI4) as held:
        assert (len(held.devices), len(there.held)) == (2, 2)
    assert caplog.text.count("a device of key 'pi4' is left out: ") == 1
    assert why in caplog.text


def test_one_of_another_kind_is_refused_where_it_is_asked_for(tracker: Any) -> None:
    there = tracker(HERE, TOASTER)
    with (
        pytest.raises(TargetError, match=r"the devices of key 'pi4' are of different kinds: .* and a toaster"),
        held_devices(TWO),
    ):
        pass
    assert there.held == []


def test_more_than_there_are_is_one_line(tracker: Any) -> None:
    there = tracker(HERE, HERE, num_busy=1)
    message = "expected 4 devices of key 'pi4' at tracker tracker:1, it has 3"
    with pytest.raises(ConfigError, match=message), held_devices(Usage(place=Place("tracker:1", "pi4", 4))):
        pass
    assert there.held == []


@pytest.mark.parametrize("error", [OTHER_TVM, NOBODY])
def test_without_a_first_device_there_is_one_line(tracker: Any, error: ChanasError) -> None:
    tracker(error)
    with pytest.raises(type(error), match=str(error)), held_devices(PI4):
        pass
