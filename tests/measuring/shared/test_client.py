"""chanas/measuring/shared/client.py: the process of a tuning, ended while it starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from chanas.errors import SchedulerError
from chanas.measuring.shared.client import Client


class ClosedInStart(Client):
    """One that another thread closes before its process is known."""

    started: subprocess.Popen[bytes]

    def _start(self, core: int) -> subprocess.Popen[bytes]:
        self.started = super()._start(core)
        self.close()
        assert self.started.poll() is None
        return self.started


def test_a_process_is_ended_that_starts_while_its_job_is(tmp_path: Path) -> None:
    client = ClosedInStart("a", ("-c", "import sys; sys.stdin.read()"), {}, tmp_path / "a.log")
    with pytest.raises(SchedulerError, match="job 'a' has ended"):
        client.turn(min(os.sched_getaffinity(0)), ())
    assert client.started.poll() is not None
