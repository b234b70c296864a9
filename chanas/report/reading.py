"""What a run directory holds, read without trusting it: a stage that is missing is None, a damaged file is a note."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from chanas.errors import CheckpointError
from chanas.run import RunDirectory, read_json

# Curves of more workloads can't be told apart in one figure.
NUM_CURVES = 5


@dataclass(frozen=True)
class TuningCurve:
    """Best seconds so far of one workload, after each of its trials that worked: (trial number, seconds)."""

    workload: str
    best_s: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Tuning:
    """The records in short: how many workloads, trials, failed ones, and the curves of the longest tuned workloads."""

    num_workloads: int
    num_trials: int
    num_failed: int
    curves: tuple[TuningCurve, ...]


@dataclass(frozen=True)
class RunData:
    """Everything the page shows. A field is None (or empty) when its stage has not run.

    bundle      codesign.json                    result   search/result.json
    tables      header and number of rows of each LUT
    training    rows of supernet/metrics.jsonl   tuning   records.sqlite in short
    checkpoint  supernet/checkpoint.json         notes    what could not be read, one line each
    """

    bundle: dict[str, Any] | None
    result: dict[str, Any] | None
    tables: tuple[dict[str, Any], ...]
    training: tuple[dict[str, Any], ...]
    tuning: Tuning | None
    checkpoint: dict[str, Any] | None
    notes: list[str] = field(default_factory=list)


def read_run(run: RunDirectory) -> RunData:
    """All that is there; what is damaged becomes a note and counts as missing."""
    notes: list[str] = []
    tables = []
    for path in sorted(run.luts.glob("*.json")):
        table = _json(run, path.relative_to(run.root).as_posix(), notes)
        if table is not None:
            header = table.get("header") if isinstance(table.get("header"), dict) else {}
            rows = table.get("rows")
            tables.append({"name": path.stem, "header": header, "num_rows": len(rows) if isinstance(rows, dict) else 0})
    return RunData(
        bundle=_json(run, "bundle/codesign.json", notes),
        result=_json(run, "search/result.json", notes),
        tables=tuple(tables),
        training=_lines(run, "supernet/metrics.jsonl", notes),
        tuning=_tuning(run, notes),
        checkpoint=_json(run, "supernet/checkpoint.json", notes),
        notes=notes,
    )


def _json(run: RunDirectory, name: str, notes: list[str]) -> dict[str, Any] | None:
    path = run.root / name
    if not path.is_file():
        return None
    try:
        data = read_json(path, name)
    except (CheckpointError, OSError) as error:
        notes.append(str(error))
        return None
    if not isinstance(data, dict):
        notes.append(f"{name} is not a JSON object")
        return None
    return data


def _lines(run: RunDirectory, name: str, notes: list[str]) -> tuple[dict[str, Any], ...]:
    path = run.root / name
    if not path.is_file():
        return ()
    rows: list[dict[str, Any]] = []
    num_bad = 0
    for line in path.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            num_bad += 1
            continue
        if isinstance(row, dict):
            rows.append(row)
    if num_bad > 1:  # one torn line at the end is what a killed process leaves
        notes.append(f"{name}: {num_bad} lines are damaged and left out")
    return tuple(rows)


def _tuning(run: RunDirectory, notes: list[str]) -> Tuning | None:
    if not run.records.is_file():
        return None
    try:
        database = sqlite3.connect(f"file:{quote(str(run.records.resolve()))}?mode=ro", uri=True, timeout=10)
        try:
            trials: dict[str, list[float | None]] = {}
            for workload, seconds in database.execute("SELECT workload, seconds FROM records ORDER BY rowid"):
                trials.setdefault(str(workload), []).append(None if seconds is None else float(seconds))
        finally:
            database.close()
    except (sqlite3.Error, ValueError) as error:
        notes.append(f"records.sqlite could not be read ({error})")
        return None
    longest = sorted(trials, key=lambda w: -len(trials[w]))[:NUM_CURVES]
    return Tuning(
        num_workloads=len(trials),
        num_trials=sum(map(len, trials.values())),
        num_failed=sum(seconds is None for values in trials.values() for seconds in values),
        curves=tuple(TuningCurve(w, _best_so_far(trials[w])) for w in longest),
    )


def _best_so_far(trials: list[float | None]) -> tuple[tuple[int, float], ...]:
    best, out = float("inf"), []
    for number, seconds in enumerate(trials, start=1):
        if seconds is not None and seconds > 0:
            best = min(best, seconds)
        if best < float("inf"):
            out.append((number, best))
    return tuple(out)


def at(data: Mapping[str, Any] | None, *path: str) -> Any:
    """The value at a path of keys, or None where there is none."""
    found: Any = data
    for key in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def real(data: Mapping[str, Any] | None, *path: str) -> float | None:
    """Like `at`, a finite number or None."""
    value = at(data, *path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < float("inf") else None


def dicts(data: Mapping[str, Any] | None, *path: str) -> list[dict[str, Any]]:
    """Like `at`, a list of objects; anything else in it is left out."""
    value = at(data, *path)
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def reals(data: Mapping[str, Any] | None, *path: str) -> list[float]:
    """Like `at`, a list of numbers; empty when anything else is in it."""
    value = at(data, *path)
    if not isinstance(value, list) or not all(isinstance(v, int | float) for v in value):
        return []
    return [float(v) for v in value]
