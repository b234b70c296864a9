"""chanas/models/reading/quantised.py: operators on numbers of few bits are those on floats between roundings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

from chanas.core.arrays import Array
from chanas.errors import ModelError
from chanas.models.graph import Constant
from chanas.models.reading.reader import read_graph

from ..onnx_files import onnx_model

RNG = np.random.default_rng(0)
STEP, ZERO = np.float32(0.1), 120


def numbers(*shape: int) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def floats(x: Array, step: Any = STEP, zero: int = ZERO) -> Array:
    return (x.astype(np.float32) - zero) * step


X, OTHER, MAP = numbers(2, 5), numbers(2, 5), numbers(1, 3, 4, 4)
WEIGHT = RNG.integers(-99, 100, (5, 6)).astype(np.int8)
STEPS = RNG.uniform(0.01, 0.02, 6).astype(np.float32)
BIAS = RNG.integers(-999, 999, 6).astype(np.int32)
GIVEN = [STEP, np.uint8(ZERO)]
OUT = [np.float32(0.2), np.uint8(100)]
Case = tuple[str, Sequence[Any], Mapping[str, Any], Callable[[], Array]]


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


CASES: dict[str, Case] = {
    "sums": ("QLinearAdd", [X, *GIVEN, OTHER, *GIVEN, *OUT], {}, lambda: floats(X) + floats(OTHER)),
    "products": ("QLinearMul", [X, *GIVEN, OTHER, *GIVEN, *OUT], {}, lambda: floats(X) * floats(OTHER)),
    "leaky": (
        "QLinearLeakyRelu",
        [X, *GIVEN, *OUT],
        {"alpha": 0.3},
        lambda: np.where(floats(X) < 0, 0.3, 1) * floats(X),
    ),
    "sigmoid": ("QLinearSigmoid", [X, *GIVEN, *OUT], {}, lambda: 1 / (1 + np.exp(-floats(X)))),
    "shares": ("QLinearSoftmax", [X, *GIVEN, *OUT], {"axis": -1, "opset": 13}, lambda: softmax(floats(X))),
    "means": (
        "QLinearGlobalAveragePool",
        [MAP, *GIVEN, *OUT],
        {"channels_last": 0},
        lambda: floats(MAP).mean((2, 3), keepdims=True),
    ),
    "pools": (
        "QLinearAveragePool",
        [MAP, *GIVEN, *OUT],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        lambda: floats(MAP).reshape(1, 3, 2, 2, 2, 2).mean((3, 5)),
    ),
    "parts": (
        "QLinearConcat",
        [*OUT, X, *GIVEN, OTHER, np.float32(0.3), np.uint8(7)],
        {"axis": 1},
        lambda: np.concatenate([floats(X), floats(OTHER, 0.3, 7)], 1),
    ),
    "dense": (
        "QGemm",
        [X, *GIVEN, WEIGHT, STEPS, np.zeros(6, np.int8), BIAS, *OUT],
        {},
        lambda: floats(X) @ (WEIGHT * STEPS) + BIAS * STEPS * STEP,
    ),
    "dense, turned": (
        "QGemm",
        [X, *GIVEN, np.ascontiguousarray(WEIGHT.T), STEPS, np.zeros(6, np.int8), BIAS, *OUT],
        {"transB": 1, "alpha": 1.0},
        lambda: floats(X) @ (WEIGHT * STEPS) + BIAS * STEPS * STEP,
    ),
}


def read(op: str, arrays: Sequence[Any], attributes: Mapping[str, Any]) -> Array:
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attributes)
    weights = {name: np.asarray(a) for name, a in zip(names, arrays, strict=True) if name}
    (found,) = read_graph(onnx_model([node], [], ["y"], weights), []).outputs
    assert isinstance(found, Constant)
    return found.value


@pytest.mark.parametrize("name", CASES)
def test_an_operator_of_onnx_runtime_is_that_of_onnx_between_roundings(name: str) -> None:
    op, arrays, attributes, expected = CASES[name]
    wanted = np.clip(np.rint(expected() / OUT[0]) + OUT[1], 0, 255)
    found = read(op, arrays, attributes)
    assert found.dtype == np.uint8
    assert np.abs(found - wanted).max() <= 1  # where it lies halfway
    assert (found != wanted).mean() < 0.1
    assert len(np.unique(found)) > 1


def test_a_zero_point_may_be_left_out() -> None:
    signed = X.astype(np.int8)
    found = read("QLinearSigmoid", [signed, STEP, None, np.float32(0.01)], {})
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, np.rint(100 / (1 + np.exp(-0.1 * signed.astype(np.float32)))))


def test_a_dense_layer_may_give_floats() -> None:
    found = read("QGemm", [X, *GIVEN, WEIGHT, STEPS, np.zeros(6, np.int8)], {})
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, floats(X) @ (WEIGHT * STEPS), rtol=1e-4, atol=1e-5)


def test_channels_that_are_last_are_refused() -> None:
    with pytest.raises(ModelError, match=r"QLinearGlobalAveragePool .*y.* has channels_last, which is not there"):
        read("QLinearGlobalAveragePool", [MAP, *GIVEN, *OUT], {"channels_last": 1})
