"""A row of a sweep: one run in a folder of its own, with a file that says what it is and how it ended."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from chanas.errors import CheckpointError
from chanas.files.documents import Document
from chanas.files.writing import replacing_folder, write_json
from chanas.workflows.sweeps.grid import Grid

ROW, STDOUT, STDERR = "sweep-row.json", "sweep-stdout.log", "sweep-stderr.log"
SCHEMA = 1
_MAX_SLUG = 60
_NOT_COPIED = ("search", "bundle", "bundles", "ablation", "checkpoints", "report.html", "*.lock", "sweep-*")
"""Files of the run directory that a run begins with which it makes itself."""


class RowStatus(StrEnum):
    """The state of a row. One that is `running` in its file, while no sweep is at work, was cut off."""

    PLANNED = "planned"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class _Stored:
    """Content of `sweep-row.json`."""

    schema: int
    command: str
    varied: list[tuple[str, Any]]
    fixed: dict[str, Any]
    start_from: str | None
    status: RowStatus
    exit_code: int | None
    wall_s: float
    num_starts: int
    error: str | None
    facts: dict[str, Any]


_ROW = Document("row of a sweep", _Stored, "remove its folder, and it is run again", SCHEMA)


@dataclass(frozen=True)
class Row:
    """A run.

    varied      parameters that differ from row to row
    fixed       the others
    start_from  run directory that it begins with a copy of
    wall_s      seconds by the clock, of all its starts that ended
    num_starts  times that it was started; more than once where it was cut off and went on
    error       the last line that it said, where it failed
    facts       figures that it found (`facts.py`)
    """

    folder: Path
    command: str
    varied: Mapping[str, Any]
    fixed: Mapping[str, Any]
    start_from: str | None = None
    status: RowStatus = RowStatus.PLANNED
    exit_code: int | None = None
    wall_s: float = 0.0
    num_starts: int = 0
    error: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """The number that its folder's name begins with."""
        return number_of(self.folder)

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters."""
        return {**self.fixed, **self.varied}

    @property
    def key(self) -> str:
        """All that tells it from other rows."""
        return repr((self.command, self.start_from, sorted(self.parameters.items())))

    @property
    def was_cut_off(self) -> bool:
        """Was it started, and neither ended well nor failed?"""
        return self.status in (RowStatus.RUNNING, RowStatus.INTERRUPTED)

    def begin(self) -> Row:
        """Store that it runs: in its folder as it is where it was cut off, else in a new one."""
        if self.was_cut_off:
            row = dataclasses.replace(self, status=RowStatus.RUNNING, num_starts=self.num_starts + 1)
            row.store(self.folder)
            return row
        row = dataclasses.replace(
            self, status=RowStatus.RUNNING, num_starts=1, exit_code=None, wall_s=0.0, error=None, facts={}
        )
        with replacing_folder(self.folder) as folder:
            if self.start_from is not None:
                ignore = shutil.ignore_patterns(*_NOT_COPIED)
                shutil.copytree(self.start_from, folder, ignore=ignore, dirs_exist_ok=True)
            row.store(folder)
        return row

    def store(self, folder: Path) -> None:
        """Write its file."""
        data = {name: getattr(self, name) for name in _Stored.__annotations__ if name != "schema"}
        write_json(folder / ROW, {**data, "varied": list(self.varied.items()), "schema": SCHEMA})

    @classmethod
    def read(cls, folder: Path) -> Row:
        """Read the file in a folder.

        Raises:
            CheckpointError: it is missing or damaged.
        """

        def make(data: dict[str, Any]) -> Row:
            stored = {name: data[name] for name in _Stored.__annotations__ if name != "schema"}
            return cls(folder, **{**stored, "varied": dict(data["varied"]), "status": RowStatus(data["status"])})

        return _ROW.read_with(folder / ROW, make)


def number_of(folder: Path) -> int:
    """The number in `012-trials-8`."""
    return int(folder.name.partition("-")[0])


def read_rows(folder: Path, leave_out: Callable[[str], None] | None = None) -> list[Row]:
    """All rows that a sweep has begun, by number.

    Args:
        leave_out: told of each row whose file is damaged.

    Raises:
        CheckpointError: the file of a row is damaged, and nothing is to be left out.
    """
    rows = []
    for path in sorted((path.parent for path in folder.glob(f"rows/[0-9]*-*/{ROW}")), key=number_of):
        try:
            rows.append(Row.read(path))
        except CheckpointError as error:
            if leave_out is None:
                raise
            leave_out(str(error))
    return rows


def plan_rows(folder: Path, grid: Grid, known: Iterable[Row]) -> list[Row]:
    """The rows of a grid: those that are `known`, where all their parameters are the same, and new ones."""
    known = list(known)
    by_key = {row.key: row for row in known}
    number = max((row.number for row in known), default=0)
    start_from = None if grid.start_from is None else str(grid.start_from)
    rows = []
    for varied in grid.rows():
        name = f"{number + 1:03d}-{_slug(varied)}"
        row = Row(folder / "rows" / name, grid.command, varied, grid.common, start_from)
        if row.key in by_key:  # which of its parameters are varied may be new
            row = dataclasses.replace(by_key[row.key], varied=varied, fixed=grid.common)
        else:
            number += 1
        rows.append(row)
    return rows


def _slug(parameters: Mapping[str, Any]) -> str:
    text = "_".join(f"{name}-{value}" for name, value in parameters.items())
    return re.sub(r"[^\w.]+", "-", text)[:_MAX_SLUG].strip("-.") or "row"
