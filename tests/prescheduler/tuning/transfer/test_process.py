"""chanas/prescheduler/tuning/transfer/process.py: one measurement after the other gives what all at once give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_t, norm

from chanas.core.genome import FloatArray
from chanas.prescheduler.tuning.transfer.process import Distances, FiniteProcess

NUM, NOISE, DIFFERENCE, LEVEL, STRETCH = 30, 0.1, 0.7, 10.0, 0.25


@dataclass(frozen=True)
class Told:
    """A process that was told of points in an order, and the covariances in units of s² that it stands for."""

    process: FiniteProcess
    distances: Distances
    expected: FloatArray
    covariance: FloatArray
    chosen: np.ndarray
    y: FloatArray


def matern(r: FloatArray) -> FloatArray:
    r = np.sqrt(5.0) * r
    out: FloatArray = (1.0 + r + r**2 / 3.0) * np.exp(-r)
    return out


@pytest.fixture(params=[0.0, 0.5, 2.0])
def told(request: pytest.FixtureRequest, rng: np.random.Generator) -> Told:
    """Asked about all points after 3, 4 and 20 measurements."""
    x, expected, slopes = rng.normal(size=(NUM, 3)), rng.normal(size=NUM), rng.normal(size=(2, NUM))
    chosen, y = rng.permutation(NUM)[:20], rng.normal(size=20)
    distances = Distances(x)
    process = FiniteProcess(expected, distances, request.param, NOISE, difference=DIFFERENCE, slopes=slopes)
    for num, (index, value) in enumerate(zip(chosen.tolist(), y, strict=True)):
        distances.add(index, distances.row(index))
        process.observe(index, value)
        if num in (2, 3):
            assert process.mean.shape == (NUM,)
    apart = np.sqrt(((x[:, None] - x[None]) ** 2).sum(axis=2))
    kernel = matern(apart / request.param) if request.param else np.eye(NUM)
    kernel = kernel + (LEVEL / DIFFERENCE) ** 2 + (STRETCH / DIFFERENCE) ** 2 * slopes.T @ slopes
    return Told(process, distances, expected, kernel, chosen, y)


def test_the_measurements_are_as_in_one_regression(told: Told) -> None:
    own = told.covariance[np.ix_(told.chosen, told.chosen)] + NOISE**2 * np.eye(20)
    residual, cross = told.y - told.expected[told.chosen], told.covariance[told.chosen]
    np.testing.assert_allclose(told.process.mean, told.expected + cross.T @ np.linalg.solve(own, residual), atol=1e-7)
    variance = np.diag(told.covariance) - np.einsum("nm,nm->m", cross, np.linalg.solve(own, cross))
    np.testing.assert_allclose(told.process.variance, variance, atol=1e-7)


def test_the_mean_is_its_trend_and_what_measured_points_add(told: Told) -> None:
    coefficients = told.process.coefficients()
    mean = told.process.trend(coefficients) + told.distances.spread(told.process.length, coefficients)
    np.testing.assert_allclose(mean, told.process.mean, atol=1e-7)


def test_the_evidence_is_the_density_of_what_follows_the_first_measurement(told: Told) -> None:
    first, rest = told.chosen[:1], told.chosen[1:]
    own = told.covariance[np.ix_(rest, rest)] + NOISE**2 * np.eye(19)
    cross, variance = told.covariance[np.ix_(rest, first)], told.covariance[first, first] + NOISE**2
    mean = told.expected[rest] + cross[:, 0] / variance * (told.y[0] - told.expected[first])
    shape = own - cross @ cross.T / variance
    density = multivariate_t(mean, shape * DIFFERENCE**2 / 2.0, df=4.0)
    assert told.process.evidence == pytest.approx(density.logpdf(told.y[1:]), abs=1e-6)


def test_without_lengths_the_order_of_what_was_not_measured_stays(rng: np.random.Generator) -> None:
    expected, distances = rng.normal(size=NUM), Distances(rng.normal(size=(NUM, 3)))
    process = FiniteProcess(expected, distances, 0.0, NOISE, difference=0.2, slopes=expected[None])
    chosen = rng.permutation(NUM)[:10]
    for index in chosen.tolist():
        distances.add(index, distances.row(index))
        process.observe(index, expected[index] + 0.3 * rng.normal())
    left = np.setdiff1d(np.arange(NUM), chosen)
    np.testing.assert_array_equal(np.argsort(process.mean[left]), np.argsort(expected[left]))


def test_the_improvement_is_the_integral_of_what_lies_below_the_best(told: Told) -> None:
    left = int(np.setdiff1d(np.arange(NUM), told.chosen)[0])
    process = told.process
    mean, deviation = process.mean[left], process.deviation * np.sqrt(process.variance[left] + NOISE**2)
    integral, _ = quad(lambda y: (0.1 - y) * norm.pdf(y, mean, deviation), mean - 12 * deviation, 0.1)
    assert process.expected_improvement(0.1)[left] == pytest.approx(integral, rel=1e-6)
