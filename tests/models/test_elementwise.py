"""chanas/models/elementwise.py: both definitions of each operator give the same, and what ONNX says."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.models.elementwise import ELEMENTWISE, result_dtype
from chanas.models.graph import Node
from chanas.models.known import compiled

NUMBERS = [-np.inf, -7.5, -1.0, -0.3, -0.0, 0.0, 0.25, 0.7, 1.0, 2.5, 3.5, 60.0, np.inf, np.nan]
WHOLE = [-70, -7, -3, -1, 0, 1, 2, 5, 31, 64]
TRUTHS = [False, True]
OF_WHOLE = ("bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")


def operands(op: str) -> list[np.ndarray]:
    """All pairs of some numbers of the type that an operator is for."""
    if op.startswith("logical"):
        values = [np.array(TRUTHS)] * (1 if op == "logical_not" else 2)
    elif op in OF_WHOLE:
        values = [np.array(WHOLE, np.int32)] * (1 if op == "bitwise_not" else 2)
    elif op == "where":
        values = [np.array(TRUTHS), np.float32(NUMBERS), np.float32([9.0])]
    else:
        values = [np.float32(NUMBERS)] * (2 if op in TWO else 1)
    return [a.ravel() for a in np.meshgrid(*values, indexing="ij")]


TWO = (
    *("add", "subtract", "multiply", "divide", "power", "mod", "floor_mod", "maximum", "minimum"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
)


@pytest.mark.parametrize("op", sorted(ELEMENTWISE))
def test_both_definitions_of_an_operator_give_the_same(op: str) -> None:
    arrays = operands(op)
    dtype = result_dtype(op, tuple(str(a.dtype) for a in arrays))
    with np.errstate(all="ignore"):
        expected = ELEMENTWISE[op].known(*arrays).astype(dtype)
    found = compiled(Node(op, (0,) * len(arrays), expected.shape, dtype), arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["divide", "mod", "floor_mod", "power"])
def test_whole_numbers_are_computed_alike(op: str) -> None:
    arrays = [a.ravel() for a in np.meshgrid([-7, -3, 0, 4, 7], [1, 2, 3], indexing="ij")]
    expected = ELEMENTWISE[op].known(*arrays)
    np.testing.assert_array_equal(compiled(Node(op, (0, 0), expected.shape, "int64"), arrays), expected)


@pytest.mark.parametrize(("op", "expected"), [("mod", [-1.0, 1.0]), ("floor_mod", [2.0, -2.0])])
def test_remainders_have_the_sign_that_the_operator_gives_them(op: str, expected: list[float]) -> None:
    """`mod` is ONNX's with fmod=1."""
    found = ELEMENTWISE[op].known(np.float32([-7.0, 7.0]), np.float32([3.0, -3.0]))
    assert found.tolist() == expected


def test_whole_numbers_are_divided_towards_zero() -> None:
    assert ELEMENTWISE["divide"].known(np.array([7, -7, 3]), np.array([2, 2, 0])).tolist() == [3, -3, 0]


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64", "int8", "int64"])
@pytest.mark.parametrize("op", ["left_shift", "right_shift"])
def test_shifts_by_more_bits_than_there_are_leave_none(op: str, dtype: str) -> None:
    arrays = [a.ravel().astype(dtype) for a in np.meshgrid([0, 1, 100, 127], [0, 1, 7, 8, 31, 64, 100], indexing="ij")]
    expected = ELEMENTWISE[op].known(*arrays).astype(dtype)
    np.testing.assert_array_equal(compiled(Node(op, (0, 0), expected.shape, dtype), arrays), expected)
    assert not expected[arrays[1] >= 64].any()
