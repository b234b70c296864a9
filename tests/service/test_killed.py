"""A service that is killed at any moment: no job is lost, none ends twice, and no record is lost."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from chanas.errors import ServiceError
from chanas.service.client import ServiceClient
from chanas.service.folder import DataFolder
from chanas.service.store.database import Database
from chanas.service.store.jobs import COMPLETE, ENDED, JobStore, NewJob

from .recording import NUM_RECORDS, TOLD, records_of

PROGRAM = str(Path(__file__).with_name("recording.py"))


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A service that is killed at the end of the body."""
    started = subprocess.Popen([sys.executable, PROGRAM, *arguments], stderr=subprocess.PIPE)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGKILL)
        _, told = started.communicate()
        assert b"Traceback" not in told, told.decode()


def check(data: DataFolder, jobs: Sequence[str], tenant: str) -> None:
    """Every job is complete, once, though some were begun again; every record that was made is among those of all
    jobs, once."""
    with contextlib.closing(Database(data.database)) as database:
        store = JobStore(database)
        rows = store.page(tenant, None, 10_000)
        assert sorted(row["id"] for row in rows) == sorted(jobs)
        assert {row["state"] for row in rows} <= {COMPLETE}
        assert max(row["attempt"] for row in rows) > 1
        for job in jobs:
            assert [row["what"] for row in store.events(job, 0) if row["what"] in ENDED] == [COMPLETE]
    kept = records_of(data.records)
    assert sorted(kept) == sorted(f"{job} {n}" for job in jobs for n in range(NUM_RECORDS))
    assert {*(data.root / TOLD).read_text().splitlines()} <= {*kept}


def wait_for_all(data: DataFolder, tenant: str, seconds: float) -> None:
    with contextlib.closing(Database(data.database)) as database:
        store, until_s = JobStore(database), time.monotonic() + seconds
        while store.count().keys() - {COMPLETE}:
            assert time.monotonic() < until_s, store.count()
            time.sleep(0.05)


def test_a_runner_that_is_killed_three_times(tmp_path: Path) -> None:
    data, rng = DataFolder(tmp_path / "data"), random.Random(0)
    with contextlib.closing(Database(data.database)) as database:
        store = JobStore(database)
        news = [
            NewJob(
                tenant="a",
                key=str(i),
                digest="d",
                kind="model",
                content=str(i),
                effort="e",
                target="cpu",
                request={"kind": "model", "model": "torchvision:a"},
            )
            for i in range(20)
        ]
        jobs = [future.result()[0] for future in [store.submit(new, 1000) for new in news]]
    for _ in range(3):
        with process(str(data.root)) as started:
            assert started.stderr is not None
            assert started.stderr.readline() == b"running\n"
            time.sleep(rng.uniform(0.0, 0.4))
    with process(str(data.root)):
        wait_for_all(data, "a", 20.0)
    check(data, jobs, "a")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_service_that_is_killed_again_and_again(tmp_path: Path) -> None:
    data, rng = DataFolder(tmp_path / "data"), random.Random(1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    client = ServiceClient(f"http://127.0.0.1:{port}", tries=1)
    acknowledged: dict[int, str] = {}
    is_over = threading.Event()

    def submit_one(number: int) -> None:
        """Submit a job again and again until it is acknowledged."""
        while not is_over.is_set():
            with contextlib.suppress(ServiceError):
                job = client.submit({"kind": "model", "model": f"torchvision:a{number}"}, str(number))["id"]
                assert acknowledged.setdefault(number, job) == job
                return
            time.sleep(0.02)

    def submit_all() -> None:
        for number in range(400):
            for _ in range(2):
                submit_one(number)

    submitting = threading.Thread(target=submit_all)
    submitting.start()
    try:
        for _ in range(40):
            with process(str(data.root), port) as started:
                if rng.random() < 0.7:  # else while it starts, mostly
                    assert started.stderr is not None
                    assert b"serving" in started.stderr.readline()
                time.sleep(rng.uniform(0.0, 0.8))
    finally:
        is_over.set()
        submitting.join()
    assert len(acknowledged) > 20
    with process(str(data.root), port):
        is_over.clear()
        submit_one(len(acknowledged))  # it may be there, though nobody was told
        wait_for_all(data, "local", 120.0)
    check(data, list(acknowledged.values()), "local")
