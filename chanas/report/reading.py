"""Read a run directory without trusting it: a stage that is missing is None, a damaged file is a note."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from chanas.bundle.document import from_schema_2
from chanas.core.units import is_seconds
from chanas.errors import CheckpointError
from chanas.files.run import RunDirectory
from chanas.files.writing import parse_json, read_json

# Curves of more workloads can't be told apart in one figure.
NUM_CURVES = 6


@dataclass(frozen=True)
class TuningCurve:
    """Best seconds so far of one workload, after each of its trials that worked: (trial number, seconds).

    `num_uses` is how often the winning network runs it; 0 where there is no winner yet.
    """

    workload: str
    best_s: tuple[tuple[int, float], ...]
    num_uses: int = 0


@dataclass(frozen=True)
class Tuning:
    """The records in short: how many workloads, trials, failed ones, and the curves of some workloads.

    `share` is what the operators with curves take of the time of all operators of the winning network, at their best;
    None where there is no winner yet: then the curves are those of the longest tuned workloads.
    """

    num_workloads: int
    num_trials: int
    num_failed: int
    curves: tuple[TuningCurve, ...]
    share: float | None = None


@dataclass(frozen=True)
class RunData:
    """Everything the page shows. A field is None (or empty) when its stage has not run.

    bundle      codesign.json                    result   search/result.json
    front       search/pareto.json               tables   name, header, calibration and number of rows of each LUT
    ablation    ablation/result.json             targets  search/targets.json
    target_results  search/targets/TARGET/result.json by target
    shown       the target whose search stands in for `bundle` and `result`, where there was none for a single network
    training    rows of supernet/metrics.jsonl   tuning   records.sqlite in short
    checkpoint  supernet/checkpoint.json         notes    what could not be read, one line each
    """

    bundle: dict[str, Any] | None
    result: dict[str, Any] | None
    front: dict[str, Any] | None
    tables: tuple[dict[str, Any], ...]
    training: tuple[dict[str, Any], ...]
    tuning: Tuning | None
    checkpoint: dict[str, Any] | None
    ablation: dict[str, Any] | None = None
    targets: dict[str, Any] | None = None
    target_results: dict[str, dict[str, Any]] = field(default_factory=dict)
    shown: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """True if no stage has left anything."""
        read = (self.bundle, self.result, self.front, self.tables, self.training, self.tuning, self.checkpoint)
        return not any((*read, self.ablation, self.targets, self.notes))

    @property
    def part(self) -> dict[str, Any] | None:
        """The bundle's entry of the target whose times are shown: the first that it was searched for."""
        return next(iter(dicts(self.bundle, "targets")), None)

    @property
    def judged(self) -> str:
        """The source of known accuracies, as words behind "top-1"."""
        given = at(self.bundle, "hashes", "accuracy_table") is not None
        no_supernet = self.bundle is None and self.checkpoint is None
        return "by the given table" if given or no_supernet else "on holdout"

    @property
    def table(self) -> dict[str, Any] | None:
        """The table that the search used: its target's, or the only one."""
        name = at(self.part, "target", "name") or at(self.result, "target") or at(self.front, "target")
        return next((t for t in self.tables if t["name"] == name), self.tables[0] if len(self.tables) == 1 else None)


def read_run(run: RunDirectory) -> RunData:
    """All that is there; what is damaged becomes a note and counts as missing."""
    notes: list[str] = []
    tables = []
    for path in sorted(run.luts.glob("*.json")):
        table = _json(run, path.relative_to(run.root).as_posix(), notes)
        if table is not None:
            header = table.get("header") if isinstance(table.get("header"), dict) else {}
            rows = table.get("rows")
            num_rows = len(rows) if isinstance(rows, dict) else 0
            fit = table.get("calibration")
            tables.append({"name": path.stem, "header": header, "calibration": fit, "num_rows": num_rows})
    bundle, result = _bundle(run, run.bundle, notes), _json(run, "search/result.json", notes)
    targets, results = _targets(run, notes)
    shown = _first_proven(targets, results) if bundle is None and result is None else None
    if shown is not None:
        bundle, result = _bundle(run, run.root / _target_bundle(targets, shown), notes), results[shown]
    kept, won = at(bundle, "architecture", "key"), at(result, "winner")
    if kept and won and kept != won:
        notes.append(f"the bundle holds {kept}, but the last search chose {won} and did not end; run it again")
    return RunData(
        bundle=bundle,
        result=result,
        front=_json(run, "search/pareto.json", notes),
        tables=tuple(tables),
        training=_lines(run, "supernet/metrics.jsonl", notes),
        tuning=_tuning(run, next(iter(dicts(bundle, "targets")), None), notes),
        checkpoint=_json(run, "supernet/checkpoint.json", notes),
        ablation=_json(run, "ablation/result.json", notes),
        targets=targets,
        target_results=results,
        shown=shown,
        notes=notes,
    )


