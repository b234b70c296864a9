from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from chanas.search.accuracy.ensemble import Blend, Ensemble, worth
from chanas.search.accuracy.regression import fit_ridge


@pytest.mark.parametrize("hidden", [(7,), (6, 5), (4, 3, 2)])
def test_all_members_at_once_equal_each_alone(hidden: tuple[int, ...], rng: np.random.Generator) -> None:
    members, sizes = 3, [10, *hidden, 1]
    weights = [rng.normal(size=(members, a, b)).astype(np.float32) for a, b in pairwise(sizes)]
    biases = [rng.normal(size=(members, 1, b)).astype(np.float32) for b in sizes[1:]]
    first = weights[0].transpose(1, 0, 2).reshape(10, -1)
    ensemble = Ensemble(first, tuple(weights[1:]), (biases[0].reshape(-1), *biases[1:]))
    x = rng.normal(size=(8, 10)).astype(np.float32)
    out = ensemble(x)
    assert out.shape == (members, 8)
    for m in range(members):
        h = x
        for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
            h = h @ w[m] + b[m]
            h = np.maximum(h, 0) if i + 1 < len(weights) else h
        np.testing.assert_allclose(out[m], h[:, 0], rtol=1e-4, atol=1e-5)


def test_a_correction_by_chance_is_worth_nothing(rng: np.random.Generator) -> None:
    shares = [worth(rng.normal(size=50), rng.normal(size=50)) for _ in range(200)]
    assert np.median(shares) == 0.0
    assert max(shares) < 0.5


def test_a_true_correction_is_worth_all_and_never_more(rng: np.random.Generator) -> None:
    correction = rng.normal(size=50)
    assert worth(correction, correction) == pytest.approx(1.0)
    assert worth(3.0 * correction, correction) == 1.0
    assert worth(-correction, correction) == 0.0
    assert worth(correction, np.zeros(50)) == 0.0


def test_a_blend_lies_between_the_ridge_and_the_perceptrons(rng: np.random.Generator) -> None:
    x = rng.integers(0, 2, size=(30, 6)).astype(np.float32)
    ridge, _ = fit_ridge(x, rng.normal(size=30))
    weights = [rng.normal(size=(2, a, b)).astype(np.float32) for a, b in pairwise((6, 4, 1))]
    biases = (np.zeros(8, np.float32), np.zeros((2, 1, 1), np.float32))
    ensemble = Ensemble(weights[0].transpose(1, 0, 2).reshape(6, -1), (weights[1],), biases)
    means, spreads = zip(
        *(Blend(ridge, ensemble, share, 0.5, 0.1, 0.01).mean_spread(x) for share in (0.0, 0.5, 1.0)), strict=True
    )
    np.testing.assert_array_equal(means[0], ridge.mean(x))
    np.testing.assert_allclose(means[2], 0.5 + 0.1 * ensemble(x).mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(means[1], (means[0] + means[2]) / 2, rtol=1e-5)
    assert (spreads[0] <= spreads[1]).all()
    assert (spreads[1] <= spreads[2]).all()
