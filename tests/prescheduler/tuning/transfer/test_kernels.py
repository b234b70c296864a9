"""Searches of a made-up GPU kernel's configurations (`kernels.py`), words and limits among them, on a new device."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from chanas.core.genome import FloatArray
from chanas.prescheduler.tuning.transfer.encoding import encode
from chanas.prescheduler.tuning.transfer.search import TransferSearch
from tests.prescheduler.tuning.transfer.kernels import LARGE, OTHER, SMALL, TABLE, log_seconds

X = encode(TABLE)
NONE = np.zeros((len(X), 0))
MOST = 60


def tried(truth: FloatArray, sources: FloatArray, seed: int) -> list[float]:
    """Log seconds that were measured, one after the other, until one is within 5 % of the best."""
    search, out = TransferSearch(X, sources, np.random.default_rng(seed)), []
    while len(out) < MOST:
        index = search.propose()
        out.append(float(truth[index]))
        search.observe(index, truth[index])
        if search.best <= np.nanmin(truth) + np.log(1.05):
            break
    return out


def mean_trials(truth: FloatArray, sources: FloatArray) -> float:
    return float(np.mean([len(tried(truth, sources, seed)) for seed in range(3)]))


def test_the_kernel_is_what_it_is_said_to_be() -> None:
    small, large, other = (log_seconds(device, 0) for device in (SMALL, LARGE, OTHER))
    fails = [float(np.isnan(y).mean()) for y in (small, large, other)]
    assert all(0.05 < share < 0.7 for share in fails)
    assert len(set(fails)) == 3
    both = ~np.isnan(small + large + other)
    assert np.corrcoef(small[both], large[both])[0, 1] > np.corrcoef(small[both], other[both])[0, 1]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_device_that_is_alike_and_has_as_much_room_saves_two_thirds_of_the_measurements(seed: int) -> None:
    slower = dataclasses.replace(LARGE, bandwidth=600e9, speed=15e12)
    truth, sources = log_seconds(LARGE, seed), np.array([log_seconds(slower, 9), log_seconds(OTHER, 8)]).T
    assert mean_trials(truth, sources) <= max(2.0, mean_trials(truth, NONE) / 3.0)


def test_what_does_not_work_elsewhere_is_seldom_tried() -> None:
    truth, source = log_seconds(LARGE, 1), log_seconds(SMALL, 9)[:, None]
    failed = [np.isnan(tried(truth, source, seed)).mean() for seed in range(5)]
    assert np.mean(failed) < 0.5 * np.isnan(truth).mean()


def test_without_any_other_device_failures_are_learned_from() -> None:
    truth = log_seconds(LARGE, 1)
    search, failed = TransferSearch(X, NONE, np.random.default_rng(0)), []
    for _ in range(40):
        index = search.propose()
        failed.append(bool(np.isnan(truth[index])))
        search.observe(index, truth[index])
    assert np.mean(failed[8:]) <= np.isnan(truth).mean()
