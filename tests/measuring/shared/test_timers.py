"""chanas/measuring/shared/timers.py: a device elsewhere that is lost, and is back."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
from typing import Any, cast

import pytest

from chanas.core.codec import to_json
from chanas.errors import TargetError
from chanas.measuring.messages import Answer, ErrorKind, Ping, WorkerError
from chanas.measuring.runner import RunnerLostError
from chanas.measuring.shared.timers import RemoteTimer, raise_if_killed
from chanas.measuring.shared.turns import Ask
from chanas.measuring.worker.process import WorkerProcess
from chanas.scheduler.jobs import WorkerDiedError

ASK = Ask(number=0, times=True, timeout_s=1.0, request=Ping())
WITHIN_S = 20.0


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
    """As the parent of a process that really ended so says it; its text may say anything."""
    greets_and_dies = (
        f"import os, sys; sys.stdin.readline(); print({json.dumps(to_json(Answer({}, None)))!r}, flush=True); "
        f"sys.stdin.readline(); os.kill(os.getpid(), {number.value})"
    )
    worker = WorkerProcess(1, sorted(os.sched_getaffinity(0))[:1], ["-c", greets_and_dies])
    answer = worker.call(Ping(), 20.0)
    worker.close()
    assert answer.error is not None
    answer = dataclasses.replace(answer, error=dataclasses.replace(answer.error, text="it says: with signal 9 of 12"))
    if is_killed:
        with pytest.raises(WorkerDiedError):
            raise_if_killed(answer)
    else:
        assert raise_if_killed(answer) is answer
