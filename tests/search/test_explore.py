from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import encode, sample
from chanas.core.latency import LatencyLUT
from chanas.errors import ChanasError
from chanas.search.accuracy.evaluations import EvaluationStore
from chanas.search.accuracy.predictor import AccuracyPredictor
from chanas.search.config import SearchConfig
from chanas.search.evolution.constraints import latency_constraint
from chanas.search.evolution.population import keys, unique
from chanas.search.explore import choose_batch, explore, has_stopped_falling

CONFIG = SearchConfig(num_evaluations=40, initial_evaluations=20, evaluation_batch=10, predictor="ridge", patience=9)


def test_the_first_batch_has_both_ends_and_half_of_it_inside(
    demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], rng: np.random.Generator
) -> None:
    limit = latency_constraint(make_lut(demo_space), demo_space, 10, 8e-5)
    none_known = sample(demo_space, 0, rng)
    batch = choose_batch(demo_space, [[limit]], 30, none_known, None, rng)
    assert len(unique(batch)) == len(batch) == 30
    np.testing.assert_array_equal(batch[:2], encode(demo_space, [demo_space.smallest, demo_space.largest]))
    assert np.count_nonzero(limit.cost(batch) <= limit.limit) >= 14


def test_later_batches_are_new_and_uncertain(
    demo_space: SearchSpace, make_accuracy: Callable[..., Any], rng: np.random.Generator
) -> None:
    known = sample(demo_space, 30, rng)
    known[:, 0] = 0  # nothing is known of the larger resolution
    predictor = AccuracyPredictor(demo_space, "ridge").fit(known, make_accuracy(demo_space).many(known))
    batch = choose_batch(demo_space, [[]], 10, known, predictor, rng)
    assert len(unique(batch)) == len(batch) == 10
    assert not np.isin(keys(batch), keys(known)).any()
    typical = predictor.predict(sample(demo_space, 500, rng))[1].mean()
    assert predictor.predict(batch)[1].mean() > typical


def test_a_stopped_exploration_goes_on_to_the_same_evaluations(
    tmp_path: Path, demo_space: SearchSpace, make_accuracy: Callable[..., Any]
) -> None:
    truth = make_accuracy(demo_space)
    whole = EvaluationStore(tmp_path / "whole.jsonl", demo_space, "abc", truth)
    curve = explore(whole, [[]], CONFIG, 0, None)
    assert [n for n, _ in curve] == [20, 30, 40]
    assert len(set(truth.asked)) == len(truth.asked) == 40

    class StoppedError(Exception):
        pass

    def until(architecture: Architecture) -> float:
        if len(truth.asked) == 27:
            raise StoppedError
        return float(truth(architecture))

    truth.asked.clear()
    path = tmp_path / "stopped.jsonl"
    with pytest.raises(StoppedError):
        explore(EvaluationStore(path, demo_space, "abc", until), [[]], CONFIG, 0, None)
    resumed = EvaluationStore(path, demo_space, "abc", truth)
    assert len(resumed.found) == 27
    assert explore(resumed, [[]], CONFIG, 0, None) == curve
    assert len(truth.asked) == 40
    assert list(resumed.found) == list(whole.found)


def test_it_ends_when_the_error_stops_falling(
    tmp_path: Path, demo_space: SearchSpace, make_accuracy: Callable[..., Any]
) -> None:
    truth = make_accuracy(demo_space)
    config = CONFIG.model_copy(update={"num_evaluations": 400, "patience": 2, "min_improvement": 0.5})
    store = EvaluationStore(tmp_path / "e.jsonl", demo_space, "abc", truth)
    curve = explore(store, [[]], config, 0, None)
    assert len(store.found) == curve[-1][0] < 400
    assert has_stopped_falling([error for _, error in curve], 2, 0.5)


def test_a_small_space_is_evaluated_whole(
    tmp_path: Path, tiny_space: SearchSpace, make_accuracy: Callable[..., Any]
) -> None:
    import dataclasses

    small = dataclasses.replace(tiny_space, resolutions=(16,), width_multipliers=(1.0,), depths=(1,))
    assert small.num_architectures == 16
    store = EvaluationStore(tmp_path / "e.jsonl", small, "abc", make_accuracy(small))
    config = CONFIG.model_copy(update={"num_evaluations": 100, "patience": 50})
    explore(store, [[]], config, 0, None)
    assert len(store.found) == 16


def test_stopping() -> None:
    assert not has_stopped_falling([3.0, 2.0], 2, 0.0)
    assert not has_stopped_falling([3.0, 3.1, 2.0], 2, 0.0)
    assert has_stopped_falling([3.0, 3.1, 3.2], 2, 0.0)
    assert has_stopped_falling([3.0, 2.99, 2.98], 2, 0.02)


def test_an_answer_that_is_no_accuracy_is_refused(tmp_path: Path, demo_space: SearchSpace) -> None:
    store = EvaluationStore(tmp_path / "e.jsonl", demo_space, "abc", lambda architecture: 97.5)
    with pytest.raises(ChanasError, match="expected a top-1 between 0 and 1 for r24"):
        explore(store, [[]], CONFIG, 0, None)
