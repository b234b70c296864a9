"""chanas/prescheduler/tuning/offline/split.py: which records are learned from, and which judge."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.errors import DataError
from chanas.prescheduler.tuning.offline.dataset import Dataset
from chanas.prescheduler.tuning.offline.split import SPLITS, sample_by_flops, split

from .records import ONE, TWO, dataset

seeds = st.integers(0, 1000)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return dataset(tmp_path_factory.mktemp("runs"), (ONE, TWO))


@given(seed=seeds, name=st.sampled_from(sorted(SPLITS)))
def test_a_split_is_of_all_records_and_the_same_for_a_seed(data: Dataset, name: str, seed: int) -> None:
    parts = split(data, name, seed)
    assert sorted([*parts.train, *parts.test]) == list(range(len(data)))
    assert [list(p) for p in split(data, name, seed)] == [list(p) for p in parts]


def devices_of(data: Dataset, records: np.ndarray) -> set[int]:
    return {data.tasks[t].device for t in data.task[records]}


@given(seed=seeds)
def test_parts_share_tasks_or_devices_only_where_the_split_says_so(data: Dataset, seed: int) -> None:
    train, test = split(data, "within_task", seed)
    assert set(data.task[train]) == set(data.task[test])
    train, test = split(data, "by_task", seed)
    assert set(data.task[train]).isdisjoint(data.task[test])
    train, test = split(data, "by_target", seed)
    assert (devices_of(data, train), devices_of(data, test)) == ({1}, {0})


def test_one_device_can_not_be_split_by_target(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needs records of two devices at least, got one"):
        split(dataset(tmp_path), "by_target")


@given(seed=seeds, share=st.floats(0.1, 0.9))
def test_a_sample_has_whole_tasks_with_enough_records(data: Dataset, share: float, seed: int) -> None:
    chosen = sample_by_flops(data, share, min_records=23, seed=seed)
    assert list(chosen) == list(sample_by_flops(data, share, min_records=23, seed=seed))
    counts = Counter(data.task[chosen].tolist())
    assert all(counts[task] == data.counts()[task] for task in counts)
    assert share * len(data) <= len(chosen) < share * len(data) + 23 + 1e-6


def test_tasks_with_few_records_are_left_out(data: Dataset) -> None:
    few = data.of(np.arange(23 + 5, dtype=np.int64))
    assert set(few.task[sample_by_flops(few, 1.0, min_records=6)]) == {few.task[0]}
    with pytest.raises(DataError, match="tasks of at least 99 records"):
        sample_by_flops(few, min_records=99)


def test_tasks_whose_flops_occur_often_are_drawn_more_often(data: Dataset) -> None:
    tasks = tuple(dataclasses.replace(t, num_flops=7 if i < 9 else 100 + i) for i, t in enumerate(data.tasks))
    changed = dataclasses.replace(data, tasks=tasks)
    first = [int(data.task[sample_by_flops(changed, 0.01, seed=seed)][0]) for seed in range(200)]
    assert np.mean([task < 9 for task in first]) == pytest.approx(81 / 84, abs=0.05)
