"""Tuning records of run directories as one data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.backends import backend_of, schedule_space
from chanas.compiler.space import Point, ScheduleSpace
from chanas.errors import DataError, ScheduleError
from chanas.files.run import RunDirectory
from chanas.operators.keys import workload_of_key
from chanas.prescheduler.records.sources import Source, open_records
from chanas.prescheduler.tuning.offline.dataset import Dataset, Task, labels
from chanas.prescheduler.tuning.offline.primitives import Rows, offsets_of, primitive_rows


@dataclass
class Found:
    """Seconds by device, workload and point; the first file that has a point counts. `skipped` counts by reason what
    cannot be used."""

    seconds: dict[Source, dict[str, dict[Point, float]]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)


def files_of_records(places: Iterable[Path]) -> list[Path]:
    """Files of records: those named, of run directories, and of all run directories inside other folders (a sweep's, a
    service's), in order.

    Raises:
        DataError: there is none at a place, or a latency table, which has no trials.
    """
    found: list[Path] = []
    for place in places:
        if place.is_file() and place.suffix == ".json":
            raise DataError(
                f"expected the records of a run, got {place}: a table has no trials; name its run directory"
            )
        if place.is_file():
            here = [place]
        elif RunDirectory(place).records.is_file():
            here = [RunDirectory(place).records]
        else:
            here = sorted(place.rglob("records.sqlite"))
        if not here:
            raise DataError(f"expected a run directory, a file of records or a folder of runs, got '{place}'")
        found += here
    return list(dict.fromkeys(found))


def collect(files: Iterable[Path]) -> Found:
    """Read the valid records of files of all devices that are known.

    Raises:
        CheckpointError: a file is no file of records, or damaged.
    """
    found = Found()
    for file in files:
        with open_records(file) as opened:
            num_unknown = opened.num_valid()
            for source in opened.sources():
                by_workload = opened.load(source)
                num_records = sum(map(len, by_workload.values()))
                num_unknown -= num_records
                if source.spaces != backend_of(source.target).space_version:
                    found.skipped["of devices with another version of the schedule spaces"] += num_records
                    continue
                of_source = found.seconds.setdefault(source, {})
                for workload, records in by_workload.items():
                    of_task = of_source.setdefault(workload, {})
                    for record in records:
                        if record.seconds:
                            of_task.setdefault(record.point, record.seconds)
            if num_unknown:
                found.skipped["of devices that are not known, or without usable seconds"] += num_unknown
    return found


def make_dataset(found: Found) -> Dataset:
    """The data set of the records that were read; what is left out is counted in `found`.

    Raises:
        DataError: no record is left.
    """
    parts = list(_parts(found))
    if not parts:
        raise DataError("there are no valid records of known devices in these files")
    sources = list(dict.fromkeys(source for source, _, _ in parts))
    task = np.repeat(np.arange(len(parts), dtype=np.int64), [len(seconds) for _, _, seconds in parts])
    latency_s = np.array([s for _, _, seconds in parts for s in seconds.values()], dtype=np.float64)
    rows = [primitive_rows(space, list(seconds), source.target) for source, space, seconds in parts]
    operators = [(sources.index(source), space.workload) for source, space, _ in parts]
    return Dataset(
        tuple(sources),
        tuple(Task(device, w.key, w.op, w.num_flops) for device, w in operators),
        task,
        tuple(point for _, _, seconds in parts for point in seconds),
        latency_s,
        labels(task, latency_s),
        Rows(np.concatenate([r.values for r in rows]), offsets_of(np.concatenate([r.lengths for r in rows]))),
    )


def _parts(found: Found) -> Iterator[tuple[Source, ScheduleSpace[Any], dict[Point, float]]]:
    """Every task whose space is there, with the seconds of the points that are in it."""
    for source, workloads in found.seconds.items():
        for key, known in workloads.items():
            try:
                space = schedule_space(workload_of_key(key), source.target)
            except ScheduleError:
                found.skipped["of operators that are not there"] += len(known)
                continue
            seconds = {point: s for point, s in known.items() if space.contains(point)}
            if len(seconds) < len(known):
                found.skipped["of points outside their spaces"] += len(known) - len(seconds)
            if seconds:
                yield source, space, seconds


def describe_dataset(data: Dataset) -> list[str]:
    """Lines for people: records by device and family, and how often which FLOPs occur."""
    counts, lines = data.counts(), []
    lines.append(f"records    {len(data)}, {len(data.tasks)} tasks, {len(data.devices)} device(s)")
    for i, device in enumerate(data.devices):
        families: Counter[str] = Counter()
        for task, num in zip(data.tasks, counts.tolist(), strict=True):
            if task.device == i:
                families[task.op] += num
        by_family = ", ".join(f"{op} {num}" for op, num in families.most_common())
        of = f"{device.target.name} ({device.target.device}, {device.target.fingerprint})"
        lines.append(f"device     {of}: {sum(families.values())} ({by_family})")
    lengths = data.primitives.lengths
    lines.append(f"sequences  {lengths.min()} to {lengths.max()} primitives")
    lines.append(f"per task   {counts.min()} to {counts.max()} records, median {np.median(counts):.0f}")
    occurrences = Counter(task.num_flops for task in data.tasks)
    if unknown := occurrences.pop(0, 0):
        lines.append(f"flops      not known of {unknown} tasks")
    lines += [f"flops      {flops / 1e6:.3g} M: {num} tasks" for flops, num in occurrences.most_common(8)]
    if len(occurrences) > 8:
        lines.append(f"           and {len(occurrences) - 8} other values")
    return lines
