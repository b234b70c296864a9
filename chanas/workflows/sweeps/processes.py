"""Processes of runs: each in a session of its own, so that Ctrl-C reaches the sweep alone, which passes it on once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from chanas.workflows.sweeps.rows import STDERR, STDOUT

GRACE_S = 120.0
"""Seconds that a run has to store what it measured: a training step ends, a batch of timings is written."""

INTERRUPTED = 130
"""Exit code of a run that was interrupted: 128 + SIGINT, as shells count."""


class Processes:
    """The runs that are under way. Methods may be called from any thread.

    Args:
        kept_open: a file that each process keeps open, too: the sweep's lock is held until the last one has ended,
            even where the sweep itself was killed.
    """

    def __init__(self, kept_open: int | None = None) -> None:
        self._kept_open = () if kept_open is None else (kept_open,)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._changed = threading.Lock()
        self._stops = False

    def were_interrupted(self) -> bool:
        """Tell whether no other run may begin."""
        return self._stops

    def run(self, arguments: Sequence[str], folder: Path) -> int:
        """Run Python with arguments to its end; what it prints is written into files in a folder.

        Returns:
            Its exit code, negative where a signal ended it; `INTERRUPTED` where it was not even begun.
        """
        with open(folder / STDOUT, "wb") as out, open(folder / STDERR, "wb") as err, self._changed:
            if self._stops:
                return INTERRUPTED
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                pass_fds=self._kept_open,
            )
            self._running.add(process)
        code = process.wait()
        with self._changed:
            self._running.discard(process)
        return code

    def interrupt(self, grace_s: float = GRACE_S) -> None:
        """Let no other begin, interrupt those that run, as Ctrl-C does, and wait; who takes too long is killed."""
        self._signal(signal.SIGINT)
        end_s = time.monotonic() + grace_s
        try:
            while self._running and time.monotonic() < end_s:
                time.sleep(0.05)
        finally:  # also where a second Ctrl-C comes
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with self._changed:
            self._stops = True
            for process in self._running:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)


def last_line(path: Path) -> str:
    """The last line of a log that is not empty, without the name of the program."""
    with contextlib.suppress(OSError):
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1].rpartition("\r")[2].removeprefix("chanas: ").removeprefix("error: ")[:300]
    return ""
