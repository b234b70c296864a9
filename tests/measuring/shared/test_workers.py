"""chanas/measuring/shared/workers.py: which cores are slots of the host, and which are devices; a device elsewhere that
is lost, and is back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
from typing import Any, cast

import pytest

from chanas.core.codec import to_json
from chanas.devices.cores import split_cores
from chanas.errors import ConfigError, TargetError
from chanas.measuring.messages import Answer, ErrorKind, Ping, WorkerError
from chanas.measuring.runner import RunnerLostError
from chanas.measuring.shared.turns import Ask
from chanas.measuring.shared.workers import RemoteTimer, Slot, open_kinds
from chanas.measuring.worker.process import WorkerProcess
from chanas.scheduler.jobs import DEVICE, HOST, WorkerDiedError

from ...compiler.workbench import HOST as TARGET

CORES = sorted(os.sched_getaffinity(0))
WITHIN_S = 20.0


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_cores_that_are_no_device_do_the_host_work_and_this_process_keeps_to_them() -> None:
    with open_kinds(TARGET, [CORES[1:2]], {}) as kinds:
        workers = kinds[""]
        assert [slot.core for slot in workers.slots] == [*CORES[:1], *CORES[2:]]
        assert CORES[1] not in os.sched_getaffinity(0)
        assert {r.name: r.num_units for r in workers.resources()} == {HOST: len(CORES) - 1, DEVICE: 1}
    assert sorted(os.sched_getaffinity(0)) == CORES


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_where_devices_have_all_cores_they_are_the_slots() -> None:
    with open_kinds(TARGET, [[core] for core in CORES], {}) as kinds:
        workers = kinds[""]
        assert [(slot.core, slot.device) for slot in workers.slots] == [*zip(CORES, workers.devices, strict=True)]
        assert [(r.name, r.num_units) for r in workers.resources()] == [(HOST, len(CORES))]
        assert workers.overlap


def test_one_core_that_times_leaves_the_others_to_the_host() -> None:
    with open_kinds(TARGET, [split_cores(TARGET.num_threads)[0]], {}) as kinds:
        workers = kinds[""]
        assert [slot.core for slot in workers.slots] == (CORES[1:] or CORES)
        assert workers.overlap == (len(CORES) > 1)


def test_a_core_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"got 9999$"), open_kinds(TARGET, [[9999]], {}):
        pass


# ---- devices that come and go ---------------------------------------------------------------------------------------
ASK = Ask(number=0, times=True, timeout_s=WITHIN_S, request=Ping())


class Device:
    """Stands where a `RemoteDevice` stands. It is lost over its first call, and found again at the third look."""

    key = "pi4"

    def __init__(self) -> None:
        self.looks: list[Any] = [
            WorkerError(ErrorKind.BUSY, "in use"),
            TargetError("of another kind"),
            None,
        ]
        self.stopped = self.was_lost = False
        self.is_there = True

    def call(self, _request: Ping, _timeout_s: float) -> Answer:
        if not self.was_lost:
            self.was_lost, self.is_there = True, False
            raise RunnerLostError("reset by peer")
        return Answer({}, None)

    def restore(self) -> Any:
        look = self.looks.pop(0)
        if isinstance(look, Exception):
            raise look
        self.is_there = look is None
        return look

    def stop(self) -> None:
        self.stopped = True


def test_a_device_that_is_lost_is_looked_for_until_it_is_back() -> None:
    device, told = Device(), queue.SimpleQueue[bool]()
    timer = RemoteTimer(cast(Any, device), poll_s=0.001)
    timer.watch(told.put)
    with pytest.raises(WorkerDiedError, match=r"key 'pi4' was lost: reset"):
        timer.answer("a", ASK)
    assert [told.get(timeout=WITHIN_S), told.get(timeout=WITHIN_S)] == [False, True]
    assert device.looks == []
    assert timer.answer("a", ASK).error is None


def test_what_is_timed_is_given_up_for_the_job_alone_that_it_is_for() -> None:
    device, stopped = Device(), list[bool]()
    timer = RemoteTimer(cast(Any, device))

    def call(_request: Ping, _timeout_s: float) -> Answer:
        for job in ("b", "a"):
            timer.stop(job)
            stopped.append(device.stopped)
        return Answer({}, None)

    device.call = call  # type: ignore[method-assign]
    timer.answer("a", ASK)
    assert stopped == [False, True]


@pytest.mark.parametrize(("number", "is_killed"), [(signal.SIGKILL, True), (signal.SIGSEGV, False)])
def test_a_worker_that_somebody_kills_costs_no_candidate(number: signal.Signals, is_killed: bool) -> None:
    greets_and_dies = (
        f"import os, sys; sys.stdin.readline(); print({json.dumps(to_json(Answer({}, None)))!r}, flush=True); "
        f"sys.stdin.readline(); os.kill(os.getpid(), {number.value})"
    )
    slot = Slot(builder=WorkerProcess(1, CORES[:1], ["-c", greets_and_dies]))
    assert slot.builder is not None
    with contextlib.closing(slot.builder):
        if is_killed:
            with pytest.raises(WorkerDiedError):
                slot.answer("a", dataclasses.replace(ASK, times=False))
        else:
            assert slot.answer("a", dataclasses.replace(ASK, times=False)).error is not None
