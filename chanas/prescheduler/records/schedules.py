"""Files of schedules: the best points of operators on one device as JSON, one operator a line. Those that come with
chanas lie in `chanas/schedules`; `tools/ship_schedules.py` makes them of records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from chanas import __version__
from chanas.core.target import HardwareTarget
from chanas.files.documents import Document
from chanas.files.writing import replacing
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.records.store import TuningRecord

SHIPPED = Path(str(resources.files("chanas") / "schedules"))
"""The folder of those that come with chanas."""
SUFFIX = ".json"
_SCHEMA = 1


@dataclass(frozen=True)
class _Versions:
    chanas: str
    tvm: str


@dataclass(frozen=True)
class _Stored:
    """The document: for each operator its points with their seconds, the best first."""

    schema: int
    space_version: int
    versions: _Versions
    target: HardwareTarget
    operators: dict[str, list[tuple[list[int], float]]]


_DOCUMENT = Document("file of schedules", _Stored, version=_SCHEMA)


@dataclass(frozen=True)
class ScheduleFile:
    """The device that the schedules of a file are of, and its best records by workload key, the best first."""

    path: Path
    source: Source
    records: Mapping[str, tuple[TuningRecord, ...]]


def read_schedules(path: Path) -> ScheduleFile:
    """
    Raises:
        CheckpointError: the file is missing, damaged, or of another schema.
    """
    data = _DOCUMENT.read(path)
    target, versions = HardwareTarget.from_json(data["target"]), data["versions"]
    source = Source(path.name, target, versions["tvm"], data["space_version"])
    records = {
        key: tuple(TuningRecord(tuple(point), seconds) for point, seconds in points)
        for key, points in data["operators"].items()
    }
    return ScheduleFile(path, source, records)


def write_schedules(path: Path, source: Source, records: Mapping[str, Sequence[TuningRecord]]) -> None:
    """Write a file, whole or not at all: operators and keys sorted, so that it changes line by line.

    Args:
        source: where the records were measured.
        records: valid ones by workload key, the best first.

    Raises:
        ChanasError: it cannot be written.
    """
    lines = []
    for key in sorted(records):
        points = [[list(record.point), float(f"{record.seconds:.4g}")] for record in records[key]]
        lines.append(f"  {json.dumps(key)}: {json.dumps(points, separators=(',', ':'))}")
    about = {
        "schema": _SCHEMA,
        "space_version": source.spaces,
        "target": source.target.to_json(),
        "versions": {"chanas": __version__, "tvm": source.compiler},
    }
    rest = json.dumps(about, indent=1, sort_keys=True).removeprefix("{\n")
    with replacing(path) as temporary:
        temporary.write_text('{\n "operators": {\n' + ",\n".join(lines) + "\n },\n" + rest + "\n", encoding="utf-8")


def shipped_schedules(folder: Path = SHIPPED) -> list[ScheduleFile]:
    """The files that come with chanas.

    Raises:
        CheckpointError: one is damaged.
    """
    return [read_schedules(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
