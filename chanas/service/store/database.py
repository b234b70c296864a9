"""The service's SQLite file: one thread writes, in short transactions, and whoever reads waits for nobody."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from chanas.errors import CheckpointError, one_line

_SCHEMA = (
    """CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, key TEXT,
        digest TEXT NOT NULL, kind TEXT NOT NULL, request TEXT NOT NULL, content TEXT NOT NULL, effort TEXT NOT NULL,
        target TEXT NOT NULL, priority INTEGER NOT NULL, deadline REAL, state TEXT NOT NULL, wanted TEXT NOT NULL,
        attempt INTEGER NOT NULL, created REAL NOT NULL, started REAL, ended REAL, error TEXT, result TEXT,
        latency REAL, accuracy REAL, bundle TEXT, progress TEXT)""",
    "CREATE UNIQUE INDEX jobs_by_key ON jobs (tenant, key) WHERE key IS NOT NULL",
    "CREATE INDEX jobs_of_tenant ON jobs (tenant, seq)",
    "CREATE INDEX jobs_open ON jobs (state, priority, seq) WHERE state IN ('queued', 'running')",
    "CREATE INDEX jobs_known ON jobs (content, latency) WHERE state = 'complete' AND bundle IS NOT NULL",
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, at REAL NOT NULL, what TEXT NOT NULL)""",
    "CREATE INDEX events_of_job ON events (job, seq)",
    """CREATE TABLE uploads (
        sha256 TEXT NOT NULL, tenant TEXT NOT NULL, num_bytes INTEGER NOT NULL, created REAL NOT NULL,
        PRIMARY KEY (sha256, tenant))""",
    "CREATE TABLE tokens (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, hash TEXT NOT NULL, created REAL NOT NULL)",
    """CREATE TABLE use (
        resource TEXT NOT NULL, unit INTEGER NOT NULL, minute INTEGER NOT NULL, busy REAL NOT NULL,
        PRIMARY KEY (minute, resource, unit))""",
)
SCHEMA = 1
_MAX_BATCH = 256

T = TypeVar("T")
Change = Callable[[sqlite3.Connection], T]
"""Reads and writes in a transaction; its error undoes what it alone has written."""


class Database:
    """An open file. Changes that are waiting share a transaction, so that many of them cost one write to the disk.

    Raises:
        CheckpointError: it is no such file, of a newer schema, or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.committed: Callable[[], None] = lambda: None
        """Called by the writing thread after each transaction."""
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._changes: queue.SimpleQueue[tuple[Change[Any], Future[Any]] | None] = queue.SimpleQueue()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = self._connect()
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise CheckpointError(f"the database {path} cannot be used: {one_line(error)}") from error
        self._thread = threading.Thread(target=self._write_all, name="database", daemon=True)
        self._thread.start()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        db.row_factory = sqlite3.Row
        self._opened.append(db)
        return db

    def _prepare(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA:
            raise CheckpointError(
                f"expected a database of schema {SCHEMA} or older, got {version} in {self.path}; use the chanas that "
                "wrote it, or another --data"
            )
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")  # what a client was told is kept, if the power fails, too
        self._db.execute("BEGIN IMMEDIATE")
        if not self._db.execute("PRAGMA user_version").fetchone()[0]:
            for statement in _SCHEMA:
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version={SCHEMA}")
        self._db.execute("COMMIT")

    def read(self) -> sqlite3.Connection:
        """This thread's connection for reading: it sees everything that was committed."""
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = self._connect()
            db.execute("PRAGMA query_only=1")
        return db

    def write(self, change: Change[T]) -> Future[T]:
        """Make a change; the future is done when it is on the disk."""
        future: Future[T] = Future()
        self._changes.put((change, future))
        return future

    def close(self) -> None:
        """Make the changes that are waiting, and close the file."""
        self._changes.put(None)
        self._thread.join()
        for db in self._opened:
            db.close()

    def _write_all(self) -> None:
        while (first := self._changes.get()) is not None:
            batch = [first]
            while len(batch) < _MAX_BATCH and not self._changes.empty():
                following = self._changes.get()
                if following is None:
                    self._changes.put(None)
                    break
                batch.append(following)
            self._write([item for item in batch if item[1].set_running_or_notify_cancel()])
            self.committed()

    def _write(self, batch: list[tuple[Change[Any], Future[Any]]]) -> None:
        ended: list[tuple[Future[Any], Any, Exception | None]] = []
        try:
            self._db.execute("BEGIN IMMEDIATE")
            ended = [(future, *self._tried(change)) for change, future in batch]
            self._db.execute("COMMIT")
        except sqlite3.Error as error:  # no space, say: nothing of the batch was written
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            fault = CheckpointError(f"the database {self.path} cannot be written: {one_line(error)}")
            fault.__cause__ = error
            ended = [(future, None, fault) for _, future in batch]
        for future, result, fault_of_one in ended:
            if fault_of_one is None:
                future.set_result(result)
            else:
                future.set_exception(fault_of_one)

    def _tried(self, change: Change[T]) -> tuple[T | None, Exception | None]:
        self._db.execute("SAVEPOINT one")
        try:
            result = change(self._db)
        except sqlite3.OperationalError:
            raise
        except Exception as error:
            self._db.execute("ROLLBACK TO one")
            self._db.execute("RELEASE one")
            return None, error
        self._db.execute("RELEASE one")
        return result, None
