"""chanas/measuring/local/pool.py: a worker that hangs or dies is an answer, and the next call works."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from chanas.devices import cores as devices_cores
from chanas.devices.cores import kept_off, split_cores
from chanas.errors import MeasureError
from chanas.measuring.answers import Answer
from chanas.measuring.local import pool as module
from chanas.measuring.local import worker_process
from chanas.measuring.local.pool import WorkerPool
from chanas.measuring.local.worker_process import WorkerProcess
from chanas.measuring.requests import Crash, Hang, Ping, Request

from ...compiler.workbench import HOST, device

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module", autouse=True)
def real_workers() -> Iterator[None]:
    """Workers are processes of their own from the beginning: how they start and end is what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "subprocess", subprocess)
        yield


# The worker itself, without the compiler: importing it takes most of a start.
NO_COMPILER = """
import sys, types

sys.modules["tvm"] = types.ModuleType("tvm")
from chanas.measuring.local import worker

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


def test_an_unknown_call_is_an_error_and_the_worker_stays(worker: WorkerProcess) -> None:
    pid = pid_of(worker)
    answer = worker.call(Say("juggle"), 60.0)
    assert answer.result is None
    assert str(answer.error) == "KeyError: 'juggle'"
    assert pid_of(worker) == pid


def test_wrong_arguments_are_an_error_and_the_worker_stays(worker: WorkerProcess) -> None:
    pid = pid_of(worker)
    answer = worker.call(Say("ping"), 60.0)
    assert str(answer.error).startswith("TypeError: Ping.__init__() got an unexpected keyword argument 'call'")
    assert pid_of(worker) == pid


def test_ctrl_c_does_not_reach_a_worker(worker: WorkerProcess) -> None:
    pid = pid_of(worker)
    os.kill(pid, signal.SIGINT)
    assert pid_of(worker) == pid


def test_a_call_that_hangs_is_a_timeout_and_the_next_one_works(worker: WorkerProcess) -> None:
    pid = pid_of(worker)
    answer = worker.call(Hang(), timeout_s=0.3)
    assert (answer.result, str(answer.error), answer.wall_s) == (None, "timeout: hang took more than 0.3 s", 0.3)
    assert ended(pid)
    assert pid_of(worker) != pid


def test_a_crash_names_its_signal_and_the_next_call_works(worker: WorkerProcess) -> None:
    pid = pid_of(worker)
    answer = worker.call(Crash(), 60.0)
    assert (answer.result, str(answer.error)) == (None, "crash: the worker ended with signal 11 (SIGSEGV) in crash")
    assert pid_of(worker) != pid


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
from chanas.measuring.local.worker_process import WorkerProcess
from chanas.devices.cores import split_cores
from chanas.measuring.requests import Hang, Ping

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


# ---- cores ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cores", "num_threads", "expected"),
    [
        ({3}, 1, ([3], [])),
        ({5, 3}, 1, ([3], [5])),
        ({0, 1, 2, 3}, 2, ([0, 1], [2, 3])),
        ({0, 1}, 2, ([0, 1], [])),
        ({0}, 2, ([0], [])),
    ],
)
def test_cores_are_split_between_timing_and_compiling(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], num_threads: int, expected: tuple[list[int], list[int]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cores)
    assert split_cores(num_threads) == expected


@pytest.mark.parametrize(("cores", "overlap", "num_builders"), [({0}, False, 1), ({0, 1, 2}, True, 2)])
def test_builds_overlap_with_timing_when_there_are_cores_left(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], overlap: bool, num_builders: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cores)
    with WorkerPool(HOST) as pool:
        assert (pool.overlap, pool.num_builders) == (overlap, num_builders)


def test_a_worker_runs_on_its_cores_only(pool: WorkerPool) -> None:
    timing, compiling = split_cores(1)
    timer = pool.measure(Ping(), 60.0).result().result["pid"]
    builder = pool.build(Ping(), 60.0).result().result["pid"]
    assert os.sched_getaffinity(timer) == set(timing)
    assert os.sched_getaffinity(builder) <= set(compiling or timing)


# ---- a pool ---------------------------------------------------------------------------------------------------------
def test_workers_start_when_they_are_needed() -> None:
    with WorkerPool(device(num_threads=2)) as pool:
        assert [w._process for w in pool._workers()] == [None] * len(pool._workers())


def test_a_pool_that_is_closed_ends_what_is_under_way() -> None:
    with WorkerPool(HOST) as pool:
        pid = pool.build(Ping(), 60.0).result().result["pid"]
        hanging = pool.build(Hang(), 600.0)
        queued = pool.build(Hang(), 600.0)
        while not hanging.running():
            time.sleep(0.01)
    assert ended(pid)
    assert all(future.cancelled() or future.exception(20.0) or future.result().error for future in (hanging, queued))


class Scripted:
    """Stands where a `WorkerProcess` stands: notes who is called, and answers when it is let."""

    def __init__(self, log: list[str], mine: str, gate: threading.Event) -> None:
        self.log, self.mine, self.gate = log, mine, gate

    def call(self, request: Request, timeout_s: float) -> Answer:
        self.log.append(f"{self.mine} {request.call}")
        assert self.gate.wait(20.0)
        return Answer({}, None, 0.0)

    def close(self) -> None:
        self.gate.set()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WorkerPool, list[str], dict[str, threading.Event]]]:
    """A pool on two cores whose workers wait for their gates: those of core 0 (it times), 0b (it builds) and 1."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    log: list[str] = []
    gates = {name: threading.Event() for name in ("0", "0b", "1")}
    names = iter(("0", "1", "0b"))

    def worker(num_threads: int, cores: Sequence[int], command: object = None) -> Scripted:
        name = next(names)
        return Scripted(log, name, gates[name])

    monkeypatch.setattr(module, "WorkerProcess", worker)
    monkeypatch.setattr(worker_process, "WorkerProcess", worker)
    with WorkerPool(HOST) as pool:
        yield pool, log, gates


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_timing_core_compiles_while_there_is_nothing_to_time(
    scripted: tuple[WorkerPool, list[str], dict[str, threading.Event]],
) -> None:
    pool, log, gates = scripted
    futures = [pool.build(Say("a"), 1.0)]
    until(lambda: log == ["1 a"])
    futures.append(pool.build(Say("b"), 1.0))
    until(lambda: log == ["1 a", "0b b"])
    futures += [pool.build(Say("c"), 1.0), pool.measure(Say("t"), 1.0)]
    time.sleep(0.02)
    assert log == ["1 a", "0b b"]  # nothing is timed on a core that compiles
    gates["0b"].set()
    until(lambda: log == ["1 a", "0b b", "0 t"])
    time.sleep(0.02)
    assert len(log) == 3  # and nothing compiled on a core that times
    gates["0"].set()
    gates["1"].set()
    assert all(f.result(20.0).error is None for f in futures)


