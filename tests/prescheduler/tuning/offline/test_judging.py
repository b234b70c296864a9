"""chanas/prescheduler/tuning/offline/judging.py: which records are learned from, which judge, and by what figures."""

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
from chanas.prescheduler.tuning.offline.judging import SPLITS, judge, pairwise_accuracy, peak_at, sample_by_flops, split

from .records import ONE, TWO, dataset

# ---- parts of a data set --------------------------------------------------------------------------------------------
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


# ---- figures --------------------------------------------------------------------------------------------------------
labels = st.lists(st.integers(1, 1000), min_size=2, max_size=12, unique=True).map(
    lambda v: (np.array(v) / max(v)).astype(np.float32)
)


@given(label=labels)
def test_the_right_order_is_worth_one_and_the_wrong_one_nothing(label: np.ndarray) -> None:
    score = label.astype(np.float64)
    assert (pairwise_accuracy(score, label), pairwise_accuracy(-score, label)) == (1.0, 0.0)
    assert (peak_at(1, score, label), peak_at(1, -score, label)) == (1.0, label.min())


@given(label=labels, seed=st.integers(0, 99))
def test_figures_depend_on_the_order_of_scores_alone(label: np.ndarray, seed: int) -> None:
    score = np.random.default_rng(seed).normal(size=len(label))
    assert pairwise_accuracy(score, label) == pairwise_accuracy(np.exp(score), label)
    assert peak_at(1, score, label) <= peak_at(5, score, label) <= peak_at(len(label), score, label) == 1.0


def test_tasks_count_by_their_records_and_those_of_one_record_not_at_all() -> None:
    score, label = np.array([0.9, 0.5, 0.1, 0.2, 0.3, 0.7]), np.array([1, 0.5, 1, 0.6, 0.5, 1], dtype=np.float32)
    found = judge(score, label, np.array([0, 0, 1, 1, 1, 2]))
    assert (found.num_records, found.num_tasks) == (5, 2)
    assert found.pairwise_accuracy == pytest.approx(2 / 5)
    assert found.top1 == pytest.approx((2 * 1.0 + 3 * 0.5) / 5)
    assert found.rmse == pytest.approx(np.sqrt((0.01 + 0.81 + 0.16 + 0.04) / 5))


def test_pairs_that_a_timing_cannot_tell_apart_are_not_clear() -> None:
    label, score = np.array([1.0, 0.95, 0.5, 0.47], dtype=np.float32), np.array([0.1, 0.9, 0.3, 0.4])
    found = judge(score, label, np.zeros(4, dtype=np.int64))
    assert found.clear_accuracy == pytest.approx(2 / 4)  # of each of the faster two before each of the slower two
    assert judge(score[:2], label[:2], np.zeros(2, dtype=np.int64)).clear_accuracy is None


@given(label=labels)
def test_a_perfect_order_has_all_clear_pairs_right(label: np.ndarray) -> None:
    assert judge(label.astype(np.float64), label, np.zeros(len(label), dtype=np.int64)).clear_accuracy in (1.0, None)


def test_single_records_judge_nothing() -> None:
    with pytest.raises(DataError, match="at least two records"):
        judge(np.ones(2), np.ones(2, dtype=np.float32), np.array([0, 1]))
