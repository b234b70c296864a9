"""chanas/models/calibration/ranges.py: each method keeps what it is there to keep."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.core.arrays import Float32Array
from chanas.models.calibration.ranges import METHODS, NUM_BINS, Histogram
from chanas.operators.quantised import Grid

RNG = np.random.default_rng(0)
NORMAL = RNG.standard_normal(200_000, dtype=np.float32)


def seen(values: Float32Array) -> Histogram:
    histogram = Histogram()
    for part in np.array_split(values, 20):
        histogram.add(part)
    return histogram


def largest(grid: Grid) -> float:
    return float(grid.decode(np.array([255], np.uint8))[0])


def squared_error(grid: Grid, values: Float32Array) -> float:
    return float(((grid.decode(grid.encode(values)) - values) ** 2).mean())


@pytest.mark.parametrize("method", METHODS)
def test_a_range_is_within_what_was_seen_and_has_most_of_it(method: str) -> None:
    grid = METHODS[method](seen(NORMAL))
    low, high = grid.decode(np.array([0, 255], np.uint8))
    assert NORMAL.min() - grid.step <= low < 0 < high <= NORMAL.max() + grid.step
    assert np.mean((low <= NORMAL) & (high >= NORMAL)) > 0.98


@pytest.mark.parametrize("method", METHODS)
def test_numbers_that_are_never_below_zero_use_all_of_a_byte(method: str) -> None:
    grid = METHODS[method](seen(np.maximum(NORMAL, 0)))
    assert grid.zero == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_value_that_is_always_zero_has_a_grid(method: str) -> None:
    grid = METHODS[method](seen(np.zeros(100, np.float32)))
    assert grid.step > 0
    assert grid.decode(grid.encode(np.zeros(1, np.float32))) == 0


def test_the_whole_range_is_that_of_min_and_max() -> None:
    assert largest(METHODS["min-max"](seen(NORMAL))) == pytest.approx(NORMAL.max(), rel=0.01)


@pytest.mark.parametrize("method", ["percentile", "least squares", "entropy"])
def test_a_single_number_far_away_does_not_widen_the_range(method: str) -> None:
    values = np.concatenate([NORMAL, [40.0]]).astype(np.float32)
    assert largest(METHODS[method](seen(values))) < 0.9 * 40


def test_least_squares_loses_no_more_than_the_whole_range() -> None:
    values = np.sign(NORMAL) * np.abs(NORMAL) ** 3
    histogram = seen(values)
    best, whole = (METHODS[method](histogram) for method in ("least squares", "min-max"))
    assert squared_error(best, values) < 0.9 * squared_error(whole, values)


def test_zeros_are_not_counted_and_all_else_is() -> None:
    histogram = Histogram()
    histogram.add(np.array([0.0, 0.0, -1.0, 0.5, 1.0], np.float32))
    assert histogram.counts.sum() == 3
    assert len(histogram.counts) == NUM_BINS


@pytest.mark.parametrize("scales", [(1.0, 30.0, 2.0), (30.0, 1.0, 2.0)], ids=["growing", "shrinking"])
def test_numbers_are_counted_where_they_are_whatever_came_before(scales: tuple[float, ...]) -> None:
    histogram, parts = Histogram(), [np.float32(scale) * NORMAL[:5_000] for scale in scales]
    for part in parts:
        histogram.add(part)
    values = np.concatenate(parts)
    assert (histogram.low, histogram.high) == (values.min(), values.max())
    assert np.count_nonzero(histogram.centres[(histogram.centres > values.max()) & (histogram.counts > 0)]) <= 1
    for share in (0.01, 0.3, 0.9):
        bound = np.quantile(values, share)
        counted = histogram.counts[histogram.centres < bound].sum() / histogram.counts.sum()
        assert counted == pytest.approx(share, abs=0.01)