def test_a_free_compiling_core_comes_first(
    scripted: tuple[WorkerPool, list[str], dict[str, threading.Event]],
) -> None:
    pool, log, gates = scripted
    for gate in gates.values():
        gate.set()
    for name in "abc":
        pool.build(Say(name), 1.0).result(20.0)
    assert log == ["1 a", "1 b", "1 c"]


def test_workers_that_were_warmed_up_are_there_for_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(devices_cores, "split_cores", lambda _num_threads: (cores[:1], cores[-1:]))
    monkeypatch.setattr(module, "split_cores", lambda _num_threads: (cores[:1], cores[-1:]))
    with WorkerPool(HOST) as pool:
        pool.warm_up()
        started = [w._process.pid for w in pool._workers() if w._process is not None]
        assert len(started) == 3
        answers = [pool.measure(Ping(), 60.0).result(), pool.build(Ping(), 60.0).result()]
        assert [a.error for a in answers] == [None, None]
        assert [w._process.pid for w in pool._workers() if w._process is not None] == started


def test_a_closed_pool_takes_nothing() -> None:
    with WorkerPool(HOST) as pool:
        pass
    with pytest.raises(MeasureError, match="pool that was asked for ping is closed"):
        pool.build(Ping(), 1.0)


def test_a_process_is_kept_off_some_cores_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    timing = min(before)
    with kept_off([timing]):
        assert os.sched_getaffinity(0) == (before - {timing} or before)
    assert os.sched_getaffinity(0) == before
