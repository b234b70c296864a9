"""The service's data folder: what lies where, and the lock that lets one service work in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chanas.errors import ChanasError, RunBusyError

_POLL_S = 0.05


@dataclass(frozen=True)
class DataFolder:
    """Files of a service. Names in it are ids and hashes of our own making."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "service.sqlite"

    @property
    def records(self) -> Path:
        """Everything that jobs have learned."""
        return self.root / "records.sqlite"

    @property
    def uploads(self) -> Path:
        return self.root / "uploads"

    @property
    def jobs(self) -> Path:
        """Folders of jobs that have not ended."""
        return self.root / "jobs"

    def bundle(self, job: str) -> Path:
        return self.root / "bundles" / f"{job}.tar"

    def log(self, job: str) -> Path:
        return self.root / "logs" / f"{job}.log"


@contextlib.contextmanager
def hold(path: Path, wait_s: float, busy: str) -> Iterator[None]:
    """Hold the lock of a file, which the kernel frees however its holder ends.

    Raises:
        RunBusyError: another process holds it still after `wait_s`; it says `busy`.
        ChanasError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ChanasError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        until_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    raise RunBusyError(busy) from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)
