"""chanas/measuring/fleet.py: builds and timings side by side, timers that come and go, and nobody is left waiting."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from chanas.devices.cores import split_cores
from chanas.errors import MeasureError
from chanas.measuring import fleet as module
from chanas.measuring.fleet import Fleet, WorkerPool
from chanas.measuring.messages import Answer, ErrorKind, Hang, Measure, Ping, WorkerError
from chanas.measuring.runner import RunnerLostError

from ..compiler.workbench import HOST
from .worker.test_process import Say, ended

WITHIN_S = 20.0


pytestmark = pytest.mark.usefixtures("real_workers")


# ---- cores ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("cores", "overlap", "num_builders"), [({0}, False, 1), ({0, 1, 2}, True, 2)])
def test_builds_overlap_with_timing_when_there_are_cores_left(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], overlap: bool, num_builders: int
) -> None:
    """The timing core then builds, too. No process starts before it is needed."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cores)
    with WorkerPool(HOST) as pool:
        assert (pool.overlap, pool.num_builders) == (overlap, num_builders)
        assert [w._process for w in pool._workers()] == [None] * (1 + num_builders + overlap)


def test_a_worker_runs_on_its_cores_only(pool: WorkerPool) -> None:
    timing, compiling = split_cores(1)
    timer = pool.measure(Ping(), 60.0).result().result["pid"]
    builder = pool.build(Ping(), 60.0).result().result["pid"]
    assert os.sched_getaffinity(timer) == set(timing)
    assert os.sched_getaffinity(builder) <= set(compiling or timing)


# ---- a pool ---------------------------------------------------------------------------------------------------------
def test_a_pool_that_is_closed_ends_what_is_under_way() -> None:
    with WorkerPool(HOST) as pool:
        pid = pool.build(Ping(), 60.0).result().result["pid"]
        hanging = pool.build(Hang(), 600.0)
        queued = pool.build(Hang(), 600.0)
        while not hanging.running():
            time.sleep(0.01)
    assert ended(pid)
    assert all(future.cancelled() or future.exception(20.0) or future.result().error for future in (hanging, queued))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_closed_pool_takes_nothing() -> None:
    with WorkerPool(HOST) as pool:
        pass
    with pytest.raises(MeasureError, match="pool that was asked for ping is closed"):
        pool.build(Ping(), 1.0)


# ---- devices elsewhere ----------------------------------------------------------------------------------------------
class Device:
    """Stands where a runner stands. It answers when its gate is open, and is lost over what is in `fatal`."""

    def __init__(self, name: str = "", log: list[str] | None = None) -> None:
        self.is_there = True
        self.comes_back = True
        self.breaks = False
        self.num_stops = 0
        self.fatal: set[str] = set()
        self.asked: list[str] = []
        self.gate, self.reached = threading.Event(), threading.Event()
        self.gate.set()
        self._name, self._log = name, [] if log is None else log

    def call(self, request: Any, _timeout_s: float) -> Answer:
        what = request.library.name if isinstance(request, Measure) else request.call
        self.asked.append(what)
        self._log.append(f"{self._name} {what}")
        self.reached.set()
        assert self.gate.wait(WITHIN_S)
        if what in self.fatal:
            self.is_there = False
            raise RunnerLostError("reset by peer")
        if self.breaks:
            raise MeasureError("a device of key 'pi4' can't time")
        return Answer(request.call, None, 2.0)

    def restore(self) -> WorkerError | None:
        self.is_there = self.comes_back
        return None if self.comes_back else WorkerError(ErrorKind.RAISED, "no route to it")

    def stop(self) -> None:
        self.num_stops += 1
        self.gate.set()

    close = stop


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)


def pool_of(*devices: Device, return_within_s: float = 0.1) -> Fleet:
    return Fleet([], devices, overlap=True, key="pi4", return_within_s=return_within_s)


@pytest.fixture
def there() -> Device:
    return Device()


@pytest.fixture
def elsewhere(there: Device) -> Iterator[Fleet]:
    with pool_of(there) as fleet:
        yield fleet


def asked(pool: Fleet, names: Sequence[str], device: int | None = None) -> list[Any]:
    return [pool.measure(Measure(library=Path(name), case=Path("case")), 1.0, device) for name in names]


# ---- two cores, one of which times ----------------------------------------------------------------------------------
class Cores(NamedTuple):
    """A fleet whose workers are those of core 0 (it times), 0b (it builds there) and 1, and what they do in order."""

    fleet: Fleet
    timer: Device
    stand_in: Device
    builder: Device
    log: list[str]


@pytest.fixture
def cores() -> Iterator[Cores]:
    log: list[str] = []
    timer, stand_in, builder = workers = [Device(name, log) for name in ("0", "0b", "1")]

    @contextlib.contextmanager
    def locked() -> Iterator[None]:
        log.append("lock")
        yield

    builders: Any = [builder]
    with Fleet(builders, [timer], overlap=True, lock=locked, stand_in=cast(Any, stand_in)) as fleet:
        yield Cores(fleet, *workers, log)


