"""How far apart two programs may be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from chanas.models.proof.rounding import STEPS, Growth, allowed, growths, moved_inputs

from ..onnx_files import onnx_model, opened_and_read

UNIT = 2.0**-24


def test_errors_grow_along_the_longest_path_and_with_the_terms_of_sums(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]),
    ]
    weight = np.random.default_rng(0).standard_normal((4, 4, 3, 3), dtype=np.float32)
    image = ("x", "float32", [1, 4, 6, 6])
    _, graph = opened_and_read(onnx_model(nodes, [image], [("y", "float32", [1, 6, 6, 4])], {"w": weight}), tmp_path)
    [output] = graph.outputs
    assert isinstance(output, int)
    assert growths(graph)[output] == Growth((8 + 4 * 6) + 12 + 12)  # 36 terms; one each; what moves adds nothing


def test_inputs_move_by_units_in_the_last_place() -> None:
    x, ids = np.array([1.5, -3.0, 0.0], np.float32), np.array([1, 2])
    [moved, same] = moved_inputs([x, ids], 1, np.random.default_rng(0))
    np.testing.assert_array_equal(np.abs(moved - x), [2.0**-23, 2.0**-22, 0.0])
    np.testing.assert_array_equal(same, ids)
    [further] = moved_inputs([x], 32, np.random.default_rng(0))
    np.testing.assert_array_equal(np.abs(further - x), [2.0**-18, 2.0**-17, 0.0])


def still(expected: np.ndarray) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [expected.copy() for _ in STEPS]


def test_an_output_of_small_numbers_is_allowed_as_small_a_share() -> None:
    for scale in (1e-6, 1.0, 1e3):
        expected = np.linspace(-scale, scale, 7, dtype=np.float32)
        np.testing.assert_allclose(allowed(expected, still(expected), Growth(16.0)), 16 * UNIT * scale, rtol=1e-6)


def test_a_number_that_jumps_allows_others_nothing() -> None:
    expected = np.ones(1000, np.float32)
    moved = still(expected)
    moved[0][7] = 2.0
    bounds = allowed(expected, moved, Growth(16.0))
    assert bounds[7] > 1.0
    assert np.delete(bounds, 7).max() == pytest.approx(16 * UNIT)


@pytest.mark.parametrize(("num", "is_allowed"), [(1, False), (20, True)])
def test_where_roundings_fall_otherwise_anywhere_any_number_may_be_another(num: int, is_allowed: bool) -> None:
    expected = np.full(1000, 2.0, np.float32)
    other = expected.copy()
    other[:num] += 0.25  # a step of whole numbers of few bits
    moved = [expected, expected, expected, other, expected]
    assert (allowed(expected, moved, Growth())[-1] >= 0.25) == is_allowed


def test_what_is_as_uncertain_in_the_framework_is_allowed() -> None:
    expected = np.zeros(64, np.float32)  # two large numbers cancel
    noise = np.random.default_rng(0).standard_normal((len(STEPS), 64)).astype(np.float32) * 1e-5
    bounds = allowed(expected, list(noise), Growth(16.0))
    assert (bounds >= 32 * np.abs(noise[0])).all()
    assert bounds.max() < 1e-2


def test_whole_numbers_are_equal_but_where_they_move() -> None:
    expected = np.array([3, 4, 5])
    moved = still(expected)
    moved[2][1] = 7
    np.testing.assert_array_equal(allowed(expected, moved, Growth(16.0)), [0.0, np.inf, 0.0])


def test_without_time_to_move_inputs_a_thousandth_is_allowed() -> None:
    expected = np.array([2.0, -4.0], np.float32)
    np.testing.assert_allclose(allowed(expected, [], Growth(16.0)), 4e-3)
    np.testing.assert_allclose(allowed(expected, [], Growth(16.0), are_fixed=True), 64 * UNIT)


def test_a_sigmoid_is_exact_to_a_share_of_one_however_small_it_is(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["a"]),
        helper.make_node("Flatten", ["a"], ["y"]),
        helper.make_node("Sqrt", ["a"], ["z"]),
    ]
    outputs = [("y", "float32", [1, 4]), ("z", "float32", [1, 2, 2])]
    _, graph = opened_and_read(onnx_model(nodes, [("x", "float32", [1, 2, 2])], outputs, {}), tmp_path)
    found = growths(graph)
    of_one = [found[o].of_one for o in graph.outputs if isinstance(o, int)]
    assert of_one == [8.0, 0.0]
    small = np.full(4, 1e-9, np.float32)
    assert allowed(small, still(small), found[1]).min() > 2.0**-24
