"""Figures of the scheduler of jobs, from two mixes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from chanas.scheduler.mock import random_mix
from chanas.scheduler.policies import POLICIES
from chanas.scheduler.trace import Span, Trace


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


def test_jobs_for_real_are_judged_by_the_median_of_their_repeats(load: Any) -> None:
    script = load("job_scheduler")

    def row(ratio: float, difference: float) -> dict[str, Any]:
        kept = {"sequential_s": 300.0, "makespan_s": 100.0 * ratio, "busy": {"host": 0.5, "device": 0.9}}
        in_turns = {"a": difference, "b": -difference}
        return kept | {"ratio": ratio, "difference": {"a": difference, "b": 0.0}, "difference_in_turns": in_turns}

    figures = script.real_figures([row(1.0, 0.3), row(1.5, -0.005), row(1.1, -0.02)])
    assert figures["real_makespan_over_bound"].value == 1.1
    assert figures["real_makespan_over_bound"].met
    assert figures["real_speedup_over_sequential"].value == pytest.approx(300 / 110)
    assert (figures["real_a_slower_in_turns"].value, figures["real_a_slower_in_turns"].met) == (-0.005, True)
    assert figures["real_b_slower_in_turns"].value == 0.005
    assert figures["real_device_busy"].value == 0.9


def test_a_repeat_runs_each_job_alone_and_all_of_them_together(load: Any, tmp_path: Path) -> None:
    script, asked = load("job_scheduler"), []

    def tune_jobs(names: list[str], folder: Path, policy: str, _options: Any) -> tuple[Trace, dict[str, float]]:
        asked.append((list(names), policy))
        trace = Trace({"host": 1, "device": 2})
        trace.spans.append(Span("a", "", "build", "host", 0, 0.0, 10.0 * len(names)))
        return trace, {name: 1.0 + 0.5 * (len(names) > 1) for name in names}

    script.tune_jobs = tune_jobs
    script.differences_in_turns = lambda names, _folder: dict.fromkeys(names, 0.01)
    row = script.real_row(["a", "b"], tmp_path, argparse.Namespace(policy="slack"))
    assert asked == [(["a"], "slack"), (["b"], "slack"), (["a", "b"], "slack")]
    assert (row["sequential_s"], row["makespan_s"], row["ratio"]) == (20.0, 20.0, 1.0)
    assert row["difference"] == {"a": 0.5, "b": 0.5}
    assert row["difference_in_turns"] == {"a": 0.01, "b": 0.01}
