"""Tuning records in SQLite: every schedule point that was ever tried, with its seconds or why it failed.

Write-ahead log, one transaction per measured batch: killing the process loses at most what was being measured.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chanas.compiler.backends import backend_of
from chanas.compiler.space import Point
from chanas.core.target import HardwareTarget, tvm_version
from chanas.errors import CheckpointError
from chanas.measuring.messages import Reading
from chanas.prescheduler.records.schema import bring_up_to_date
from chanas.prescheduler.records.tables import (
    BLOCKS,
    CANARY,
    RECORDS,
    REMEASURED,
    ROUNDS,
    RUNS,
    STOPPED,
    TABLES,
    WARM_STARTS,
    Record,
    Row,
    Table,
    fetch,
    left_out,
    read_row,
    trials,
    usable_rows,
)

logger = logging.getLogger(__name__)

UNVERSIONED_SPACES = {"llvm": 1, "cuda": 2}
"""Version of the schedule spaces that points without one in their device's key are of, by the target's kind."""

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
    def last_s(self) -> float:
        """Seconds of a point that works, by its last measurement in turns where there was one."""
        seconds = self.seconds if self.again_s is None else self.again_s
        assert seconds is not None
        return seconds

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


def own_key(target: HardwareTarget) -> str:
    """Name of a device in records that are made of it now."""
    return device_key(target, tvm_version(), backend_of(target).space_version)


def _usage(target: HardwareTarget) -> str:
    """Part of a device's key in `runs`: its dtype and batch."""
    dtype = "" if target.dtype == "float32" else f"/{target.dtype}"
    return dtype + (f"/batch-{target.batch}" if target.batch > 1 else "")


