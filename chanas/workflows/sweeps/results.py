"""The rows of a sweep as columns: sorted, as lines of text, as a CSV file."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chanas.errors import ConfigError, unknown_name
from chanas.files.writing import replacing
from chanas.workflows.sweeps.rows import Row, RowStatus

_OWN = ("row", "status", "exit_code", "wall_s", "num_starts", "error")
_MAX_CELL, _MAX_LAST = 60, 160
_HIGHER_IS_BETTER = (
    "top1",
    "kendall_tau",
    "images_per_s",
    "accuracy",
    "num_within",
    "num_rows",
    "num_blocks",
    "num_points",
)
"""Beginnings of names; of what else is counted, such as trials, failures and parameters, fewer are better."""


def columns(rows: Iterable[Row]) -> list[str]:
    """Names of all columns: the row's own, parameters, and figures."""
    names: dict[str, None] = dict.fromkeys(_OWN[:1])
    rows = list(rows)
    names |= dict.fromkeys(name for row in rows for name in row.varied)
    names |= dict.fromkeys(name for row in rows for name in row.fixed)
    names |= dict.fromkeys(_OWN[1:])
    return list(names | dict.fromkeys(name for row in rows for name in row.facts))


def cell(row: Row, column: str) -> Any:
    """The value of a column; None where the row has none."""
    if column == "row":
        return row.number
    if column in _OWN:
        value = getattr(row, column)
        return str(value) if column == "status" else value
    return row.parameters[column] if column in row.parameters else row.facts.get(column)


def find_column(rows: Iterable[Row], name: str) -> str:
    """The column of a name, or of the end of one where that is not ambiguous: `latency_s` for `network.latency_s`.

    Raises:
        ConfigError: there is none, or there are several.
    """
    known = columns(rows)
    if name in known:
        return name
    found = [column for column in known if column.endswith(f".{name}")]
    if len(found) != 1:
        raise ConfigError(unknown_name("column", name, found or known))
    return found[0]


def number(value: Any) -> float | None:
    """The number of a cell; None where it holds none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def sorted_rows(rows: Sequence[Row], column: str) -> list[Row]:
    """Rows by a column, numbers first; those that have none come last."""

    def key(row: Row) -> tuple[bool, bool, float, str]:
        value = cell(row, column)
        found = number(value)
        return value is None, found is None, found or 0.0, str(value)

    return sorted(rows, key=key)


def best(rows: Iterable[Row], column: str) -> tuple[Row, float] | None:
    """The complete row that is best by a column, and its value: the highest accuracy, the lowest of all else."""
    found = [(row, value) for row in rows if is_complete(row) and (value := number(cell(row, column))) is not None]
    last = column.rpartition(".")[2]
    chosen = max if last.startswith(_HIGHER_IS_BETTER) else min
    return chosen(found, key=lambda pair: pair[1]) if found else None


def is_complete(row: Row) -> bool:
    """Did it end well?"""
    return row.status is RowStatus.COMPLETE


def shown(value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | bool):
        return json.dumps(value)
    return "" if value is None else str(value)


def lines(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """A table of these columns as lines of text; the last one may be long."""
    last = len(names) - 1
    cells = [
        [_cut(shown(cell(row, name)), _MAX_LAST if i == last else _MAX_CELL) for i, name in enumerate(names)]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    for line in [list(names), *cells]:
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """All columns of all rows; lists and truth values as JSON, nothing where there is no value."""
    names = columns(rows)
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in rows:
            values = (cell(row, name) for name in names)
            writer.writerow(json.dumps(v) if isinstance(v, list | bool) else v for v in values)
