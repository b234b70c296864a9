"""Orders to jobs that run, from other processes: one JSON line there and one back, over a Unix socket in the folder of
the jobs, which its owner alone may open."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from chanas.errors import ChanasError, SchedulerError, describe, one_line, unknown_name
from chanas.scheduler.board import Status
from chanas.scheduler.engine import Scheduler

SOCKET = "jobs.sock"
Order = Literal["status", "pause", "resume", "cancel", "kill", "add"]
Add = Callable[[dict[Any, Any], Path], Sequence[str]]
"""Adds the jobs of a file, as it is read, which was named in a folder; returns their names."""

_MAX_BYTES, _NUM_CHARACTERS = 1 << 20, 300
_REQUEST_S, _REPLY_S = 2.0, 60.0
"""Seconds that a request may take to come, and its reply: a job that is ended may need some to keep what it has."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Request(_Message):
    """An order to the job of a name, or a question about one or all; or jobs to be added: the content of a `file`, in
    which paths are relative to `folder`."""

    do: Order
    name: str | None = None
    file: dict[Any, Any] | None = None
    folder: Path | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Request:
        if self.do == "add" and (self.file is None or self.folder is None):
            raise ValueError("'add' needs the content of a file of jobs, and a folder")
        if self.name is None and self.do not in ("status", "add"):
            raise ValueError(f"'{self.do}' needs the name of a job")
        return self


class JobState(_Message):
    """A job as it is now.

    seconds      from joining until now, or to its end
    runs         its stages under way, such as "build on host 0"
    num_waiting  stages that wait for a machine, or for the job to be resumed
    """

    name: str
    status: str
    seconds: float
    runs: tuple[str, ...] = ()
    num_waiting: int = 0
    error: str | None = None


class Reply(_Message):
    """The jobs that a request is about, after it was obeyed; or why it was not."""

    jobs: tuple[JobState, ...] = ()
    error: str | None = None


def obey(scheduler: Scheduler, add: Add, request: Request) -> Reply:
    """Carry out a request, and look at what has become of the job."""

    def act() -> Future[tuple[JobState, ...]]:
        names: Collection[str] | None = None
        if request.file is not None and request.folder is not None:
            names = add(request.file, request.folder)
        elif request.name is not None:
            _act(scheduler, request.do, request.name)
            names = (request.name,)
        return scheduler.ask(lambda: _states(scheduler, names))  # once the order has taken effect

    try:
        return Reply(jobs=scheduler.ask(act).result().result())
    except CancelledError:
        return Reply(error="all jobs have ended")
    except ChanasError as error:
        return Reply(error=str(error))
    except Exception as error:  # a fault here is none of the jobs
        return Reply(error=describe(error, _NUM_CHARACTERS))


def _act(scheduler: Scheduler, do: Order, name: str) -> None:
    entry = scheduler.jobs.get(name)
    if entry is None:
        raise SchedulerError(unknown_name("job", name, scheduler.jobs))
    is_late = entry.ended_s is not None or (entry.status is Status.CANCELLED and do in ("pause", "resume"))
    if do != "status" and is_late:
        raise SchedulerError(f"job '{name}' is {entry.status} already")
    match do:
        case "pause":
            scheduler.pause(name)
        case "resume":
            scheduler.resume(name)
        case "cancel":
            scheduler.cancel(name)
        case "kill":
            scheduler.kill(name)


def _states(scheduler: Scheduler, names: Collection[str] | None) -> tuple[JobState, ...]:
    board = scheduler.board
    return tuple(
        JobState(
            name=entry.name,
            status=str(entry.status),
            seconds=(board.now_s if entry.ended_s is None else entry.ended_s) - entry.joined_s,
            runs=tuple(
                f"{r.waiting.stage.kind} on {r.resource} {r.unit}" for r in board.running if r.waiting.entry is entry
            ),
            num_waiting=sum(waiting.entry is entry for waiting in board.waiting),
            error=entry.error,
        )
        for entry in scheduler.jobs.values()
        if names is None or entry.name in names
    )


@contextlib.contextmanager
def served(folder: Path, answer: Callable[[Request], Reply]) -> Iterator[None]:
    """Answer requests, in a thread, while the body runs.

    Raises:
        SchedulerError: jobs are run in the folder already, or it can hold no socket.
    """
    with contextlib.ExitStack() as stack:
        try:
            listener = _listen(folder, stack)
        except OSError as error:
            reason = error.strerror or error
            raise SchedulerError(f"{folder} can hold no socket ({reason}); use another --out") from error
        thread = threading.Thread(target=_serve, args=(listener, answer), daemon=True)
        thread.start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # ends the waiting for a connection
            thread.join(_REQUEST_S)


def _listen(folder: Path, stack: contextlib.ExitStack) -> socket.socket:
    """The folder's socket until the stack unwinds, in the place of one that a killed run has left."""
    address, path = stack.enter_context(_address(folder)), folder / SOCKET
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(address) == 0:
            raise SchedulerError(f"jobs are run in {folder} already; use another --out, or wait for their end")
    path.unlink(missing_ok=True)
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(address)
    stack.callback(path.unlink, missing_ok=True)
    os.chmod(path, 0o600)  # nobody can have connected: it does not listen yet
    listener.listen()
    return listener


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """The path of a folder's socket, which may have 107 bytes: a short one where the system has it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        has_short = Path("/proc/self/fd").is_dir()
        yield f"/proc/self/fd/{handle}/{SOCKET}" if has_short else str(folder / SOCKET)
    finally:
        os.close(handle)


def _serve(listener: socket.socket, answer: Callable[[Request], Reply]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # it is shut
            return
        with connection, contextlib.suppress(OSError):  # whoever asked has gone
            connection.settimeout(_REQUEST_S)
            connection.sendall(_reply(_line(connection), answer).model_dump_json().encode() + b"\n")


def _reply(line: bytes, answer: Callable[[Request], Reply]) -> Reply:
    try:
        request = Request.model_validate_json(line)
    except ValidationError as error:
        return Reply(error=f"no request: {one_line(error, _NUM_CHARACTERS)}")
    return answer(request)


def _line(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as lines:
        return lines.readline(_MAX_BYTES)


def ask(folder: Path, request: Request) -> tuple[JobState, ...]:
    """Send a request to the jobs that are run in a folder; returns the states of those that it is about.

    Raises:
        SchedulerError: no jobs are run there, or they refuse.
    """
    with contextlib.ExitStack() as stack:
        try:
            address = stack.enter_context(_address(folder))
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(address)
        except OSError as error:
            is_usual = isinstance(error, FileNotFoundError | ConnectionRefusedError)
            reason = "" if is_usual else f" ({error.strerror or error})"
            raise SchedulerError(f"no jobs are run in {folder}{reason}; name their folder with --out") from None
        try:
            connection.settimeout(_REPLY_S)
            connection.sendall(request.model_dump_json().encode() + b"\n")
            line = _line(connection)
        except TimeoutError:
            raise SchedulerError(f"the jobs in {folder} have not answered within {_REPLY_S:g} s; try again") from None
        except OSError:  # they ended meanwhile
            line = b""
    reply = Reply.model_validate_json(line) if line else Reply(error="all jobs have ended")
    if reply.error is not None:
        raise SchedulerError(reply.error)
    return reply.jobs
