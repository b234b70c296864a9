"""Records of one file added to another: nothing is lost, and adding them twice changes nothing.

Of the same point, block or operator the newer measurement is kept, as where both are made in one file.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from chanas.errors import CheckpointError, one_line
from chanas.prescheduler.records.schema import SCHEMA, migrate, version_of

_KEYS = {
    "records": ("device", "workload", "point"),
    "blocks": ("device", "version", "block", "schedules"),
    "stopped": ("device", "workload"),
    "warm_starts": ("device", "workload", "source"),
}
"""Tables with one row for each of these: the newest."""
_ROWS = ("remeasured", "canary", "rounds", "devices")
"""Tables of which each row is kept."""
_WORK = "runs"
"""Work of runs, whose figures grow."""


def merge_records(source: Path, into: Path, device: str | None = None) -> None:
    """Add the records of `source` to the file `into`, which is made where there is none, in one transaction.

    Args:
        device: the key of the only device whose records are taken, without the work that they took; None: everything.

    Raises:
        CheckpointError: one of the files is no database of records, is of a newer schema, or cannot be written.
    """
    if not source.is_file():
        return
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        _migrate(source)
        db = sqlite3.connect(into, timeout=60, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            _migrate_open(db, into)
            db.execute("ATTACH ? AS other", (str(source),))
            db.execute("BEGIN IMMEDIATE")
            for statement in _statements(db, device is None):
                db.execute(statement, {"device": device})
            db.execute("COMMIT")
        finally:
            db.close()
    except (OSError, sqlite3.Error) as error:
        raise CheckpointError(
            f"records of {source} cannot be added to {into}: {one_line(error)}; both are as they were"
        ) from error


def _migrate(path: Path) -> None:
    db = sqlite3.connect(path, timeout=60)
    try:
        _migrate_open(db, path)
    finally:
        db.close()


def _migrate_open(db: sqlite3.Connection, path: Path) -> None:
    version = version_of(db)
    if version > SCHEMA:
        raise CheckpointError(f"expected tuning records of schema {SCHEMA} or older, got {version} in {path}")
    if version < SCHEMA:
        migrate(db)


def _statements(db: sqlite3.Connection, with_work: bool) -> list[str]:
    """SQL that adds the tables of `other`, in the order in which their rows were made."""
    mine = "(:device IS NULL OR o.device = :device)"
    found = []
    for table, key in _KEYS.items():
        names = _columns(db, table)
        values = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
        found.append(
            f"INSERT INTO main.{table} ({', '.join(names)}) SELECT {', '.join(names)} FROM other.{table} AS o "
            f"WHERE {mine} ORDER BY o.rowid ON CONFLICT ({', '.join(key)}) DO UPDATE SET {values} "
            f"WHERE excluded.created > main.{table}.created"
        )
    for table in _ROWS:
        columns = ", ".join(_columns(db, table))
        new = f"SELECT {columns} FROM other.{table} AS o WHERE {mine} EXCEPT SELECT {columns} FROM main.{table}"
        order = "ORDER BY created" if "created" in columns else ""
        found.append(f"INSERT OR IGNORE INTO main.{table} ({columns}) SELECT {columns} FROM ({new}) {order}")
    if with_work:
        columns = ", ".join(_columns(db, _WORK))
        found.append(
            f"INSERT INTO main.{_WORK} ({columns}) SELECT {columns} FROM other.{_WORK} WHERE true "
            "ON CONFLICT (device, started) DO UPDATE SET wall = max(wall, excluded.wall), "
            "timing = max(timing, excluded.timing), building = max(building, excluded.building)"
        )
    return found


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [name for _, name, *_ in db.execute(f"PRAGMA main.table_info({table})")]
