"""chanas/prescheduler/tuning/cost_model/regression.py: a Gaussian process on records of groups with unknown offsets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import kendalltau

from chanas.core.arrays import FloatArray, IntArray
from chanas.prescheduler.tuning.cost_model import regression
from chanas.prescheduler.tuning.cost_model.regression import Parameters, Regression, fit

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
    same = regression._same(groups), regression._same(np.arange(30) % 2)
    prior = Parameters.prior(6).to_array()
    values = prior + np.random.default_rng(1).normal(scale=0.4, size=len(prior))
    _, gradient = regression._objective(values, x, y, *same, prior)
    numeric = approx_fprime(values, lambda v: regression._objective(v, x, y, *same, prior)[0], 1e-6)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-3, atol=1e-4)


def test_parameters_survive_the_array() -> None:
    parameters = fit(*records(20, 2, 0.1))
    again = Parameters.from_array(parameters.to_array())
    np.testing.assert_array_equal(again.to_array(), parameters.to_array())
    assert 0.0 < parameters.group_correlation < 1.0


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
    assert contrary.group_correlation < 0.5 < agreeing.group_correlation


def test_equal_records_are_no_trouble() -> None:
    x, groups = np.zeros((10, 6)), np.zeros(10, np.int64)
    mean, deviation = Regression(x, np.zeros(10), groups, fit(x, np.zeros(10), groups)).predict(x, 0)
    assert np.all(np.isfinite(mean))
    assert np.all(deviation > 0.0)


# ---- records of another device --------------------------------------------------------------------------------------
def on_two_devices(sign: float) -> tuple[FloatArray, FloatArray, IntArray, IntArray]:
    """80 records of one workload, every second one of another device, on which `sign` times the truth holds."""
    x, y, groups = records(80, 1, 0.0)
    devices = np.arange(80) % 2
    return x, np.where(devices == 0, y, sign * y), groups, devices


def test_devices_that_contradict_each_other_are_not_taken_as_alike() -> None:
    x, y, groups, devices = on_two_devices(sign=1.0)
    agreeing = fit(x, y, groups, devices=devices)
    x, y, groups, devices = on_two_devices(sign=-1.0)
    contrary = fit(x, y, groups, devices=devices)
    assert contrary.device_correlation < 0.5 < agreeing.device_correlation
    assert tau(Regression(x, y, groups, contrary, devices), group=0) > 0.8


def test_another_devices_records_count_as_much_as_it_is_alike() -> None:
    x, y, groups, devices = on_two_devices(sign=1.0)
    foreign = devices == 1
    told = x[foreign], y[foreign], groups[foreign]
    fitted = fit(x, y, groups, devices=devices)
    unlike = dataclasses.replace(fitted, logit_device=-4.0)
    mean, deviation = Regression(*told, fitted, devices[foreign]).predict(x, 0)
    doubtful, doubt = Regression(*told, unlike, devices[foreign]).predict(x, 0)
    assert tau(Regression(*told, fitted, devices[foreign]), group=0) > 0.85
    assert np.abs(doubtful).mean() < 0.1 * np.abs(mean).mean()
    assert doubt.mean() > deviation.mean()


def test_how_much_slower_another_device_is_shifts_nothing() -> None:
    x, y, groups, devices = on_two_devices(sign=1.0)
    fitted = fit(x, y, groups, devices=devices)
    moved = np.where(devices == 1, y + 0.7, y)
    models = [Regression(x, values, groups, fitted, devices) for values in (y, moved)]
    assert abs(tau(models[0], group=0) - tau(models[1], group=0)) < 0.03


def test_without_another_device_nothing_is_as_if_there_could_be_one() -> None:
    x, y, groups = records(60, 3, 0.2)
    fitted = fit(x, y, groups)
    assert fitted.logit_device == Parameters.prior(6).logit_device
    a, b = (Regression(x, y, groups, dataclasses.replace(fitted, logit_device=k)).predict(x, 0)[0] for k in (-4.0, 4.0))
    np.testing.assert_array_equal(a, b)
