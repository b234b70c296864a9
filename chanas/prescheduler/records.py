"""Tuning records in SQLite: every schedule point that was ever tried, with its seconds or why it failed.

Write-ahead log, one transaction per measured batch: killing the process loses at most what was being measured.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chanas.errors import CheckpointError
from chanas.prescheduler.space import Point
from chanas.target import HardwareTarget, tvm_version

SCHEMA = 1

_TABLES = """
CREATE TABLE IF NOT EXISTS records (
    workload TEXT NOT NULL, point TEXT NOT NULL, seconds REAL, spread REAL, error TEXT, created REAL NOT NULL,
    device TEXT NOT NULL, PRIMARY KEY (device, workload, point));
CREATE TABLE IF NOT EXISTS blocks (
    block TEXT NOT NULL, schedules TEXT NOT NULL, seconds REAL, spread REAL, error TEXT, created REAL NOT NULL,
    device TEXT NOT NULL, PRIMARY KEY (device, block, schedules));
"""


@dataclass(frozen=True)
class TuningRecord:
    """One tried schedule point: its seconds (median) and their spread, or the reason why there are none."""

    point: Point
    seconds: float | None
    spread_s: float | None = None
    error: str | None = None

    @property
    def is_valid(self) -> bool:
        return self.seconds is not None


@dataclass(frozen=True)
class BlockRecord:
    """One measured block with the schedules of its operators; `created` in seconds since 1970."""

    schedules: tuple[tuple[str, Point], ...]
    seconds: float | None
    spread_s: float | None = None
    error: str | None = None
    created: float = field(default_factory=time.time)


class RecordStore:
    """Records of one device (fingerprint, threads and compiler version together) in a file that may hold several.

    Raises:
        CheckpointError: the file is not a SQLite database, or one of another schema.
    """

    def __init__(self, path: Path, target: HardwareTarget) -> None:
        self.device = f"{target.fingerprint}/{target.num_threads}t/tvm-{tvm_version()}"
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=60, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise CheckpointError(f"tuning records {path} cannot be opened: {error}") from error
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        try:
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA):
                raise CheckpointError(
                    f"expected tuning records of schema {SCHEMA}, got {version} in {self.path}; move the file away"
                )
            self._db.execute("PRAGMA journal_mode=WAL")
            with self._db:
                self._db.executescript(_TABLES)
                self._db.execute(f"PRAGMA user_version={SCHEMA}")
        except sqlite3.OperationalError as error:
            raise CheckpointError(f"tuning records {self.path} cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            raise CheckpointError(f"{self.path} is not a database of tuning records ({error}); move it away") from error

    def _insert(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        try:
            with self._db:
                self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.OperationalError as error:
            raise CheckpointError(
                f"tuning records {self.path} cannot be written: {error}; what was written before is whole"
            ) from error

    def add(self, workload: str, records: Iterable[TuningRecord]) -> None:
        """Store a batch in one transaction; a point that is already there is replaced."""
        rows = [
            (workload, json.dumps(r.point), r.seconds, r.spread_s, r.error, time.time(), self.device) for r in records
        ]
        self._insert("records", rows)

    def load(self, workload: str) -> list[TuningRecord]:
        """The records of a workload on this device, oldest first."""
        rows = self._db.execute(
            "SELECT point, seconds, spread, error FROM records WHERE device=? AND workload=? ORDER BY rowid",
            (self.device, workload),
        )
        return [TuningRecord(tuple(json.loads(point)), *rest) for point, *rest in rows]

    def add_block(self, block: str, record: BlockRecord) -> None:
        """Store a measured block."""
        row = (
            block,
            json.dumps(record.schedules),
            record.seconds,
            record.spread_s,
            record.error,
            record.created,
            self.device,
        )
        self._insert("blocks", [row])

    def load_block(self, block: str, schedules: tuple[tuple[str, Point], ...]) -> BlockRecord | None:
        """The measurement of a block at given schedules, if there is one."""
        row = self._db.execute(
            "SELECT seconds, spread, error, created FROM blocks WHERE device=? AND block=? AND schedules=?",
            (self.device, block, json.dumps(schedules)),
        ).fetchone()
        return BlockRecord(schedules, *row) if row else None

    def count(self) -> tuple[int, int]:
        """Valid and failed records of this device."""
        rows = self._db.execute(
            "SELECT COUNT(seconds), COUNT(*) - COUNT(seconds) FROM records WHERE device=?", (self.device,)
        )
        valid, failed = rows.fetchone()
        return int(valid), int(failed)

    def close(self) -> None:
        self._db.close()
