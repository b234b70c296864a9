"""Files of other systems as one data set: what each file is, what is of use in it, and what is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from chanas.errors import DataError, one_line, printable
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.tuning.offline.dataset import Dataset, Task, labels
from chanas.prescheduler.tuning.offline.exchange import ansor, metaschedule
from chanas.prescheduler.tuning.offline.exchange.kernels import (
    describe_problem,
    describe_results,
    measured_results,
    same_parameters,
)
from chanas.prescheduler.tuning.offline.exchange.measured import Measured
from chanas.prescheduler.tuning.offline.exchange.reading import document, rows
from chanas.prescheduler.tuning.offline.exchange.t1 import Problem, read_problem
from chanas.prescheduler.tuning.offline.exchange.t4 import read_results
from chanas.prescheduler.tuning.offline.primitives import Rows

MAX_ROWS = 1 << 23
"""Most rows of primitives of one data set, 1.4 GB: some 200,000 records of TenSet, which has 51 million."""
_HEAD_BYTES = 4096
_FIRST_KEY = re.compile(rb'\s*\{\s*"([^"]{1,40})"')
_PROBLEM_SUFFIX = ".t1.json"
_T1, _OTHER = "T1", "no known format"


@dataclass
class Imported:
    """Records of other systems; lines about them for people, and counts by reason of what was left out."""

    records: list[Measured] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def read_files(places: Iterable[Path], per_task: int | None = None) -> Imported:
    """Read files, databases and folders of them. Files of folders that are of no known format are counted.

    Args:
        per_task: so many records of each task at most, the first ones.

    Raises:
        DataError: a file is missing, damaged or of no known format, or there are more records than a data set has room
            for.
    """
    found, systems = Imported(), Counter[str]()
    listed = _files(places)
    files = {path: kind for path, is_named in listed if (kind := _kind_of(path, is_named))}
    problems = {path: _problem(path) for path, kind in files.items() if kind == _T1}
    used: set[Path] = set()
    counts, num_rows = Counter[tuple[str, str]](), 0
    for path, kind in files.items():
        systems[kind] += 1
        for record in _records(path, kind, problems, used, found):
            task = (record.source.device, record.workload)
            counts[task] += 1
            if per_task is not None and counts[task] > per_task:
                found.skipped[f"beyond the first {per_task} of their task"] += 1
                continue
            num_rows += len(record.rows)
            if num_rows > MAX_ROWS:
                raise DataError(
                    f"{path}: more records than a data set has room for ({MAX_ROWS:,} rows of primitives); import "
                    "fewer files, or fewer records of each task (--per-task)"
                )
            found.records.append(record)
    found.lines += [f"{describe_problem(p)}; no results here" for path, p in problems.items() if path not in used]
    systems[_OTHER] = len(listed) - len(files)
    read = ", ".join(f"{num} of {kind}" for kind, num in systems.items() if num)
    found.lines.insert(0, f"files      {read}")
    return found


def make_dataset(found: Imported) -> Dataset:
    """The data set of the records that were read, sorted by task.

    Raises:
        DataError: there is none.
    """
    if not found.records:
        reasons = "; ".join(f"{num} {reason}" for reason, num in found.skipped.most_common(4))
        raise DataError(f"there are no records of use in these files{f' (left out: {reasons})' if reasons else ''}")
    places: dict[tuple[Source, str], int] = {}
    task = np.array([places.setdefault((r.source, r.workload), len(places)) for r in found.records], dtype=np.int64)
    order = np.argsort(task, kind="stable")
    records = [found.records[i] for i in order]
    first = {(r.source, r.workload): r for r in reversed(records)}
    sources = list(dict.fromkeys(source for source, _ in places))
    latency_s = np.array([record.seconds for record in records])
    return Dataset(
        tuple(sources),
        tuple(Task(sources.index(at[0]), at[1], first[at].op, first[at].num_flops) for at in places),
        task[order],
        tuple(record.point for record in records),
        latency_s,
        labels(task[order], latency_s),
        Rows.join([record.rows for record in records]),
    )


def _files(places: Iterable[Path]) -> list[tuple[Path, bool]]:
    """Files, and whether they were named themselves."""
    found: dict[Path, bool] = {}
    for place in places:
        if (place / metaschedule.RECORDS_FILE).is_file():
            found[place / metaschedule.RECORDS_FILE] = True
        elif place.is_dir():
            inside = sorted(path for path in place.rglob("*.json") if path.is_file())
            found = {**dict.fromkeys(inside, False), **found}
        elif place.is_file():
            found[place] = True
        else:
            raise DataError(f"there is no file {place}")
    if not found:
        raise DataError("expected files of records, or folders of such files (*.json), got folders without any")
    return list(found.items())


def _kind_of(path: Path, is_named: bool) -> str | None:
    """The system that a file is of, by how it begins; None where it is of none, and in a folder that was named.

    Raises:
        DataError: it was named itself, and is of none.
    """
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES).lstrip()
    while head.startswith(b"#"):
        head = head.partition(b"\n")[2].lstrip()
    if re.match(rb'\[\s*"', head):
        return "MetaSchedule's workloads"
    if re.match(rb"\[\s*\d", head):
        return "MetaSchedule"
    match = _FIRST_KEY.match(head)
    if match and match[1] in (b"i", b"r", b"v"):
        return "Ansor"
    if match:
        data = document(path)
        keys = set(data) if isinstance(data, dict) else set()
        if "ConfigurationSpace" in keys:
            return _T1
        if "results" in keys:
            return "T4"
    if not is_named:
        return None
    raise DataError(
        f"{path} is of no format that is known here: measure records of Ansor or TenSet, "
        f"{metaschedule.RECORDS_FILE} of MetaSchedule, T1 or T4 of Kernel Tuner"
    )


def _problem(path: Path) -> Problem:
    try:
        return read_problem(document(path))
    except ValueError as error:
        raise DataError(f"{path}: {printable(one_line(error, 200))}") from error


def _records(
    path: Path, kind: str, problems: Mapping[Path, Problem], used: set[Path], found: Imported
) -> Iterator[Measured]:
    match kind:
        case "Ansor":
            return rows(path, ansor.read_record, found.skipped)
        case "MetaSchedule":
            return metaschedule.read_database(path, found.skipped)
        case "T4":
            return _results(path, problems, used, found)
    return iter(())  # T1 and workloads are read with what they belong to


def _results(path: Path, problems: Mapping[Path, Problem], used: set[Path], found: Imported) -> Iterator[Measured]:
    """The records of a T4 file, with its problem: the T1 file of its name, or the first one of its parameters."""
    name = path.name.removesuffix(".json")
    beside = path.with_name(f"{name}{_PROBLEM_SUFFIX}")
    try:
        results = read_results(document(path), found.skipped)
        known = {**({beside: _problem(beside)} if beside.is_file() else {}), **problems}
        fitting = [place for place, problem in known.items() if place == beside or same_parameters(problem, results)]
        problem = known[fitting[0]] if fitting else None
        used.update(fitting[:1])
        found.lines += describe_results(name, results, problem)
        yield from measured_results(results, problem, name, found.skipped)
    except ValueError as error:
        raise DataError(f"{path}: {printable(one_line(error, 200))}") from error
