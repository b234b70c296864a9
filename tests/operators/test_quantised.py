"""chanas/operators/quantised.py: numbers lose half a step at most, sums fit in 16 bits, and an operator in whole
numbers is as near to the plain one as its roundings allow."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from chanas.compiler.cases import operator_tensors
from chanas.compiler.emulation import exact_sums
from chanas.core.arrays import Float32Array
from chanas.operators.quantised import (
    Grid,
    computed,
    exact_weights,
    fits_pairs,
    fused_multiply_add,
    quantised,
    whole_weights,
)
from chanas.operators.workload import Workload

ends = st.floats(-1e4, 1e4, width=32)
numbers = st.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False)
weights = arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 9), st.just(3), st.just(1)), elements=ends)
WORKLOADS = [
    Workload("pointwise", 5, 24, 16, epilogue="hswish"),
    Workload("pointwise", 5, 24, 16, epilogue="relu", residual=True),
    Workload("pointwise", 5, 24, 16, epilogue="leaky0.1", residual=True, residual_first=True),
    Workload("blockconv", 6, 16, 12, 3, 2, "relu6"),
    Workload("depthwise", 6, 16, 16, 5, 1, "hsigmoid"),
    Workload("pool", 6, 16, 16),
]


@given(ends, ends)
def test_a_grid_has_its_ends_and_zero(low: float, high: float) -> None:
    grid = Grid.of_range(low, high)
    found = grid.decode(grid.encode(np.array([min(low, 0.0), 0.0, max(high, 0.0)], np.float32)))
    assert found[1] == 0.0
    assert abs(found[0] - min(low, 0.0)) <= 0.51 * grid.step
    assert abs(found[2] - max(high, 0.0)) <= 0.51 * grid.step


@given(ends, ends, arrays(np.float32, 20, elements=st.floats(0, 1, width=32)))
def test_a_number_within_the_range_is_half_a_step_off_at_most(low: float, high: float, shares: Float32Array) -> None:
    grid = Grid.of_range(low, high)
    first, last = grid.decode(np.array([0, 255], np.uint8))
    values = (first + shares * (last - first)).astype(np.float32)
    apart = np.abs(grid.decode(grid.encode(values)).astype(np.float64) - values)
    assert apart.max() <= 0.5 * grid.step + 1e-5 * abs(last - first)


@given(arrays(np.uint8, 20))
def test_a_number_stays_what_it_is(numbers: np.ndarray) -> None:
    grid = Grid.of_range(-0.37, 5.1)
    np.testing.assert_array_equal(grid.encode(grid.decode(numbers)), numbers)


@given(ends, ends, arrays(np.float32, 20, elements=st.floats(-0.5, 1.5, width=32)))
def test_rounded_values_are_those_of_the_nearest_numbers(low: float, high: float, shares: Float32Array) -> None:
    """Where two are equally near it may be the other one."""
    grid = Grid.of_range(low, high)
    first, last = grid.decode(np.array([0, 255], np.uint8))
    values = (first + shares * (last - first)).astype(np.float32)
    found = grid.rounded(values)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(grid.decode(grid.encode(found)), found)
    np.testing.assert_array_equal(grid.rounded(found), found)
    clipped = np.clip(values, first, last).astype(np.float64)
    assert np.abs(found - clipped).max() <= 0.5 * grid.step + 1e-5 * abs(last - first)


@given(weights)
def test_pairs_of_weights_never_leave_sixteen_bits(weight: Float32Array) -> None:
    whole, steps = whole_weights(weight)
    assert np.array_equal(whole, np.rint(whole))
    assert np.abs(whole).max() <= 127
    even = weight.shape[1] // 2 * 2
    pairs = np.stack([whole[:, 0:even:2], whole[:, 1:even:2]])
    for sign in (1, -1):  # of those of one sign all inputs may be 255, and the others 0
        assert 255 * np.maximum(sign * pairs, 0).sum(axis=0).max(initial=0) <= 32767
    assert np.all(np.abs(whole * steps.reshape(-1, 1, 1, 1) - weight) <= 0.51 * steps.reshape(-1, 1, 1, 1))


def test_pairs_of_tiny_weights_never_leave_sixteen_bits() -> None:
    """Such whose products are 0 in float32."""
    assert whole_weights(np.full((1, 2, 1, 1), 1e-24, np.float32))[0].sum() <= 128


def test_weights_that_are_alone_use_all_numbers() -> None:
    weight = np.linspace(-1, 1, 9, dtype=np.float32).reshape(1, 1, 3, 3)
    assert np.abs(whole_weights(weight, in_pairs=False)[0]).max() == 127


whole = arrays(np.int8, st.tuples(st.integers(1, 5), st.integers(1, 9), st.just(3), st.just(1)))


@given(whole, arrays(np.float32, 5, elements=st.floats(2.0**-20, 4.0, width=32)))
def test_weights_that_are_whole_numbers_of_a_step_stay_so(numbers: Float32Array, steps: Float32Array) -> None:
    """The least such numbers, times whatever all of a channel are multiples of."""
    steps = steps[: len(numbers)].reshape(-1, 1, 1, 1)
    weight = numbers.astype(np.float32) * steps
    found = exact_weights(weight)
    multiples = np.gcd.reduce(np.abs(numbers.astype(int)).reshape(len(numbers), -1), axis=1)
    least = numbers // np.maximum(multiples, 1).reshape(-1, 1, 1, 1)
    if least.max() > 127:
        assert found is None
        return
    assert found is not None
    np.testing.assert_array_equal(found[0], least)
    np.testing.assert_allclose(found[0] * found[1].reshape(-1, 1, 1, 1), weight, rtol=1e-6)
    if (multiples == 1).all() and (np.abs(least).reshape(len(least), -1).max(axis=1) > 100).all():
        np.testing.assert_array_equal(found[1], steps.ravel())


def test_weights_that_nobody_rounded_are_no_whole_numbers() -> None:
    rng = np.random.default_rng(0)
    assert exact_weights(rng.standard_normal((8, 16, 1, 1), dtype=np.float32)) is None
    whole = rng.integers(-128, 256, (8, 16, 1, 1))
    whole[:, 0] = 255
    assert exact_weights((0.01 * whole).astype(np.float32)) is None


@given(whole)
def test_pairs_fit_that_never_leave_sixteen_bits(numbers: Float32Array) -> None:
    even = numbers.shape[1] // 2 * 2
    pairs = np.stack([numbers[:, 0:even:2], numbers[:, 1:even:2]]).astype(int)
    ends = [255 * pairs.clip(*side).sum(axis=0) for side in ((0, None), (None, 0))]
    inside = all(((end >= -32768) & (end <= 32767)).all() for end in ends)
    assert fits_pairs(numbers.astype(np.float32)) == inside


@given(numbers, numbers, numbers)
def test_a_fused_multiply_add_is_rounded_once(a: float, b: float, c: float) -> None:
    found = float(fused_multiply_add(a, b, c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    beside = (float(np.nextafter(np.float32(found), np.float32(end))) for end in (-np.inf, np.inf))
    assert all(abs(Fraction(found) - exact) <= abs(Fraction(x) - exact) for x in beside if np.isfinite(x))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.key)
def test_an_operator_is_as_near_as_its_roundings_allow(workload: Workload) -> None:
    """Half a step of the output, of each input times the sum of its weights, and of each weight times its input; an
    activation makes that at most 1.5 times as large."""
    tensors = operator_tensors(workload)
    x, residual = tensors.x, tensors.residual
    grids = [
        Grid.of_range(float(v.min()), float(v.max())) for v in (x, tensors.out, x if residual is None else residual)
    ]
    by = quantised(replace(workload, dtype="int8"), tensors.weight, tensors.bias, *grids)
    whole = None if residual is None else grids[2].encode(residual)
    found = computed(replace(workload, dtype="int8"), by, grids[0].encode(x), exact_sums(workload), residual=whole)
    allowed = 0.5 * grids[1].step + (0.0 if residual is None else 0.5 * grids[2].step)
    if tensors.weight is None or by.steps is None:
        allowed += 0.5 * grids[0].step
    else:
        taps = tensors.weight[0].size
        of_inputs = 0.5 * grids[0].step * np.abs(tensors.weight).reshape(len(tensors.weight), -1).sum(axis=1)
        of_weights = 0.5 * by.steps * taps * (np.abs(x).max() + grids[0].step)
        allowed += 1.5 * (of_inputs + of_weights).reshape(1, -1, 1, 1)
    assert np.all(np.abs(grids[1].decode(found) - tensors.out) <= allowed + 1e-5)
