"""chanas/workflows/sweeps/run.py: runs in processes of their own, with a planted run in place of a command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chanas.errors import ConfigError, RunBusyError
from chanas.workflows.sweeps.grid import Grid
from chanas.workflows.sweeps.processes import Processes
from chanas.workflows.sweeps.rows import ROW, Row, RowStatus, read_rows
from chanas.workflows.sweeps.run import run_sweep

PLANTED = Path(__file__).with_name("planted_run.py")


def arguments(parameters: Mapping[str, Any], folder: Path, goes_on: bool) -> list[str]:
    return ["-S", "-E", str(PLANTED), json.dumps(parameters), str(folder), "goes on" if goes_on else "begins"]


def grid(**options: Any) -> Grid:
    return Grid.model_validate({"command": "train-supernet", "parameters": {"trials": [1, 2, 4]}, **options})


def run(folder: Path, asked: Grid, **options: Any) -> tuple[list[Row], list[str]]:
    told: list[str] = []
    return run_sweep(asked, folder, arguments, progress=False, tell=told.append, **options), told


def starts(row: Row) -> list[list[str]]:
    """Of each start of a row: its process, whether it went on, and how many cores it had."""
    return [line.split() for line in (row.folder / "starts").read_text().splitlines()]


def stored(folder: Path) -> list[RowStatus]:
    return [row.status for row in read_rows(folder)]


def test_each_row_has_a_run_directory_and_its_figures(tmp_path: Path) -> None:
    rows, told = run(tmp_path, grid(fixed={"seed": 7}))
    assert [row.folder.name for row in rows] == ["001-trials-1", "002-trials-2", "003-trials-4"]
    assert [row.facts["network.latency_s"] for row in rows] == [1.0, 0.5, 0.25]
    assert {(row.status, row.exit_code, row.num_starts, row.error) for row in rows} == {("complete", 0, 1, None)}
    assert all(row.wall_s > 0 for row in rows)
    assert read_rows(tmp_path) == rows
    assert told == []


def test_what_is_complete_is_not_run_again(tmp_path: Path) -> None:
    before, _ = run(tmp_path, grid())
    after, told = run(tmp_path, grid(parameters={"trials": [4, 8, 1]}))
    assert [row.number for row in after] == [3, 4, 1]
    assert starts(after[2]) == starts(before[0])
    assert told == ["2 of 3 rows complete"]


def test_other_fixed_options_make_other_rows(tmp_path: Path) -> None:
    run(tmp_path, grid())
    rows, _ = run(tmp_path, grid(fixed={"seed": 1}))
    assert [row.number for row in rows] == [4, 5, 6]


def test_a_run_that_fails_is_a_row_and_runs_again_anew(tmp_path: Path) -> None:
    asked = grid(parameters={"does": ["fails once", "crashes", ""]}, fixed={"trials": 1})
    rows, told = run(tmp_path, asked)
    assert [(row.status, row.exit_code, row.error) for row in rows] == [
        ("failed", 1, "planted once"),
        ("failed", -9, "signal 9 ended it"),
        ("complete", 0, None),
    ]
    assert told == ["row 001 failed: planted once", "row 002 failed: signal 9 ended it"]
    assert run(tmp_path, asked, keep_failed=True)[0] == rows
    (tmp_path / "rows" / "mended").touch()
    again, told = run(tmp_path, asked)
    assert [row.status for row in again] == ["complete", "failed", "complete"]
    assert [line[1] for line in starts(again[0])] == ["anew"]
    assert told[0] == "1 of 3 rows complete, 2 failed before: run again"


def test_runs_side_by_side_share_the_cores(tmp_path: Path) -> None:
    rows, _ = run(tmp_path, grid(at_once=2))
    num_cores = len(os.sched_getaffinity(0))
    assert {int(start[2]) for row in rows for start in starts(row)} <= {num_cores // 2, num_cores - num_cores // 2, 1}


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
def test_an_interruption_keeps_rows_and_the_next_call_goes_on(tmp_path: Path, handler: Any) -> None:
    asked = grid(parameters={"does": ["fails", "hangs", ""]}, fixed={"trials": 1}, at_once=2)

    def interrupt(_line: str) -> None:
        deadline = time.monotonic() + 20
        while not any(f.stat().st_size for f in tmp_path.glob("rows/002-*/starts")) and time.monotonic() < deadline:
            time.sleep(0.01)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_sweep(asked, tmp_path, arguments, progress=False, tell=interrupt)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert stored(tmp_path)[:2] == ["failed", "interrupted"]
    rows, told = run(tmp_path, asked)
    assert [row.status for row in rows] == ["failed", "complete", "complete"]
    assert [start[1] for start in starts(rows[1])] == ["anew", "on"]
    assert rows[1].num_starts == 2
    assert "1 cut off before: gone on with" in told[0]


def test_a_row_that_was_killed_goes_on(tmp_path: Path) -> None:
    rows, _ = run(tmp_path, grid())
    data = json.loads((rows[1].folder / ROW).read_text())
    (rows[1].folder / ROW).write_text(json.dumps({**data, "status": "running", "exit_code": None}))
    (tmp_path / "rows" / "004-half").mkdir()  # killed before the row was there
    after, _ = run(tmp_path, grid())
    assert [len(starts(row)) for row in after] == [1, 2, 1]
    assert [row.status for row in after] == ["complete"] * 3


def test_a_sweep_at_work_keeps_others_off(tmp_path: Path) -> None:
    begun = threading.Event()

    def second(_line: str) -> None:
        with pytest.raises(RunBusyError, match="writes to"):
            run(tmp_path, grid())
        begun.set()

    asked = grid(parameters={"does": ["fails"]})
    run_sweep(asked, tmp_path, arguments, progress=False, tell=second)
    assert begun.is_set()


def test_rows_begin_with_a_run_directory(tmp_path: Path) -> None:
    first = tmp_path / "first"
    for name in ("supernet/checkpoint.json", "luts/cpu.json", "search/result.json", "report.html"):
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        (first / name).write_text("{}")
    rows, _ = run(tmp_path / "sweep", grid(start_from=first))
    copied = {str(path.relative_to(rows[0].folder)) for path in rows[0].folder.rglob("*.*")}
    assert copied >= {"supernet/checkpoint.json", "luts/cpu.json"}
    assert not copied & {"search/result.json", "report.html"}
    shutil.rmtree(first)
    with pytest.raises(ConfigError, match="does not exist"):
        run(tmp_path / "sweep", grid(start_from=first))


def test_a_command_that_times_runs_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which its runs need alone"):
        run(tmp_path, grid(command="tune", at_once=2))


def test_nothing_runs_where_an_option_is_wrong(tmp_path: Path) -> None:
    def refuse(parameters: Mapping[str, Any], folder: Path, goes_on: bool) -> list[str]:
        if parameters["trials"] == 4:
            raise ConfigError("no such trials")
        return arguments(parameters, folder, goes_on)

    with pytest.raises(ConfigError, match="no such trials"):
        run_sweep(grid(), tmp_path / "sweep", refuse, progress=False)
    assert not (tmp_path / "sweep").exists()


def test_a_run_that_does_not_end_when_it_is_told_to_is_killed(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    processes, codes = Processes(), list[int]()
    thread = threading.Thread(target=lambda: codes.append(processes.run(["-S", "-c", stubborn], tmp_path)))
    thread.start()
    while not any(path.stat().st_size for path in tmp_path.iterdir()):
        time.sleep(0.01)
    processes.interrupt(grace_s=0.1)
    thread.join(timeout=20)
    assert codes == [-9]
