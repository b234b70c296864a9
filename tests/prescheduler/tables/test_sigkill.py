"""SIGKILL at random moments, and two at once: no record is lost, and the table is that of an uninterrupted run.

What is compiled is invented by the workers of `planted_quick.py`, and real in the slow tests.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tables import save_space

from chanas.core.latency import LatencyLUT
from chanas.files.run import RunDirectory

from ...compiler.workbench import HOST, NANO, NUM_CLASSES, assert_legal

ROOT = Path(__file__).resolve().parents[3]
BLOCKS = NANO.all_blocks(NUM_CLASSES, NANO.sub_spaces[:1])
# Blocks of microseconds, timed for a moment on a machine that does other things besides.
NOISE_FACTOR = 10.0
REAL, INVENTED = ("-m", "chanas"), (str(Path(__file__).parents[2] / "measuring" / "planted_quick.py"),)
TABLES = ("records", "remeasured", "blocks", "rounds", "canary")

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Bench:
    """Starts `chanas prescheduler` on a small sub-space, with a folder of its own for temporary files."""

    folder: Path
    program: tuple[str, ...]

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def arguments(self) -> list[str]:
        """Command and options beside those of every run."""
        options = ["--num-classes", str(NUM_CLASSES), "--sub-space", NANO.sub_spaces[0].key, "--calibrate", "0"]
        return ["prescheduler", "--space", "nano.yaml", "--trials", "1", *options]

    def start(self, name: str, log: str = "stderr") -> subprocess.Popen[bytes]:
        command = [sys.executable, *self.program, *self.arguments()]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "TMPDIR": str(self.temporary), "PYTHONPATH": os.pathsep.join(paths)}
        with open(self.folder / log, "wb") as file:
            return subprocess.Popen(
                [*command, "--tuner", "random", "--run", name],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=file,
            )

    def run(self, name: str) -> RunDirectory:
        return RunDirectory(self.folder / name)

    def said(self, log: str = "stderr") -> str:
        """The last line of standard error."""
        return (self.folder / log).read_text().strip().splitlines()[-1]

    def processes(self) -> list[int]:
        """Whoever has this bench's folder for temporary files: prescheduler, workers, linkers."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"TMPDIR={self.temporary}\0".encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
        return found

    def wait_for_nobody(self) -> None:
        deadline = time.monotonic() + 30.0
        while self.processes():
            assert time.monotonic() < deadline, f"processes outlived the one that started them: {self.processes()}"
            time.sleep(0.05)


@pytest.fixture
def program() -> tuple[str, ...]:
    """What Python runs as the command."""
    return INVENTED


@pytest.fixture
def bench(tmp_path: Path, program: tuple[str, ...]) -> Iterator[Bench]:
    save_space(NANO, tmp_path / "nano.yaml")
    bench = Bench(tmp_path, program)
    bench.temporary.mkdir()
    yield bench
    for pid in bench.processes():
        os.kill(pid, signal.SIGKILL)


def rows_of(run: RunDirectory) -> set[Row]:
    """Everything measured that is in the database, as another process sees it now."""
    if not run.records.exists():
        return set()
    with contextlib.closing(sqlite3.connect(run.records, timeout=60)) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        return {(t, *row) for t in TABLES if t in names for row in database.execute(f"SELECT * FROM {t}")}


def wait_for_rows(process: subprocess.Popen[bytes], run: RunDirectory) -> None:
    """Until something more was measured, or the process ended."""
    num = len(rows_of(run))
    while process.poll() is None and len(rows_of(run)) <= num:
        time.sleep(0.02)


def is_whole(run: RunDirectory) -> bool:
    if not run.records.exists():
        return True
    with contextlib.closing(sqlite3.connect(run.records)) as database:
        return database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def check_table(run: RunDirectory, whole: LatencyLUT) -> None:
    """The table of a run has the rows of `whole`, with legal schedules and seconds that noise explains."""
    lut = LatencyLUT.load(run.lut("cpu"))
    assert lut.rows.keys() == whole.rows.keys() == {b.key for b in BLOCKS}
    assert_legal(lut, BLOCKS, HOST)
    assert all(1 / NOISE_FACTOR < lut.block_s(b) / whole.block_s(b) < NOISE_FACTOR for b in BLOCKS)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("program", "num_kills"),
    [
        pytest.param(INVENTED, 2, id="few", marks=pytest.mark.timeout(900)),
        pytest.param(INVENTED, 12, id="many", marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
        pytest.param(REAL, 10, id="with compilers", marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
    ],
)
def test_a_run_killed_at_random_moments_loses_nothing(bench: Bench, num_kills: int) -> None:
    start = time.monotonic()
    assert bench.start("whole").wait() == 0, bench.said()
    duration_s = time.monotonic() - start
    whole = LatencyLUT.load(bench.run("whole").lut("cpu"))
    left_over = files(bench.folder / "whole")

    rng, kills, attempt = random.Random(0), 0, 0
    while True:
        run = bench.run(f"killed-{attempt}")
        before = rows_of(run)
        process = bench.start(run.root.name)
        if kills % 3 and kills < num_kills:
            wait_for_rows(process, run)
        longest_s = duration_s / 10 if kills % 3 else duration_s
        try:
            code = process.wait(None if kills == num_kills else rng.uniform(0.0, longest_s))
        except subprocess.TimeoutExpired:
            seen = rows_of(run)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            bench.wait_for_nobody()
            after = rows_of(run)
            assert before <= seen <= after
            assert is_whole(run)
            assert len(list(bench.temporary.glob("chanas-*/"))) <= 1
            continue
        assert code == 0, bench.said()
        assert before <= rows_of(run)
        assert is_whole(run)
        check_table(run, whole)
        assert files(run.root) == left_over
        assert files(bench.temporary) == {f"chanas-{os.getuid()}-scratch.lock"}
        if kills == num_kills:
            break
        attempt += 1


@pytest.mark.slow  # test_locks.py has the line that is said
def test_two_at_once_in_one_run_directory_are_one_that_works_and_one_that_says_so(bench: Bench) -> None:
    both = [bench.start("shared", log) for log in ("first", "second")]
    codes = {log: process.wait() for log, process in zip(("first", "second"), both, strict=True)}
    assert sorted(codes.values()) == [0, 1]
    refused = min(codes, key=lambda log: -codes[log])
    worked = both[1 if refused == "first" else 0]
    assert re.search(rf"\(pid {worked.pid}, since .*\) writes to shared/.*; wait until it ends", bench.said(refused))
    assert LatencyLUT.load(bench.run("shared").lut("cpu")).missing(BLOCKS) == []
    assert is_whole(bench.run("shared"))


@pytest.mark.slow
@pytest.mark.parametrize("program", [REAL], ids=["real"])
def test_two_at_once_in_different_run_directories_both_end_well(bench: Bench) -> None:
    both = {name: bench.start(name, f"{name}-log") for name in ("one", "another")}
    for name, process in both.items():
        assert process.wait() == 0, bench.said(f"{name}-log")
        assert LatencyLUT.load(bench.run(name).lut("cpu")).missing(BLOCKS) == []
        failed = [row for row in rows_of(bench.run(name)) if row[0] in ("records", "blocks") and "timeout" in str(row)]
        assert failed == []
