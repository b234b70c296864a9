"""Records of one file added to another: nothing is lost, and adding them twice changes nothing.

Of the same point, block or operator the newer measurement is kept, as where both are made in one file.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from chanas.errors import CheckpointError, one_line
from chanas.prescheduler.records.schema import bring_up_to_date
from chanas.prescheduler.records.tables import RUNS, TABLES


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
        with contextlib.closing(sqlite3.connect(source, timeout=60)) as db:
            bring_up_to_date(db, source)
        with contextlib.closing(sqlite3.connect(into, timeout=60, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode=WAL")
            bring_up_to_date(db, into)
            db.execute("ATTACH ? AS other", (str(source),))
            db.execute("BEGIN IMMEDIATE")
            for statement in _statements(db, device is None):
                db.execute(statement, {"device": device})
            db.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        raise CheckpointError(
            f"records of {source} cannot be added to {into}: {one_line(error)}; both are as they were"
        ) from error


def _statements(db: sqlite3.Connection, with_work: bool) -> list[str]:
    """SQL that adds the tables of `other`, in the order in which their rows were made: of those with a key the newest
    row, of others each one, of the work of runs, whose figures grow, the largest."""
    mine = "(:device IS NULL OR o.device = :device)"
    found = []
    for table in TABLES:
        names = [name for _, name, *_ in db.execute(f"PRAGMA main.table_info({table.name})")]
        columns, key = ", ".join(names), ", ".join(table.key)
        insert = f"INTO main.{table.name} ({columns}) SELECT {columns} FROM"
        values = [name for name in names if name not in table.key]
        if table is RUNS:
            largest = ", ".join(f"{name} = max({name}, excluded.{name})" for name in values)
            if with_work:
                found.append(f"INSERT {insert} other.runs WHERE true ON CONFLICT ({key}) DO UPDATE SET {largest}")
        elif key:
            newer = ", ".join(f"{name} = excluded.{name}" for name in values)
            found.append(
                f"INSERT {insert} other.{table.name} AS o WHERE {mine} ORDER BY o.rowid ON CONFLICT ({key}) "
                f"DO UPDATE SET {newer} WHERE excluded.created > main.{table.name}.created"
            )
        else:
            new = f"SELECT {columns} FROM other.{table.name} AS o WHERE {mine}"
            order = "ORDER BY created" if "created" in names else ""
            found.append(f"INSERT OR IGNORE {insert} ({new} EXCEPT SELECT {columns} FROM main.{table.name}) {order}")
    return found
