"""One contract for every kind of predictor, then what sets the kinds apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chanas.core.arch import SearchSpace
from chanas.core.genome import Genomes, sample
from chanas.errors import ConfigError
from chanas.search.accuracy.predictor import KINDS, AccuracyPredictor

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def genomes(demo_space: SearchSpace) -> Genomes:
    return sample(demo_space, 500, np.random.default_rng(1))


@each_kind
def test_it_learns(kind: str, demo_space: SearchSpace, genomes: Genomes, make_accuracy: Callable[..., Any]) -> None:
    truth = make_accuracy(demo_space, interactions=0.3).many(genomes)
    predictor = AccuracyPredictor(demo_space, kind).fit(genomes[:120], truth[:120])
    mean, spread = predictor.predict(genomes[120:])
    assert mean.shape == spread.shape == (380,)
    assert mean.dtype == spread.dtype == np.float64
    assert np.sqrt(np.mean((mean - truth[120:]) ** 2)) < 0.5 * truth.std()
    np.testing.assert_array_equal(mean, predictor.mean(genomes[120:]))


@each_kind
def test_the_spread_is_the_size_of_the_error(
    kind: str, demo_space: SearchSpace, genomes: Genomes, make_accuracy: Callable[..., Any]
) -> None:
    truth = make_accuracy(demo_space, noise=0.003).many(genomes)
    predictor = AccuracyPredictor(demo_space, kind).fit(genomes[:150], truth[:150])
    mean, spread = predictor.predict(genomes[150:])
    assert (spread > 0).all()
    error = np.sqrt(np.mean((mean - truth[150:]) ** 2))
    assert 0.5 < error / np.sqrt(np.mean(spread**2)) < 2.0
    assert 0.5 < error / predictor.error < 2.0


@each_kind
def test_equal_seeds_give_equal_predictions(
    kind: str, demo_space: SearchSpace, genomes: Genomes, make_accuracy: Callable[..., Any]
) -> None:
    truth = make_accuracy(demo_space).many(genomes)
    one, two = (AccuracyPredictor(demo_space, kind, seed=3).fit(genomes[:60], truth[:60]) for _ in range(2))
    np.testing.assert_array_equal(one.predict(genomes), two.predict(genomes))


@each_kind
@pytest.mark.parametrize("value", [0.0, 0.75, 1.0])
def test_equal_accuracies_are_learnt(kind: str, value: float, demo_space: SearchSpace, genomes: Genomes) -> None:
    mean, spread = AccuracyPredictor(demo_space, kind).fit(genomes[:20], np.full(20, value)).predict(genomes)
    np.testing.assert_allclose(mean, value, atol=1e-4)
    assert np.isfinite(spread).all()


@each_kind
def test_too_few_or_wrong_accuracies_are_refused(kind: str, demo_space: SearchSpace, genomes: Genomes) -> None:
    predictor = AccuracyPredictor(demo_space, kind)
    with pytest.raises(ConfigError, match=r"at least 8 evaluated architectures .* got 5"):
        predictor.fit(genomes[:5], np.full(5, 0.5))
    with pytest.raises(ConfigError, match="divide points by 100"):
        predictor.fit(genomes[:20], np.full(20, 75.0))
    with pytest.raises(ConfigError, match="has not learnt yet"):
        predictor.predict(genomes)


def test_unknown_kinds_and_sizes_are_refused(demo_space: SearchSpace) -> None:
    with pytest.raises(ConfigError, match="unknown accuracy predictor 'forest'; known: mlp, pairs, ridge"):
        AccuracyPredictor(demo_space, "forest")
    with pytest.raises(ConfigError, match="hidden"):
        AccuracyPredictor(demo_space, hidden=())


@pytest.mark.parametrize("num", [250, pytest.param(1000, marks=pytest.mark.slow)])
def test_perceptrons_learn_interactions_from_enough_architectures(
    num: int, demo_space: SearchSpace, make_accuracy: Callable[..., Any]
) -> None:
    rows = sample(demo_space, num + 2000, np.random.default_rng(num))
    truth = make_accuracy(demo_space, interactions=0.6, seed=5)
    noisy = truth.many(rows) + 0.002 * np.random.default_rng(2).normal(size=len(rows))
    errors = {}
    for kind in ("mlp", "ridge"):
        mean = AccuracyPredictor(demo_space, kind).fit(rows[:num], noisy[:num]).mean(rows[num:])
        errors[kind] = float(np.sqrt(np.mean((mean - truth.many(rows[num:])) ** 2)))
    assert errors["mlp"] < (0.9 if num >= 500 else 1.2) * errors["ridge"]


@each_kind
def test_predictions_are_accuracies_and_keep_their_order_for_the_evolution(
    kind: str, demo_space: SearchSpace, genomes: Genomes
) -> None:
    top1 = np.clip(0.97 + 0.02 * genomes[:, :2].sum(axis=1) + 0.005 * (genomes[:, 2] > 2), 0.0, 1.0)
    predictor = AccuracyPredictor(demo_space, kind).fit(genomes[:60], top1[:60])
    mean, _ = predictor.predict(genomes)
    assert mean.max() == 1.0
    assert np.array_equal(mean, np.clip(predictor.mean(genomes), 0.0, 1.0))
    assert len(np.unique(predictor.mean(genomes)[mean == 1.0])) > 1
