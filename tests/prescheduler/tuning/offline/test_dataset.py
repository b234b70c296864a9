"""chanas/prescheduler/tuning/offline/dataset.py and export.py: records of runs as one file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.errors import CheckpointError, DataError
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning.offline.dataset import Dataset, load, save
from chanas.prescheduler.tuning.offline.export import collect, describe_dataset, files_of_records, make_dataset

from ....compiler.cuda_cases import GPU
from .records import ONE, TWO, WORKLOADS, dataset, store_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return dataset(tmp_path_factory.mktemp("runs"), (ONE, TWO))


def test_every_valid_record_is_there(data: Dataset) -> None:
    assert len(data.tasks) == 2 * len(WORKLOADS)
    assert set(data.counts().tolist()) == {23}
    assert [device.target.num_threads for device in data.devices] == [1, 2]


def test_the_best_record_of_each_task_has_the_label_one(data: Dataset) -> None:
    for task in range(len(data.tasks)):
        here = data.task == task
        assert data.label[here].max() == 1.0
        assert data.label[here].argmax() == data.latency_s[here].argmin()


def test_what_is_written_is_read_back(data: Dataset, tmp_path: Path) -> None:
    file = tmp_path / "records.npz"
    save(data, file)
    read = load(file)
    assert (read.devices, read.tasks, read.points) == (data.devices, data.tasks, data.points)
    for name in ("task", "latency_s", "label"):
        assert np.array_equal(getattr(read, name), getattr(data, name))
    assert np.array_equal(read.primitives.values, data.primitives.values)


def test_a_point_of_two_files_counts_once(tmp_path: Path) -> None:
    runs = [store_run(tmp_path / name) for name in ("a", "b")]
    assert files_of_records([tmp_path]) == [run / "records.sqlite" for run in runs]
    assert len(make_dataset(collect(files_of_records([tmp_path])))) == 23 * len(WORKLOADS)


def test_points_of_other_spaces_are_left_out_and_counted(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records.sqlite", ONE)
    point = schedule_space(WORKLOADS[0], ONE).middle
    store.add(WORKLOADS[0].key, [TuningRecord(point, 1.0), TuningRecord((1, 2, 3), 1.0)])
    store.add("pointwise-of-old", [TuningRecord((1,), 1.0)])
    store.add(Workload("squeeze", 7, 32, 32).key, [TuningRecord((1,), 1.0)])
    store.close()
    found = collect([tmp_path / "records.sqlite"])
    assert make_dataset(found).points == (point,)
    assert found.skipped == {
        "of points outside their spaces": 1,
        "of operators that are not there": 1,
        "of devices that are not known, or without usable seconds": 1,
    }


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a run directory, a file of records or a folder of runs"):
        files_of_records([tmp_path])
    (tmp_path / "records.sqlite").write_text("no database")
    with pytest.raises(CheckpointError, match="cannot be read"):
        collect([tmp_path / "records.sqlite"])


@pytest.mark.parametrize("damage", ["cut", "text", "schema", "lengths"])
def test_a_damaged_file_is_refused(data: Dataset, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "records.npz"
    save(data, file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-200])
    elif damage == "text":
        file.write_text("no archive")
    else:
        with np.load(file) as arrays:
            changed = dict(arrays)
        changed |= {"header": np.array(json.dumps({"schema": 9}))} if damage == "schema" else {"task": data.task[1:]}
        np.savez(file, **changed)
    with pytest.raises(DataError, match="export"):
        load(file)


def test_files_from_when_stores_had_features_are_read_unless_they_have_some(data: Dataset, tmp_path: Path) -> None:
    file = tmp_path / "records.npz"
    save(data, file)
    with np.load(file) as arrays:
        content = dict(arrays)
    header = json.loads(str(content["header"]))
    header["features"]["segments"] = 172
    content["header"] = np.array(json.dumps(header))
    np.savez(file, **content)
    assert len(load(file)) == len(data)
    content |= {"segments.values": np.zeros((len(data), 172)), "segments.offsets": np.arange(len(data) + 1)}
    np.savez(file, **content)
    with pytest.raises(DataError, match="segments"):
        load(file)


def test_a_description_counts_by_device_and_family(data: Dataset) -> None:
    lines = describe_dataset(data)
    assert lines[0] == f"records    {len(data)}, 12 tasks, 2 device(s)"
    assert lines[1].endswith(f"{len(data) // 2} (pointwise {len(data) // 2})")
    assert sum("M: 2 tasks" in line for line in lines) == len(WORKLOADS)


@pytest.mark.parametrize(
    ("dtype", "batch", "name"),
    [("float32", 1, "cuda"), ("float16", 1, "cuda-f16"), ("tf32", 1, "cuda-tf32"), ("float16", 32, "cuda-f16-b32")],
)
def test_records_of_gpus_are_exported_as_such(tmp_path: Path, dtype: str, batch: int, name: str) -> None:
    target = dataclasses.replace(GPU, name=name, dtype=dtype, batch=batch)
    workload = Workload("pointwise", 14, 96, 192, epilogue="relu", dtype=dtype, batch=batch)
    store = RecordStore(tmp_path / "records.sqlite", target)
    store.add(workload.key, [TuningRecord((1,), 1e-3)])
    store.close()
    found = collect(files_of_records([tmp_path]))
    assert [(source.target.name, list(tasks)) for source, tasks in found.seconds.items()] == [(name, [workload.key])]
    assert not found.skipped


def test_records_that_cannot_be_exported_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = store_run(tmp_path, num=4)
    with contextlib.closing(sqlite3.connect(run / "records.sqlite")) as db, db:
        db.execute("UPDATE records SET device = 'of another kind' WHERE rowid IN (1, 2)")
        db.execute("UPDATE records SET seconds = 9e999 WHERE rowid = 3")
    found = collect(files_of_records([run]))
    num_kept = sum(len(points) for tasks in found.seconds.values() for points in tasks.values())
    assert (num_kept, sum(found.skipped.values())) == (3 * len(WORKLOADS) - 3, 3)
    assert "1 left out" in caplog.text
