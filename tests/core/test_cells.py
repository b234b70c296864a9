"""chanas/core/cells.py"""

from __future__ import annotations

import numpy as np
import pytest

from chanas.core.cells import as_numbers


@pytest.mark.parametrize("column", [["1", "2.5", "-3e2"], [1, 2.5, -300], np.array([1.0, 2.5, -300.0], dtype=object)])
def test_numbers_are_read(column: object) -> None:
    np.testing.assert_array_equal(as_numbers(column), [1.0, 2.5, -300.0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "column", [["1", ""], ["1", "nan"], ["1", "inf"], ["1", "x"], ["True", "False"], [True, False]]
)
def test_words_and_flags_and_what_is_not_finite_are_none(column: list[object]) -> None:
    assert as_numbers(column) is None  # type: ignore[arg-type]
