"""A figure of a sweep: one column over a parameter, a line for each value of another, and the spread over all else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chanas.errors import ConfigError
from chanas.files.writing import replacing
from chanas.workflows.sweeps.results import cell, is_complete, number, shown
from chanas.workflows.sweeps.rows import Row

COLOURS = ("#0072b2", "#b85000", "#007a5a", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P")
_SEEDS = ("seed",)


@dataclass(frozen=True)
class Axes:
    """The columns of a figure.

    metric  of the vertical axis
    over    parameter of the horizontal one
    by      parameter with a line for each value; None: one line
    """

    metric: str
    over: str
    by: str | None = None


@dataclass(frozen=True)
class Point:
    """The rows of a line at one place of the horizontal axis."""

    x: float
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


def varied(rows: Sequence[Row]) -> list[str]:
    """Parameters of which the rows have several values."""
    names = dict.fromkeys(name for row in rows for name in row.varied)
    return [name for name in names if len({str(row.varied.get(name)) for row in rows}) > 1]


def default_axes(rows: Sequence[Row], metric: str, over: str | None = None, by: str | None = None) -> Axes:
    """Those that are given; else over the first parameter with numbers, a line for each value of the next one; seeds
    are what the spread is over.

    Raises:
        ConfigError: no parameter has several values.
    """
    names = varied(rows)
    names.sort(key=lambda name: name in _SEEDS)
    numeric = [name for name in names if name not in _SEEDS and _is_numeric(rows, name) and name != by]
    if over is None:
        over = next(iter([*numeric, *(name for name in names if name != by)]), None)
    if over is None:
        raise ConfigError("expected a parameter with several values to plot over; all rows have the same")
    if by is None:
        by = next((name for name in names if name != over and name not in _SEEDS), None)
    return Axes(metric, over, by)


def series(rows: Sequence[Row], axes: Axes) -> tuple[dict[str, list[Point]], list[str]]:
    """The points of each line, and the names of places of the horizontal axis where these are no numbers."""
    rows = [row for row in rows if is_complete(row) and number(cell(row, axes.metric)) is not None]
    names = [] if _is_numeric(rows, axes.over) else list(dict.fromkeys(_text(cell(row, axes.over)) for row in rows))
    found: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        place = cell(row, axes.over)
        x = float(names.index(_text(place))) if names else float(place)
        line = "" if axes.by is None else f"{axes.by} {_text(cell(row, axes.by))}"
        found.setdefault(line, {}).setdefault(x, []).append(float(cell(row, axes.metric)))
    lines = {line: [Point(x, tuple(v)) for x, v in sorted(points.items())] for line, points in found.items()}
    return lines, names


def draw(rows: Sequence[Row], axes: Axes, path: Path) -> Path:
    """Draw a figure; the suffix of `path` says as what (`.svg`, `.png`).

    Raises:
        ConfigError: no row that is complete has such a figure.
    """
    lines, names = series(rows, axes)
    if not lines:
        raise ConfigError(f"no row that is complete has a number for {axes.metric}; results.csv has what there is")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "chanas", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        plot = figure.subplots()
        for index, (line, points) in enumerate(lines.items()):
            colour, xs = COLOURS[index % len(COLOURS)], [p.x for p in points]
            marker = MARKERS[index % len(MARKERS)]
            plot.plot(xs, [p.mean for p in points], color=colour, marker=marker, markersize=6, label=line or None)
            plot.fill_between(
                xs, [min(p.values) for p in points], [max(p.values) for p in points], color=colour, alpha=0.15, lw=0
            )
            every = [(p.x, value) for p in points if len(p.values) > 1 for value in p.values]
            plot.plot([x for x, _ in every], [v for _, v in every], marker, color=colour, markersize=3, alpha=0.6)
        if names:
            plot.set_xticks(range(len(names)), names)
        plot.set_xlabel(axes.over)
        plot.set_ylabel(axes.metric)
        plot.grid(alpha=0.3)
        if axes.by is not None:
            plot.legend(frameon=False)
        kind = path.suffix.removeprefix(".")
        with replacing(path) as temporary:
            figure.savefig(temporary, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return path


def _is_numeric(rows: Sequence[Row], name: str) -> bool:
    values = [cell(row, name) for row in rows]
    return bool(values) and all(number(value) is not None for value in values)


def _text(value: Any) -> str:
    return "none" if value is None else shown(value)
