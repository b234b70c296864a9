"""Figures of the scheduler of jobs, from two mixes."""

from __future__ import annotations

from typing import Any

import pytest

from chanas.scheduler.mock import random_mix
from chanas.scheduler.policies import POLICIES


def test_figures_are_those_of_two_policies(load: Any) -> None:
    script = load("job_scheduler")
    thesis, mixes = script.thesis_rows([2]), [script.mix_row(seed, random_mix(seed)) for seed in (0, 4)]
    figures = script.figures_of(thesis, mixes)
    assert figures["thesis_speedup_least"].value == figures["thesis_speedup_most"].value > 1.7
    assert figures["thesis_speedup_most"].met
    assert 1.0 <= figures["makespan_over_bound_mean"].value <= figures["makespan_over_bound_worst"].value
    assert set(script.summary(mixes)["policies"]) == {*POLICIES, script.BEST}


def test_the_best_of_all_is_the_least_of_each_mix(load: Any) -> None:
    script = load("job_scheduler")
    row = script.mix_row(4, random_mix(4))
    assert row["load"][script.BEST] == min(row["load"][name] for name in POLICIES)
    assert row["tight"][script.BEST] <= row["load"][script.BEST]
    assert row["completion"]["interleaved"] == 1.0


def test_nothing_is_run_that_is_not_simulated(load: Any) -> None:
    with pytest.raises(SystemExit):
        load("job_scheduler").main([])
