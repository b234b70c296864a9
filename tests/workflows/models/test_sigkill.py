"""SIGKILL of `chanas tune` at random moments, and amid proving and saving: the same command goes on, nothing is lost.

The network is opened and lowered for real; what is compiled is invented by the workers of `planted_quick.py`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from networks import save_onnx

from chanas.bundle.tuned import TunedNetwork

from ...prescheduler.tables.test_sigkill import INVENTED, Bench, is_whole, rows_of

Moment = Callable[[Bench], bool]


class TuneBench(Bench):
    """Starts `chanas tune` on a tiny network."""

    def arguments(self) -> list[str]:
        return ["tune", "net.onnx", "--trials", "4"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TuneBench]:
    save_onnx(tmp_path / "net.onnx")
    bench = TuneBench(tmp_path, INVENTED)
    bench.temporary.mkdir()
    yield bench
    for pid in bench.processes():
        os.kill(pid, signal.SIGKILL)


def measures(bench: Bench) -> bool:
    """Something was measured."""
    return bool(rows_of(bench.run("run")))


def proves(bench: Bench) -> bool:
    """The whole network is being built and timed."""
    return any(bench.temporary.rglob("network.json"))


def saves(bench: Bench) -> bool:
    """The folder is being written."""
    return any(bench.run("run").root.glob(".net.*.tmp"))


def after(seconds: float) -> Moment:
    begin = time.monotonic()
    return lambda _: time.monotonic() - begin > seconds


def kill(bench: Bench, moment: Moment) -> bool:
    """Start the command and kill it at a moment; false where it ended before that."""
    process: subprocess.Popen[bytes] = bench.start("run")
    while process.poll() is None and not moment(bench):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    killed = process.wait() == -signal.SIGKILL
    bench.wait_for_nobody()
    return killed


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.timeout(3600)
def test_a_network_whose_tuning_is_killed_at_any_moment_is_tuned_by_the_same_command(bench: TuneBench) -> None:
    start = time.monotonic()
    assert bench.start("whole").wait() == 0, bench.said()
    duration_s = time.monotonic() - start
    rng, run, before = random.Random(0), bench.run("run"), set()
    for moment in (measures, proves, saves, *(rng.uniform(0.0, duration_s) for _ in range(6))):
        killed = kill(bench, after(moment) if isinstance(moment, float) else moment)
        assert killed or isinstance(moment, float)
        assert before <= rows_of(run)
        assert is_whole(run)
        before = rows_of(run)
        if (run.root / "net").exists():
            TunedNetwork.open(run.root / "net")  # whole, or not there
    assert bench.start("run").wait() == 0, bench.said()
    assert before <= rows_of(run)
    TunedNetwork.open(run.root / "net")
    assert {p.name for p in run.root.iterdir()} == {p.name for p in bench.run("whole").root.iterdir()}
