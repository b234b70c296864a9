"""Stages on real threads and processes; no test waits for more than fractions of a second."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mortal import die_once

from chanas.scheduler.board import Status
from chanas.scheduler.engine import Scheduler
from chanas.scheduler.jobs import BUILD, DEVICE, HOST, MEASURE, Outcome, Outlook, Stage, UnitLostError
from chanas.scheduler.mock import Sleep
from chanas.scheduler.policies import Interleaved
from chanas.scheduler.pools import PoolExecutor, thread_pool
from chanas.scheduler.resources import Resource


class Calls:
    """Calls side by side, each on a resource; it keeps what they gave."""

    def __init__(self, *calls: tuple[str, Callable[[], Any]]) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._stages = [
            Stage(MEASURE if resource == DEVICE else BUILD, resource, call, token=i)
            for i, (resource, call) in enumerate(calls)
        ]

    def offer(self) -> Sequence[Stage]:
        offers, self._stages = self._stages, []
        return offers

    def take(self, stage: Stage, outcome: Outcome) -> None:
        self.outcomes[stage.token] = outcome

    def outlook(self, expected: Callable[[str], float], num_units: Any) -> Outlook:
        return Outlook({}, 0.0)


@pytest.fixture
def executor() -> Iterator[PoolExecutor]:
    def process(_unit: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    with PoolExecutor({HOST: process, DEVICE: thread_pool}) as executor:
        yield executor


def scheduler_on(executor: PoolExecutor, num_hosts: int = 1, num_devices: int = 1) -> Scheduler:
    return Scheduler([Resource(HOST, num_hosts), Resource(DEVICE, num_devices)], Interleaved(), executor)


def test_what_work_returns_is_handed_to_its_job(executor: PoolExecutor) -> None:
    job = Calls((HOST, os.getpid), (DEVICE, os.getpid))
    scheduler = scheduler_on(executor)
    scheduler.join("a", job)
    scheduler.run()
    assert job.outcomes[1].value == os.getpid() != job.outcomes[0].value
    assert all(outcome.seconds > 0.0 for outcome in job.outcomes.values())


def test_work_that_raises_is_an_outcome_and_not_run_again(executor: PoolExecutor) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("no such point")

    job = Calls((DEVICE, fail), (DEVICE, lambda: 2))
    scheduler = scheduler_on(executor)
    scheduler.join("a", job)
    trace = scheduler.run()
    assert calls == [1]
    assert (job.outcomes[0].error, job.outcomes[1].value) == ("ValueError: no such point", 2)
    assert [s.ended for s in trace.spans] == ["failed", "done"]


def test_a_worker_that_dies_costs_its_stage_alone(executor: PoolExecutor, tmp_path: Path) -> None:
    job = Calls((HOST, functools.partial(die_once, tmp_path / "mark")), (HOST, os.getpid))
    scheduler = scheduler_on(executor, num_hosts=2)
    scheduler.join("a", job)
    trace = scheduler.run()
    assert job.outcomes[0].value == "built"
    assert job.outcomes[1].error is None
    assert sorted(s.ended for s in trace.spans) == ["died", "done", "done"]


def test_a_device_that_is_gone_gets_no_other_stage(executor: PoolExecutor) -> None:
    tries: list[int] = []

    def measure() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise UnitLostError("the connection is closed")
        return 7

    job = Calls((DEVICE, measure))
    scheduler = scheduler_on(executor, num_devices=2)
    scheduler.join("a", job)
    trace = scheduler.run()
    assert job.outcomes[0].value == 7
    assert [(s.unit, s.ended) for s in trace.spans] == [(0, "died"), (1, "done")]
    assert scheduler.board.resources[DEVICE].num_units == 1


def test_a_killed_jobs_process_ends_and_the_next_stage_runs(executor: PoolExecutor) -> None:
    never, job = Calls((HOST, Sleep(60.0))), Calls((HOST, os.getpid))
    scheduler = scheduler_on(executor)
    scheduler.join("endless", never)
    scheduler.join("a", job)
    scheduler.at(executor.now_s + 0.05, lambda: scheduler.kill("endless"))
    scheduler.run()
    assert never.outcomes == {}
    assert job.outcomes[0].error is None
    assert scheduler.jobs["endless"].status is Status.KILLED


def test_the_stage_of_a_killed_job_in_a_thread_ends_unheard(executor: PoolExecutor) -> None:
    go = threading.Event()
    job = Calls((DEVICE, go.wait))
    scheduler = scheduler_on(executor)
    scheduler.join("a", job)
    scheduler.at(executor.now_s + 0.02, lambda: (scheduler.kill("a"), go.set()))
    trace = scheduler.run()
    assert job.outcomes == {}
    assert [s.ended for s in trace.spans] == ["dropped"]


def test_jobs_join_from_other_threads_while_it_serves(executor: PoolExecutor) -> None:
    scheduler = scheduler_on(executor)
    thread = threading.Thread(target=scheduler.serve)
    thread.start()
    jobs = {name: Calls((DEVICE, lambda: 1)) for name in "abc"}
    for name, job in jobs.items():
        scheduler.join(name, job)
    scheduler.stop()
    thread.join(timeout=10.0)
    assert not thread.is_alive()
    assert [job.outcomes[0].value for job in jobs.values()] == [1, 1, 1]
