from __future__ import annotations

import numpy as np
import pytest

from chanas.search.accuracy.regression import fit_ridge


@pytest.fixture
def data(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = (rng.random((60, 12)) < 0.4).astype(np.float32)
    return x, x @ rng.normal(size=12) + 0.1 * rng.normal(size=60)


def test_leave_one_out_residuals_are_those_of_fits_without_the_row(data: tuple[np.ndarray, np.ndarray]) -> None:
    from sklearn.linear_model import Ridge

    x, y = data
    model, left_out = fit_ridge(x, y)
    for i in range(0, 60, 7):
        rest = np.arange(60) != i
        reference = Ridge(alpha=model.strength).fit(x[rest], y[rest])
        assert y[i] - reference.predict(x[i : i + 1])[0] == pytest.approx(left_out[i], rel=0.05, abs=2e-3)


def test_ridge_equals_scikit_learns(data: tuple[np.ndarray, np.ndarray]) -> None:
    from sklearn.linear_model import Ridge

    x, y = data
    model, _ = fit_ridge(x, y)
    reference = Ridge(alpha=model.strength).fit(x.astype(np.float64), y)
    np.testing.assert_allclose(model.mean(x), reference.predict(x), atol=1e-5)
    inverse = np.linalg.inv((x - x.mean(0)).T @ (x - x.mean(0)) + model.strength * np.eye(12))
    np.testing.assert_allclose(model.covariance, inverse, rtol=1e-3, atol=1e-6)


def test_ridge_with_more_columns_than_rows_and_constant_targets(rng: np.random.Generator) -> None:
    x = (rng.random((9, 40)) < 0.4).astype(np.float32)
    model, left_out = fit_ridge(x, np.full(9, 0.7))
    np.testing.assert_allclose(model.mean(x), 0.7, atol=1e-6)
    assert np.abs(left_out).max() < 1e-6
    assert np.isfinite(model.spread(x)).all()
