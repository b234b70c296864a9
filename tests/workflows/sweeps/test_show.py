"""chanas/workflows/sweeps/show.py, results.py and plots.py: rows as a table, a CSV file and plots."""

from __future__ import annotations

import csv
import dataclasses
import fcntl
from pathlib import Path
from typing import Any

import pytest
from fast_cases import fast

from chanas.errors import ConfigError, StageOrderError
from chanas.files.locks import lock_of
from chanas.workflows.sweeps.plots import Axes, default_axes, series
from chanas.workflows.sweeps.results import best, columns, find_column
from chanas.workflows.sweeps.rows import ROW, Row, RowStatus
from chanas.workflows.sweeps.show import View, show_sweep


def row(number: int, latency_s: float | None, **varied: Any) -> Row:
    """A row that found a latency, or failed."""
    folder = Path("rows") / f"{number:03d}-row"
    if latency_s is None:
        failed = {"status": RowStatus.FAILED, "exit_code": 1, "error": "no such thing"}
        return Row(folder, "tune", varied, {"model": "net.onnx"}, num_starts=1, **failed)
    facts = {"network.latency_s": latency_s, "network.seconds.tune": 3.0}
    return Row(folder, "tune", varied, {"model": "net.onnx"}, None, RowStatus.COMPLETE, 0, 5.0, 1, None, facts)


ROWS = [
    row(1, 4.0, trials=8, tuner="gp", seed=0),
    row(2, 2.0, trials=8, tuner="gp", seed=1),
    row(3, 1.0, trials=16, tuner="gp", seed=0),
    row(4, 9.0, trials=8, tuner="random", seed=0),
    row(5, None, trials=16, tuner="random", seed=0),
]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for made in ROWS:
        stored = dataclasses.replace(made, folder=tmp_path / made.folder)
        stored.folder.mkdir(parents=True)
        stored.store(stored.folder)
    return tmp_path


def test_the_table_is_sorted_and_what_has_no_value_comes_last(sweep: Path) -> None:
    shown = show_sweep(sweep, View(by="latency_s"))
    assert shown.lines[0].split() == [
        *("row", "trials", "tuner", "seed", "status", "wall_s", "network.latency_s", "network.seconds.tune"),
        "error",
    ]
    assert [line.split()[0] for line in shown.lines[1:]] == ["3", "2", "1", "4", "5"]
    assert shown.lines[-1].endswith("no such thing")
    assert shown.counts == {"complete": 4, "failed": 1}


def test_the_file_has_every_column_of_every_row(sweep: Path) -> None:
    with open(show_sweep(sweep, View()).csv, encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [r["network.latency_s"] for r in read] == ["4.0", "2.0", "1.0", "9.0", ""]
    assert set(read[0]) == set(columns(ROWS))
    assert read[4] | {"row": "5", "model": "net.onnx", "status": "failed", "exit_code": "1"} == read[4]


@pytest.mark.parametrize("suffix", fast([".svg", ".png"], [0]))
def test_plots_of_the_commands_metrics_are_written(sweep: Path, suffix: str) -> None:
    plots = show_sweep(sweep, View(suffix=suffix)).plots
    assert [path.name for path in plots] == [
        f"{name}-over-trials{suffix}" for name in ("network.latency_s", "network.seconds.tune", "wall_s")
    ]
    assert all(path.stat().st_size > 1000 for path in plots)
    before = plots[0].read_bytes()
    assert show_sweep(sweep, View(suffix=suffix)).plots[0].read_bytes() == before


def test_a_line_for_each_value_and_the_spread_over_seeds() -> None:
    axes = default_axes(ROWS, "network.latency_s")
    assert axes == Axes("network.latency_s", "trials", "tuner")
    lines, names = series(ROWS, axes)
    assert {line: [(p.x, p.mean, p.values) for p in points] for line, points in lines.items()} == {
        "tuner gp": [(8.0, 3.0, (4.0, 2.0)), (16.0, 1.0, (1.0,))],
        "tuner random": [(8.0, 9.0, (9.0,))],
    }
    assert names == []


def test_words_are_places_on_the_axis() -> None:
    lines, names = series(ROWS, Axes("network.latency_s", "tuner"))
    assert names == ["gp", "random"]
    assert [p.x for p in lines[""]] == [0.0, 1.0]


def test_seeds_are_plotted_over_where_there_is_nothing_else() -> None:
    assert default_axes(ROWS[:2], "wall_s") == Axes("wall_s", "seed")
    with pytest.raises(ConfigError, match="several values"):
        default_axes(ROWS[:1], "wall_s")


def test_the_best_is_the_lowest_latency_and_the_highest_accuracy() -> None:
    accuracies = [dataclasses.replace(r, facts={"supernet.top1_largest": 0.1 * r.number}) for r in ROWS]
    assert best(ROWS, "network.latency_s") == (ROWS[2], 1.0)
    assert best(accuracies, "supernet.top1_largest") == (accuracies[3], pytest.approx(0.4))
    assert best(ROWS, "supernet.top1_largest") is None


@pytest.mark.parametrize(
    ("column", "chosen"),
    [
        ("printed.num_within", 4),
        ("network.num_failed_trials", 1),
        ("network.num_new_trials", 1),
        ("bundle.num_params", 1),
        ("bundle.num_macs", 1),
        ("front.num_points", 4),
    ],
)
def test_of_what_is_counted_more_is_not_always_better(column: str, chosen: int) -> None:
    found = best([dataclasses.replace(r, facts={column: r.number}) for r in ROWS], column)
    assert found is not None
    assert found[0].number == chosen


def store_running(sweep: Path) -> Row:
    running = dataclasses.replace(ROWS[0], folder=sweep / ROWS[0].folder, status=RowStatus.RUNNING, facts={})
    running.store(running.folder)
    return running


def test_a_row_of_a_sweep_that_was_killed_is_interrupted(sweep: Path) -> None:
    store_running(sweep)
    for _ in range(2):  # without a lock's file, and with one that nobody holds
        shown = show_sweep(sweep, View())
        assert shown.counts == {"interrupted": 1, "complete": 3, "failed": 1}
        assert "cut off" in shown.lines[1]
        lock_of(sweep).touch()


def test_a_row_is_running_while_its_sweep_or_its_own_process_is_at_work(sweep: Path) -> None:
    store_running(sweep)
    with open(lock_of(sweep), "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert show_sweep(sweep, View()).counts["running"] == 1


@pytest.mark.parametrize("content", ["", '{"schema": 1', "null", '{"schema": 99}'])
def test_a_row_whose_file_is_damaged_is_left_out_aloud(sweep: Path, content: str) -> None:
    (sweep / ROWS[1].folder / ROW).write_text(content)
    shown = show_sweep(sweep, View())
    assert sum(shown.counts.values()) == len(ROWS) - 1
    assert ["002-row" in reason for reason in shown.left_out] == [True]


def test_a_column_is_known_by_the_end_of_its_name() -> None:
    assert find_column(ROWS, "latency_s") == "network.latency_s"
    assert find_column(ROWS, "trials") == "trials"
    with pytest.raises(ConfigError, match=r"known: .*tuner"):
        find_column(ROWS, "latency")


def test_what_cannot_be_shown(sweep: Path, tmp_path: Path) -> None:
    with pytest.raises(StageOrderError, match="no rows"):
        show_sweep(tmp_path / "nowhere", View())
    with pytest.raises(ConfigError, match="unknown column 'speed'"):
        show_sweep(sweep, View(by="speed"))
    with pytest.raises(ConfigError, match="has a number for model"):
        show_sweep(sweep, View(metrics=["model"]))
