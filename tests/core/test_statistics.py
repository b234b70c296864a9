"""chanas/core/statistics.py: compared with SciPy, scikit-learn and what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.gaussian_process.kernels import Matern

from chanas.core.statistics import distances, expected_improvement, kendall_tau, matern, spearman


def test_distances_and_the_kernel_are_those_of_others(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((7, 3)), rng.standard_normal((4, 3))
    assert distances(a, b) == pytest.approx(cdist(a, b))
    assert distances(a, a).diagonal() == pytest.approx(np.zeros(7), abs=1e-6)
    assert matern(distances(a, b) / 0.7) == pytest.approx(Matern(0.7, nu=2.5)(a, b))


def test_expected_improvement_is_the_mean_of_what_is_gained(rng: np.random.Generator) -> None:
    mean, deviation = np.array([0.3, 0.0, -0.2]), np.array([0.5, 0.1, 0.0])
    drawn = mean + deviation * rng.standard_normal((400_000, 3))
    expected = np.maximum(0.1 - drawn, 0.0).mean(axis=0)
    assert expected_improvement(0.1, mean, deviation) == pytest.approx(expected, abs=1e-3)


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 2))
def test_expected_improvement_is_at_least_the_certain_gain(best: float, mean: float, deviation: float) -> None:
    (gain,) = expected_improvement(best, np.array([mean]), np.array([deviation]))
    assert gain >= max(0.0, best - mean) - 1e-9


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_kendall_tau_is_the_share_of_pairs_in_the_same_order(pairs: list[tuple[int, int]]) -> None:
    left, right = np.array(pairs).T
    signs = [np.sign(values[:, None] - values) for values in (left, right)]
    num_ordered = [np.count_nonzero(s) for s in signs]
    found = kendall_tau(left, right)
    if min(num_ordered) == 0:
        assert found is None
    else:
        assert found == pytest.approx((signs[0] * signs[1]).sum() / np.sqrt(np.prod(num_ordered, dtype=float)))


def test_spearman_is_over_what_is_finite_in_both() -> None:
    values = np.log([4.0, 1.0, 2.0, np.inf])
    assert spearman(values, np.array([1.0, 9.0, 5.0, 0.0])) == pytest.approx(-1.0)
    assert spearman(values, np.full(4, np.nan)) is None
    assert spearman(values, np.array([1.0, 1.0, 1.0, 0.0])) is None
