"""The tables of tuning records, and how a file of an older schema is brought to the newest one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chanas.core.units import is_seconds

# What makes a database of schema n one of schema n + 1. A database is brought to the newest schema when it is opened,
# in one transaction: it is either as it was or whole. Steps are only ever added.
_STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE IF NOT EXISTS records (
            workload TEXT NOT NULL, point TEXT NOT NULL, seconds REAL, spread REAL, error TEXT, created REAL NOT NULL,
            device TEXT NOT NULL, PRIMARY KEY (device, workload, point))""",
        """CREATE TABLE IF NOT EXISTS blocks (
            block TEXT NOT NULL, schedules TEXT NOT NULL, seconds REAL, spread REAL, error TEXT, created REAL NOT NULL,
            device TEXT NOT NULL, PRIMARY KEY (device, block, schedules))""",
    ),
    (
        """CREATE TABLE remeasured (
            device TEXT NOT NULL, workload TEXT NOT NULL, point TEXT NOT NULL, seconds REAL, spread REAL, error TEXT,
            created REAL NOT NULL, PRIMARY KEY (device, workload, created, point))""",
    ),
    (
        "CREATE TABLE canary (device TEXT NOT NULL, seconds REAL, spread REAL, drift REAL, created REAL NOT NULL)",
        "ALTER TABLE records ADD COLUMN drift REAL NOT NULL DEFAULT 1",
        "ALTER TABLE blocks ADD COLUMN drift REAL NOT NULL DEFAULT 1",
    ),
    (
        "ALTER TABLE records ADD COLUMN code TEXT",
        "ALTER TABLE records ADD COLUMN same_as TEXT",
    ),
    (
        """CREATE TABLE stopped (
            device TEXT NOT NULL, workload TEXT NOT NULL, num_trials INTEGER NOT NULL, expected REAL, noise REAL,
            created REAL NOT NULL, PRIMARY KEY (device, workload))""",
    ),
    (
        # The version belongs to the key, which a table cannot be given afterwards.
        """CREATE TABLE versioned (
            block TEXT NOT NULL, schedules TEXT NOT NULL, seconds REAL, spread REAL, error TEXT, created REAL NOT NULL,
            device TEXT NOT NULL, drift REAL NOT NULL, version INTEGER NOT NULL,
            PRIMARY KEY (device, version, block, schedules))""",
        """INSERT INTO versioned
            SELECT block, schedules, seconds, spread, error, created, device, drift, 1 FROM blocks ORDER BY rowid""",
        "DROP TABLE blocks",
        "ALTER TABLE versioned RENAME TO blocks",
    ),
    (
        """CREATE TABLE runs (
            device TEXT NOT NULL, started REAL NOT NULL, wall REAL NOT NULL, timing REAL NOT NULL,
            building REAL NOT NULL, PRIMARY KEY (device, started))""",
    ),
    (
        """CREATE TABLE rounds (
            device TEXT NOT NULL, version INTEGER NOT NULL, block TEXT NOT NULL, schedules TEXT NOT NULL,
            seconds REAL NOT NULL, spread REAL, created REAL NOT NULL, drift REAL NOT NULL)""",
        "CREATE INDEX rounds_of_block ON rounds (device, version, block, schedules)",
    ),
    (
        # Of the devices here, so that another one's warm start knows them; and what warm starts brought to them.
        "CREATE TABLE devices (device TEXT PRIMARY KEY, target TEXT NOT NULL, spaces INTEGER NOT NULL)",
        """CREATE TABLE warm_starts (
            device TEXT NOT NULL, workload TEXT NOT NULL, source TEXT NOT NULL, digest TEXT NOT NULL,
            num_records INTEGER NOT NULL, tau REAL, dropped INTEGER NOT NULL, created REAL NOT NULL,
            PRIMARY KEY (device, workload, source))""",
    ),
    (
        # From here on the version of the spaces belongs to a device's key: `_adopt_unversioned`. Of GPUs it was the
        # processor's that was noted.
        """UPDATE devices SET spaces = 2 WHERE target LIKE '%"kind": "cuda"%'""",
    ),
)
SCHEMA = len(_STEPS)


def version_of(db: sqlite3.Connection) -> int:
    """The schema of an open file; 0 of an empty one."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: sqlite3.Connection) -> None:
    """All missing steps and the new number in one transaction; another process may have been first."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        for step in _STEPS[version_of(db) :]:
            for statement in step:
                db.execute(statement)
        db.execute(f"PRAGMA user_version={SCHEMA}")


def usable_rows(
    rows: Iterable[tuple[Any, ...]], place: int, spared: int | None = None
) -> tuple[list[tuple[Any, ...]], int]:
    """Rows without those whose seconds nothing can have taken: infinite, zero, negative or no number.

    Args:
        place: of the seconds in a row; None in it is an error's, and kept.
        spared: of seconds that were measured again, and their spread after them: both are taken out of a row that has
            others.

    Returns:
        The rows, and how many seconds were left out.
    """
    kept, num_left_out = [], 0
    for row in rows:
        if row[place] is not None and not is_seconds(row[place]):
            num_left_out += 1
            continue
        if spared is not None and row[spared] is not None and not is_seconds(row[spared]):
            num_left_out += 1
            row = (*row[:spared], None, None, *row[spared + 2 :])
        kept.append(row)
    return kept, num_left_out


def left_out(path: Path, num: int) -> str:
    """The line about seconds that were left out."""
    return f"records {path}: {num} left out, whose seconds are not above 0 and finite"
