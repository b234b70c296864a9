"""Rows of the database as JSON."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from chanas.service.store.jobs import state_of


def job_view(row: sqlite3.Row) -> dict[str, Any]:
    """A job as it is told of; times in seconds since 1970."""
    result, progress = row["result"], row["progress"]
    return {
        "id": row["id"],
        "kind": row["kind"],
        "target": row["target"],
        "state": state_of(row),
        "wanted": row["wanted"] or None,
        "priority": row["priority"],
        "attempt": row["attempt"],
        "created": row["created"],
        "started": row["started"],
        "ended": row["ended"],
        "error": row["error"],
        "request": json.loads(row["request"]),
        "progress": None if progress is None else json.loads(progress),
        "result": None if result is None else json.loads(result),
    }
