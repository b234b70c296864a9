"""Jobs in the database: each change of one is a short transaction, and whatever is not in the file has not happened.

A job is queued, running, and then complete, failed or cancelled. Who claims a queued job makes another attempt at it;
an attempt alone can end it, and only while it is the newest. `wanted` says what its owner has asked for meanwhile.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from chanas.errors import ServiceError
from chanas.service.store.database import Database

QUEUED, RUNNING, COMPLETE, FAILED, CANCELLED = "queued", "running", "complete", "failed", "cancelled"
PAUSED = "paused"
"""Told of a queued job that its owner has paused."""
ENDED = (COMPLETE, FAILED, CANCELLED)
NOTHING, PAUSE, CANCEL = "", "pause", "cancel"

MAX_SEQ = (1 << 63) - 1
"""The largest number of a job or an event that the database knows."""

_ID_BYTES = 10


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job as it is submitted.

    key      the tenant's own name for this submission: another one of the same key is the same job
    digest   of the request
    content  what it is about and where it runs: whoever asks for the same content can be given the same bundle
    effort   digest of all that the result depends on, the content aside
    goals    most seconds and least accuracy, where whatever reaches these will do; None: only the same effort will
    reuse    what is there already may answer it
    """

    tenant: str
    key: str | None
    digest: str
    kind: str
    request: Mapping[str, Any]
    content: str
    effort: str
    target: str
    priority: int = 0
    deadline: float | None = None
    goals: tuple[float | None, float | None] | None = None
    reuse: bool = True


@dataclass(frozen=True)
class Claimed:
    """A job that is to run now; `deadline` in seconds since 1970."""

    id: str
    tenant: str
    attempt: int
    request: dict[str, Any]
    target: str
    priority: int
    deadline: float | None

    @property
    def name(self) -> str:
        """Unlike that of any other attempt: a job may begin again before its last attempt has been cleared away."""
        return attempt_name(self.id, self.attempt)


def attempt_name(job: str, attempt: int) -> str:
    """The name of an attempt at a job; what is before the dot is the job's id."""
    return f"{job}.{attempt}"


@dataclass(frozen=True)
class Made:
    """The end of a job that went well.

    facts   told to its owner
    bundle  there is one
    """

    facts: Mapping[str, Any]
    latency_s: float | None = None
    accuracy: float | None = None
    bundle: bool = True


