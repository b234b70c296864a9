"""The tables of a file of records: which field of a dataclass each column holds, and which columns rows share."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from chanas.compiler.space import Point, read_point
from chanas.core.units import is_seconds

Record = TypeVar("Record")
Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table with rows of one dataclass.

    key     columns that rows about the same thing share, of which the newest is kept; without any, every row is
    fields  the field in each column; other columns say what a row is about and when it was made
    """

    name: str
    key: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)

    def row(self, record: object) -> Row:
        """The values of a record by column; points and schedules are JSON."""
        values = {column: getattr(record, name) for column, name in self.fields.items()}
        return {column: json.dumps(value) if isinstance(value, tuple) else value for column, value in values.items()}

    @property
    def selected(self) -> str:
        """The columns of a record, each under the name of its field."""
        return ", ".join(f"{self.name}.{column} AS {name}" for column, name in self.fields.items())


_TIMED = {"seconds": "seconds", "spread": "spread_s", "drift": "drift"}
_BLOCK = {"schedules": "schedules", **_TIMED, "created": "created"}
_NOTE = {name: name for name in ("source", "digest", "num_records", "tau", "dropped")}
_AGAIN = {"seconds": "again_s", "spread": "again_spread_s", "error": "again_error"}
_TRIAL = {"point": "point", **_TIMED, "error": "error", "code": "code", "same_as": "same_as"}

RECORDS = Table("records", ("device", "workload", "point"), _TRIAL)
REMEASURED = Table("remeasured", fields={"point": "point", **_AGAIN})
BLOCKS = Table("blocks", ("device", "version", "block", "schedules"), {**_BLOCK, "error": "error"})
ROUNDS = Table("rounds", fields=_BLOCK)
STOPPED = Table("stopped", ("device", "workload"))
CANARY = Table("canary", fields={**_TIMED, "created": "created"})
RUNS = Table("runs", ("device", "started"), {"wall": "wall_s", "timing": "timing_s", "building": "building_s"})
WARM_STARTS = Table("warm_starts", ("device", "workload", "source"), _NOTE)
DEVICES = Table("devices")
TABLES = (RECORDS, REMEASURED, BLOCKS, ROUNDS, STOPPED, CANARY, RUNS, WARM_STARTS, DEVICES)


def trials(condition: str, others: str = "") -> str:
    """Select what was tried, oldest first, with the figures of the last measurement in turns; `others` are columns
    besides those of a `TuningRecord`."""
    again = ", ".join(f"again.{column} AS {name}" for column, name in _AGAIN.items())
    return f"""SELECT {others}{RECORDS.selected}, {again}
        FROM records LEFT JOIN remeasured AS again ON again.device = records.device
        AND again.workload = records.workload AND again.point = records.point AND again.created =
            (SELECT MAX(created) FROM remeasured AS r WHERE r.device = records.device AND r.workload = records.workload)
        WHERE {condition} ORDER BY records.rowid"""


def fetch(db: sqlite3.Connection, query: str, arguments: Mapping[str, object]) -> list[Row]:
    """Rows by the names of their columns."""
    cursor = db.execute(query, arguments)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def read_row(record: type[Record], row: Row) -> Record:
    """The record in a row.

    Raises:
        ValueError: the row holds something else.
        TypeError: likewise.
    """
    return record(**{name: _READ[name](v) if name in _READ and v is not None else v for name, v in row.items()})


def _read_schedules(text: str) -> tuple[tuple[str, Point], ...]:
    return tuple((workload, tuple(point)) for workload, point in json.loads(text))


_READ: Mapping[str, Any] = {"point": read_point, "same_as": read_point, "schedules": _read_schedules}
"""Fields that are JSON in the file."""


def usable_rows(rows: Iterable[Row]) -> tuple[list[Row], int]:
    """Rows without those whose seconds nothing can have taken (infinite, zero, negative or no number), and how many
    seconds were left out. Seconds that were measured again are taken out of their row alone."""
    kept, num_left_out = [], 0
    for row in rows:
        if row["seconds"] is not None and not is_seconds(row["seconds"]):
            num_left_out += 1
            continue
        if row.get("again_s") is not None and not is_seconds(row["again_s"]):
            num_left_out += 1
            row = {**row, "again_s": None, "again_spread_s": None}
        kept.append(row)
    return kept, num_left_out


def left_out(path: Path, num: int) -> str:
    """The line about seconds that were left out."""
    return f"records {path}: {num} left out, whose seconds are not above 0 and finite"
