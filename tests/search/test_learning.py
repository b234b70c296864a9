"""chanas/search/learning.py: what several searches learn together, each architecture evaluated once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import encode
from chanas.core.latency import LatencyLUT
from chanas.core.task import Task
from chanas.files.run import RunDirectory
from chanas.search.config import SearchConfig
from chanas.search.cosearch import new_job, search
from chanas.search.evolution.evolution import EvolutionConfig
from chanas.search.learning import Source, learn
from chanas.search.proof import Proof, Timing
from chanas.search.target import SearchTarget

FAST = SearchConfig(
    num_evaluations=24,
    initial_evaluations=12,
    evaluation_batch=6,
    patience=9,
    refine_evaluations=6,
    refine_batch=3,
    predictor="ridge",
    num_samples=60,
    evolution=EvolutionConfig(population=30, generations=15),
    cross_validate=False,
    num_cloud=0,
    pareto_generations=0,
)


def on_two_threads(lut: LatencyLUT) -> LatencyLUT:
    """A table of another target, on which large kernels cost less."""
    target = dataclasses.replace(lut.header.target, name="cpu-2t", num_threads=2)
    rows = {k: dataclasses.replace(r, median_s=r.median_s * (0.9 if "k3" in k else 0.6)) for k, r in lut.rows.items()}
    return LatencyLUT(dataclasses.replace(lut.header, target=target), rows)


class Lab:
    """Two targets of one space, accuracies, and a run directory."""

    def __init__(self, space: SearchSpace, lut: LatencyLUT, truth: Any, root: Path) -> None:
        self.space, self.truth, self.run = space, truth, RunDirectory(root)
        tables = ((lut, 1.2e-4), (on_two_threads(lut), 8e-5))
        self.targets = [SearchTarget(table.header.target, budget_s, table) for table, budget_s in tables]
        self.jobs = [new_job(Task(space, 10), [target], config=FAST) for target in self.targets]

    def learn(self) -> Any:
        return learn(self.jobs, self.source(), progress=False)

    def source(self) -> Source:
        return Source(self.run, "abc", self.truth)

    @property
    def stored(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run.search / "evaluations.jsonl").read_text().splitlines()]

    def seconds(self, number: int, key: str) -> float:
        lut = self.targets[number].lut
        return float(lut.latency_s(self.space, 10, encode(self.space, [Architecture.from_key(key)]))[0])


@pytest.fixture
def lab(
    tmp_path: Path, demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], make_accuracy: Callable[..., Any]
) -> Lab:
    return Lab(demo_space, make_lut(demo_space), make_accuracy(demo_space), tmp_path)


def test_each_target_has_its_best_evaluated_under_its_name_and_nothing_is_evaluated_twice(lab: Lab) -> None:
    learned = lab.learn()
    assert len(set(lab.truth.asked)) == len(lab.truth.asked) == len(lab.stored) == 24 + 2 * 6
    assert learned.predictor.num_training == len(lab.stored)
    purposes = [row["purpose"] for row in lab.stored if row["purpose"] != "explore"]
    assert purposes == 6 * ["refine at latency on cpu 0.00012 by accuracy"] + 6 * [
        "refine at latency on cpu-2t 8e-05 by accuracy"
    ]
    for number, name in enumerate(("cpu ", "cpu-2t ")):
        mine = [row["architecture"] for row in lab.stored if f"on {name}" in row["purpose"]]
        assert all(lab.seconds(number, key) <= lab.targets[number].budget_s for key in mine)


def test_exploring_goes_inside_the_limits_of_every_target(lab: Lab) -> None:
    lab.learn()
    explored = [row["architecture"] for row in lab.stored if row["purpose"] == "explore"]
    for number, target in enumerate(lab.targets):
        inside = sum(lab.seconds(number, key) <= target.budget_s for key in explored)
        assert inside >= len(explored) // 5


def test_it_goes_on_where_it_stopped(lab: Lab) -> None:
    class StoppedError(Exception):
        pass

    whole, count = lab.truth, 0

    def stops(architecture: Architecture) -> float:
        nonlocal count
        count += 1
        if count > 27:  # in the middle of the first target's best candidates
            raise StoppedError
        return float(whole(architecture))

    lab.truth = stops
    with pytest.raises(StoppedError):
        lab.learn()
    assert len(lab.stored) == 27
    lab.truth = whole
    lab.learn()
    assert len(whole.asked) == len(set(whole.asked)) == len(lab.stored) == 36


def test_a_search_with_what_was_learnt_evaluates_nothing_and_writes_where_it_is_told(lab: Lab) -> None:
    learned = lab.learn()
    lab.truth.asked.clear()
    path = lab.run.target_result("cpu-2t")
    target = lab.targets[1]

    def prove(found: Any) -> list[Proof]:
        return [Proof(a, (Timing("cpu-2t", lab.seconds(1, a.key), 1e-7),), 0.9, 1e-6) for a in found]

    outcome = search(lab.jobs[1], lab.source(), prove, learned=learned, result=path, with_alike=True, progress=False)
    assert lab.truth.asked == []
    assert outcome.result == path
    assert not (lab.run.search / "result.json").exists()
    stored = json.loads(path.read_text())
    assert stored["target"] == "cpu-2t"
    assert stored["predictor"]["num_training"] == 36
    assert len(stored["alike"]) == 100
    assert len(set(stored["alike"])) > 20
    assert all(lab.seconds(1, key) <= target.budget_s for key in stored["alike"])
    genomes = encode(lab.space, [Architecture.from_key(key) for key in stored["alike"]])
    best = stored["evolution"]["best"][-1]
    assert (learned.predictor.mean(genomes) >= best - learned.predictor.error).all()


def test_where_nothing_can_be_measured_the_best_by_prediction_and_evaluation_wins(lab: Lab) -> None:
    learned = lab.learn()
    target = lab.targets[0]
    outcome = search(lab.jobs[0], lab.source(), None, learned=learned, progress=False)
    assert outcome.winner.proof.timings == ()
    assert outcome.winner.predicted_s[0] <= target.budget_s
    assert outcome.winner.proof.top1_holdout == max(f.top1 for f in outcome.finalists)
    stored = json.loads((lab.run.search / "result.json").read_text())
    assert all(f["measured"]["latency_s"] is None and f["error"] is None for f in stored["finalists"])
    assert all(f["measured"]["top1_holdout"] is not None for f in stored["finalists"])
