"""prescheduler/tuning/replay.py: tuners played on records."""

from __future__ import annotations

import dataclasses

import pytest

from chanas.compiler.knobs import FamilyChange
from chanas.core.effort import Effort
from chanas.errors import ConfigError
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.replay import replay
from chanas.prescheduler.tuning.tuners import Tuners
from chanas.testing.spaces import LARGE, SIMILAR, TARGET, failure, sample, smooth

RECORDS = [*(smooth(point) for point in sample(LARGE, 30)), failure(sample(LARGE, 31)[-1])]
EFFORT = Effort(trials=12, early_stopping="no")


@pytest.mark.parametrize("tuner", ["gp", "ga", "random", "exhaustive"])
def test_a_tuner_is_served_what_was_measured_and_nothing_else(tuner: str) -> None:
    effort = dataclasses.replace(EFFORT, tuner=tuner)
    served = replay(LARGE, RECORDS, TARGET, effort)
    assert len(served) == 12
    assert all(record in RECORDS for record in served)
    assert served == replay(LARGE, RECORDS, TARGET, effort)


def test_it_ends_when_all_records_were_served() -> None:
    served = replay(LARGE, RECORDS, TARGET, dataclasses.replace(EFFORT, trials=1000))
    assert sorted(r.point for r in served) == sorted(r.point for r in RECORDS)


def test_it_ends_after_so_many_trials_without_a_better_point() -> None:
    effort = Effort(trials=1000, early_stopping=5, tuner="random")
    served = replay(LARGE, RECORDS, TARGET, effort)
    best = min((r for r in served if r.seconds is not None), key=lambda r: r.seconds or 0.0)
    assert 5 <= len(served) - 1 - served.index(best) < 5 + effort.search.batch_size


@pytest.mark.parametrize("tuner", ["gp", "ga", "random"])
def test_of_further_knobs_only_what_was_tried_is_there(tuner: str) -> None:
    wider = FamilyChange({"auto_unroll": (0, 16, 64)}).apply(LARGE)
    tried = [TuningRecord((*point, 16 * (i % 2)), 1.0 + i) for i, point in enumerate(sample(LARGE, 20))]
    served = replay(wider, tried, TARGET, dataclasses.replace(EFFORT, trials=100, tuner=tuner))
    assert sorted(r.point for r in served) == sorted(r.point for r in tried)


def test_what_was_learned_of_another_operator_is_known() -> None:
    tuners = Tuners("gp")
    replay(SIMILAR, [smooth(point) for point in SIMILAR.points], TARGET, EFFORT, tuners)
    assert replay(LARGE, RECORDS, TARGET, EFFORT, tuners) != replay(LARGE, RECORDS, TARGET, EFFORT)


def test_without_records_of_the_space_there_is_nothing_to_simulate() -> None:
    with pytest.raises(ConfigError, match=f"^there are no records of {LARGE.workload.key} to simulate with"):
        replay(LARGE, [smooth((1, 2, 3))], TARGET, EFFORT)
