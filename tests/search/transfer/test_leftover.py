"""What is left over on a new device is learned from its features, where there is something to learn."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.core.arrays import FloatArray
from chanas.search.transfer.latencies import adapt, fit_known
from chanas.search.transfer.leftover import regress, scales

NUM_NETWORKS, NUM_SLOTS = 600, 30
NOISE = 0.02


def features_of(rng: np.random.Generator) -> FloatArray:
    out: FloatArray = (rng.random((NUM_NETWORKS, NUM_SLOTS)) < 0.5).astype(float)
    return out


def rms(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(values**2)))


@pytest.fixture
def phi(rng: np.random.Generator) -> FloatArray:
    """Standardised, so that a network's squares sum to about one."""
    x = features_of(rng)
    out: FloatArray = (x - x.mean(axis=0)) / x.std(axis=0) / np.sqrt(NUM_SLOTS)
    return out


def test_more_measurements_explain_more_and_few_do_no_harm(phi: FloatArray, rng: np.random.Generator) -> None:
    left = phi @ rng.normal(0.0, 0.15, NUM_SLOTS)
    errors = []
    for num in (5, 20, 50, 200):
        chosen = rng.choice(NUM_NETWORKS, num, replace=False)
        found = regress(phi, chosen, left[chosen] + NOISE * rng.normal(size=num), NOISE)
        errors.append(rms(left - found.values) / rms(left))
    assert errors[0] < 1.05
    assert errors[2] < 0.7
    assert errors[3] < 0.2


@pytest.mark.parametrize("noise", [NOISE, 0.1])
@pytest.mark.parametrize("num", [5, 20, 50])
def test_next_to_nothing_is_learned_from_noise(
    phi: FloatArray, rng: np.random.Generator, num: int, noise: float
) -> None:
    added = []
    for _ in range(20):
        chosen = rng.choice(NUM_NETWORKS, num, replace=False)
        added.append(rms(regress(phi, chosen, noise * rng.normal(size=num), noise).values))
    assert np.mean(added) < 0.3 * noise


def test_variances_cover_what_is_off_and_are_smaller_where_it_was_measured(
    phi: FloatArray, rng: np.random.Generator
) -> None:
    left = phi @ rng.normal(0.0, 0.15, NUM_SLOTS)
    chosen = rng.choice(NUM_NETWORKS, 40, replace=False)
    found = regress(phi, chosen, left[chosen] + NOISE * rng.normal(size=40), NOISE)
    assert np.mean(np.abs(left - found.values) < 2.0 * np.sqrt(found.variances)) > 0.9
    assert found.variances[chosen].mean() < np.delete(found.variances, chosen).mean()


def test_one_measurement_that_is_far_off_moves_little(phi: FloatArray, rng: np.random.Generator) -> None:
    chosen = rng.choice(NUM_NETWORKS, 20, replace=False)
    left = NOISE * rng.normal(size=20)
    left[3] = 1.0
    assert rms(regress(phi, chosen, left, NOISE).values) < NOISE


def test_scales_are_in_units_of_features_and_follow_their_coefficients(rng: np.random.Generator) -> None:
    x = rng.normal(size=(500, 4)) * np.array([1.0, 100.0, 1.0, 0.0])
    coefficients = np.array([[0.3, 0.1], [0.003, 0.001], [0.0, 0.0], [0.0, 0.0]])
    found = scales(coefficients, x.std(axis=0))
    sizes = found * x.std(axis=0)
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)
    assert sizes[0] > sizes[2] > 0.0
    assert sizes[3] == 0.0
    assert (sizes**2).sum() == pytest.approx(1.0)
    np.testing.assert_allclose(scales(0.0 * coefficients, x.std(axis=0))[:3] * x.std(axis=0)[:3], 3**-0.5)


def test_a_device_with_parts_of_its_own_is_learned(rng: np.random.Generator) -> None:
    features = features_of(rng)
    common, own = 0.04 * rng.random((NUM_SLOTS, 1)), 0.04 * rng.random(NUM_SLOTS)
    weights = common * (1.0 + 0.3 * rng.normal(size=(NUM_SLOTS, 4)))
    known = fit_known(features, features @ weights + NOISE * rng.normal(size=(NUM_NETWORKS, 4)))
    truth = features @ own
    errors = {}
    for num in (10, 50):
        chosen = rng.choice(NUM_NETWORKS, num, replace=False)
        found = adapt(known, chosen, truth[chosen] + NOISE * rng.normal(size=num))
        mixed = known.log_latencies @ found.weights
        errors[num] = rms(truth - found.log_latencies) / float(np.std(truth - mixed))
    assert errors[10] < 1.1
    assert errors[50] < 0.75


def test_networks_that_nobody_measured_have_what_is_left_over_too(rng: np.random.Generator) -> None:
    features = features_of(rng)
    weights = 0.04 * rng.random((NUM_SLOTS, 4))
    own = features @ (0.04 * rng.random(NUM_SLOTS))
    known = fit_known(features[:300], features[:300] @ weights)
    chosen = np.arange(100)
    found = adapt(known.on(features), chosen, own[chosen])
    assert rms(own[300:] - found.log_latencies[300:]) < 0.5 * float(np.std(own))
