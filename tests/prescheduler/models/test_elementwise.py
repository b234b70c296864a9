"""chanas/prescheduler/models/elementwise.py: what is known is computed as ONNX says."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.prescheduler.models.elementwise import ELEMENTWISE


@pytest.mark.parametrize(("op", "expected"), [("mod", [-1.0, 1.0]), ("floor_mod", [2.0, -2.0])])
def test_remainders_have_the_sign_that_the_operator_gives_them(op: str, expected: list[float]) -> None:
    """`mod` is ONNX's with fmod=1."""
    found = ELEMENTWISE[op].known(np.float32([-7.0, 7.0]), np.float32([3.0, -3.0]))
    assert found.tolist() == expected


def test_whole_numbers_are_divided_towards_zero() -> None:
    assert ELEMENTWISE["divide"].known(np.array([7, -7, 3]), np.array([2, 2, 0])).tolist() == [3, -3, 0]
