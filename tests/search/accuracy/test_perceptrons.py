from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from chanas.search.accuracy.perceptrons import Ensemble, fit_perceptrons


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


def test_the_error_of_each_row_is_by_a_member_that_has_not_seen_it(rng: np.random.Generator) -> None:
    x = rng.integers(0, 2, size=(40, 6)).astype(np.float32)
    y = rng.normal(size=40)
    model, residuals = fit_perceptrons(x, y, (8,), 4, seed=3)
    fold = np.random.default_rng(3).permutation(40) % 4
    own = model.members(x)[fold, np.arange(40)]
    np.testing.assert_allclose(y - residuals, own, rtol=1e-5, atol=1e-6)
    assert model.noise == pytest.approx(np.sqrt(np.mean(residuals**2)))
    np.testing.assert_allclose(model.mean(x), model.members(x).mean(axis=0), rtol=1e-5)
    assert (model.spread(x) >= model.noise).all()
