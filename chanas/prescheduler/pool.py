"""Worker processes with time limits: one that times, on cores of its own, and others that compile meanwhile.

`concurrent.futures` and TVM's own pool lose the whole pool to a crash, or enforce a time limit from inside the process
that hangs; here the parent holds the limit and only the guilty worker is replaced. Failures are values, not exceptions.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from chanas.errors import MeasureError
from chanas.prescheduler.locks import device_lock
from chanas.prescheduler.worker import OUT_OF_MEMORY
from chanas.target import HardwareTarget

_START_TIMEOUT_S = 120.0
_WORKER = ("-m", "chanas.prescheduler.worker")
# A worker is replaced after this many calls: cheap insurance against anything that a thousand builds leave behind.
_MAX_CALLS = 2000


@dataclass(frozen=True)
class Answer:
    """What came back from a worker: a result, or why there is none."""

    result: Any
    error: str | None
    wall_s: float


class WorkerProcess:
    """One worker, started on first use and again after a crash or a timeout."""

    def __init__(self, num_threads: int, cores: Sequence[int]) -> None:
        self._num_threads, self._cores = num_threads, tuple(cores)
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
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
            [sys.executable, *_WORKER],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self._process.pid, self._cores)
        self._pending = b""
        answer = self._exchange("ping", {}, _START_TIMEOUT_S)
        if answer.error is not None:
            raise MeasureError(f"a worker process could not start ({answer.error}); is apache-tvm installed?")

    def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Answer:
        """Run one call; a crash or a timeout ends the process and comes back as an error."""
        if self._closed:
            raise MeasureError(f"the worker that was asked for {name} is closed")
        self._num_calls += 1
        if self._num_calls % _MAX_CALLS == 0:
            self.stop()
        if self._process is None:
            self._start()
        return self._exchange(name, arguments, timeout_s)

    def _exchange(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Answer:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        start = time.monotonic()
        try:
            process.stdin.write(json.dumps({"call": name, "arguments": arguments}).encode() + b"\n")
            process.stdin.flush()
            while b"\n" not in self._pending:
                left = timeout_s - (time.monotonic() - start)
                if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                    self.stop()
                    return Answer(None, f"timeout: {name} took more than {timeout_s:g} s", timeout_s)
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise BrokenPipeError
                self._pending += chunk
        except (OSError, ValueError):  # the process ended; ValueError: `stop` has closed the pipes already
            code = process.wait()
            self.stop()
            wall_s = time.monotonic() - start
            return Answer(None, f"crash: the worker ended with {_exit_reason(code)} in {name}", wall_s)
        line, _, self._pending = self._pending.partition(b"\n")
        data = json.loads(line)
        if (data.get("error") or "").startswith(OUT_OF_MEMORY):
            self.stop()  # what failed half-way in there is not known
        return Answer(data.get("result"), data.get("error"), time.monotonic() - start)

    def stop(self) -> None:
        """End the process; the next call starts another. May be called while another thread waits for an answer."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what a dead process has not read can't be flushed
                    pipe.close()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End the process for good."""
        self._closed = True
        self.stop()


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal has no name
        return f"signal {-code}"


def split_cores(num_threads: int) -> tuple[list[int], list[int]]:
    """The cores that time, and those that compile meanwhile (none when all are needed for timing)."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return cores[:num_threads], cores[num_threads:]


class WorkerPool:
    """One timing worker and a few compiling ones. `overlap` tells whether they may work at the same time."""

    def __init__(self, target: HardwareTarget) -> None:
        timing, compiling = split_cores(target.num_threads)
        self.overlap = bool(compiling)
        build_cores = compiling or timing
        self.num_builders = len(build_cores)
        self._timer = WorkerProcess(target.num_threads, timing)
        self._timer_thread = ThreadPoolExecutor(1)
        self._builder_threads = ThreadPoolExecutor(self.num_builders)
        self._builders = [WorkerProcess(1, [core]) for core in build_cores]
        self._idle = list(self._builders)
        self._lock = threading.Lock()

    def build(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Future[Answer]:
        """Compile on any free core."""
        return self._builder_threads.submit(self._build, name, arguments, timeout_s)

    def _build(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Answer:
        with self._lock:
            worker = self._idle.pop()
        try:
            return worker.call(name, arguments, timeout_s)
        finally:
            with self._lock:
                self._idle.append(worker)

    def measure(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Future[Answer]:
        """Time on the device, one after the other, and not while another process does.

        Waiting for that process is no part of the call's time.
        """
        return self._timer_thread.submit(self._measure, name, arguments, timeout_s)

    def _measure(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Answer:
        with device_lock(lambda: self._timer.is_closed):
            return self._timer.call(name, arguments, timeout_s)

    def warm_up(self) -> None:
        """Start all workers now, side by side."""
        pings = [self.build("ping", {}, _START_TIMEOUT_S) for _ in self._builders]
        for future in [self.measure("ping", {}, _START_TIMEOUT_S), *pings]:
            future.result()

    def close(self) -> None:
        """End all workers at once; what was under way is lost."""
        self._builder_threads.shutdown(wait=False, cancel_futures=True)
        self._timer_thread.shutdown(wait=False, cancel_futures=True)
        for worker in (self._timer, *self._builders):
            worker.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