class JobStore:
    """The jobs of a database. Methods that change something return futures, which are done when it is on the disk."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock
        self._listeners: list[Callable[[frozenset[str]], None]] = []
        self._touched: set[str] = set()  # of the writing thread
        database.committed = self._tell

    def listen(self, listener: Callable[[frozenset[str]], None]) -> None:
        """Call a function, from the writing thread, with the ids of jobs that have changed."""
        self._listeners.append(listener)

    def _tell(self) -> None:
        touched, self._touched = frozenset(self._touched), set()
        if touched:
            for listener in self._listeners:
                listener(touched)

    def _note(self, db: sqlite3.Connection, job: str, what: str) -> None:
        self._touched.add(job)
        db.execute("INSERT INTO events (job, at, what) VALUES (?, ?, ?)", (job, self._clock(), what))

    # Changes by tenants

    def submit(self, new: NewJob, max_open: int) -> Future[tuple[str, bool]]:
        """Take a job in; the id, and whether it is new.

        Raises:
            ServiceError: the key is that of another request (409), or the tenant has too many open jobs (429).
        """

        def change(db: sqlite3.Connection) -> tuple[str, bool]:
            if new.key is not None:
                row = db.execute(
                    "SELECT id, digest FROM jobs WHERE tenant=? AND key=?", (new.tenant, new.key)
                ).fetchone()
                if row is not None:
                    if row["digest"] != new.digest:
                        raise ServiceError("this Idempotency-Key is that of another request; take a new one", 409)
                    return str(row["id"]), False
            known = _known(db, new) if new.reuse else None
            if known is None:
                query = "SELECT COUNT(*) FROM jobs WHERE tenant=? AND state IN ('queued', 'running')"
                if db.execute(query, (new.tenant,)).fetchone()[0] >= max_open:
                    raise ServiceError(f"you have {max_open} jobs that have not ended; wait for some of them", 429)
            return self._insert(db, new, known), True

        return self._database.write(change)

    def _insert(self, db: sqlite3.Connection, new: NewJob, known: sqlite3.Row | None) -> str:
        now, job = self._clock(), secrets.token_hex(_ID_BYTES)
        row: dict[str, object] = {
            "id": job,
            "tenant": new.tenant,
            "key": new.key,
            "digest": new.digest,
            "kind": new.kind,
            "request": json.dumps(new.request),
            "content": new.content,
            "effort": new.effort,
            "target": new.target,
            "priority": new.priority,
            "deadline": new.deadline,
            "state": QUEUED,
            "wanted": NOTHING,
            "attempt": 0,
            "created": now,
        }
        if known is not None:
            result = {**json.loads(known["result"]), "at_once": True}
            if new.goals is not None:  # else its effort, and with it the demand, is that of the known one
                result["met"] = True
            row |= {"state": COMPLETE, "ended": now, "result": json.dumps(result)}
            row |= {name: known[name] for name in ("latency", "accuracy", "bundle")}
        names = ", ".join(row)
        db.execute(f"INSERT INTO jobs ({names}) VALUES ({', '.join(f':{name}' for name in row)})", row)
        self._note(db, job, str(row["state"]))
        return job

    def want(self, tenant: str, job: str, wanted: str) -> Future[str]:
        """Ask for a cancelled, paused, or (`NOTHING`) resumed job; its state then. A queued one is at once what it is
        asked to be; a running one as soon as its processes have ended.

        Raises:
            ServiceError: there is no such job (404), or it has ended otherwise (409).
        """

        def change(db: sqlite3.Connection) -> str:
            row = _row(db, tenant, job)
            if row["state"] == CANCELLED and wanted == CANCEL:
                return CANCELLED
            if row["state"] in ENDED:
                raise ServiceError(f"job {job} has ended: it is {row['state']}", 409)
            if row["wanted"] == wanted:
                return state_of(row)
            if row["wanted"] == CANCEL:
                raise ServiceError(f"job {job} is being cancelled", 409)
            if row["state"] == QUEUED and wanted == CANCEL:
                self._end(db, job, CANCELLED)
                return CANCELLED
            db.execute("UPDATE jobs SET wanted=? WHERE id=?", (wanted, job))
            now = state_of(_row(db, tenant, job))
            self._note(db, job, now)
            return now

        return self._database.write(change)

    # Changes by whoever runs them

    def recover(self) -> Future[int]:
        """Put whatever was running back into the queue, as nothing runs at the service's start; how many these were."""

        def change(db: sqlite3.Connection) -> int:
            rows = db.execute("SELECT id, wanted FROM jobs WHERE state='running'").fetchall()
            for row in rows:
                self._put_back(db, row)
            return len(rows)

        return self._database.write(change)

    def claim(self) -> Future[Claimed | None]:
        """Begin the next attempt of the queued job whose turn it is: of the highest priority, of the tenant with the
        fewest running, the oldest. None where there is none."""

        def change(db: sqlite3.Connection) -> Claimed | None:
            row = db.execute(
                """WITH busy AS (SELECT tenant, COUNT(*) AS num FROM jobs WHERE state='running' GROUP BY tenant)
                SELECT j.* FROM jobs AS j LEFT JOIN busy ON busy.tenant = j.tenant
                WHERE j.state='queued' AND j.wanted='' ORDER BY j.priority DESC, COALESCE(busy.num, 0), j.seq LIMIT 1"""
            ).fetchone()
            if row is None:
                return None
            db.execute(
                "UPDATE jobs SET state='running', attempt=attempt+1, started=COALESCE(started, ?) WHERE id=?",
                (self._clock(), row["id"]),
            )
            self._note(db, row["id"], RUNNING)
            attempt, request = row["attempt"] + 1, json.loads(row["request"])
            return Claimed(row["id"], row["tenant"], attempt, request, row["target"], row["priority"], row["deadline"])

        return self._database.write(change)

    def complete(self, job: str, attempt: int, made: Made) -> Future[bool]:
        """End a job well, if this attempt is the newest and has not ended; whether it did."""
        figures = {
            "result": json.dumps({**made.facts, "at_once": False}),
            "latency": made.latency_s,
            "accuracy": made.accuracy,
            "bundle": job if made.bundle else None,
        }
        return self._end_attempt(job, attempt, COMPLETE, figures)

    def fail(self, job: str, attempt: int, error: str) -> Future[bool]:
        """End a job with an error, as `complete` does."""
        return self._end_attempt(job, attempt, FAILED, {"error": error})

    def _end_attempt(self, job: str, attempt: int, state: str, figures: dict[str, Any]) -> Future[bool]:
        def change(db: sqlite3.Connection) -> bool:
            if not _is_current(db, job, attempt):
                return False
            self._end(db, job, state, figures)
            return True

        return self._database.write(change)

    def release(self, job: str, attempt: int) -> Future[bool]:
        """End an attempt that was broken off: the job is cancelled where that is wanted, else back in the queue."""

        def change(db: sqlite3.Connection) -> bool:
            if not _is_current(db, job, attempt):
                return False
            self._put_back(db, db.execute("SELECT id, wanted FROM jobs WHERE id=?", (job,)).fetchone())
            return True

        return self._database.write(change)

    def _put_back(self, db: sqlite3.Connection, row: sqlite3.Row) -> None:
        if row["wanted"] == CANCEL:
            self._end(db, row["id"], CANCELLED)
            return
        db.execute("UPDATE jobs SET state='queued', progress=NULL WHERE id=?", (row["id"],))
        self._note(db, row["id"], PAUSED if row["wanted"] == PAUSE else QUEUED)

    def _end(self, db: sqlite3.Connection, job: str, state: str, figures: Mapping[str, Any] | None = None) -> None:
        changed = {"state": state, "wanted": NOTHING, "ended": self._clock(), "progress": None, **(figures or {})}
        values = ", ".join(f"{name}=:{name}" for name in changed)
        db.execute(f"UPDATE jobs SET {values} WHERE id=:id", {**changed, "id": job})
        self._note(db, job, state)

    def progress(self, progress: Mapping[str, Mapping[str, Any]]) -> Future[None]:
        """Note how far running jobs are, by their ids."""

        def change(db: sqlite3.Connection) -> None:
            for job, told in progress.items():
                db.execute("UPDATE jobs SET progress=? WHERE id=? AND state='running'", (json.dumps(told), job))
                self._touched.add(job)

        return self._database.write(change)

    # Questions

    def get(self, tenant: str, job: str) -> sqlite3.Row:
        """A tenant's job.

        Raises:
            ServiceError: there is none, or it is another tenant's (404).
        """
        return _row(self._database.read(), tenant, job)

    def page(self, tenant: str, before: int | None, limit: int, state: str | None = None) -> list[sqlite3.Row]:
        """A tenant's jobs, the newest first, before a `seq`."""
        query, arguments = "SELECT * FROM jobs WHERE tenant=?", [tenant, *([] if before is None else [before])]
        query += "" if before is None else " AND seq < ?"
        if state is not None:
            query += " AND state=? AND (state <> 'queued' OR (wanted = 'pause') = ?)"
            arguments += [QUEUED if state == PAUSED else state, state == PAUSED]
        return self._database.read().execute(f"{query} ORDER BY seq DESC LIMIT ?", (*arguments, limit)).fetchall()

    def events(self, job: str, after: int) -> list[sqlite3.Row]:
        """The events of a job after the one of this number."""
        query = "SELECT * FROM events WHERE job=? AND seq>? ORDER BY seq"
        return self._database.read().execute(query, (job, after)).fetchall()

    def interrupted(self) -> list[str]:
        """Names of the attempts that run at jobs whose owners want something else."""
        rows = self._database.read().execute("SELECT id, attempt FROM jobs WHERE state='running' AND wanted<>''")
        return [attempt_name(row["id"], row["attempt"]) for row in rows]

    def ended_among(self, jobs: list[str]) -> list[str]:
        """Those of these jobs that have ended, or are not known."""
        query = "SELECT state FROM jobs WHERE id=?"
        rows = {job: self._database.read().execute(query, (job,)).fetchone() for job in jobs}
        return [job for job, row in rows.items() if row is None or row["state"] in ENDED]

    def count(self) -> dict[str, int]:
        """The number of all tenants' jobs in each state."""
        rows = self._database.read().execute("SELECT state, COUNT(*) AS num FROM jobs GROUP BY state")
        return {row["state"]: row["num"] for row in rows}


