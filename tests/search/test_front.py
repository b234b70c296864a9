"""The measured Pareto front on synthetic tables, accuracies and measurements."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import encode
from chanas.core.latency import LatencyLUT
from chanas.core.task import Task
from chanas.errors import ConfigError, InfeasibleError, MeasureError
from chanas.files.run import RunDirectory
from chanas.search.evolution.constraints import least, macs_constraint
from chanas.search.front import FrontPoint, mark_dominated, new_front, search_front, spread_over
from chanas.search.learning import Source
from chanas.search.proof import Proof, Timing

from .settings import FAST

Search = Callable[..., tuple[FrontPoint, ...]]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


@pytest.fixture
def front(
    run: RunDirectory, demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], make_accuracy: Callable[..., Any]
) -> Search:
    lut, truth = make_lut(demo_space), make_accuracy(demo_space, noise=0.0)

    def prove(architectures: Sequence[Architecture]) -> list[Proof]:
        genomes = encode(demo_space, architectures)
        seconds, top1 = lut.latency_s(demo_space, 10, genomes), truth.many(genomes)
        return [
            Proof(a, (Timing("cpu", 1.02 * s, 1e-7),), t, 1e-6)
            for a, s, t in zip(architectures, seconds.tolist(), top1.tolist(), strict=True)
        ]

    def search(**changes: Any) -> tuple[FrontPoint, ...]:
        own_prove, left_out = changes.pop("prove", prove), changes.pop("left_out", ())
        job = new_front(Task(demo_space, 10, left_out), lut, **{"config": FAST, **changes})
        return search_front(job, Source(run, "abc", truth), own_prove, progress=False)

    return search


def test_the_front_goes_from_the_fastest_to_the_most_accurate(front: Search, run: RunDirectory) -> None:
    points = front(num_points=6)
    assert len(points) == 6
    assert all(a.measured_latency_s < b.measured_latency_s for a, b in pairwise(points))
    best = [p for p in points if not p.dominated]
    assert all(a.top1 < b.top1 for a, b in pairwise(best))
    assert len(best) >= 4
    assert best[-1].top1 - best[0].top1 > 0.02
    document = json.loads((run.search / "pareto.json").read_text())
    assert [p["key"] for p in document["points"]] == [p.architecture.key for p in points]
    assert len(document["front"]) >= 6
    assert document["num_evaluations"] <= 48


def test_the_same_seed_gives_the_same_front_and_reuses_every_evaluation(front: Search, run: RunDirectory) -> None:
    first = front()
    lines = (run.search / "evaluations.jsonl").read_text()
    assert front() == first
    assert (run.search / "evaluations.jsonl").read_text() == lines


def test_a_front_of_other_settings_is_kept(front: Search, run: RunDirectory) -> None:
    for settings in ({}, {}, {"seed": 1}, {"seed": 1, "num_points": 3}):
        front(**settings)
    kept = [run.search / name for name in ("pareto.json.1", "pareto.json.2", "pareto.json")]
    assert [path for path in run.search.glob("pareto*") if path not in kept] == []
    documents = [json.loads(path.read_text()) for path in kept]
    assert [(document["seed"], len(document["points"])) for document in documents] == [(0, 8), (1, 8), (1, 3)]


def test_every_point_meets_the_constraints(front: Search, demo_space: SearchSpace) -> None:
    limit = 1.5 * least(macs_constraint(demo_space, 10, 1e12).table)[0]
    points = front(constraints=[macs_constraint(demo_space, 10, limit)])
    assert max(p.architecture.num_macs(demo_space, 10) for p in points) <= limit
    with pytest.raises(InfeasibleError, match="the smallest reachable is"):
        front(constraints=[macs_constraint(demo_space, 10, 10)])


def test_sub_spaces_without_accuracies_are_left_out(front: Search, demo_space: SearchSpace) -> None:
    home, *left_out = demo_space.sub_spaces
    assert {p.architecture.sub_space for p in front(left_out=tuple(left_out))} == {home}


def test_points_that_fail_come_last_and_all_failing_is_an_error(front: Search) -> None:
    def fails_first(architectures: Sequence[Architecture]) -> list[Proof]:
        return [
            Proof(a, error="crash") if i == 0 else Proof(a, (Timing("cpu", 1e-3 * i, 1e-7),), 0.5 + 0.01 * i)
            for i, a in enumerate(architectures)
        ]

    assert [p.proof.error for p in front(prove=fails_first, num_points=3)] == [None, None, "crash"]
    with pytest.raises(MeasureError, match="none of 3 points could be compiled and measured; crash"):
        front(prove=lambda found: [Proof(a, error="crash") for a in found], num_points=3)
    with pytest.raises(ConfigError, match="at least 2 points"):
        front(num_points=1)


def test_a_point_that_another_beats_in_both_is_marked() -> None:
    architecture = SearchSpace.load("mbv3-32").smallest
    seconds, top1 = (3e-3, 1e-3, 2e-3), (0.8, 0.7, 0.6)
    points = [
        FrontPoint(architecture, s, t, Proof(architecture, (Timing("cpu", s, 0.0),), t))
        for s, t in zip(seconds, top1, strict=True)
    ]
    assert [(p.top1, p.dominated) for p in mark_dominated(points)] == [(0.7, False), (0.6, True), (0.8, False)]


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=40), st.integers(2, 10))
def test_spread_positions_are_distinct_ascending_and_hold_both_ends(values: list[float], num: int) -> None:
    latency_s = np.array(values)
    at = spread_over(latency_s, num)
    assert len(set(at.tolist())) == len(at) == min(num, len(values))
    assert all(a <= b for a, b in pairwise(latency_s[at].tolist()))
    assert latency_s[at[0]] == latency_s.min()
    assert latency_s[at[-1]] == latency_s.max()
