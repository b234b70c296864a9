"""One worker process: started, asked over a pipe, and ended when it crashes or hangs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO

from chanas.core.target import HardwareTarget
from chanas.errors import MeasureError
from chanas.measuring.messages import Answer, ErrorKind, Ping, Request, WorkerError

WORKERS: dict[str, tuple[str, ...]] = {
    "llvm": ("-m", "chanas.measuring.worker.cpu"),
    "cuda": ("-m", "chanas.measuring.worker.cuda"),
}
"""Arguments of Python that start a process which compiles for devices of a kind and times on them."""
START_TIMEOUT_S = 120.0
# What failed half-way in a process that hit its limit of memory, or whose GPU failed, is not known.
_HALF_WAY = (ErrorKind.OUT_OF_MEMORY, ErrorKind.GPU_FAULT)
# What a worker has said last is kept, so many bytes of it; and a line of it is told, cut to so many characters.
_KEPT_BYTES, _MAX_LINE = 1 << 14, 300
# Lines of a stack trace and its heading say nothing that the signal does not; those with such words say most.
_NO_REASON = re.compile(r"\s*File \"|\s*#\d+ |!{3,}|Stack dump|PLEASE submit|\s*\d+\.\t")
_REASON = re.compile(r"error|terminate|what\(\)|assert|fatal|abort", re.IGNORECASE)
# A worker is replaced after this many calls: cheap insurance against anything that a thousand builds leave behind.
_MAX_CALLS = 2000


class WorkerProcess:
    """One worker, started on first use and again after a crash or a timeout.

    `command` is what Python runs in it: something else that serves requests as the worker does.
    """

    is_there = True
    """It is started where it is not."""

    def __init__(self, num_threads: int, cores: Sequence[int], command: Sequence[str] | None = None) -> None:
        self._num_threads, self._cores = num_threads, tuple(cores)
        self._command = WORKERS["llvm"] if command is None else tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = self._said = b""
        self._num_calls = 0
        self._closed = False

    def _start(self) -> None:
        environment = {
            **os.environ,
            "TVM_NUM_THREADS": str(self._num_threads),
            "TVM_BIND_THREADS": "0",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, *self._command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self._process.pid, self._cores)
        self._pending = b""
        answer = self._exchange(Ping(), START_TIMEOUT_S)
        if answer.error is not None:
            raise MeasureError(f"a worker process could not start ({answer.error}); is apache-tvm installed?")

    def call(self, request: Request, timeout_s: float) -> Answer:
        """Run one request; a crash or a timeout ends the process and comes back as an error."""
        if self._closed:
            raise MeasureError(f"the worker that was asked for {request.call} is closed")
        self._num_calls += 1
        may_hold_session = self._command != WORKERS["llvm"]
        if not may_hold_session and self._num_calls % _MAX_CALLS == 0:
            self.stop()
        if self._process is None:
            self._start()
        return self._exchange(request, timeout_s)

    def _exchange(self, request: Request, timeout_s: float) -> Answer:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        start, heard = time.monotonic(), [process.stdout, process.stderr]
        try:
            self._listen(process.stderr)
            self._said = b""  # what came before is of an earlier call
            process.stdin.write(json.dumps(request.to_json()).encode() + b"\n")
            process.stdin.flush()
            while b"\n" not in self._pending:
                left = timeout_s - (time.monotonic() - start)
                ready = select.select(heard, [], [], left)[0] if left > 0 else []
                if not ready:
                    self.stop()
                    text = f"{request.call} took more than {timeout_s:g} s"
                    error = WorkerError(ErrorKind.TIMEOUT, text, last_words=_last_words(self._said))
                    return Answer(None, error, timeout_s)
                if process.stderr in ready and not self._listen(process.stderr):
                    heard.remove(process.stderr)
                if process.stdout in ready:
                    chunk = os.read(process.stdout.fileno(), 1 << 16)
                    if not chunk:
                        raise BrokenPipeError
                    self._pending += chunk
        except (OSError, ValueError):  # the process ended; ValueError: `stop` has closed the pipes already
            code = process.wait()
            with contextlib.suppress(OSError, ValueError):
                self._listen(process.stderr)
            self.stop()
            text = f"the worker ended with {_exit_reason(code)} in {request.call}"
            number = -code if code < 0 else None
            error = WorkerError(ErrorKind.CRASH, text, last_words=_last_words(self._said), signal=number)
            return Answer(None, error, time.monotonic() - start)
        line, _, self._pending = self._pending.partition(b"\n")
        answer = Answer.from_json(json.loads(line))
        if answer.error is not None and answer.error.kind in _HALF_WAY:
            self.stop()
        return dataclasses.replace(answer, wall_s=time.monotonic() - start)

    def _listen(self, stderr: IO[bytes]) -> bool:
        """Take in what the process has said by now, as much as a pipe holds; false when there will be nothing more."""
        try:
            chunk = os.read(stderr.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        self._said = (self._said + chunk)[-_KEPT_BYTES:]
        return bool(chunk)

    def restore(self) -> None:
        """Do nothing: the next call starts a process."""

    def stop(self) -> None:
        """End the process; the next call starts another. May be called while another thread waits for an answer."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what a dead process has not read can't be flushed
                    pipe.close()

    def close(self) -> None:
        """End the process; it is not started again."""
        self._closed = True
        self.stop()


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal has no name
        return f"signal {-code}"


def _last_words(said: bytes) -> str:
    """The line of what a worker said last that tells most; empty where there is none."""
    lines = [
        " ".join(line.split()) for line in said.decode(errors="replace").splitlines() if not _NO_REASON.match(line)
    ]
    lines = [line for line in lines if line]
    telling = [line for line in lines if _REASON.search(line)] or lines
    return telling[-1][:_MAX_LINE] if telling else ""


def worker_command(target: HardwareTarget) -> Sequence[str]:
    """Return the command line of a target's workers, for Python."""
    return WORKERS[target.kind]
