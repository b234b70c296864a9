"""A new device from few measurements, on made-up devices whose latencies are known without noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from chanas.core.arrays import FloatArray
from chanas.errors import LUTError
from chanas.search.transfer.latencies import KnownDevices, adapt, fit_known

NUM_NETWORKS, NUM_FEATURES, NUM_KNOWN = 800, 12, 6
NOISE = 0.01


@dataclass(frozen=True)
class World:
    """Networks whose log latency on a device is linear in their features; devices share most of the weights."""

    features: FloatArray
    truth: FloatArray
    known: KnownDevices

    def error(self, truth: FloatArray, predicted: FloatArray) -> float:
        """Root mean square of what predictions are off by, as a share of the latency."""
        return float(np.sqrt(np.mean((predicted - truth) ** 2)))


@pytest.fixture(scope="module")
def world() -> World:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(NUM_NETWORKS, NUM_FEATURES))
    weights = 0.08 * (1.0 + 0.6 * rng.normal(size=(NUM_FEATURES, NUM_KNOWN)))
    truth = features @ weights + rng.normal(size=NUM_KNOWN)
    return World(features, truth, fit_known(features, truth + NOISE * rng.normal(size=truth.shape)))


@pytest.fixture
def mixed(world: World) -> FloatArray:
    """A new device between two of the known ones, at a level of its own."""
    out: FloatArray = 0.6 * world.truth[:, 1] + 0.4 * world.truth[:, 4] + 1.7
    return out


def draw(num: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(NUM_NETWORKS, num, replace=False)


def test_noise_and_outliers_of_known_devices_are_smoothed_away(world: World, rng: np.random.Generator) -> None:
    noisy = world.truth + NOISE * rng.normal(size=world.truth.shape)
    noisy += np.where(rng.random(noisy.shape) < 0.2, 0.15, 0.0)  # another process ran, say
    plain = fit_known(world.features, noisy).log_latencies
    assert world.error(world.truth, noisy) > 0.06
    assert world.error(world.truth, plain) < 0.01


def test_what_features_leave_out_is_seen_where_devices_agree(world: World, rng: np.random.Generator) -> None:
    hidden = 0.05 * rng.normal(size=(NUM_NETWORKS, 1)) * np.linspace(0.8, 1.2, NUM_KNOWN)
    noisy = world.truth + hidden + NOISE * rng.normal(size=world.truth.shape)
    known = fit_known(world.features, noisy)
    assert world.error(world.truth + hidden, known.fitted) > 0.04
    assert world.error(world.truth + hidden, known.log_latencies) < 0.015
    alone = known.select([2])  # nobody to agree with
    np.testing.assert_allclose(alone.log_latencies, known.fitted[:, [2]])


def test_a_device_that_was_left_out_is_not_seen(world: World, rng: np.random.Generator) -> None:
    noisy = world.truth + 0.05 * rng.normal(size=(NUM_NETWORKS, 1))
    spoilt = noisy.copy()
    spoilt[:, 2] = rng.normal(size=NUM_NETWORKS)
    first, second = (fit_known(world.features, y).select([0, 1, 3]) for y in (noisy, spoilt))
    np.testing.assert_array_equal(first.log_latencies, second.log_latencies)


@pytest.mark.parametrize(("num", "most"), [(5, 0.06), (10, 0.03), (50, 0.01)])
def test_a_combination_of_known_devices_is_found_from_few_measurements(
    world: World, mixed: FloatArray, rng: np.random.Generator, num: int, most: float
) -> None:
    chosen = draw(num, rng)
    found = adapt(world.known, chosen, mixed[chosen] + NOISE * rng.normal(size=num))
    assert world.error(mixed, found.log_latencies) < most
    assert found.weights.sum() == pytest.approx(1.0, abs=0.1)


def test_a_device_amid_all_known_ones_is_found_from_few_measurements(world: World, rng: np.random.Generator) -> None:
    amid, errors = world.truth.mean(axis=1) + 0.4, []
    for _ in range(10):
        chosen = draw(5, rng)
        found = adapt(world.known, chosen, amid[chosen] + NOISE * rng.normal(size=5))
        errors.append(world.error(amid, found.log_latencies))
    assert np.mean(errors) < 0.03


def test_a_known_device_is_recognised(world: World, rng: np.random.Generator) -> None:
    chosen = draw(5, rng)
    found = adapt(world.known, chosen, world.truth[chosen, 2] - 0.5)
    assert np.argmax(found.weights) == 2
    assert world.error(world.truth[:, 2] - 0.5, found.log_latencies) < 0.02


def test_some_measurements_may_be_far_off(world: World, mixed: FloatArray, rng: np.random.Generator) -> None:
    chosen = draw(12, rng)
    measured = mixed[chosen].copy()
    measured[:2] += 0.4
    found = adapt(world.known, chosen, measured)
    assert world.error(mixed, found.log_latencies) < 0.04


@pytest.mark.parametrize("num", [5, 20])
def test_a_device_unlike_all_others_is_not_much_worse_than_the_mean_or_a_ridge(
    world: World, rng: np.random.Generator, num: int
) -> None:
    strange = 0.3 * rng.normal(size=NUM_NETWORKS)
    z = (world.truth - world.truth.mean(axis=0)) / world.truth.std(axis=0)
    ours, plain, ridge = [], [], []
    for _ in range(10):
        chosen = draw(num, rng)
        x, mean = z[chosen], strange[chosen].mean()
        slope = np.linalg.solve(x.T @ x + 3.0 * np.eye(NUM_KNOWN), x.T @ (strange[chosen] - mean))
        ours.append(world.error(strange, adapt(world.known, chosen, strange[chosen]).log_latencies))
        plain.append(world.error(strange, np.full(NUM_NETWORKS, mean)))
        ridge.append(world.error(strange, z @ slope + mean))
    assert np.mean(ours) < 1.5 * np.mean(plain)
    assert np.mean(ours) < 1.25 * np.mean(ridge)


def test_the_order_of_measurements_and_the_unit_of_time_do_not_matter(
    world: World, mixed: FloatArray, rng: np.random.Generator
) -> None:
    chosen = draw(8, rng)
    found = adapt(world.known, chosen, mixed[chosen])
    again = adapt(world.known, chosen[::-1], mixed[chosen[::-1]] + np.log(1e3))
    np.testing.assert_allclose(again.log_latencies, found.log_latencies + np.log(1e3), atol=1e-8)
    np.testing.assert_allclose(again.deviations, found.deviations, rtol=1e-6)
    repeated = adapt(world.known, chosen, mixed[chosen])
    np.testing.assert_array_equal(repeated.log_latencies, found.log_latencies)


def test_deviations_cover_what_is_off_and_shrink_with_measurements(
    world: World, mixed: FloatArray, rng: np.random.Generator
) -> None:
    few, many = draw(5, rng), draw(50, rng)
    first, later = (adapt(world.known, chosen, mixed[chosen]) for chosen in (few, many))
    for found in (first, later):
        assert np.mean(np.abs(found.log_latencies - mixed) < 2 * found.deviations) > 0.9
        assert found.deviations.min() >= found.noise
    assert later.deviations.mean() < first.deviations.mean()


def test_devices_are_selected_and_asked_about_networks_that_nobody_measured(
    world: World, rng: np.random.Generator
) -> None:
    known = fit_known(world.features[:600], world.truth[:600] + NOISE * rng.normal(size=(600, NUM_KNOWN)))
    further = known.select([3, 0]).on(world.features)
    np.testing.assert_allclose(further.log_latencies[:600], known.fitted[:, [3, 0]], rtol=1e-12)
    assert world.error(world.truth[600:, [3, 0]], further.log_latencies[600:]) < NOISE / 2


@pytest.mark.parametrize(
    ("indices", "measured"),
    [([], []), ([0, 1], [0.1]), ([0], [np.nan]), ([-1], [0.1]), ([NUM_NETWORKS], [0.1])],
)
def test_measurements_that_do_not_fit_are_refused(world: World, indices: list[int], measured: list[float]) -> None:
    with pytest.raises(LUTError):
        adapt(world.known, indices, np.asarray(measured, dtype=float))


@pytest.mark.parametrize(
    ("features", "log_latencies"),
    [
        (np.ones((3, 2)), np.ones((4, 2))),
        (np.ones((3, 2)), np.ones(3)),
        (np.ones((3, 2)), np.ones((3, 0))),
        (np.ones((3, 2)), np.full((3, 1), np.inf)),
    ],
)
def test_known_devices_that_do_not_fit_are_refused(features: FloatArray, log_latencies: FloatArray) -> None:
    with pytest.raises(LUTError):
        fit_known(features, log_latencies)


def test_few_networks_keep_what_was_measured_of_them(rng: np.random.Generator) -> None:
    features, latencies = rng.random((80, 30)), rng.random((80, 3))
    known = fit_known(features, latencies)
    np.testing.assert_array_equal(known.log_latencies, latencies)
    many = fit_known(np.vstack([features, features]), np.vstack([latencies, latencies]))
    assert not np.allclose(many.log_latencies[:80], latencies)
