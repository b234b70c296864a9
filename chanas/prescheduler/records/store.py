"""Tuning records in SQLite: every schedule point that was ever tried, with its seconds or why it failed.

Write-ahead log, one transaction per measured batch: killing the process loses at most what was being measured.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from chanas.compiler.backends import backend_of
from chanas.compiler.space import Point, read_point
from chanas.core.target import HardwareTarget, tvm_version
from chanas.errors import CheckpointError
from chanas.measuring.messages import Reading
from chanas.prescheduler.records.schema import SCHEMA, left_out, migrate, usable_rows, version_of

logger = logging.getLogger(__name__)

UNVERSIONED_SPACES = {"llvm": 1, "cuda": 2}
"""Version of the schedule spaces that points without one in their device's key are of, by the target's kind."""
_TABLES_OF_DEVICE = ("records", "blocks", "remeasured", "canary", "stopped", "rounds", "devices", "warm_starts")

BLOCK_VERSION = 4
"""Version of the way a block is compiled and timed. Records of another version are kept, but are no measurement of
today's blocks.

1  an array for each operator's weights and each one's biases
2  one array for all parameters of a block
3  compiled by chanas' own passes
4  timed in three rounds
"""


@dataclass(frozen=True)
class TuningRecord:
    """One tried schedule point: its seconds (median) and their spread, or the reason why there are none.

    `again_s`, `again_spread_s` and `again_error` are the same, from the last time that the best points of the workload
    were measured in turns (`remeasure`); None if it took no part. `drift` is the canary's correction, by which the
    seconds have been divided. `code` identifies the machine code that the point is compiled to; if an earlier point
    compiled to the same code, `same_as` is that point and its seconds (or its error) are reused.
    """

    point: Point
    seconds: float | None
    spread_s: float | None = None
    error: str | None = None
    again_s: float | None = None
    again_spread_s: float | None = None
    again_error: str | None = None
    drift: float = 1.0
    code: str | None = None
    same_as: Point | None = None

    @property
    def is_valid(self) -> bool:
        return self.seconds is not None

    @property
    def was_remeasured(self) -> bool:
        """True if it took part in the last measurement in turns, and worked or failed there."""
        return self.again_s is not None or self.again_error is not None


@dataclass(frozen=True)
class BlockRecord:
    """One measured block with the schedules of its operators; `created` in seconds since 1970."""

    schedules: tuple[tuple[str, Point], ...]
    seconds: float | None
    spread_s: float | None = None
    error: str | None = None
    created: float = field(default_factory=time.time)
    drift: float = 1.0


@dataclass(frozen=True)
class Work:
    """Seconds of a run by the clock, and those in which the device was timing; `building_s` is a sum over workers."""

    wall_s: float = 0.0
    timing_s: float = 0.0
    building_s: float = 0.0


@dataclass(frozen=True)
class WarmStartNote:
    """The use of another device's records for one operator; `tau` is None until its first points were measured."""

    source: str
    digest: str
    num_records: int
    tau: float | None
    dropped: bool


def device_key(target: HardwareTarget, compiler: str, spaces: int | None) -> str:
    """Name of a device in records: fingerprint, threads, versions of the compiler and of the schedule `spaces`, and the
    place of one elsewhere. Records of schema 9 and older say nothing of the spaces: None."""
    version = "" if spaces is None else f"/space-{spaces}"
    place = target.name.partition("@")[2]  # a device elsewhere is another one, even of the same kind
    return f"{target.fingerprint}/{target.num_threads}t/tvm-{compiler}{version}" + (f"@{place}" if place else "")


def _usage(target: HardwareTarget) -> str:
    """Part of a device's key in `runs`: its dtype and batch."""
    dtype = "" if target.dtype == "float32" else f"/{target.dtype}"
    return dtype + (f"/batch-{target.batch}" if target.batch > 1 else "")


def _tuning_record(point: str, *figures: Any) -> TuningRecord:
    """Convert a row whose last column is `same_as`."""
    same_as = None if figures[-1] is None else read_point(figures[-1])
    return replace(TuningRecord(read_point(point), *figures[:-1]), same_as=same_as)


