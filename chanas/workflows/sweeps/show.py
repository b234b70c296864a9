"""A sweep that has run, or is running: its rows as a table, `results.csv`, and plots."""

from __future__ import annotations

import dataclasses
import fcntl
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chanas.errors import StageOrderError
from chanas.files.locks import lock_of
from chanas.workflows.sweeps.plots import default_axes, draw, series, varied
from chanas.workflows.sweeps.results import columns, find_column, is_complete, lines, sorted_rows, write_csv
from chanas.workflows.sweeps.rows import Row, RowStatus, read_rows
from chanas.workflows.sweeps.uses import use_of

CSV, PLOTS = "results.csv", "plots"


@dataclass(frozen=True)
class View:
    """The part of a sweep that is shown; columns by their names or the ends of these.

    by       column to sort by; the row's number by default
    metrics  columns that are printed and plotted; those of the command by default
    over, lines  parameters: the horizontal axis of plots, and a line for each value
    suffix   of the plots, `.svg` or `.png`
    """

    by: str | None = None
    metrics: Sequence[str] = ()
    over: str | None = None
    lines: str | None = None
    suffix: str = ".svg"


@dataclass(frozen=True)
class Shown:
    """A table as lines of text, how many rows there are in each state, why others are left out, and the files that
    were written."""

    lines: list[str]
    counts: dict[str, int]
    left_out: list[str]
    csv: Path
    plots: list[Path]


def show_sweep(folder: Path, view: View) -> Shown:
    """Write `results.csv` and a plot of each metric, and put the rows in a table. Rows whose files are damaged are left
    out; one that is running in its file, while no sweep is at work, was cut off.

    Raises:
        StageOrderError: no row that can be read has begun in the folder.
        ConfigError: a column or parameter is not there.
        ChanasError: a file cannot be written.
    """
    left_out: list[str] = []
    rows = read_rows(folder, left_out.append)
    if not rows:
        why = f" ({left_out[0]})" if left_out else ""
        raise StageOrderError(f"{folder} has no rows of a sweep{why}; run `chanas sweep GRID.yaml` first")
    if any(row.status is RowStatus.RUNNING for row in rows) and not _is_at_work(folder):
        rows = [_cut_off(row) if row.status is RowStatus.RUNNING else row for row in rows]
    asked = [find_column(rows, name) for name in view.metrics]
    metrics = asked or [name for name in use_of(rows[0].command).metrics if name in columns(rows)]
    by = "row" if view.by is None else find_column(rows, view.by)
    over, line = (None if name is None else find_column(rows, name) for name in (view.over, view.lines))
    names = ["row", *varied(rows), "status", "wall_s", *metrics]
    names += [name for name in (by, "error") if name not in names]
    if not any(row.error for row in rows):
        names.remove("error")
    write_csv(rows, folder / CSV)
    plots = []
    if asked or (varied(rows) and any(is_complete(row) for row in rows)):
        axes = [default_axes(rows, metric, over, line) for metric in [*metrics, "wall_s"]]
        axes = [a for a in axes if asked or series(rows, a)[0]]
        plots = [draw(rows, a, folder / PLOTS / f"{a.metric}-over-{a.over}{view.suffix}") for a in axes]
    table = list(lines(sorted_rows(rows, by), list(dict.fromkeys(names))))
    return Shown(table, dict(Counter(str(row.status) for row in rows)), left_out, folder / CSV, plots)


def _is_at_work(folder: Path) -> bool:
    """True while a sweep, or a run of one that was killed, holds the folder's lock."""
    try:
        with open(lock_of(folder), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _cut_off(row: Row) -> Row:
    return dataclasses.replace(row, status=RowStatus.INTERRUPTED, error="cut off with its sweep; run that again")
