"""The lock of a device: one process times on a machine. It is a `flock`, freed however its holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from chanas.core.progress import named_wait
from chanas.errors import ChanasError, MeasureError
from chanas.files.locks import opened_lock

_POLL_S, _UNTOLD_S = 0.002, 5.0
LOCK_FOLDER = "CHANAS_LOCK_FOLDER"
"""Environment variable: the folder of the locks of devices. Containers that share a machine need one that they share,
processes that need not wait for each other (tests) one each."""


def _device_folder() -> Path:
    """The same for all processes of the machine, wherever each has its temporary files.

    Raises:
        ChanasError: the folder that the environment names cannot be written.
    """
    named, shared = os.environ.get(LOCK_FOLDER), Path("/tmp")
    if not named:
        return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    if not os.access(named, os.W_OK | os.X_OK):
        raise ChanasError(f"expected a folder that can be written in {LOCK_FOLDER}, got '{named}'")
    return Path(named)


@contextlib.contextmanager
def device_lock(
    gives_up: Callable[[], bool] = lambda: False, gpu: str | None = None, cores: Collection[int] = ()
) -> Iterator[None]:
    """Hold the device while something is timed, so that two runs on one machine don't disturb each other's figures.

    The lock is fair: a holder that releases and re-acquires it waits behind earlier waiters. Each GPU (`gpu` names it)
    has a lock of its own, apart from the processor's. Of a processor some `cores` alone may be held: beside those who
    hold others of it, not beside those who hold all of it.

    Raises:
        MeasureError: `gives_up` became true while waiting.
        ChanasError: the locks' folder cannot be written, or a lock in it is another user's.
    """
    path = _device_folder() / f"chanas-device-{os.getuid()}{'' if gpu is None else f'-{gpu}'}"
    with contextlib.ExitStack() as stack:
        device, following = (stack.enter_context(opened_lock(Path(f"{path}.{name}"))) for name in ("lock", "next"))
        _wait(following, gives_up)
        _wait(device, gives_up, fcntl.LOCK_SH if cores else fcntl.LOCK_EX)
        fcntl.flock(following, fcntl.LOCK_UN)
        for core in sorted(cores):  # in one order, so that no two wait for each other
            _wait(stack.enter_context(opened_lock(Path(f"{path}-core{core}.lock"))), gives_up)
        yield


def _wait(lock: int, gives_up: Callable[[], bool], kind: int = fcntl.LOCK_EX) -> None:
    if _takes(lock, kind):
        return
    with named_wait("waiting for another process that is timing on this machine", after_s=_UNTOLD_S):
        while not _takes(lock, kind):
            if gives_up():
                raise MeasureError("given up while another process was timing on this machine")
            time.sleep(_POLL_S)


def _takes(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
