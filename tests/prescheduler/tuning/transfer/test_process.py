"""chanas/prescheduler/tuning/transfer/process.py: one measurement after the other gives what all at once give."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_t, norm

from chanas.prescheduler.tuning.transfer.process import FiniteProcess, matern_row

NOISE = 0.1


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:  # type: ignore[type-arg]
    return rng.normal(size=(30, 3))


@pytest.fixture
def expected(rng: np.random.Generator) -> np.ndarray:  # type: ignore[type-arg]
    return rng.normal(size=30)


def test_the_measurements_are_as_in_one_regression(
    x: np.ndarray,  # type: ignore[type-arg]
    expected: np.ndarray,  # type: ignore[type-arg]
    rng: np.random.Generator,
) -> None:
    chosen, y = rng.permutation(30)[:20], rng.normal(size=20)
    process = FiniteProcess(expected, NOISE)
    for index, value in zip(chosen, y, strict=True):
        process.observe(int(index), value, matern_row(x, int(index)))
    slope = expected - expected.mean()
    kernel = np.array([matern_row(x, i) for i in range(30)]) + 1.0 + 0.3**2 * np.outer(slope, slope)
    own = kernel[np.ix_(chosen, chosen)] + NOISE**2 * np.eye(20)
    residual, cross = y - expected[chosen], kernel[chosen]
    np.testing.assert_allclose(process.mean, expected + cross.T @ np.linalg.solve(own, residual), atol=1e-8)
    variance = np.diag(kernel) - np.einsum("nm,nm->m", cross, np.linalg.solve(own, cross))
    np.testing.assert_allclose(process.variance, variance, atol=1e-8)
    density = multivariate_t(expected[chosen], own * 0.6 / 2.0, df=4.0)
    assert process.evidence == pytest.approx(density.logpdf(y))


def test_the_improvement_is_the_integral_of_what_lies_below_the_best(
    x: np.ndarray,  # type: ignore[type-arg]
    expected: np.ndarray,  # type: ignore[type-arg]
) -> None:
    process = FiniteProcess(expected, NOISE)
    process.observe(3, 0.2, matern_row(x, 3))
    mean, deviation = process.mean[7], process.deviation * np.sqrt(process.variance[7])
    integral, _ = quad(lambda y: (0.1 - y) * norm.pdf(y, mean, deviation), mean - 12 * deviation, 0.1)
    assert process.expected_improvement(0.1)[7] == pytest.approx(integral, rel=1e-6)