def _at(block: str, schedules: tuple[tuple[str, Point], ...]) -> Row:
    """Columns of a block of today's version at given schedules."""
    return {"block": block, "version": BLOCK_VERSION, "schedules": json.dumps(schedules)}


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
        self.device = own_key(target)
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
            bring_up_to_date(self._db, self.path)
            self._db.execute("PRAGMA journal_mode=WAL")
            # Not forced to the disk with every batch: a killed process loses nothing by that, a power cut a few.
            self._db.execute("PRAGMA synchronous=NORMAL")
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")  # a file that can't be written shows now, not after measuring
                self._adopt_unversioned(target)
                row = self.device, json.dumps(target.to_json()), self._spaces, target.dtype
                self._db.execute("INSERT OR IGNORE INTO devices VALUES (?, ?, ?, ?)", row)  # the oldest of its records
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
        for table in TABLES:
            usage = _usage(target) if table is RUNS else ""
            keys = new + usage, old + usage
            self._db.execute(f"UPDATE OR IGNORE {table.name} SET device = ? WHERE device = ?", keys)
        self._db.execute("UPDATE OR IGNORE warm_starts SET source = ? WHERE source = ?", (new, old))

    def _insert(self, table: Table, rows: Sequence[Row]) -> None:
        """Store rows by the names of their columns in one transaction; a new row replaces an old one of its key.

        The device is added to each.
        """
        if not rows:
            return
        rows = [{"device": self.device, **row} for row in rows]
        columns = ", ".join(rows[0])
        values = ", ".join(f":{column}" for column in rows[0])
        with self._as_one_line("written", "what was written before is whole; "), self._db:
            self._db.executemany(f"INSERT OR REPLACE INTO {table.name} ({columns}) VALUES ({values})", rows)

    def _rows(self, query: str, **arguments: object) -> list[Row]:
        with self._as_one_line("read"):
            return fetch(self._db, query, {"device": self.device, **arguments})

    def _find(self, record: type[Record], table: Table, **where: object) -> list[Record]:
        """This device's records in a table that have these values, oldest first."""
        condition = "".join(f" AND {column} = :{column}" for column in where)
        query = f"SELECT {table.selected} FROM {table.name} WHERE device = :device{condition} ORDER BY rowid"
        return self._read(record, self._rows(query, **where))

    def _read(self, record: type[Record], rows: list[Row]) -> list[Record]:
        """Rows as records; those whose seconds nothing can have taken are left out, aloud (`usable_rows`)."""
        rows, num_left_out = usable_rows(rows)
        if num_left_out and not self._was_told:
            self._was_told = True
            logger.warning("%s", left_out(self.path, num_left_out))
        with self._as_one_line("read"):
            return [read_row(record, row) for row in rows]

    @contextlib.contextmanager
    def _as_one_line(self, verb: str, note: str = "") -> Iterator[None]:
        """Raise what fails as a CheckpointError that says what cannot be done, and what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            said = f"tuning records {self.path} cannot be {verb}: {error}; {note}{_remedy(error)}"
            raise CheckpointError(said) from error
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"tuning records {self.path} are damaged ({error}); save what can be read with `sqlite3 FILE "
                ".recover`, or move the file away"
            ) from error

    def add(self, workload: str, records: Iterable[TuningRecord]) -> None:
        """Store a batch in one transaction; a point that is already there is replaced."""
        now = time.time()
        rows = [{"workload": workload, "created": now, **RECORDS.row(record)} for record in records]
        self._insert(RECORDS, rows)
        self.num_added += len(rows)

    def add_remeasured(self, workload: str, records: Sequence[TuningRecord]) -> None:
        """Store the figures of one measurement in turns beside the first ones; the newest of them count."""
        now = time.time()
        rows = [{"workload": workload, "created": now, **REMEASURED.row(record)} for record in records]
        self._insert(REMEASURED, rows)

    def load(self, workload: str) -> list[TuningRecord]:
        """The records of a workload on this device, oldest first, with the figures of the last measurement in turns."""
        query = trials("records.device = :device AND records.workload = :workload")
        return self._read(TuningRecord, self._rows(query, workload=workload))

    def add_block(self, block: str, record: BlockRecord) -> None:
        """Store a measured block."""
        self._insert(BLOCKS, [{"block": block, "version": BLOCK_VERSION, **BLOCKS.row(record)}])

    def load_block(self, block: str, schedules: tuple[tuple[str, Point], ...]) -> BlockRecord | None:
        """The measurement of a block of today's version at given schedules, if there is one."""
        found = self._find(BlockRecord, BLOCKS, **_at(block, schedules))
        return found[0] if found else None

    def add_round(self, block: str, record: BlockRecord) -> None:
        """Store one of the rounds that a block is timed in. What `load_block` finds are medians of all rounds alone."""
        self._insert(ROUNDS, [{"block": block, "version": BLOCK_VERSION, **ROUNDS.row(record)}])

    def load_rounds(self, block: str, schedules: tuple[tuple[str, Point], ...]) -> list[BlockRecord]:
        """The rounds of a block of today's version at given schedules, oldest first."""
        return self._find(BlockRecord, ROUNDS, **_at(block, schedules))

    def stop(self, workload: str, num_trials: int, expected: float, noise: float) -> None:
        """Note that after `num_trials` points no improvement above the noise was expected of a workload any more."""
        row = {"num_trials": num_trials, "expected": expected, "noise": noise}
        self._insert(STOPPED, [{"workload": workload, "created": time.time(), **row}])

    def num_trials_at_stop(self, workload: str) -> int | None:
        """Return the number of points after which a workload was given up last; None if it never was."""
        query = "SELECT num_trials FROM stopped WHERE device = :device AND workload = :workload"
        rows = self._rows(query, workload=workload)
        return int(rows[0]["num_trials"]) if rows else None

    def note_warm_starts(self, notes: Mapping[str, WarmStartNote]) -> None:
        """Store what another device's records were to workloads, by their keys."""
        now = time.time()
        rows = [{"workload": w, "created": now, **WARM_STARTS.row(note)} for w, note in notes.items()]
        self._insert(WARM_STARTS, rows)

    def warm_starts(self, workloads: Collection[str]) -> tuple[dict[str, Any], ...]:
        """Sum up the use of other devices' records for these workloads, for the header of a table."""
        query = "SELECT workload, source, digest, dropped FROM warm_starts WHERE device = :device ORDER BY 2, 3"
        found: dict[tuple[str, str], list[int]] = {}
        for row in self._rows(query):
            if row["workload"] in workloads:
                found.setdefault((row["source"], row["digest"]), []).append(row["dropped"])
        return tuple(
            {"source": source, "digest": digest, "num_operators": len(dropped), "num_dropped": sum(dropped)}
            for (source, digest), dropped in found.items()
        )

    def note_work(self, started: float, work: Work) -> None:
        """Store what a run took so far; `started` (seconds since 1970) tells it from others, and says it again."""
        self._insert(RUNS, [{"device": self._target, "started": started, **RUNS.row(work)}])

    def total_work(self) -> Work:
        """Time and work of all runs for this target together."""
        query = "SELECT total(wall) AS wall_s, total(timing) AS timing_s, total(building) AS building_s FROM runs"
        (row,) = self._rows(f"{query} WHERE device = :target", target=self._target)
        return Work(**row)

    def add_canary(self, reading: Reading) -> None:
        """Store a reading of the canary."""
        self._insert(CANARY, [CANARY.row(reading)])

    def load_canary(self) -> list[Reading]:
        """All readings of the canary on this device, oldest first."""
        return self._find(Reading, CANARY)

    def count(self) -> tuple[int, int]:
        """Valid and failed records of this device."""
        query = "SELECT COUNT(seconds) AS valid, COUNT(*) AS tried FROM records WHERE device = :device"
        (row,) = self._rows(query)
        return row["valid"], row["tried"] - row["valid"]

    def most_frequent_error(self) -> str | None:
        """The commonest error of this device's records and blocks without seconds."""
        rows = self._rows(
            """SELECT error FROM (SELECT error FROM records WHERE device = :device UNION ALL
            SELECT error FROM blocks WHERE device = :device) WHERE error IS NOT NULL
            GROUP BY error ORDER BY COUNT(*) DESC, error LIMIT 1"""
        )
        return str(rows[0]["error"]) if rows else None

    def close(self) -> None:
        self._db.close()
