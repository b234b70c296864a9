"""The use of devices over time: seconds that each unit was busy in each minute."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from chanas.service.store.database import Database

KEPT_MINUTES = 7 * 24 * 60
MINUTE_S = 60.0

Use = dict[tuple[str, int, int], float]
"""Seconds by resource, unit and minute since 1970."""


def add_span(use: Use, resource: str, unit: int, start_s: float, end_s: float) -> None:
    """Add a stage that ran from `start_s` to `end_s`, seconds since 1970, to each minute that it was in."""
    for minute in range(int(start_s // MINUTE_S), int(end_s // MINUTE_S) + 1):
        inside_s = min(end_s, (minute + 1) * MINUTE_S) - max(start_s, minute * MINUTE_S)
        key = (resource, unit, minute)
        use[key] = use.get(key, 0.0) + max(0.0, inside_s)


def note_use(database: Database, use: Mapping[tuple[str, int, int], float], now_s: float) -> Future[None]:
    """Add seconds to what is known, and forget what is older than a week."""

    def change(db: sqlite3.Connection) -> None:
        db.executemany(
            "INSERT INTO use (resource, unit, minute, busy) VALUES (?, ?, ?, ?) ON CONFLICT (minute, resource, unit) "
            "DO UPDATE SET busy = busy + excluded.busy",
            [(*key, seconds) for key, seconds in use.items()],
        )
        db.execute("DELETE FROM use WHERE minute < ?", (int(now_s // MINUTE_S) - KEPT_MINUTES,))

    return database.write(change)


def read_use(database: Database, since_s: float, step: int = 1) -> list[dict[str, Any]]:
    """Resource, unit, minute (since 1970) and busy seconds of each `step` minutes from a time on that have any;
    `minute` is the first of them."""
    rows = database.read().execute(
        "SELECT resource, unit, minute / :step * :step AS first, SUM(busy) AS busy FROM use WHERE minute >= :since "
        "GROUP BY first, resource, unit ORDER BY first, resource, unit",
        {"step": step, "since": int(since_s // MINUTE_S)},
    )
    return [{"resource": r["resource"], "unit": r["unit"], "minute": r["first"], "busy": r["busy"]} for r in rows]


def read_best(database: Database, tenant: str) -> list[dict[str, Any]]:
    """The fastest of a tenant's networks of each content: `target`, `request`, `job`, `latency_s`."""
    rows = database.read().execute(
        """SELECT target, request, id AS job, MIN(latency) AS latency_s FROM jobs
        WHERE tenant=? AND state='complete' AND latency IS NOT NULL GROUP BY content ORDER BY target, latency_s""",
        (tenant,),
    )
    return [{**dict(row), "request": json.loads(row["request"])} for row in rows]
