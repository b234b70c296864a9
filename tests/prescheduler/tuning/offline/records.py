"""Records of made-up seconds, as runs and as data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chanas.compiler.backends import schedule_space
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning.offline.dataset import Dataset
from chanas.prescheduler.tuning.offline.export import collect, files_of_records, make_dataset

from ....compiler.workbench import device, landscape_seconds

ONE = device()
TWO = dataclasses.replace(device(num_threads=2), name="cpu-2t")
WORKLOADS = tuple(Workload("pointwise", 14, 16 * i, 96, epilogue="relu") for i in (2, 3, 4, 6, 8, 12))


def store_run(
    folder: Path, target: HardwareTarget = ONE, workloads: Sequence[Workload] = WORKLOADS, num: int = 24
) -> Path:
    """A run directory with random records of some operators, one of which failed each time."""
    store = RecordStore(folder / "records.sqlite", target)
    for workload in workloads:
        space = schedule_space(workload, target)
        points = space.sample(num, np.random.default_rng(0))
        failed = TuningRecord(points[-1], None, error="it crashed")
        store.add(workload.key, [*(TuningRecord(p, landscape_seconds(space, p), 0.0) for p in points[:-1]), failed])
    store.close()
    return folder


def dataset(folder: Path, targets: Sequence[HardwareTarget] = (ONE,), num: int = 24) -> Dataset:
    """The data set of one run for each target."""
    runs = [store_run(folder / target.name, target, num=num) for target in targets]
    return make_dataset(collect(files_of_records(runs)))
