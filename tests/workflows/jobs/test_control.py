"""chanas/workflows/jobs/control.py: orders to jobs that run, and the socket that they come through."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from chanas.errors import SchedulerError
from chanas.scheduler.engine import Scheduler
from chanas.scheduler.jobs import BUILD, HOST, Expected, Outcome, Outlook, Stage
from chanas.scheduler.policies import Interleaved
from chanas.scheduler.pools import PoolExecutor, thread_pool
from chanas.scheduler.resources import Resource
from chanas.workflows.jobs.control import SOCKET, JobState, Order, Reply, Request, ask, obey, served

STATE = JobState(name="a", status="open", seconds=1.5, runs=("build on host 0",), num_waiting=2)


class Held:
    """A job of one stage, which lasts until it is let go."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self._stages = [Stage(BUILD, HOST, self._work)]

    def _work(self) -> None:
        self.has_begun.set()
        self.may_end.wait(20.0)

    def offer(self) -> Sequence[Stage]:
        stages, self._stages = self._stages, []
        return stages

    def take(self, stage: Stage, outcome: Outcome) -> None:
        assert outcome.error is None

    def outlook(self, expected: Expected, num_units: Mapping[str, int]) -> Outlook:
        return Outlook({}, 0.0)


def add_none(_file: dict[Any, Any], _folder: Path) -> Sequence[str]:
    raise AssertionError


@contextlib.contextmanager
def jobs_at_work() -> Iterator[Scheduler]:
    """Job `a` runs on the only unit of the host, `b` waits for it."""
    jobs = {"a": Held(), "b": Held()}
    with PoolExecutor({HOST: thread_pool}) as executor, ThreadPoolExecutor(1) as thread:
        scheduler = Scheduler([Resource(HOST)], Interleaved(), executor, is_patient=True)
        for name, job in jobs.items():
            scheduler.join(name, job)
        trace = thread.submit(scheduler.run)
        try:
            assert jobs["a"].has_begun.wait(20.0)
            yield scheduler
        finally:
            for name, job in jobs.items():
                scheduler.kill(name)
                job.may_end.set()
            trace.result(20.0)


def test_an_order_is_answered_with_what_has_become_of_the_job() -> None:
    orders: tuple[Order, ...] = ("pause", "resume", "cancel", "kill")
    with jobs_at_work() as scheduler:
        statuses = [obey(scheduler, add_none, Request(do=do, name="a")).jobs[0].status for do in orders]
    assert statuses == ["paused", "open", "cancelled", "killed"]


def test_a_state_says_what_runs_where_and_what_waits() -> None:
    with jobs_at_work() as scheduler:
        a, b = obey(scheduler, add_none, Request(do="status")).jobs
        assert obey(scheduler, add_none, Request(do="status", name="b")).jobs[0].name == "b"
    assert (a.name, a.status, a.runs, a.num_waiting) == ("a", "open", ("build on host 0",), 0)
    assert (b.name, b.status, b.runs, b.num_waiting) == ("b", "open", (), 1)


def test_an_order_that_comes_too_late_is_refused() -> None:
    with jobs_at_work() as scheduler:

        def refusal(do: Order, name: str) -> str | None:
            return obey(scheduler, add_none, Request(do=do, name=name)).error

        assert refusal("pause", "c") == "unknown job 'c'; known: a, b"
        assert refusal("cancel", "a") is None
        assert refusal("resume", "a") == "job 'a' is cancelled already"
        assert refusal("kill", "b") is None
        assert refusal("kill", "b") == "job 'b' is killed already"
    assert refusal("status", "a") == "all jobs have ended"


def test_orders_need_the_name_of_a_job_or_a_file_of_jobs() -> None:
    with pytest.raises(ValidationError, match="'kill' needs the name of a job"):
        Request(do="kill")
    with pytest.raises(ValidationError, match="'add' needs the content of a file"):
        Request(do="add", file={})


def test_the_answer_about_jobs_that_are_added_is_their_states(tmp_path: Path) -> None:
    with jobs_at_work() as scheduler:

        def add(file: dict[Any, Any], folder: Path) -> Sequence[str]:
            assert folder == tmp_path
            done = Held()
            done.may_end.set()
            scheduler.join(file["name"], done)
            return [file["name"]]

        reply = obey(scheduler, add, Request(do="add", file={"name": "c"}, folder=tmp_path))
    assert [(job.name, job.num_waiting) for job in reply.jobs] == [("c", 1)]


def test_a_request_comes_through_and_its_reply_back(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)  # longer than the address of a socket may be
    folder.mkdir()
    heard: list[Request] = []

    def answer(request: Request) -> Reply:
        heard.append(request)
        return Reply(error="planted") if request.do == "kill" else Reply(jobs=(STATE,))

    with served(folder, answer):
        assert (folder / SOCKET).stat().st_mode & 0o777 == 0o600
        assert ask(folder, Request(do="pause", name="a")) == (STATE,)
        with pytest.raises(SchedulerError, match=r"^planted$"):
            ask(folder, Request(do="kill", name="a"))
    assert heard == [Request(do="pause", name="a"), Request(do="kill", name="a")]
    assert list(folder.iterdir()) == []


def test_a_folder_in_which_nothing_runs_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SchedulerError, match=r"^no jobs are run in [^(]*; name their folder"):
            ask(folder, Request(do="status"))


def test_the_socket_of_a_run_that_was_killed_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET))
    with pytest.raises(SchedulerError, match="no jobs are run"):
        ask(tmp_path, Request(do="status"))
    with served(tmp_path, lambda _request: Reply(jobs=(STATE,))):
        assert ask(tmp_path, Request(do="status")) == (STATE,)


def test_a_folder_serves_one_run_at_a_time(tmp_path: Path) -> None:
    def answer(_request: Request) -> Reply:
        return Reply(jobs=(STATE,))

    with served(tmp_path, answer):
        with pytest.raises(SchedulerError, match="already"), served(tmp_path, answer):
            pass
        assert ask(tmp_path, Request(do="status")) == (STATE,)


@pytest.mark.parametrize("line", [b"", b"{\n", b'{"do": "stop"}\n', b'{"do": "pause"}\n', b"\xff\n"])
def test_what_is_no_request_is_refused_and_the_next_one_heard(tmp_path: Path, line: bytes) -> None:
    with served(tmp_path, lambda _request: Reply(jobs=(STATE,))), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / SOCKET))
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as lines:
            assert (Reply.model_validate_json(lines.readline()).error or "").startswith("no request: ")
        assert ask(tmp_path, Request(do="status")) == (STATE,)
