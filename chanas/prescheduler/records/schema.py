"""The tables of tuning records, and how a file of an older schema is brought to the newest one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from chanas.errors import CheckpointError

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
    (
        # In another dtype a device has other units, such as matrix registers.
        """CREATE TABLE uses (
            device TEXT NOT NULL, target TEXT NOT NULL, spaces INTEGER NOT NULL, dtype TEXT NOT NULL,
            PRIMARY KEY (device, dtype))""",
        """INSERT INTO uses SELECT device, target, spaces, coalesce(
            CASE WHEN json_valid(target) THEN json_extract(target, '$.dtype') END, 'float32') FROM devices""",
        "DROP TABLE devices",
        "ALTER TABLE uses RENAME TO devices",
    ),
)
SCHEMA = len(_STEPS)


def version_of(db: sqlite3.Connection) -> int:
    """The schema of an open file; 0 of an empty one."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def bring_up_to_date(db: sqlite3.Connection, path: Path) -> None:
    """Make an open file one of the newest schema.

    Raises:
        CheckpointError: it is of a newer one, and stays as it is.
    """
    version = version_of(db)
    if version > SCHEMA:
        raise CheckpointError(
            f"expected tuning records of schema {SCHEMA} or older, got {version} in {path}; "
            "use the chanas that wrote them, or move the file away"
        )
    if version < SCHEMA:
        migrate(db)


def migrate(db: sqlite3.Connection) -> None:
    """All missing steps and the new number in one transaction; another process may have been first."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        for step in _STEPS[version_of(db) :]:
            for statement in step:
                db.execute(statement)
        db.execute(f"PRAGMA user_version={SCHEMA}")
