"""The resources that compiled kernels use, in SQLite: every schedule point that was ever compiled for a GPU that was
not there, with its figures or the reason that there are none. Kept apart from the tuning records, because these have no
seconds."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chanas.compiler.backends import backend_of
from chanas.compiler.cuda.build import CompileRecord
from chanas.compiler.cuda.nvrtc import KernelFigures
from chanas.compiler.space import read_point
from chanas.core.target import HardwareTarget, tvm_version
from chanas.errors import CheckpointError

SCHEMA = 1
_TABLE = """CREATE TABLE IF NOT EXISTS kernels (
    device TEXT NOT NULL, workload TEXT NOT NULL, point TEXT NOT NULL, registers INTEGER, spill_stores INTEGER,
    spill_loads INTEGER, shared INTEGER, code INTEGER, error TEXT, build REAL NOT NULL, created REAL NOT NULL,
    PRIMARY KEY (device, workload, point))"""


class CompileStore:
    """Compile records of one architecture, descriptor, pair of compilers and version of the spaces, in a file that may
    hold several.

    Raises:
        CheckpointError: the file is not such a database, or cannot be written.
    """

    def __init__(self, path: Path, target: HardwareTarget, compiler: str) -> None:
        self.device = f"{target.required_gpu.arch}/{target.fingerprint}/tvm-{tvm_version()}/{compiler}"
        self.device += f"/space-{backend_of(target).space_version}"
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=60)
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in (0, SCHEMA):
                raise CheckpointError(
                    f"expected compile records of schema {SCHEMA}, got {version} in {path}; move the file away"
                )
            self._db.execute("PRAGMA journal_mode=WAL")
            with self._db:
                self._db.execute(_TABLE)
                self._db.execute(f"PRAGMA user_version={SCHEMA}")
        except (OSError, sqlite3.Error) as error:
            raise CheckpointError(f"compile records {path} cannot be used: {error}; move the file away") from error

    def add(self, workload: str, records: Iterable[CompileRecord]) -> None:
        """Store records in one transaction; a point that is already there is replaced."""
        rows = []
        for r in records:
            figures = [None] * 5 if r.figures is None else list(r.figures.to_json().values())
            rows.append((self.device, workload, json.dumps(r.point), *figures, r.error, r.build_s, time.time()))
        try:
            with self._db:
                self._db.executemany(f"INSERT OR REPLACE INTO kernels VALUES ({', '.join('?' * 11)})", rows)
        except sqlite3.Error as error:
            raise CheckpointError(f"compile records {self.path} cannot be written: {error}") from error

    def load(self, workload: str) -> list[CompileRecord]:
        """The records of a workload, oldest first."""
        query = """SELECT point, registers, spill_stores, spill_loads, shared, code, error, build FROM kernels
            WHERE device=? AND workload=? ORDER BY rowid"""
        try:
            return [_record(*row) for row in self._db.execute(query, (self.device, workload)).fetchall()]
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise CheckpointError(f"compile records {self.path} cannot be read: {error}; move the file away") from error

    def close(self) -> None:
        self._db.close()


def _record(point: str, *columns: Any) -> CompileRecord:
    """Convert a row. Raises ValueError: it holds something else."""
    *figures, error, build_s = columns
    is_whole = isinstance(error, str) if error is not None else all(type(number) is int for number in figures)
    if not is_whole or not isinstance(build_s, float):
        raise ValueError(f"expected figures or an error, and seconds, got {columns}")
    return CompileRecord(read_point(point), None if error is not None else KernelFigures(*figures), error, build_s)