def _remedy(error: Exception) -> str:
    """Return the remedy for an error that is not the file's own fault."""
    text = str(error)
    if "full" in text or "disk I/O" in text:
        return "free some space and run the same command again"
    if "locked" in text:
        return "end the process that uses it and run the same command again"
    if "readonly" in text or "open" in text or isinstance(error, OSError):
        return "set its permissions and those of its folder, or use another --run"
    return "run the same command again"


class RecordStore:
    """Records of one device (fingerprint, threads, versions of the compiler and of the schedule spaces together) in a
    file that may hold several.

    A file of an older schema is brought to the newest one. `num_added` counts the trials that were added through it.

    Raises:
        CheckpointError: the file is not a SQLite database, or one of a newer schema.
    """

    def __init__(self, path: Path, target: HardwareTarget) -> None:
        self._spaces = backend_of(target).space_version
        self.device = device_key(target, tvm_version(), self._spaces)
        self._target = self.device + _usage(target)
        self.path = path
        self.num_added = 0
        self._was_told = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=60, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise CheckpointError(f"tuning records {path} cannot be opened: {error}; {_remedy(error)}") from error
        try:
            self._prepare(target)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, target: HardwareTarget) -> None:
        try:
            version = version_of(self._db)
            if version > SCHEMA:
                raise CheckpointError(
                    f"expected tuning records of schema {SCHEMA} or older, got {version} in {self.path}; "
                    "use the chanas that wrote them, or move the file away"
                )
            self._db.execute("PRAGMA journal_mode=WAL")
            # Not forced to the disk with every batch: a killed process loses nothing by that, a power cut a few.
            self._db.execute("PRAGMA synchronous=NORMAL")
            if version < SCHEMA:
                migrate(self._db)
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")  # a file that can't be written shows now, not after measuring
                self._adopt_unversioned(target)
                row = self.device, json.dumps(target.to_json()), self._spaces
                self._db.execute("INSERT OR IGNORE INTO devices VALUES (?, ?, ?)", row)  # the oldest of its records
        except sqlite3.OperationalError as error:
            raise CheckpointError(f"tuning records {self.path} cannot be used: {error}; {_remedy(error)}") from error
        except sqlite3.DatabaseError as error:
            raise CheckpointError(f"{self.path} is not a database of tuning records ({error}); move it away") from error

    def _adopt_unversioned(self, target: HardwareTarget) -> None:
        """Give this device's records of schema 9 and older the key that says of which version of the spaces they are.

        Only here is it known whether the device is a processor or a GPU.
        """
        old = device_key(target, tvm_version(), None)
        new = device_key(target, tvm_version(), UNVERSIONED_SPACES[target.kind])
        for table in _TABLES_OF_DEVICE:
            self._db.execute(f"UPDATE OR IGNORE {table} SET device = ? WHERE device = ?", (new, old))
        usage = _usage(target)
        self._db.execute("UPDATE OR IGNORE runs SET device = ? WHERE device = ?", (new + usage, old + usage))
        self._db.execute("UPDATE OR IGNORE warm_starts SET source = ? WHERE source = ?", (new, old))

    def _insert(self, table: str, rows: Sequence[dict[str, object]]) -> None:
        """Rows by the names of their columns, those that they share with an old row replacing it, in one transaction.

        The device is added to each.
        """
        if not rows:
            return
        columns = list({"device": None, **rows[0]})
        values = ", ".join(f":{c}" for c in columns)
        try:
            with self._db:
                self._db.executemany(
                    f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({values})",
                    [{"device": self.device, **row} for row in rows],
                )
        except sqlite3.OperationalError as error:
            raise CheckpointError(
                f"tuning records {self.path} cannot be written: {error}; what was written before is whole; "
                f"{_remedy(error)}"
            ) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error

    def _rows(self, query: str, arguments: tuple[object, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, arguments).fetchall()
        except sqlite3.OperationalError as error:
            raise CheckpointError(f"tuning records {self.path} cannot be read: {error}; {_remedy(error)}") from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error

    def _usable(self, rows: list[tuple[Any, ...]], place: int, spared: int | None = None) -> list[tuple[Any, ...]]:
        """Leave out the rows whose seconds nothing can have taken, aloud; see `usable_rows`."""
        kept, num_left_out = usable_rows(rows, place, spared)
        if num_left_out and not self._was_told:
            self._was_told = True
            logger.warning("%s", left_out(self.path, num_left_out))
        return kept

    def _damaged(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"tuning records {self.path} are damaged ({error}); save what can be read with `sqlite3 FILE .recover`, "
            "or move the file away"
        )

    def add(self, workload: str, records: Iterable[TuningRecord]) -> None:
        """Store a batch in one transaction; a point that is already there is replaced."""
        now = time.time()
        rows: list[dict[str, object]] = [
            {
                "workload": workload,
                "point": json.dumps(r.point),
                "seconds": r.seconds,
                "spread": r.spread_s,
                "error": r.error,
                "created": now,
                "drift": r.drift,
                "code": r.code,
                "same_as": None if r.same_as is None else json.dumps(r.same_as),
            }
            for r in records
        ]
        self._insert("records", rows)
        self.num_added += len(rows)

    def add_remeasured(self, workload: str, records: Iterable[TuningRecord]) -> None:
        """Store the figures of one measurement in turns beside the first ones; the newest of them count."""
        now = time.time()
        rows: list[dict[str, object]] = [
            {
                "workload": workload,
                "point": json.dumps(r.point),
                "seconds": r.again_s,
                "spread": r.again_spread_s,
                "error": r.again_error,
                "created": now,
            }
            for r in records
        ]
        self._insert("remeasured", rows)

    def load(self, workload: str) -> list[TuningRecord]:
        """The records of a workload on this device, oldest first, with the figures of the last measurement in turns."""
        rows = self._rows(
            """SELECT r.point, r.seconds, r.spread, r.error, a.seconds, a.spread, a.error, r.drift, r.code, r.same_as
            FROM records AS r LEFT JOIN remeasured AS a
            ON a.device = r.device AND a.workload = r.workload AND a.point = r.point AND a.created =
                (SELECT MAX(created) FROM remeasured WHERE device = r.device AND workload = r.workload)
            WHERE r.device = ? AND r.workload = ? ORDER BY r.rowid""",
            (self.device, workload),
        )
        try:
            return [_tuning_record(*row) for row in self._usable(rows, 1, spared=4)]
        except (TypeError, ValueError) as error:
            raise self._damaged(error) from error

    def add_block(self, block: str, record: BlockRecord) -> None:
        """Store a measured block."""
        row: dict[str, object] = {
            "block": block,
            "schedules": json.dumps(record.schedules),
            "seconds": record.seconds,
            "spread": record.spread_s,
            "error": record.error,
            "created": record.created,
            "drift": record.drift,
            "version": BLOCK_VERSION,
        }
        self._insert("blocks", [row])

    def load_block(self, block: str, schedules: tuple[tuple[str, Point], ...]) -> BlockRecord | None:
        """The measurement of a block of today's version at given schedules, if there is one."""
        rows = self._rows(
            """SELECT seconds, spread, error, created, drift FROM blocks
            WHERE device=? AND version=? AND block=? AND schedules=?""",
            (self.device, BLOCK_VERSION, block, json.dumps(schedules)),
        )
        rows = self._usable(rows, 0)
        return BlockRecord(schedules, *rows[0]) if rows else None

    def add_round(self, block: str, record: BlockRecord) -> None:
        """Store one of the rounds that a block is timed in. What `load_block` finds are medians of all rounds alone."""
        row: dict[str, object] = {
            "block": block,
            "schedules": json.dumps(record.schedules),
            "seconds": record.seconds,
            "spread": record.spread_s,
            "created": record.created,
            "drift": record.drift,
            "version": BLOCK_VERSION,
        }
        self._insert("rounds", [row])

    def load_rounds(self, block: str, schedules: tuple[tuple[str, Point], ...]) -> list[BlockRecord]:
        """The rounds of a block of today's version at given schedules, oldest first."""
        rows = self._rows(
            """SELECT seconds, spread, NULL, created, drift FROM rounds
            WHERE device=? AND version=? AND block=? AND schedules=? ORDER BY rowid""",
            (self.device, BLOCK_VERSION, block, json.dumps(schedules)),
        )
        return [BlockRecord(schedules, *row) for row in self._usable(rows, 0)]

    def stop(self, workload: str, num_trials: int, expected: float, noise: float) -> None:
        """Note that after `num_trials` points no improvement above the noise was expected of a workload any more."""
        row: dict[str, object] = {
            "workload": workload,
            "num_trials": num_trials,
            "expected": expected,
            "noise": noise,
            "created": time.time(),
        }
        self._insert("stopped", [row])

    def num_trials_at_stop(self, workload: str) -> int | None:
        """Return the number of points after which a workload was given up last; None if it never was."""
        rows = self._rows("SELECT num_trials FROM stopped WHERE device=? AND workload=?", (self.device, workload))
        return int(rows[0][0]) if rows else None

    def note_warm_starts(self, notes: Mapping[str, WarmStartNote]) -> None:
        """Store what another device's records were to workloads, by their keys."""
        now = time.time()
        rows: list[dict[str, object]] = [
            {"workload": workload, **asdict(note), "dropped": int(note.dropped), "created": now}
            for workload, note in notes.items()
        ]
        self._insert("warm_starts", rows)

    def warm_starts(self, workloads: Collection[str]) -> tuple[dict[str, Any], ...]:
        """Sum up the use of other devices' records for these workloads, for the header of a table."""
        query = "SELECT workload, source, digest, dropped FROM warm_starts WHERE device=? ORDER BY source, digest"
        found: dict[tuple[str, str], list[int]] = {}
        for workload, source, digest, dropped in self._rows(query, (self.device,)):
            if workload in workloads:
                found.setdefault((source, digest), []).append(dropped)
        return tuple(
            {"source": source, "digest": digest, "num_operators": len(dropped), "num_dropped": sum(dropped)}
            for (source, digest), dropped in found.items()
        )

    def note_work(self, started: float, work: Work) -> None:
        """Store what a run took so far; `started` (seconds since 1970) tells it from others, and says it again."""
        row: dict[str, object] = {
            "device": self._target,
            "started": started,
            "wall": work.wall_s,
            "timing": work.timing_s,
            "building": work.building_s,
        }
        self._insert("runs", [row])

    def total_work(self) -> Work:
        """Time and work of all runs for this target together."""
        query = "SELECT sum(wall), sum(timing), sum(building) FROM runs WHERE device=?"
        (row,) = self._rows(query, (self._target,))
        return Work(*(value or 0.0 for value in row))

    def add_canary(self, reading: Reading) -> None:
        """Store a reading of the canary."""
        row: dict[str, object] = {
            "seconds": reading.seconds,
            "spread": reading.spread_s,
            "drift": reading.drift,
            "created": reading.created,
        }
        self._insert("canary", [row])

    def load_canary(self) -> list[Reading]:
        """All readings of the canary on this device, oldest first."""
        rows = self._rows(
            "SELECT seconds, spread, drift, created FROM canary WHERE device=? ORDER BY rowid", (self.device,)
        )
        return [Reading(*row) for row in self._usable(rows, 0)]

    def count(self) -> tuple[int, int]:
        """Valid and failed records of this device."""
        query = "SELECT COUNT(seconds), COUNT(*) - COUNT(seconds) FROM records WHERE device=?"
        ((valid, failed),) = self._rows(query, (self.device,))
        return int(valid), int(failed)

    def most_frequent_error(self) -> str | None:
        """The commonest error of this device's records and blocks without seconds."""
        rows = self._rows(
            """SELECT error FROM (SELECT error FROM records WHERE device=? UNION ALL
            SELECT error FROM blocks WHERE device=?) WHERE error IS NOT NULL
            GROUP BY error ORDER BY COUNT(*) DESC, error LIMIT 1""",
            (self.device, self.device),
        )
        return str(rows[0][0]) if rows else None

    def close(self) -> None:
        self._db.close()
