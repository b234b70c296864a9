"""chanas/prescheduler/tuning/offline/metrics.py: figures of a cost model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.errors import DataError
from chanas.prescheduler.tuning.offline.metrics import judge, pairwise_accuracy, peak_at

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