def _bundle(run: RunDirectory, folder: Path, notes: list[str]) -> dict[str, Any] | None:
    document = _json(run, _place(run, folder) + "/codesign.json", notes)
    return document if document is None or "targets" in document else from_schema_2(document)


def _place(run: RunDirectory, path: Path) -> str:
    return path.relative_to(run.root).as_posix()


def _targets(run: RunDirectory, notes: list[str]) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]]]:
    """The searches for several targets, and the result of each that did not fail."""
    document = _json(run, _place(run, run.per_target), notes)
    results = {}
    for entry in dicts(document, "targets"):
        name = str(entry.get("target"))
        if entry.get("winner") is None or Path(name).name != name:
            continue
        found = _json(run, _place(run, run.target_result(name)), notes)
        if found is not None and found.get("winner") == entry["winner"]:
            results[name] = found
    return document, results


def _first_proven(targets: dict[str, Any] | None, results: Mapping[str, Any]) -> str | None:
    names = (str(e.get("target")) for e in dicts(targets, "targets") if e.get("bundle") is not None)
    return next((name for name in names if name in results), None)


def _target_bundle(targets: dict[str, Any] | None, name: str) -> str:
    """The place of a target's bundle in the run directory; nothing is read outside of it."""
    place = next(str(e["bundle"]) for e in dicts(targets, "targets") if e.get("target") == name)
    return place if PurePosixPath(place).parts[:1] == ("bundles",) and ".." not in place else "bundles"


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
            row = parse_json(line)
        except ValueError:
            num_bad += 1
            continue
        if isinstance(row, dict):
            rows.append(row)
    if num_bad > 1:  # one torn line at the end is what a killed process leaves
        notes.append(f"{name}: {num_bad} lines are damaged and left out")
    return tuple(rows)


def _tuning(run: RunDirectory, part: dict[str, Any] | None, notes: list[str]) -> Tuning | None:
    if not run.records.is_file():
        return None
    try:
        database = sqlite3.connect(f"file:{quote(str(run.records.resolve()))}?mode=ro", uri=True, timeout=10)
        try:
            num_left_out = 0
            trials: dict[tuple[str, str], list[float | None]] = {}
            for device, workload, seconds in database.execute(
                "SELECT device, workload, seconds FROM records ORDER BY rowid"
            ):
                if seconds is None or is_seconds(seconds):
                    trials.setdefault((str(device), str(workload)), []).append(seconds)
                else:
                    num_left_out += 1
        finally:
            database.close()
    except (sqlite3.Error, ValueError) as error:
        notes.append(f"records.sqlite could not be read ({error})")
        return None
    if num_left_out:
        notes.append(f"records.sqlite: {num_left_out} records are left out, whose seconds are not above 0 and finite")
    share, uses = None, _uses(part)
    here = f"{at(part, 'target', 'fingerprint')}/{at(part, 'target', 'num_threads')}t/"
    spent = {
        pair: uses[pair[1]] * min(worked)
        for pair, seconds in trials.items()
        if pair[0].startswith(here) and pair[1] in uses and (worked := [s for s in seconds if s])
    }
    if spent:
        shown = sorted(spent, key=lambda pair: -spent[pair])[:NUM_CURVES]
        share = sum(spent[pair] for pair in shown) / sum(spent.values())
    else:
        shown = sorted(trials, key=lambda pair: -len(trials[pair]))[:NUM_CURVES]
    return Tuning(
        num_workloads=len(trials),
        num_trials=sum(map(len, trials.values())),
        num_failed=sum(seconds is None for values in trials.values() for seconds in values),
        curves=tuple(TuningCurve(p[1], best_so_far(trials[p]), uses.get(p[1], 0)) for p in shown),
        share=share,
    )


def _uses(part: dict[str, Any] | None) -> Counter[str]:
    """Count the uses of each workload in the winning network."""
    uses: Counter[str] = Counter()
    for block in dicts(part, "schedules"):
        operators = block.get("operators")
        for operator in operators if isinstance(operators, list) else []:
            if isinstance(operator, list) and operator:
                uses[str(operator[0])] += 1
    return uses


def best_so_far(trials: Sequence[float | None]) -> tuple[tuple[int, float], ...]:
    """The curve of an operator from the seconds of its trials, None for one that failed."""
    best, out = float("inf"), []
    for number, seconds in enumerate(trials, start=1):
        if seconds is not None:
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
