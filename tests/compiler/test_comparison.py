"""Outputs beside expected ones: each by itself, and what a stored case makes of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.comparison import Draw, NetworkCase, StoredCase, difference

EXPECTED = np.array([1.0, -4.0, 0.0, np.inf, np.nan], np.float32)
ALLOWED = np.full(5, 1e-3, np.float32)


def test_what_is_equal_has_no_error_whatever_it_is() -> None:
    found = difference(EXPECTED, EXPECTED, np.zeros(5, np.float32))
    assert (found.error, found.excess, found.num_wrong) == (0.0, 0.0, 0)


@pytest.mark.parametrize(("place", "value"), [(0, np.nan), (0, np.inf), (3, -np.inf), (3, 1.0), (4, 1.0)])
def test_numbers_and_what_is_none_are_infinitely_apart(place: int, value: float) -> None:
    got = EXPECTED.copy()
    got[place] = value
    found = difference(got, EXPECTED, ALLOWED)
    assert (found.error, found.excess, found.num_wrong) == (math.inf, math.inf, 1)


def test_errors_and_bounds_are_shares_of_the_largest_number() -> None:
    got = EXPECTED.copy()
    got[2] += 5e-4
    found = difference(got, EXPECTED, ALLOWED)
    assert (found.error, found.bound) == pytest.approx((5e-4 / 4, 1e-3 / 4))
    assert (found.excess, found.num_wrong) == (pytest.approx(0.5), 0)


def test_a_place_where_anything_is_right_hides_no_other() -> None:
    allowed = ALLOWED.copy()
    allowed[0] = np.inf
    got = EXPECTED.copy()
    got[0] = np.nan
    assert difference(got, EXPECTED, allowed).num_wrong == 0
    got[1] = 0.0
    assert difference(got, EXPECTED, allowed).num_wrong == 1


def test_whole_numbers_that_differ_are_told() -> None:
    found = difference(np.array([3, 1, 9]), np.array([3, 2, 4]), np.zeros(3, np.float32))
    assert (found.places, found.found, found.excess) == ((1, 2), (1.0, 9.0), math.inf)


def test_an_output_of_another_size_is_wrong() -> None:
    assert difference(EXPECTED[:3], EXPECTED, ALLOWED).excess == math.inf


def test_a_stored_case_compares_each_draw(tmp_path: Path) -> None:
    x, y = np.arange(4, dtype=np.float32), np.ones((2, 2), np.float32)
    draws = [Draw(str(i), (x + i,), (y + i, y > 0), (y * 0.1, y * 0)) for i in range(2)]
    NetworkCase((y,), draws).save(tmp_path / "case.npz")
    case = StoredCase(tmp_path / "case.npz")
    np.testing.assert_array_equal(case.parameters()[0], y)
    for i in range(case.num_draws):
        np.testing.assert_array_equal(case.inputs(i)[0], x + i)
        right, wrong = case.compare(i, [y + i + 0.05, y < 0])
        assert (right.num_wrong, wrong.num_wrong) == (0, 4)
