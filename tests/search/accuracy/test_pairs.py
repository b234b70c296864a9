"""The process is what its kernel says, learns sums and pairs from few architectures, and stands odd tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import check_grad

from chanas.core.arch import SearchSpace
from chanas.core.genome import GenomeLayout, Genomes, sample
from chanas.search.accuracy.encoding import feature_groups, features
from chanas.search.accuracy.pairs import fit_pairs, misfit
from chanas.search.accuracy.predictor import MIN_TRAINING, AccuracyPredictor


@pytest.fixture
def genomes(demo_space: SearchSpace) -> Genomes:
    return sample(demo_space, 1000, np.random.default_rng(4))


def test_it_predicts_by_its_kernel(
    demo_space: SearchSpace, genomes: Genomes, make_accuracy: Callable[..., Any]
) -> None:
    x, y = features(demo_space, genomes[:50]), make_accuracy(demo_space).many(genomes[:50])
    model, left_out = fit_pairs(x[:40], y[:40], feature_groups(demo_space), seed=0)

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        linear: np.ndarray = (a - model.centre) @ model.metric @ (b - model.centre).T
        return linear + model.share * linear**2

    known, asked, z = x[:40], x[40:], (y[:40] - y[:40].mean()) / y[:40].std()
    covariance, cross = kernel(known, known) + model.noise * np.eye(40), kernel(asked, known)
    mean = cross @ np.linalg.solve(covariance, z)
    variance = np.diag(kernel(asked, asked) - cross @ np.linalg.solve(covariance, cross.T)) + model.noise
    np.testing.assert_allclose(model.mean(asked), y[:40].mean() + y[:40].std() * mean, rtol=1e-9)
    np.testing.assert_allclose(model.spread(asked), y[:40].std() * np.sqrt(variance), rtol=1e-6)
    rest = np.arange(40) != 7
    without = kernel(known[7:8], known[rest]) @ np.linalg.solve(covariance[np.ix_(rest, rest)], z[rest])
    assert left_out[7] == pytest.approx(y[:40].std() * (z[7] - without[0]), rel=1e-6)


def test_the_gradient_is_that_of_the_misfit(rng: np.random.Generator) -> None:
    x, z = rng.normal(size=(12, 6)), rng.normal(size=12)
    kernels = np.stack([x[:, :2] @ x[:, :2].T, x[:, 2:] @ x[:, 2:].T])
    at = rng.normal(-1.0, 0.3, size=4)
    assert check_grad(lambda t: misfit(t, kernels, z)[0], lambda t: misfit(t, kernels, z)[1], at) < 1e-4


@pytest.mark.parametrize(
    ("interactions", "num", "most"), [(0.0, 30, 1.02), (0.0, 200, 1.02), (0.6, 100, 1.05), (0.6, 500, 0.75)]
)
def test_it_learns_what_no_ridge_can(
    interactions: float,
    num: int,
    most: float,
    demo_space: SearchSpace,
    genomes: Genomes,
    make_accuracy: Callable[..., Any],
) -> None:
    """Of random pairs, once there are enough to see them; it is about as good of what is almost a sum."""
    truth = make_accuracy(demo_space, interactions, seed=5).many(genomes)
    noisy = truth + 0.002 * np.random.default_rng(2).normal(size=len(truth))
    errors = {}
    for kind in ("pairs", "ridge"):
        mean = AccuracyPredictor(demo_space, kind).fit(genomes[:num], noisy[:num]).mean(genomes[500:])
        errors[kind] = float(np.sqrt(np.mean((mean - truth[500:]) ** 2)))
    assert errors["pairs"] <= most * errors["ridge"]


def test_two_sums_that_multiply_are_learnt_from_few(demo_space: SearchSpace, genomes: Genomes) -> None:
    """The numbers of large kernels and of large expand ratios in the network: 60 rows, of 79 columns."""
    layout = GenomeLayout(demo_space)
    kernel, expand = ((genomes[:, part] == 1).sum(axis=1) / 15.0 - 1 / 3 for part in (layout.kernels, layout.expands))
    y = 0.7 + 0.2 * (kernel + expand) + 2.0 * kernel * expand
    errors = {}
    for kind in ("pairs", "ridge"):
        mean = AccuracyPredictor(demo_space, kind).fit(genomes[:60], y[:60]).mean(genomes[60:])
        errors[kind] = float(np.sqrt(np.mean((mean - y[60:]) ** 2)))
    assert errors["pairs"] < 0.25 * errors["ridge"]


def test_rows_that_contradict_each_other_are_averaged(demo_space: SearchSpace, genomes: Genomes) -> None:
    rows = np.repeat(genomes[:1], 40, axis=0)
    predictor = AccuracyPredictor(demo_space, "pairs").fit(rows, np.tile([0.6, 0.7], 20))
    mean, spread = predictor.predict(genomes[:1])
    assert mean[0] == pytest.approx(0.65, abs=1e-9)
    assert 0.03 < spread[0] < 0.08


def test_the_fewest_rows_of_one_resolution_say_less_of_others(
    demo_space: SearchSpace, genomes: Genomes, make_accuracy: Callable[..., Any]
) -> None:
    rows = genomes[genomes[:, 0] == 0][:MIN_TRAINING]
    predictor = AccuracyPredictor(demo_space, "pairs").fit(rows, make_accuracy(demo_space).many(rows))
    elsewhere = rows.copy()
    elsewhere[:, 0] = 1
    here, there = predictor.predict(rows)[1], predictor.predict(elsewhere)[1]
    assert np.isfinite(here).all()
    assert (there > here).all()
