"""chanas/prescheduler/tuning/transfer/search.py: other devices help where they are alike, and cost next to nothing
where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chanas.prescheduler.tuning.transfer.encoding import encode
from chanas.prescheduler.tuning.transfer.mixture import ALL, ALONE, Mixture
from chanas.prescheduler.tuning.transfer.search import TransferSearch

NUM = 144
GRID = np.array([(a, b, c, d) for a in (1, 2, 4, 8) for b in (1, 2, 4) for c in (1, 2, 3, 4) for d in (0, 1, 2)])
X = encode(GRID.astype(np.float64))
NONE = np.zeros((NUM, 0))


def log_seconds(seed: int) -> np.ndarray:  # type: ignore[type-arg]
    """A bumpy landscape: a plane, and of each configuration a share of its own."""
    rng = np.random.default_rng(seed)
    return X @ rng.normal(size=4) * 0.4 + np.sin(X @ rng.normal(size=(4, 3)) * 2).sum(axis=1) * 0.4


def alike(truth: np.ndarray, seed: int) -> np.ndarray:  # type: ignore[type-arg]
    return truth + np.random.default_rng(seed).normal(0.0, 0.1, NUM) + 3.0


def trials(truth: np.ndarray, sources: np.ndarray, seed: int) -> int:  # type: ignore[type-arg]
    """Measurements until the optimum is found."""
    search = TransferSearch(X, sources, np.random.default_rng(seed))
    for num in range(NUM):
        index = search.propose()
        search.observe(index, truth[index])
        if truth[index] == truth.min():
            return num + 1
    raise AssertionError("the optimum was never proposed")


def told(sources: np.ndarray, truth: np.ndarray, num: int, seed: int = 0) -> TransferSearch:  # type: ignore[type-arg]
    search = TransferSearch(X, sources, np.random.default_rng(seed))
    for _ in range(num):
        index = search.propose()
        search.observe(index, truth[index])
    return search


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), num_sources=st.integers(0, 2), invalid=st.floats(0.0, 0.9))
def test_each_point_is_proposed_once(seed: int, num_sources: int, invalid: float) -> None:
    rng = np.random.default_rng(seed)
    x = X[:40]
    truth = np.where(rng.random(40) < invalid, np.nan, rng.normal(size=40))
    sources = np.where(rng.random((40, num_sources)) < 0.2, np.nan, rng.normal(size=(40, num_sources)))
    search = TransferSearch(x, sources, rng)
    proposed = []
    for _ in range(40):
        proposed.append(search.propose())
        search.observe(proposed[-1], truth[proposed[-1]])
    assert sorted(proposed) == list(range(40))
    with pytest.raises(ValueError, match="not tried"):
        search.propose()


def test_a_device_that_is_alike_saves_measurements() -> None:
    with_source, without = [], []
    for seed in range(6):
        truth = log_seconds(seed)
        with_source.append(trials(truth, alike(truth, seed)[:, None], seed))
        without.append(trials(truth, NONE, seed))
    assert np.mean(with_source) <= np.mean(without) / 3.0


def test_the_device_that_is_alike_is_found_among_others() -> None:
    truth = log_seconds(0)
    shuffled = np.random.default_rng(0).permutation(truth)
    search = told(np.array([shuffled, alike(truth, 1), -truth]).T, truth, 25)
    weights = search.model.weights()
    assert weights[1] > 0.2  # the mixture of all may learn to follow it, too
    assert weights.get(0, 0.0) + weights.get(2, 0.0) < 0.05


@pytest.mark.parametrize("kind", ["shuffled", "reversed"])
def test_asking_a_source_that_misleads_costs_little(kind: str) -> None:
    with_source, without = [], []
    for seed in range(40):
        truth, rng = log_seconds(seed), np.random.default_rng(seed)
        source = rng.permutation(truth) if kind == "shuffled" else -truth
        with_source.append(trials(truth, source[:, None], seed))
        without.append(trials(truth, NONE, seed))
    assert np.mean(with_source) <= 1.1 * np.mean(without)


def test_a_source_that_says_nothing_is_dropped() -> None:
    trusts = []
    for seed in range(8):
        truth = log_seconds(seed)
        shuffled = np.random.default_rng(seed).permutation(truth)
        trusts.append(told(shuffled[:, None], truth, 20, seed).model.trust)
    assert np.median(trusts) < 0.05


def test_without_measurements_the_ranking_is_that_of_the_sources() -> None:
    truth = log_seconds(0)
    mixture = Mixture(X, np.array([truth, truth + 2.0]).T)
    assert list(np.argsort(mixture.predict())) == list(np.argsort(truth))
    assert set(mixture.weights()) == {ALONE, ALL, 0, 1}
    assert mixture.trust == pytest.approx(0.5)
