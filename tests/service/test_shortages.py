"""chanas/service/runner.py: what becomes of jobs while the machine is short of something, or their owners are quick."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from chanas.errors import ShortageError, shortage
from chanas.scheduler.jobs import HOST, Job, Outcome, Outlook, Stage
from chanas.service import runner as runner_module
from chanas.service.folder import DataFolder
from chanas.service.mock import MockWork
from chanas.service.runner import Runner
from chanas.service.store.database import Database
from chanas.service.store.jobs import COMPLETE, ENDED, NOTHING, PAUSE, RUNNING, Claimed, JobStore, Made, NewJob
from chanas.service.work import Opened

NEW = NewJob(
    tenant="a",
    key=None,
    digest="d",
    kind="model",
    request={"kind": "model", "model": "torchvision:a"},
    content="c",
    effort="e",
    target="cpu",
)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "SHORTAGE_S", 0.02)
    monkeypatch.setattr(runner_module, "_MAX_SHORTAGE_S", 0.02)
    monkeypatch.setattr(runner_module, "_CLERK_S", 0.02)


@contextlib.contextmanager
def running(database: Database, store: JobStore, work: MockWork, failed: Callable[[str], None]) -> Iterator[Runner]:
    runner = Runner(database, store, work, failed=failed)
    runner.start()
    yield runner
    runner.stop()


def wait_for(holds: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    until_s = time.monotonic() + 20.0
    while not holds():
        assert time.monotonic() < until_s, what()
        time.sleep(0.005)


def completes_once(store: JobStore, job: str) -> bool:
    wait_for(lambda: store.get("a", job)["state"] in ENDED, lambda: dict(store.get("a", job)))
    ends = [row["what"] for row in store.events(job, 0) if row["what"] in ENDED]
    return ends == [COMPLETE]


class ShortWork(MockWork):
    """Work of which one method finds no room a few times."""

    def __init__(self, folder: DataFolder, method: str, number: int, times: int = 3) -> None:
        super().__init__(folder)
        self.method, self.number, self.times_left = method, number, times
        self.calls = 0

    def _maybe(self, method: str) -> None:
        if method == self.method:
            self.calls += 1
            if self.times_left:
                self.times_left -= 1
                raise OSError(self.number, os.strerror(self.number), str(self.folder.root))

    def open(self, claimed: Claimed) -> Opened:
        self._maybe("open")
        opened = super().open(claimed)
        return Opened(ShortJob(lambda: self._maybe("stage"))) if self.method == "stage" else opened

    def finish(self, claimed: Claimed, facts: Mapping[str, Any]) -> Made:
        self._maybe("finish")
        return super().finish(claimed, facts)

    def clear(self, job: str) -> None:
        self._maybe("clear")
        super().clear(job)


class ShortJob:
    """A job of one stage."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._stages = [Stage("start", HOST, work)]

    def offer(self) -> list[Stage]:
        stages, self._stages = self._stages, []
        return stages

    def take(self, stage: Stage, outcome: Outcome) -> None:
        if outcome.error is not None:
            raise RuntimeError(outcome.error) from outcome.cause

    def outlook(self, expected: Any, num_units: Mapping[str, int]) -> Outlook:
        return Outlook({}, 0.0)


is_a_job: Job = ShortJob(lambda: None)


@pytest.mark.parametrize("method", ["open", "stage", "finish", "clear"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_shortage_is_waited_out(
    method: str, number: int, folder: DataFolder, database: Database, store: JobStore
) -> None:
    work = ShortWork(folder, method, number)
    faults: list[str] = []
    with running(database, store, work, faults.append) as runner:
        job = store.submit(NEW, 10).result()[0]
        assert completes_once(store, job)
        wait_for(lambda: work.calls > 3 or method == "open")
        wait_for(lambda: runner.fault is None)
        wait_for(lambda: not work.times_left)
        wait_for(lambda: not any(folder.jobs.iterdir()))
    assert not faults


def test_health_says_what_is_short_without_naming_files(
    folder: DataFolder, database: Database, store: JobStore
) -> None:
    work = ShortWork(folder, "finish", errno.ENOSPC, times=10**9)
    with running(database, store, work, lambda _fault: None) as runner:
        job = store.submit(NEW, 10).result()[0]
        wait_for(lambda: runner.fault is not None)
        assert "no space left on device" in str(runner.fault)
        assert str(folder.root) not in str(runner.fault)
        assert store.get("a", job)["state"] == RUNNING
        work.times_left = 0
        assert completes_once(store, job)
        wait_for(lambda: runner.fault is None)


def test_a_database_that_is_full_as_a_job_ends(folder: DataFolder, database: Database, store: JobStore) -> None:
    held: list[bool] = [True]

    class WaitingWork(MockWork):
        def finish(self, claimed: Claimed, facts: Mapping[str, Any]) -> Made:
            wait_for(lambda: not held[0])
            return Made({"text": "x" * 100_000})

    with running(database, store, WaitingWork(folder), lambda _fault: None) as runner:
        job = store.submit(NEW, 10).result()[0]
        wait_for(lambda: store.get("a", job)["state"] == RUNNING)
        database.write(lambda db: db.execute("PRAGMA max_page_count=1").fetchone()).result()
        held[0] = False
        wait_for(lambda: "full" in str(runner.fault))
        assert store.get("a", job)["state"] == RUNNING
        database.write(lambda db: db.execute("PRAGMA max_page_count=1000000").fetchone()).result()
        assert completes_once(store, job)
        assert store.get("a", job)["attempt"] == 1


def test_a_job_that_is_resumed_before_its_last_attempt_was_cleared_away(
    folder: DataFolder, database: Database, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = store.release

    def slow_release(job: str, attempt: int) -> Future[bool]:
        future = release(job, attempt)
        future.result()
        time.sleep(0.1)
        return future

    monkeypatch.setattr(store, "release", slow_release)
    faults: list[str] = []
    with running(database, store, MockWork(folder, stage_s=0.03), faults.append) as runner:
        job = store.submit(NEW, 10).result()[0]
        wait_for(lambda: store.get("a", job)["state"] == RUNNING)
        store.want("a", job, PAUSE).result()
        store.want("a", job, NOTHING).result()
        wait_for(lambda: store.get("a", job)["state"] != RUNNING or store.get("a", job)["attempt"] > 1)
        assert completes_once(store, job)
        assert runner.fault is None
    assert faults == []


def test_what_a_shortage_is() -> None:
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "/secret")
        except OSError as error:
            raise RuntimeError("cannot be written") from error
    except RuntimeError as error:
        assert shortage(error) == "no space left on device"
    assert shortage(FileNotFoundError(errno.ENOENT, "none")) is None
    assert shortage(ShortageError("/secret is full", "no room")) == "no room"
    assert shortage(None) is None
