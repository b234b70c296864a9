"""Tuning records as a data set in one file: `.npz`, arrays and JSON texts, nothing pickled (docs/formats.md).

A task is an operator on a device. The label of a record is the task's shortest latency over the record's: 1 is best.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.space import Point
from chanas.core.arrays import Float32Array, FloatArray, IntArray
from chanas.core.target import HardwareTarget
from chanas.errors import DataError, one_line
from chanas.files.writing import replacing
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.tuning.offline import primitives
from chanas.prescheduler.tuning.offline.primitives import Rows

SCHEMA = 1
_ARCHIVE = b"PK\x03\x04"


@dataclass(frozen=True)
class Task:
    """An operator on a device: the device's place in `Dataset.devices`, the workload's key, operator and FLOPs."""

    device: int
    workload: str
    op: str
    num_flops: int


@dataclass(frozen=True, eq=False)
class Dataset:
    """N records of T tasks.

    task        int64[N], the task of each record
    points      the schedule point of each
    latency_s   float64[N]
    label       float32[N], in (0, 1]
    primitives  sequences of primitives
    """

    devices: tuple[Source, ...]
    tasks: tuple[Task, ...]
    task: IntArray
    points: tuple[Point, ...]
    latency_s: FloatArray
    label: Float32Array
    primitives: Rows

    def __len__(self) -> int:
        return len(self.task)

    def counts(self) -> IntArray:
        """int64[T]: records of each task."""
        return np.bincount(self.task, minlength=len(self.tasks)).astype(np.int64)

    def of(self, chosen: IntArray) -> Dataset:
        """Some records, in that order, with the labels that they have; devices and tasks keep their places."""
        return dataclasses.replace(
            self,
            task=self.task[chosen],
            points=tuple(self.points[i] for i in chosen),
            latency_s=self.latency_s[chosen],
            label=self.label[chosen],
            primitives=self.primitives.of(chosen),
        )


def labels(task: IntArray, latency_s: FloatArray) -> Float32Array:
    """float32[N]: the task's shortest latency over the record's. int64[N], float64[N] above zero."""
    best_s = np.full(int(task.max(initial=-1)) + 1, np.inf)
    np.minimum.at(best_s, task, latency_s)
    label: Float32Array = (best_s[task] / latency_s).astype(np.float32)
    return label


def save(data: Dataset, path: Path) -> None:
    """Write the file whole.

    Raises:
        ChanasError: it cannot be written.
    """
    header = {"schema": SCHEMA, "features": {"primitives": primitives.WIDTH}}
    arrays: dict[str, Any] = {
        "header": np.array(json.dumps(header, sort_keys=True)),
        "devices": np.array(json.dumps([_device(s) for s in data.devices], sort_keys=True)),
        "tasks": np.array(json.dumps([dataclasses.asdict(t) for t in data.tasks], sort_keys=True)),
        "task": data.task,
        "points.values": np.array([n for point in data.points for n in point], dtype=np.int64),
        "points.offsets": primitives.offsets_of([len(point) for point in data.points]),
        "latency_s": data.latency_s,
        "label": data.label,
        "primitives.values": data.primitives.values,
        "primitives.offsets": data.primitives.offsets,
    }
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def _device(source: Source) -> dict[str, Any]:
    named = {"key": source.device, "compiler": source.compiler, "spaces": source.spaces}
    return {**named, "target": source.target.to_json()}


def _source(key: str, target: dict[str, Any], compiler: str, spaces: int) -> Source:
    return Source(key, HardwareTarget.from_json(target), compiler, spaces)


def load(path: Path) -> Dataset:
    """Read a file.

    Raises:
        DataError: there is none, it is no such file, is damaged, or of another version of chanas.
    """
    if not path.is_file():
        raise DataError(f"there is no file of records {path}; `chanas records export` writes one")
    try:
        with open(path, "rb") as opened:
            if opened.read(4) != _ARCHIVE:
                raise DataError(f"{path} is no file of records; `chanas records export` writes one")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays["header"]))
        if (header["schema"], header["features"]["primitives"]) != (SCHEMA, primitives.WIDTH):
            raise DataError(
                f"expected records of schema {SCHEMA} with {primitives.WIDTH} numbers of a primitive, got {header} in "
                f"{path}; export them again"
            )
        if "segments.values" in arrays:
            raise DataError(f"{path} has features of stores (segments), which no model reads now; export it again")
        return _read(arrays)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is no file of records, or is damaged ({one_line(error)}); export it again") from error


def _read(arrays: Mapping[str, Any]) -> Dataset:
    task, offsets = arrays["task"], arrays["points.offsets"].tolist()
    num, values = len(task), arrays["points.values"].tolist()
    rows = Rows(arrays["primitives.values"], arrays["primitives.offsets"])
    if len(rows) != num or rows.offsets[-1] != len(rows.values) or rows.lengths.min(initial=1) < 1:
        raise ValueError("rows of primitives do not fit the records")
    data = Dataset(
        tuple(_source(**device) for device in json.loads(str(arrays["devices"]))),
        tuple(Task(**t) for t in json.loads(str(arrays["tasks"]))),
        task,
        tuple(tuple(values[a:b]) for a, b in itertools.pairwise(offsets)),
        arrays["latency_s"],
        arrays["label"],
        rows,
    )
    whole = num == len(data.points) == len(data.latency_s) == len(data.label)
    if not whole or (num and not 0 <= task.min() <= task.max() < len(data.tasks)):
        raise ValueError("arrays of different lengths")
    return data
