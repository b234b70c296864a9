"""The fastest architecture of a wanted accuracy, on synthetic tables, accuracies and measurements."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fast_cases import fast

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import decode, encode, sample
from chanas.core.latency import LatencyLUT
from chanas.core.task import Task
from chanas.errors import InfeasibleError
from chanas.files.run import RunDirectory
from chanas.search.accuracy.table import AccuracyTable
from chanas.search.cosearch import SearchOutcome, new_job
from chanas.search.evolution.constraints import NO_LIMIT_S, least, macs_constraint
from chanas.search.fastest import search_fastest
from chanas.search.learning import Source
from chanas.search.proof import Proof, Timing
from chanas.search.target import SearchTarget

from . import settings

FAST = settings.FAST.model_copy(update={"num_cloud": 0, "pareto_generations": 0})
NUM_CLASSES = 10
Fastest = Callable[..., SearchOutcome]


@pytest.fixture
def fastest(
    tmp_path: Path, demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], make_accuracy: Callable[..., Any]
) -> Fastest:
    lut, truth = make_lut(demo_space), make_accuracy(demo_space, noise=0.0)

    def find(
        top1: float,
        ratio: float = 1.02,
        constraints: Sequence[Any] = (),
        lost: float = 0.0,
        table: AccuracyTable | None = None,
        **task_changes: Any,
    ) -> SearchOutcome:
        def prove(architectures: Sequence[Architecture]) -> list[Proof]:
            genomes = encode(demo_space, architectures)
            seconds, found = lut.latency_s(demo_space, NUM_CLASSES, genomes), truth.many(genomes) - lost
            if table is not None:
                known = dict(zip(table.architectures, table.top1.tolist(), strict=True))
                found = np.array([known.get(a, math.nan) for a in architectures])
            return [
                Proof(a, (Timing("cpu", ratio * s, 1e-7),), t, 1e-6)
                for a, s, t in zip(architectures, seconds.tolist(), found.tolist(), strict=True)
            ]

        target, task = SearchTarget(lut.header.target, NO_LIMIT_S, lut), Task(demo_space, NUM_CLASSES, **task_changes)
        job = new_job(task, [target], constraints, FAST)
        source = Source(RunDirectory(tmp_path), "abc", truth, table)
        return search_fastest(job, top1, source, prove, progress=False)

    return find


@pytest.mark.parametrize("ratio", fast([0.9, 1.1, 1.0], [0, 1]))
def test_the_fastest_that_is_accurate_enough_wins(
    fastest: Fastest,
    ratio: float,
    tmp_path: Path,
    demo_space: SearchSpace,
    make_lut: Callable[..., LatencyLUT],
    make_accuracy: Callable[..., Any],
) -> None:
    genomes = sample(demo_space, 1000, np.random.default_rng(1))
    seconds = make_lut(demo_space).latency_s(demo_space, NUM_CLASSES, genomes)
    top1 = make_accuracy(demo_space, noise=0.0).many(genomes)
    goal = float(np.quantile(top1, 0.8))
    outcome = fastest(goal, ratio)
    assert outcome.winner.top1 >= goal
    accurate = [f.measured_s[0] for f in outcome.finalists if f.top1 >= goal]
    assert outcome.winner.measured_s[0] == min(accurate) <= outcome.targets[0].budget_s
    assert outcome.winner.measured_s[0] < ratio * np.quantile(seconds[top1 >= goal], 0.05)
    assert json.loads((tmp_path / "search/result.json").read_text())["winner"] == outcome.architecture.key
    assert not (tmp_path / "search/trial.json").exists()


def test_an_accuracy_that_nothing_has_is_refused_with_the_best_there_is(fastest: Fastest) -> None:
    with pytest.raises(
        InfeasibleError, match=r"accuracy of 99\.90%: the most accurate one has \d\d\.\d\d%; ask for less"
    ):
        fastest(0.999)


def test_a_goal_that_was_raised_out_of_reach_is_told_as_the_one_that_was_asked_for(
    fastest: Fastest, tmp_path: Path
) -> None:
    with pytest.raises(InfeasibleError, match=r"accuracy of 84\.00% was found in \d search.*ask for less"):
        fastest(0.84, lost=0.02)
    assert not (tmp_path / "search/trial.json").exists()


def test_sub_spaces_without_accuracies_are_left_out(fastest: Fastest, demo_space: SearchSpace) -> None:
    *left_out, home = demo_space.sub_spaces
    outcome = fastest(0.78, left_out=tuple(left_out))
    assert {f.architecture.sub_space for f in outcome.finalists} == {home}


def test_other_limits_hold(fastest: Fastest, demo_space: SearchSpace) -> None:
    limit = macs_constraint(demo_space, NUM_CLASSES, demo_space.smallest.num_macs(demo_space, NUM_CLASSES))
    outcome = fastest(0.05, constraints=[limit])
    assert outcome.architecture.num_macs(demo_space, NUM_CLASSES) <= limit.limit


def drawn_table(space: SearchSpace, truth: Any, exception: Architecture | None = None) -> AccuracyTable:
    """Some accuracies; `exception` is better than all others, which no regression would guess."""
    architectures = [a for a in decode(space, sample(space, 200, np.random.default_rng(3))) if a != exception]
    architectures = list(dict.fromkeys([*([] if exception is None else [exception]), *architectures]))
    genomes = encode(space, architectures)
    top1 = np.minimum(truth.many(genomes), 0.82)
    top1[: int(exception is not None)] = 0.9
    return AccuracyTable(tuple(architectures), genomes, top1, len(architectures), (), "d")


@pytest.mark.parametrize("which", ["smallest", "largest"])
def test_a_known_accuracy_counts_more_than_a_prediction(
    which: str, fastest: Fastest, demo_space: SearchSpace, make_accuracy: Callable[..., Any]
) -> None:
    exception: Architecture = getattr(demo_space, which)
    table = drawn_table(demo_space, make_accuracy(demo_space), exception)
    outcome = fastest(0.88, table=table)
    assert outcome.architecture == exception
    assert outcome.winner.top1 == 0.9
    with pytest.raises(InfeasibleError, match=r"the most accurate one has 90\.00%"):
        fastest(0.91, table=table)


@pytest.mark.parametrize("ratio", [0.9, 2.5])
def test_where_every_network_is_accurate_enough_the_fastest_is_found_whatever_it_measures(
    ratio: float, fastest: Fastest, demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], tmp_path: Path
) -> None:
    outcome = fastest(0.05, ratio)
    smallest_s, genomes = least(make_lut(demo_space).table(demo_space, NUM_CLASSES))
    assert outcome.architecture == decode(demo_space, genomes)[0]
    assert outcome.targets[0].budget_s >= outcome.winner.measured_s[0] == pytest.approx(ratio * smallest_s)
    result = json.loads((tmp_path / "search/result.json").read_text())
    assert result["budget_s"] == result["constraints"][0]["limit"] == outcome.targets[0].budget_s


def test_all_of_the_images_may_be_asked_for(fastest: Fastest, demo_space: SearchSpace) -> None:
    genomes = sample(demo_space, 100, np.random.default_rng(1))
    architectures = tuple(dict.fromkeys(decode(demo_space, genomes)))
    genomes = encode(demo_space, architectures)
    table = AccuracyTable(architectures, genomes, np.full(len(genomes), 1.0), len(genomes), (), "d")
    assert fastest(1.0, table=table).winner.top1 == 1.0
