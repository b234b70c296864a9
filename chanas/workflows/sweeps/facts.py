"""The figures that a run found, read from the files that chanas's commands leave, as columns of plain values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chanas.errors import ChanasError
from chanas.files.writing import parse_json, read_json, read_text
from chanas.report.reading import at, dicts
from chanas.workflows.sweeps.rows import STDOUT

Facts = dict[str, Any]
_MAX_TEXT = 120


def collect(folder: Path) -> Facts:
    """All figures in a run directory, by column: `network.latency_s`, `table.mape`. A file that is missing or damaged
    has none."""
    facts: Facts = {}
    for prefix, pattern, read in _SOURCES:
        found = sorted(folder.glob(pattern))
        for path in found:
            with contextlib.suppress(ChanasError, KeyError, ValueError, TypeError, AttributeError):
                own = (
                    path.stem
                    if prefix == "table"
                    else path.relative_to(folder).parts[1 if prefix == "finetuned" else 0]
                )
                name = prefix if len(found) == 1 else f"{prefix}.{own}"
                facts |= _prefixed(name, read(path))
    return facts


def _scalars(data: Any, *names: str) -> Facts:
    """Numbers, truth values and short texts of an object; all of them, or those of some names."""
    if not isinstance(data, Mapping):
        return {}
    kept = {name: data.get(name) for name in names} if names else data
    return {
        str(name): value
        for name, value in kept.items()
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _MAX_TEXT)
    }


def _flat(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Scalars of an object and of the objects in it, by dotted names; lists are left out."""
    for name, value in _scalars(data).items():
        yield prefix + name, value
    if isinstance(data, Mapping):
        for name, value in data.items():
            if isinstance(value, Mapping):
                yield from _flat(value, f"{prefix}{name}.")


def _prefixed(prefix: str, facts: Facts) -> Facts:
    return {f"{prefix}.{name}": value for name, value in facts.items()}


def _object(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file."""
    data = read_json(path, what)
    if not isinstance(data, dict):
        raise ValueError(f"expected an object, got {type(data).__name__}")
    return data


def _network(path: Path) -> Facts:
    data = _object(path, "tuned network")
    trials = {"num_new_trials": at(data, "trials", "new"), "num_failed_trials": at(data, "trials", "failed")}
    seconds = _prefixed("seconds", _scalars(at(data, "seconds")))
    return {**_scalars(data, "run_id"), **_scalars(at(data, "measured")), **_scalars(trials), **seconds}


def _table(path: Path) -> Facts:
    data = _object(path, "latency table")
    facts = _scalars(at(data, "header"), "built_in_s", "timing_s")
    facts |= _scalars(at(data, "calibration"), "mape", "worst", "kendall_tau")
    return {"num_blocks": len(data["rows"]), **facts}


def _training(path: Path) -> Facts:
    """The last values of each number of `metrics.jsonl`."""
    facts: Facts = {}
    for line in read_text(path, "metrics").splitlines():
        facts |= _scalars(parse_json(line))
    return {name: value for name, value in facts.items() if name not in ("kind", "phase")}


def _search(path: Path) -> Facts:
    data = _object(path, "result of a search")
    facts = _scalars(data, "winner", "budget_s", "smallest_latency_s")
    facts |= _scalars(at(data, "predictor"), "error_points")
    return {**facts, **_prefixed("seconds", _scalars(at(data, "seconds")))}


def _bundle(path: Path) -> Facts:
    data = _object(path, "bundle")
    first = next(iter(dicts(data, "targets")), {})
    return {
        **_scalars(data, "num_macs", "num_params"),
        **_scalars(at(data, "measured")),
        **_prefixed("predicted", {**_scalars(at(data, "predicted")), **_scalars(at(first, "predicted"))}),
        **_scalars(at(first, "measured")),
        **_scalars(first, "peak_memory_bytes"),
    }


def _front(path: Path) -> Facts:
    data = _object(path, "Pareto front")
    points = [point for point in dicts(data, "points") if not point.get("dominated") and not point.get("error")]
    return {"num_points": len(points), **_scalars(data, "num_evaluations", "error_points")}


def _ablation(path: Path) -> Facts:
    data = _object(path, "ablation")
    facts = _scalars(data, "budget_s", "share_inside", "error_points")
    for name, searched in data["searched"].items():
        facts |= _prefixed(name, _scalars(searched, "points_lost", "winner", "winner_changed"))
    return facts


def _printed(path: Path) -> Facts:
    """A command's lines of JSON (`--json`); where there are several, by what each is about, or by number."""
    lines = [line for line in read_text(path, "log").splitlines() if line.startswith("{")]
    objects = [parse_json(line) for line in lines]
    facts: Facts = {}
    for number, found in enumerate(objects):
        name = str(found.get("request", number))
        facts |= dict(_flat(found, f"{name}." if len(objects) > 1 else ""))
    return facts


_SOURCES: tuple[tuple[str, str, Callable[[Path], Facts]], ...] = (
    ("network", "*/tuned.json", _network),
    ("table", "luts/*.json", _table),
    ("supernet", "supernet/metrics.jsonl", _training),
    ("finetuned", "finetuned/*/*/supernet/metrics.jsonl", _training),
    ("search", "search/result.json", _search),
    ("front", "search/pareto.json", _front),
    ("bundle", "bundle/codesign.json", _bundle),
    ("ablation", "ablation/result.json", _ablation),
    ("printed", STDOUT, _printed),
)
"""Prefix of the columns, files in a run directory, and what reads one of them."""
