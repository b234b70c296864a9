"""chanas/measuring/worker/process.py: a worker that hangs or dies is an answer, and the next call works."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chanas.devices.cores import split_cores
from chanas.errors import MeasureError
from chanas.measuring.messages import Hang, Ping, Request
from chanas.measuring.worker import process as worker_process
from chanas.measuring.worker.process import WorkerProcess

ROOT = Path(__file__).resolve().parents[3]


pytestmark = pytest.mark.usefixtures("real_workers")

# The worker itself, without the compiler: importing it takes most of a start.
NO_COMPILER = """
import sys, types

sys.modules["tvm"] = types.ModuleType("tvm")
from chanas.measuring.worker import cpu as worker

worker.main()
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    process = WorkerProcess(1, split_cores(1)[0], ("-c", NO_COMPILER))
    yield process
    process.close()


def pid_of(worker: WorkerProcess) -> int:
    answer = worker.call(Ping(), 60.0)
    assert answer.error is None
    return int(answer.result["pid"])


def ended(pid: int, within_s: float = 20.0) -> bool:
    """Whether a process ends in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            time.sleep(0.02)
            continue
        return True
    return False


@dataclass(frozen=True)
class Say(Request):
    """Any call. A `speaker` says the text on standard error, and answers, aborts or hangs."""

    call: str
    text: str = ""
    megabytes: int = 0


# ---- one worker -----------------------------------------------------------------------------------------------------
def test_a_worker_stays_for_the_next_call() -> None:
    worker = WorkerProcess(1, split_cores(1)[0])
    try:
        assert pid_of(worker) == pid_of(worker) != os.getpid()
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("juggle", "KeyError: 'juggle'"),
        ("ping", "TypeError: Ping.__init__() got an unexpected keyword argument 'call'"),
    ],
)
def test_what_is_no_request_is_an_error_and_the_worker_stays(worker: WorkerProcess, name: str, error: str) -> None:
    pid = pid_of(worker)
    answer = worker.call(Say(name), 60.0)
    assert answer.result is None
    assert str(answer.error).startswith(error)
    assert pid_of(worker) == pid


def test_ctrl_c_does_not_reach_a_worker(worker: WorkerProcess) -> None:
    pid = pid_of(worker)
    os.kill(pid, signal.SIGINT)
    assert pid_of(worker) == pid


def test_a_worker_that_hangs_is_ended(worker: WorkerProcess) -> None:
    pid = pid_of(worker)
    assert worker.call(Hang(), timeout_s=0.3).wall_s == 0.3
    assert ended(pid)


def test_a_worker_that_was_killed_between_calls_is_replaced(worker: WorkerProcess) -> None:
    pid = pid_of(worker)
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    answer = worker.call(Ping(), 60.0)
    assert str(answer.error) == "crash: the worker ended with signal 9 (SIGKILL) in ping"
    assert pid_of(worker) != pid


def test_a_closed_worker_does_not_start_again() -> None:
    worker = WorkerProcess(1, split_cores(1)[0])
    worker.close()
    with pytest.raises(MeasureError, match="worker that was asked for ping is closed"):
        worker.call(Ping(), 60.0)


def test_a_worker_that_cannot_start_says_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    worker = WorkerProcess(1, split_cores(1)[0])
    with pytest.raises(MeasureError, match=r"could not start \(.*exit code 1.*\); is apache-tvm installed\?"):
        worker.call(Ping(), 60.0)


# ---- what a worker says ---------------------------------------------------------------------------------------------
SPEAKER = """
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    name, text = request["call"], request["arguments"].get("text", "")
    os.write(2, text.encode())
    for _ in range(request["arguments"].get("megabytes", 0)):
        os.write(2, b"noise\\n" * (1 << 17))
    if name == "abort":
        os.abort()
    if name == "hang":
        time.sleep(60)
    print(json.dumps({"result": {}, "error": None}), flush=True)
"""
LLVM = "LLVM ERROR: Cannot select: intrinsic %llvm.x86.avx512bf16.dpbf16ps.512"
CRASH = "crash: the worker ended with signal 6 (SIGABRT) in abort"


@pytest.fixture(scope="module")
def speaker() -> Iterator[WorkerProcess]:
    """A worker that says what it is told to on standard error."""
    process = WorkerProcess(1, split_cores(1)[0], ("-c", SPEAKER))
    yield process
    process.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        (f"{LLVM}\n", f"; it said: {LLVM}"),
        (f"{LLVM}\nPLEASE submit a bug report\nStack dump:\n0.\tProgram arguments\n\n", f"; it said: {LLVM}"),
        (f"{LLVM}\nIn function: main\n", f"; it said: {LLVM}"),
        ("one\n  two \t words\n\n", "; it said: two words"),
        ('!!!!!!! Segfault encountered !!!!!!!\n  File "x.c", line 0, in main\n', ""),
        ("error " + "x" * 1000, "; it said: error " + "x" * 294),
        ("\xff", "; it said: \xff"),
    ],
)
def test_a_crash_tells_what_the_worker_said_last(speaker: WorkerProcess, text: str, said: str) -> None:
    answer = speaker.call(Say("abort", text=text), 60.0)
    assert (answer.result, str(answer.error)) == (None, CRASH + said)


def test_a_timeout_tells_what_the_worker_said_last(speaker: WorkerProcess) -> None:
    answer = speaker.call(Say("hang", text="waiting for a lock\n"), 0.5)
    assert str(answer.error) == "timeout: hang took more than 0.5 s; it said: waiting for a lock"


def test_what_was_said_in_an_earlier_call_is_not_told(speaker: WorkerProcess) -> None:
    assert speaker.call(Say("ping", text="error: none of yours\n"), 60.0).error is None
    assert str(speaker.call(Say("abort"), 60.0).error) == CRASH


def test_a_worker_that_says_much_neither_blocks_nor_fills_the_memory(speaker: WorkerProcess) -> None:
    assert speaker.call(Say("ping", megabytes=50), 60.0).error is None
    assert len(speaker._said) <= worker_process._KEPT_BYTES
    assert str(speaker.call(Say("abort", megabytes=5, text=LLVM), 60.0).error) == f"{CRASH}; it said: noise"


def test_what_a_worker_says_leaves_no_descriptors_open(speaker: WorkerProcess) -> None:
    assert speaker.call(Say("ping"), 60.0).error is None
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert str(speaker.call(Say("abort", text=LLVM), 60.0).error) == f"{CRASH}; it said: {LLVM}"
        assert speaker.call(Say("ping"), 60.0).error is None
    assert len(os.listdir("/proc/self/fd")) == before


PARENT = f"""
from chanas.devices.cores import split_cores
from chanas.measuring.worker.process import WorkerProcess
from chanas.measuring.messages import Hang, Ping

worker = WorkerProcess(1, split_cores(1)[0], ("-c", {NO_COMPILER!r}))
print(worker.call(Ping(), 60.0).result["pid"], flush=True)
worker.call(Hang(), 600.0)
"""


def test_a_busy_worker_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    assert ended(pid)
