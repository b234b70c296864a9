"""chanas/prescheduler/tuning/tuner.py: which points are tried, in what order, and when it ends."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.effort import DEFAULT_SEARCH, Search
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.models import cost_model
from chanas.prescheduler.tuning.cost_model.solving import answer
from chanas.prescheduler.tuning.evolution import Evolution
from chanas.prescheduler.tuning.tuner import Trials
from chanas.prescheduler.tuning.tuners import Tuners
from chanas.testing.spaces import failure, smooth
from chanas.testing.tuners import explore

from ...compiler.workbench import device, landscape_seconds

HERE = device()
LARGE = schedule_space(Workload("pointwise", 14, 96, 192, epilogue="relu"), HERE)
SMALL = schedule_space(Workload("pool", 2, 40, 40), HERE)

every_model = pytest.mark.parametrize("model", ["gp", "random"])


def tuner_of(
    space: ScheduleSpace,
    num_trials: int = 16,
    kept: list[TuningRecord] | None = None,
    model: str = "gp",
    seed: int = 0,
    **search: Any,
) -> Trials:
    kept, how = kept or [], Search(**search)
    if model == "gp":
        return trials_with(cost_model("gp", HERE, seed), space, num_trials, kept, seed, how)
    tuner = Tuners(model, seed=seed, search=how).make(space, kept, HERE)
    return Trials(space, tuner, num_trials, kept, num_initial=how.num_initial)


def trials_with(
    model: Any,
    space: ScheduleSpace,
    num_trials: int,
    kept: Sequence[TuningRecord] = (),
    seed: int = 0,
    search: Search = DEFAULT_SEARCH,
    suggested: Sequence[Point] = (),
) -> Trials:
    tuner = Evolution(space, model, kept, seed, search=search)
    return Trials(space, tuner, num_trials, kept, suggested, search.num_initial)


@pytest.mark.parametrize("space", [LARGE, SMALL])
def test_a_cost_model_that_is_computed_elsewhere_asks_for_the_same_points(space: ScheduleSpace) -> None:
    """What goes there and comes back is text, and both models share what they know of other operators."""
    questions: list[str] = []

    def compute(question: dict[str, Any]) -> dict[str, Any]:
        questions.append(json.dumps(question))
        found: dict[str, Any] = json.loads(json.dumps(answer(json.loads(questions[-1]))))
        return found

    similar = schedule_space(Workload("pointwise", 14, 96, 96), HERE)
    asked = []
    for model in (cost_model("gp", HERE, 0), cost_model("gp", HERE, 0, compute)):
        trials = [trials_with(model, each, 40) for each in (similar, space)]
        asked.append([(explore(each), each.tuner.promise()) for each in trials])
    assert asked[0] == asked[1]
    assert questions


def test_the_initial_set_comes_at_once_and_then_batches() -> None:
    tuner = tuner_of(LARGE, 13, num_initial=6)
    sizes = []
    while batch := tuner.ask(3):
        sizes.append(len(batch))
        tuner.tell([smooth(p) for p in batch])
    assert sizes == [6, 3, 3, 1]


def test_kept_records_of_points_that_are_no_more_are_left_out() -> None:
    tuner = tuner_of(SMALL, 3, [smooth((5, 5, 5, 5)), smooth(SMALL.points[0])])
    assert tuner.num_tried == 1


@every_model
def test_it_goes_on_from_the_valid_ones_among_failures(model: str) -> None:
    tuner = tuner_of(LARGE, 20, model=model)
    explore(tuner, lambda p: smooth(p) if p[0] % 2 else failure(p))
    assert tuner.num_tried == 20
    assert tuner.best is not None
    assert tuner.best.point[0] % 2 == 1


def test_the_best_is_the_fastest_of_new_and_kept_records() -> None:
    kept = [smooth(p) for p in LARGE.points[:10]]
    tuner = tuner_of(LARGE, 20, kept)
    asked = explore(tuner)
    assert tuner.best_s == min(smooth(p).seconds for p in [*asked, *(r.point for r in kept)])


def test_points_that_no_mutation_reaches_are_scored_too() -> None:
    """The model sees at a glance where the best of the space lies, far from all that was tried."""

    class Seer:
        def observe(self, space: ScheduleSpace, records: Sequence[TuningRecord]) -> None:
            pass

        def predict(self, space: ScheduleSpace, points: Sequence[Point]) -> tuple[Any, Any]:
            return np.array([math.log(landscape_seconds(space, p)) for p in points]), np.zeros(len(points))

    worst = sorted(LARGE.points, key=lambda p: -landscape_seconds(LARGE, p))
    greedy = Search(random_share=0.0)
    kept = [TuningRecord(p, landscape_seconds(LARGE, p)) for p in worst[:12]]
    assert set(trials_with(Seer(), LARGE, 16, kept, search=greedy).ask(4)) == set(worst[-4:])


# ---- what is left to gain -------------------------------------------------------------------------------------------
def test_less_is_left_to_gain_the_more_is_known() -> None:
    drawn = LARGE.sample(len(LARGE.points), np.random.default_rng(0))
    worst = sorted(drawn, key=lambda p: -landscape_seconds(LARGE, p))
    few, most = worst[:12], worst[-160:]

    def left(points: list[Point]) -> float:
        kept = [TuningRecord(p, landscape_seconds(LARGE, p), 0.0) for p in points]
        return tuner_of(LARGE, kept=kept).tuner.promise()

    assert left(few) > 0.1 > 0.05 > left(most) >= 0.0


def test_less_is_left_to_gain_beside_a_faster_operator_that_computes_the_same() -> None:
    kept = [smooth(p) for p in LARGE.points[:10]]
    tuner = tuner_of(LARGE, 14, kept)
    best_s = tuner.best_s or 0.0
    alone, *beside = (tuner.tuner.promise(rival_s=share * best_s) for share in (2.0, 0.9, 0.1))
    assert alone == tuner.tuner.promise() > beside[0] > beside[1] >= 0.0


def test_nothing_is_left_to_gain_where_nothing_works_and_another_operator_does() -> None:
    kept = [TuningRecord(p, None, error="crash") for p in LARGE.points[:10]]
    tuner = tuner_of(LARGE, 14, kept)
    assert (tuner.tuner.promise(), tuner.tuner.promise(rival_s=1.0)) == (math.inf, 0.0)


def test_asking_what_is_left_changes_no_proposal() -> None:
    kept = [smooth(p) for p in LARGE.points[:10]]
    asked, other = (tuner_of(LARGE, 14, kept) for _ in range(2))
    asked.tuner.promise()
    assert asked.ask(4) == other.ask(4)


def test_a_limit_may_be_raised() -> None:
    tuner = tuner_of(LARGE, 4)
    assert len(explore(tuner)) == 4
    tuner.limit = 7
    assert len(explore(tuner)) == 3


def test_noise_is_the_relative_spread_of_the_best() -> None:
    tuner = tuner_of(LARGE, 16, [TuningRecord(LARGE.points[0], 2e-6, 1e-7), smooth(LARGE.points[-1])])
    best = tuner.best
    assert best is not None
    assert tuner.noise == pytest.approx((best.spread_s or 0.0) / (best.seconds or 1.0))
    assert tuner_of(LARGE).noise == 0.0


def share_of_faster_points(space: ScheduleSpace, points: list[Point]) -> float:
    """Mean over `points`: the share of the space that is faster."""
    every = np.array([landscape_seconds(space, p) for p in space.points])
    return float(np.mean([np.mean(every < landscape_seconds(space, p)) for p in points]))


def test_a_model_that_knows_similar_operators_chooses_the_initial_set() -> None:
    similar = schedule_space(Workload("pointwise", 12, 64, 192, epilogue="relu"), HERE)
    search = {"num_initial": 8, "random_share": 0.0}
    blind, taught = [], []
    for seed in range(5):
        blind += tuner_of(similar, 8, seed=seed, **search).ask(4)
        model = cost_model("gp", HERE, seed)
        known = LARGE.sample(60, np.random.default_rng(seed))
        model.observe(LARGE, [TuningRecord(p, landscape_seconds(LARGE, p)) for p in known])
        taught += trials_with(model, similar, 8, seed=seed, search=Search(**search)).ask(4)
    assert share_of_faster_points(similar, taught) < 0.15
    assert share_of_faster_points(similar, blind) > 0.35


def test_the_best_of_a_landscape_is_found_more_often_than_at_random() -> None:
    """24 trials among 230 points, 16 times over: at random, one run in ten meets the best point."""
    seconds = {p: landscape_seconds(LARGE, p) for p in LARGE.points}
    nearly_best = 1.001 * min(seconds.values())

    def num_found(model: str) -> int:
        tuners = [tuner_of(LARGE, 24, model=model, seed=seed) for seed in range(16)]
        for tuner in tuners:
            explore(tuner, lambda p: TuningRecord(p, seconds[p]))
        return sum((t.best_s or math.inf) <= nearly_best for t in tuners)

    drawn = [LARGE.sample(24, np.random.default_rng(seed)) for seed in range(16)]
    at_random = sum(min(seconds[p] for p in points) <= nearly_best for points in drawn)
    assert num_found("gp") >= 11
    assert max(at_random, num_found("random")) <= 8


def test_what_is_suggested_is_tried_first_and_nothing_twice() -> None:
    suggested = [LARGE.points[3], (1, 2), LARGE.points[8], LARGE.points[1]]
    model, kept = cost_model("gp", HERE, 0), [smooth(LARGE.points[8])]
    tuner = trials_with(model, LARGE, 8, kept, suggested=suggested)
    asked = explore(tuner)
    assert asked[:2] == [LARGE.points[3], LARGE.points[1]]
    assert len(set(asked)) == len(asked) == 7
