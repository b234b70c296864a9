"""Tuning records as a data set, for cost models that are taught before a tuning begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Exported:
    """Lines for people about a data set, and how many records were left out, by reason."""

    lines: tuple[str, ...]
    skipped: Mapping[str, int]


def export_records(places: Sequence[Path], out: Path, with_segments: bool = False, progress: bool = True) -> Exported:
    """Write the valid records of runs (run directories, files of records, folders of runs) as one data set.

    Raises:
        DataError: there are no records at a place, or no valid ones at all.
        CheckpointError: a file of records cannot be read.
        ScheduleError: features of stores are asked for of a GPU's records.
    """
    from chanas.prescheduler.tuning.offline.dataset import save
    from chanas.prescheduler.tuning.offline.export import collect, describe_dataset, files_of_records, make_dataset

    found = collect(files_of_records(places))
    data = make_dataset(found, with_segments, progress=progress)
    save(data, out)
    return Exported(tuple(describe_dataset(data)), dict(found.skipped))


def describe_records(place: Path) -> list[str]:
    """Lines about a data set, or about the records of a run.

    Raises:
        DataError: there is neither.
    """
    from chanas.prescheduler.tuning.offline.dataset import load
    from chanas.prescheduler.tuning.offline.export import collect, describe_dataset, files_of_records, make_dataset

    if place.is_dir() or place.suffix == ".sqlite":
        return describe_dataset(make_dataset(collect(files_of_records([place])), with_segments=False))
    return describe_dataset(load(place))
