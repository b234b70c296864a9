"""chanas/prescheduler/cost_model/regression.py: a Gaussian process on records of groups with unknown offsets."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import kendalltau

from chanas.prescheduler.cost_model import regression
from chanas.prescheduler.cost_model.regression import FloatArray, IntArray, Parameters, Regression, fit

NOISE = 0.02


def truth(x: FloatArray) -> FloatArray:
    """Depends on the first two features alone."""
    values: FloatArray = 0.3 * np.sin(x[:, 0]) + 0.2 * x[:, 1]
    return values


def records(num: int, num_groups: int, offsets: float, seed: int = 0) -> tuple[FloatArray, FloatArray, IntArray]:
    """Features of which most say nothing, y with noise, groups."""
    rng = np.random.default_rng(seed)
    x, groups = rng.normal(size=(num, 6)), rng.integers(0, num_groups, num)
    y = truth(x) + offsets * rng.normal(size=num_groups)[groups] + NOISE * rng.normal(size=num)
    return x, y - y.mean(), groups


def tau(model: Regression, group: int) -> float:
    asked = np.random.default_rng(9).normal(size=(200, 6))
    return float(kendalltau(model.predict(asked, group)[0], truth(asked)).statistic)


def test_the_gradient_is_that_of_the_objective() -> None:
    x, y, groups = records(30, 3, 0.2)
    same = (groups[:, None] == groups[None, :]).astype(np.float64)
    prior = Parameters.prior(6).to_array()
    values = prior + np.random.default_rng(1).normal(scale=0.4, size=len(prior))
    _, gradient = regression._objective(values, x, y, same, prior)
    numeric = approx_fprime(values, lambda v: regression._objective(v, x, y, same, prior)[0], 1e-6)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-3, atol=1e-4)


def test_parameters_survive_the_array() -> None:
    parameters = fit(*records(20, 2, 0.1))
    again = Parameters.from_array(parameters.to_array())
    np.testing.assert_array_equal(again.to_array(), parameters.to_array())
    assert 0.0 < parameters.alike < 1.0


@pytest.mark.parametrize("offsets", [0.0, 1.0])
def test_what_is_learnt_does_not_depend_on_the_offsets_of_groups(offsets: float) -> None:
    x, y, groups = records(80, 4, offsets)
    model = Regression(x, y, groups, fit(x, y, groups))
    assert tau(model, group=0) > 0.85
    assert tau(model, group=99) > 0.85


def test_records_of_one_group_that_are_all_better_than_the_rest_shift_nothing() -> None:
    """A search keeps to good points, so that the mean of its records is that of good points."""
    x, y, groups = records(100, 2, 0.0)
    best = np.argsort(truth(x))[:30]
    groups = np.where(np.isin(np.arange(100), best), 0, 1)
    centred = np.concatenate([y[groups == g] - y[groups == g].mean() for g in (0, 1)])
    ordered = np.concatenate([x[groups == g] for g in (0, 1)])
    labels = np.sort(groups)
    model = Regression(ordered, centred, labels, fit(ordered, centred, labels))
    assert tau(model, group=0) > 0.8


def test_the_deviation_is_small_where_records_are_and_large_where_none_are() -> None:
    x, y, groups = records(60, 1, 0.0)
    model = Regression(x, y, groups, fit(x, y, groups))
    near, far = (model.predict(points, 0)[1].mean() for points in (x, x + 20.0))
    assert 0.0 < near < 0.5 * far


def test_groups_that_contradict_each_other_are_not_taken_as_alike() -> None:
    x, y, groups = records(80, 2, 0.0)
    agreeing = fit(x, y, groups)
    contrary = fit(x, np.where(groups == 0, y, -y), groups)
    assert contrary.alike < 0.5 < agreeing.alike


def test_equal_records_are_no_trouble() -> None:
    x, groups = np.zeros((10, 6)), np.zeros(10, np.int64)
    mean, deviation = Regression(x, np.zeros(10), groups, fit(x, np.zeros(10), groups)).predict(x, 0)
    assert np.all(np.isfinite(mean))
    assert np.all(deviation > 0.0)