def state_of(row: sqlite3.Row) -> str:
    """The state that is told of a job."""
    return PAUSED if row["state"] == QUEUED and row["wanted"] == PAUSE else str(row["state"])


def _row(db: sqlite3.Connection, tenant: str, job: str) -> sqlite3.Row:
    row: sqlite3.Row | None = db.execute("SELECT * FROM jobs WHERE id=? AND tenant=?", (job, tenant)).fetchone()
    if row is None:
        raise ServiceError("there is no such job", 404)
    return row


def _is_current(db: sqlite3.Connection, job: str, attempt: int) -> bool:
    query = "SELECT 1 FROM jobs WHERE id=? AND attempt=? AND state='running'"
    return db.execute(query, (job, attempt)).fetchone() is not None


def _known(db: sqlite3.Connection, new: NewJob) -> sqlite3.Row | None:
    """A complete job of the same content that will do, the fastest."""
    query = "SELECT * FROM jobs WHERE content=? AND state='complete' AND bundle IS NOT NULL"
    arguments: list[Any] = [new.content]
    latency_s, accuracy = new.goals or (None, None)
    if new.goals is None:
        query, arguments = f"{query} AND effort=?", [*arguments, new.effort]
    if latency_s is not None:
        query, arguments = f"{query} AND latency<=?", [*arguments, latency_s]
    if accuracy is not None:
        query, arguments = f"{query} AND accuracy>=?", [*arguments, accuracy]
    row: sqlite3.Row | None = db.execute(f"{query} ORDER BY latency LIMIT 1", arguments).fetchone()
    return row