def test_the_timing_core_compiles_while_there_is_nothing_to_time(cores: Cores) -> None:
    pool, timer, stand_in, builder, log = cores
    for worker in (timer, stand_in, builder):
        worker.gate.clear()
    futures = [pool.build(Say("a"), 1.0)]
    until(lambda: log == ["1 a"])
    futures.append(pool.build(Say("b"), 1.0))
    until(lambda: log == ["1 a", "lock", "0b b"])  # another process may time on that core
    futures += [pool.build(Say("c"), 1.0), pool.measure(Say("t"), 1.0)]
    time.sleep(0.02)
    assert log == ["1 a", "lock", "0b b"]  # nothing is timed on a core that compiles
    stand_in.gate.set()
    until(lambda: log == ["1 a", "lock", "0b b", "lock", "0 t"])
    time.sleep(0.02)
    assert len(log) == 5  # and nothing compiled on a core that times
    timer.gate.set()
    builder.gate.set()
    assert all(f.result(WITHIN_S).error is None for f in futures)


def test_a_free_compiling_core_comes_first(cores: Cores) -> None:
    for name in "abc":
        cores.fleet.build(Say(name), 1.0).result(WITHIN_S)
    assert cores.log == ["1 a", "1 b", "1 c"]


# ---- one device -----------------------------------------------------------------------------------------------------
def test_timings_come_in_order_from_the_device(elsewhere: Fleet, there: Device) -> None:
    assert [f.result(WITHIN_S) for f in asked(elsewhere, "abc")] == 3 * [Answer("measure", None, 2.0)]
    assert there.asked == ["a", "b", "c"]
    assert elsewhere.timing_s == 6.0


def test_a_device_that_cannot_time_is_told_to_who_asked(elsewhere: Fleet, there: Device) -> None:
    there.breaks = True
    with pytest.raises(MeasureError, match="can't time"):
        asked(elsewhere, "a")[0].result(WITHIN_S)


def test_closing_waits_for_no_timing(elsewhere: Fleet, there: Device) -> None:
    there.gate.clear()
    futures = asked(elsewhere, "ab")
    there.reached.wait(WITHIN_S)
    elsewhere.close()
    assert [futures[0].done(), futures[1].cancelled()] == [True, True]
    with pytest.raises(MeasureError, match="closed"):
        asked(elsewhere, "c")


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
        until(lambda: one.is_there)
        assert asked(pool, "b", device=0)[0].result(WITHIN_S).device == 0


def test_what_takes_every_device_with_it_is_a_failed_candidate() -> None:
    one, other = Device(), Device()
    for each in (one, other):
        each.fatal = {"a"}
    with pool_of(one, other) as pool:
        bad, good = asked(pool, "ab")
        error = "crash: the device was lost 3 times in measure, the last time: reset by peer"
        assert str(bad.result(WITHIN_S).error) == error
        assert good.result(WITHIN_S).error is None
    assert (one.asked + other.asked).count("a") == 3


def test_a_device_that_is_lost_again_later_has_its_time_anew(there: Device) -> None:
    there.fatal = {"a"}
    with pool_of(there, return_within_s=0.3) as pool:
        assert asked(pool, "a")[0].result(WITHIN_S).error is not None
        time.sleep(0.4)
        there.comes_back, there.fatal = False, {"b"}
        (late,) = asked(pool, "b")
        until(lambda: not there.is_there)
        time.sleep(0.05)
        there.comes_back, there.fatal = True, set()
        assert late.result(WITHIN_S).error is None


def test_only_processes_of_this_machine_are_renewed(there: Device) -> None:
    with pool_of(there) as pool:
        pool.renew_timers()
        assert there.num_stops == 0
    here = Device()
    with Fleet([], [here], overlap=True, lock=contextlib.nullcontext) as pool:
        pool.renew_timers()
        assert here.num_stops == 1


def test_the_run_ends_with_one_line_when_all_stay_away() -> None:
    one, other = Device(), Device()
    for each in (one, other):
        each.comes_back, each.fatal = False, {"a"}
    with pool_of(one, other) as pool:
        with pytest.raises(MeasureError, match=r"^no device of key 'pi4' came back .* 0.1 s \(no route to it\); what"):
            asked(pool, "ab")[0].result(WITHIN_S)
        with pytest.raises(MeasureError, match="no device of key"):
            asked(pool, "c")[0].result(WITHIN_S)


def test_a_pool_that_is_closed_while_a_device_is_looked_for_leaves_nobody_waiting(there: Device) -> None:
    there.comes_back, there.fatal = False, {"a"}
    with pool_of(there, return_within_s=600.0) as pool:
        futures = asked(pool, "ab")
        until(lambda: not there.is_there)
        time.sleep(0.02)
    assert str(futures[0].result(WITHIN_S).error) == "stopped: measure was given up"
    assert futures[1].cancelled()
