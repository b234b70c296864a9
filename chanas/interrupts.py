"""Ctrl-C, SIGTERM and SIGHUP: one exception, and an end in time where the program is too busy to raise it.

Signals belong to the process, hence the one state of this module. Without `listen`, as in a program that calls chanas,
signals stay what they were, and Ctrl-C is Python's KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 1.5  # until a process ends that does not answer
_TWICE_S = 0.2  # one Ctrl-C that comes from the terminal and from a launcher, too, is one
_POLL_S = 0.05


class Interrupted(KeyboardInterrupt):
    """A signal that asks the process to end; `number` is its exit code less 128."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = signal.Signals(number)


class _State:
    listens = False
    num_patient = 0
    patient_until_s = 0.0
    num_deaf = 0
    num_keeping = 0
    kept: Callable[[], str] | None = None


_STATE = _State()


def listen(tell: Callable[[signal.Signals], Any]) -> None:
    """Raise `Interrupted` in the main thread where a signal comes, and end the process and those that it started where
    it lives on for more than `GRACE_S`, or where a second signal comes. Signals that are ignored stay so.

    Args:
        tell: says that the process ends; called from a thread of its own.
    """
    heard, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)  # heard also while the main thread computes in C
    ends = threading.Lock()

    def end(number: signal.Signals) -> None:
        ends.acquire()  # once, by whoever comes first
        tell(number)
        for process in _descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        os._exit(128 + number)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):  # a module that is half imported may take the exception for a fault of its own
            end(signal.Signals(number))
        raise Interrupted(number)

    _STATE.listens = True
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    os.register_at_fork(after_in_child=_leave_to_parent)
    threading.Thread(target=lambda: end(_wait_for_end(heard)), name="interrupts", daemon=True).start()


def listens() -> bool:
    """Tell whether a second signal ends the process whatever handles the first (`listen`)."""
    return _STATE.listens


@contextlib.contextmanager
def patience(*, deaf: bool = False) -> Iterator[None]:
    """Inside, the first signal is being answered, however long that takes: a step ends, or a row is stored.

    Args:
        deaf: a second signal does nothing: a launcher passes on what its processes got already.
    """
    _STATE.num_patient += 1
    _STATE.num_deaf += deaf
    try:
        yield
    finally:
        _STATE.patient_until_s = time.monotonic()  # before the count: what follows has its time, too
        _STATE.num_patient -= 1
        _STATE.num_deaf -= deaf


@contextlib.contextmanager
def keeping(describe: Callable[[], str]) -> Iterator[None]:
    """Inside, a job is under way of which an interruption keeps something, such as `87 of 300 steps`; the outermost
    one speaks. Where the body is interrupted, `kept` still tells it afterwards."""
    _STATE.num_keeping += 1
    is_outermost, kept = _STATE.num_keeping == 1, None
    if is_outermost:
        _STATE.kept = describe
    try:
        yield
    except KeyboardInterrupt:
        text = describe()
        kept = lambda: text  # noqa: E731
        raise
    finally:
        _STATE.num_keeping -= 1
        if is_outermost:
            _STATE.kept = kept


def kept() -> str | None:
    """The work that the current job keeps; None where it keeps nothing, or without a job."""
    return None if _STATE.kept is None else _STATE.kept()


def die_with_parent() -> None:
    """End this process with the thread that started it, if the system supports that."""
    import ctypes  # at once is time in which Ctrl-C is a traceback

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, Linux


def _leave_to_parent() -> None:
    signal.set_wakeup_fd(-1)
    for number, action in zip(SIGNALS, (signal.SIG_IGN, signal.SIG_DFL, signal.SIG_DFL), strict=True):
        signal.signal(number, action)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _wait_for_end(heard: int) -> signal.Signals:
    """Return when the process has to end: too long after a first signal, or at a second one."""
    first: signal.Signals | None = None
    since_s = 0.0
    while True:
        wait_s = None if first is None else _POLL_S
        if select.select([heard], [], [], wait_s)[0]:
            numbers = set(os.read(heard, 64)) & set(SIGNALS)  # others have handlers too
            late = time.monotonic() - since_s
            if first is not None and numbers and late > _TWICE_S and not _STATE.num_deaf:
                return first
            if first is None and numbers:
                first, since_s = signal.Signals(min(numbers)), time.monotonic()
        elif first is None or _STATE.num_patient:
            continue
        elif time.monotonic() - max(since_s, _STATE.patient_until_s) > GRACE_S:
            return first


def _descendants(process: int) -> list[int]:
    """All processes that one has started, and they; of Linux."""
    found: list[int] = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [child, *_descendants(child)]
    return found
