"""chanas/prescheduler/remote_pool.py: builds here, timings there, and an end that leaves nobody waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from chanas.errors import MeasureError
from chanas.prescheduler.pool import Answer, split_cores
from chanas.prescheduler.remote_pool import RemotePool

TIMING, OTHERS = split_cores(1)


class Device:
    """Stands where a `RemoteDevice` stands."""

    def __init__(self, is_local: bool = False) -> None:
        self.is_local = is_local
        self.is_gone = False
        self.hangs = False
        self.asked: list[str] = []
        self.reached, self.given_up = threading.Event(), threading.Event()

    def call(self, name: str, arguments: dict[str, Any], _timeout_s: float) -> Answer:
        self.asked.append(arguments["library"])
        self.reached.set()
        if self.is_gone:
            raise MeasureError("no device of key 'pi4' came back")
        if self.hangs:
            self.given_up.wait(20.0)
        return Answer(name, None, 2.0)

    def stop(self) -> None:
        self.given_up.set()


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def pool(device: Device) -> Iterator[RemotePool]:
    with RemotePool(device, 1) as remote:  # type: ignore[arg-type]
        yield remote


def test_timings_come_in_order_from_the_device(pool: RemotePool, device: Device) -> None:
    futures = [pool.measure("measure", {"library": str(i)}, 1.0) for i in range(3)]
    assert [f.result(20.0) for f in futures] == 3 * [Answer("measure", None, 2.0)]
    assert device.asked == ["0", "1", "2"]
    assert pool.timing_s == 6.0


def test_a_device_that_stays_away_is_told_to_who_asked(pool: RemotePool, device: Device) -> None:
    device.is_gone = True
    with pytest.raises(MeasureError, match="came back"):
        pool.measure("measure", {"library": "0"}, 1.0).result(20.0)


def test_closing_waits_for_no_timing(pool: RemotePool, device: Device) -> None:
    device.hangs = True
    futures = [pool.measure("measure", {"library": str(i)}, 1.0) for i in range(2)]
    device.reached.wait(20.0)
    pool.close()
    assert device.given_up.is_set()
    assert [futures[0].done(), futures[1].cancelled()] == [True, True]
    with pytest.raises(MeasureError, match="closed"):
        pool.measure("measure", {"library": "2"}, 1.0)


def test_all_cores_build_for_a_device_elsewhere(pool: RemotePool) -> None:
    assert (pool.num_builders, pool.timing_cores, pool.overlap) == (len(TIMING + OTHERS), [], True)


def test_a_device_that_is_this_machine_keeps_its_cores() -> None:
    with RemotePool(Device(is_local=True), 1) as pool:  # type: ignore[arg-type]
        assert (pool.timing_cores, pool.overlap, pool.num_builders) == (TIMING, bool(OTHERS), len(OTHERS or TIMING))
