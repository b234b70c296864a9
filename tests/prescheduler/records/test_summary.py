"""prescheduler/records/summary.py: the trials of an operator in short."""

from __future__ import annotations

import dataclasses

import pytest

from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.records.summary import TrialSummary
from chanas.testing.spaces import LARGE, failure

FIRST, SECOND, THIRD = LARGE.points[:3]
WORKLOAD = LARGE.workload


def test_the_mean_is_of_the_trials_that_work_and_the_best_is_the_fastest() -> None:
    summary = TrialSummary.of(WORKLOAD, [TuningRecord(FIRST, 1e-6), TuningRecord(SECOND, 4e-6), failure(THIRD)])
    assert (summary.num_tried, summary.num_failed) == (3, 1)
    assert summary.best_gflops == pytest.approx(WORKLOAD.gflops(1e-6))
    assert summary.mean_gflops == pytest.approx((1 + 1 / 4) / 2 * WORKLOAD.gflops(1e-6))


def test_the_best_is_by_its_turns_and_the_mean_by_first_timings() -> None:
    lucky = dataclasses.replace(TuningRecord(FIRST, 1e-6), again_s=3e-6)
    steady = dataclasses.replace(TuningRecord(SECOND, 1.01e-6), again_s=2e-6)
    summary = TrialSummary.of(WORKLOAD, [lucky, steady])
    assert summary.best_gflops == pytest.approx(WORKLOAD.gflops(2e-6))
    assert summary.mean_gflops == pytest.approx((1 + 1 / 1.01) / 2 * WORKLOAD.gflops(1e-6))


@pytest.mark.parametrize("num_failed", [0, 2])
def test_where_nothing_works_there_is_no_speed(num_failed: int) -> None:
    summary = TrialSummary.of(WORKLOAD, [failure(point) for point in LARGE.points[:num_failed]])
    assert summary == TrialSummary(num_failed, num_failed, None, None)
