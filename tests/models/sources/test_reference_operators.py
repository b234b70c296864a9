"""chanas/models/sources/reference_operators.py: without ONNX Runtime, too, the answer to compare with is
what ONNX defines."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test.case.node import collect_testcases

from chanas.core.arrays import Array
from chanas.models.sources.onnx_models import _reference
from chanas.models.sources.reference_operators import OPERATORS

from ..onnx_files import onnx_model


def computed(op: str, opset: int, *arrays: Array, **attributes: Any) -> Array:
    """The output of one node."""
    names = [f"x{i}" for i in range(len(arrays))]
    inputs = [(name, a.dtype.name, a.shape) for name, a in zip(names, arrays, strict=True)]
    made = onnx_model([helper.make_node(op, names, ["y"], **attributes)], inputs, ["y"], opset=opset)
    (found,) = _reference(made).run(None, dict(zip(names, arrays, strict=True)))
    return np.asarray(found)


def drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_onnx_own_tests_pass(op: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of those of other operators, which are made as well
        cases = [c for c in collect_testcases(op) if c.model is not None]
    assert len(cases) > 2
    for case in cases:
        for arrays, expected in case.data_sets:
            names = [value.name for value in case.model.graph.input]
            found = _reference(case.model).run(None, dict(zip(names, arrays, strict=True)))
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5, err_msg=case.name)


@pytest.mark.parametrize("opset", [7, 9, 13, 14, 15])
def test_batch_normalisation_takes_the_statistics_that_are_given(opset: int) -> None:
    x, scale, bias, mean = drawn(2, 5, 3, 4), drawn(5), drawn(5) + 1, drawn(5) - 2
    variance = np.abs(drawn(5)) + np.float32(0.5)
    s, b, m, v = (a.reshape(5, 1, 1).astype(np.float64) for a in (scale, bias, mean, variance))
    found = computed("BatchNormalization", opset, x, scale, bias, mean, variance, epsilon=1e-3)
    np.testing.assert_allclose(found, (x - m) / np.sqrt(v + 1e-3) * s + b, rtol=1e-4, atol=1e-5)


def test_normalisation_in_training_is_refused() -> None:
    arrays = drawn(2, 5, 3, 4), *(np.ones(5, np.float32) for _ in range(4))
    with pytest.raises(NotImplementedError, match="BatchNormalization in training"):
        computed("BatchNormalization", 15, *arrays, training_mode=1)
    with pytest.raises(NotImplementedError, match="BatchNormalization in training"):
        computed("BatchNormalization", 7, *arrays, spatial=0)


def transposed(x: Array, w: Array, strides: tuple[int, int], groups: int) -> Array:
    """By the definition, with nothing cut off: each pixel adds to a window of the output."""
    images, channels, height, width = x.shape
    out_channels, kh, kw = w.shape[1:]
    out = np.zeros((images, groups * out_channels, (height - 1) * strides[0] + kh, (width - 1) * strides[1] + kw))
    for c, i, j in itertools.product(range(channels), range(height), range(width)):
        first = c // (channels // groups) * out_channels
        place = slice(i * strides[0], i * strides[0] + kh), slice(j * strides[1], j * strides[1] + kw)
        out[:, first : first + out_channels, *place] += x[:, c, i, j, None, None, None] * w[c]
    return out


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("facts", "rows", "columns"),
    [
        ({}, (0, 13), (0, 10)),
        ({"pads": [1, 0, 2, 1]}, (1, 11), (0, 9)),
        ({"output_shape": [10, 8]}, (2, 12), (1, 9)),  # of an odd number of rows one more at the start
        ({"output_shape": [10, 8], "auto_pad": "SAME_UPPER"}, (1, 11), (1, 9)),
        ({"auto_pad": "SAME_UPPER"}, (0, 12), (1, 9)),
        ({"auto_pad": "SAME_LOWER"}, (1, 13), (1, 9)),
    ],
)
def test_transposed_convolutions_are_cut_as_onnx_says(
    facts: dict[str, Any], rows: tuple[int, int], columns: tuple[int, int], groups: int
) -> None:
    x, w, b = drawn(2, 4, 4, 4), drawn(4, 3, 4, 4), drawn(3 * groups)
    whole = transposed(x, w, (3, 2), groups) + b.reshape(-1, 1, 1)
    found = computed("ConvTranspose", 11, x, w, b, strides=[3, 2], group=groups, **facts)
    np.testing.assert_allclose(found, whole[:, :, slice(*rows), slice(*columns)], rtol=1e-4, atol=1e-4)


def test_rows_beyond_a_transposed_convolution_are_the_bias() -> None:
    x, w, b = drawn(1, 2, 3, 3), drawn(2, 3, 2, 2), drawn(3)
    found = computed("ConvTranspose", 11, x, w, b, strides=[3, 3], output_padding=[1, 1])
    assert found.shape == (1, 3, 9, 9)
    np.testing.assert_allclose(found[0, :, -1, :], np.broadcast_to(b[:, None], (3, 9)), rtol=1e-5)


def test_scatter_counts_from_the_end_too() -> None:
    x, updates, places = drawn(3, 4), drawn(2, 4), np.array([[0, -1, 1, 2], [2, 0, -3 + 1, 0]])
    expected = x.copy()
    for i, j in np.ndindex(*places.shape):
        expected[places[i, j], j] = updates[i, j]
    np.testing.assert_array_equal(computed("Scatter", 10, x, places, updates, axis=0), expected)


def test_float16_is_computed_in_float32() -> None:
    x, w = drawn(1, 64, 6, 6).astype(np.float16), drawn(8, 64, 3, 3).astype(np.float16)
    found = computed("Conv", 11, x, w)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, computed("Conv", 11, x.astype(np.float32), w.astype(np.float32)), rtol=2e-3)


def test_names_are_those_of_onnx() -> None:
    assert {operator.__name__ for operator in OPERATORS} <= {schema.name for schema in onnx.defs.get_all_schemas()}
