"""The process of a tuning, as the scheduler's process has it: started with its first turn, asked turn by turn."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chanas.core.codec import from_json, to_json
from chanas.errors import SchedulerError
from chanas.measuring.shared.turns import Answered, Rest, Turn

_LEAVE_S = 5.0
"""Seconds that a tuning may take to keep what it has measured when it is ended."""


class ProcessKilledError(SchedulerError):
    """A tuning's process that was killed, for want of memory, say: another one can go on from its records."""


class Client:
    """A tuning in a process of its own.

    Args:
        name: of its job, for errors.
        command: what Python runs: it serves turns (`serving.main`).
        plan: handed to the process, as JSON.
        log: gets what it prints.
        folder: in which it works; None: this process's.
    """

    def __init__(
        self, name: str, command: Sequence[str], plan: Mapping[str, Any], log: Path, folder: Path | None = None
    ) -> None:
        self.name, self.log, self._folder = name, log, folder
        self._command, self._plan = tuple(command), dict(plan)
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def turn(self, core: int, answers: Sequence[Answered]) -> Rest:
        """Let it compute on a core until it waits.

        Raises:
            ProcessKilledError: the process was killed; the next turn starts another one.
            SchedulerError: it ended by itself.
        """
        if self._process is None:
            self._process = self._start(core)
            if self._closed:  # by another thread, before there was a process that it could end
                self.close()
        process, turn = self._process, Turn(core=core, answers=tuple(answers))
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(to_json(turn)).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError):  # ValueError: `close` has closed the pipe
            line = b""
        if not line:
            raise self._why_ended(process)
        rest: Rest = from_json(Rest, json.loads(line))
        if rest.ended:  # its last work is to end
            self.close()
        return rest

    def _why_ended(self, process: subprocess.Popen[bytes]) -> SchedulerError:
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_LEAVE_S)
        if self._closed or code is None or code >= 0:
            return SchedulerError(f"the process of job '{self.name}' has ended; {self.log} says more")
        self._process = None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what a dead process has not read can't be flushed
                    pipe.close()
        text = f"the process of job '{self.name}' was killed by signal {-code}"
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(f"{text}\n")
        return ProcessKilledError(text)

    def _start(self, core: int) -> subprocess.Popen[bytes]:
        if self._closed:
            raise SchedulerError(f"job '{self.name}' has ended")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, *self._command],
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C is for the scheduler alone
            )
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, [core])
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._plan).encode() + b"\n")
        return process

    def close(self) -> None:
        """End the process: it keeps what it has measured, and is killed if that takes too long."""
        self._closed = True
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError, ValueError):
            process.stdin.close()
        try:
            process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
