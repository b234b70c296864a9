"""chanas/operators/winograd.py: fewer multiplications, the same sums, exactly."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.errors import ScheduleError
from chanas.network.folding import pack_operator
from chanas.operators.winograd import Matrix, transforms
from chanas.operators.workload import Workload

kernels = st.tuples(st.sampled_from([1, 3, 5, 7]), st.sampled_from([1, 2]))


def times(matrix: Matrix, vector: list[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


@given(kernels, st.data())
def test_a_tile_is_the_plain_sum_exactly(kernel: tuple[int, int], data: st.DataObject) -> None:
    size, stride = kernel
    plan = transforms(size, stride)
    numbers = st.integers(-9, 9).map(Fraction)
    taps = data.draw(st.lists(numbers, min_size=size, max_size=size))
    inputs = data.draw(st.lists(numbers, min_size=plan.products * stride, max_size=plan.products * stride))
    filled = taps + [Fraction(0)] * (plan.taps * stride - size)
    sums = [Fraction(0)] * plan.products
    for phase in range(stride):
        pairs = zip(times(plan.taps_in, filled[phase::stride]), times(plan.input, inputs[phase::stride]), strict=True)
        sums = [total + a * b for total, (a, b) in zip(sums, pairs, strict=True)]
    plain = [sum(inputs[j * stride + i] * taps[i] for i in range(size)) for j in range(plan.outputs)]
    assert times(plan.output, sums) == plain


@pytest.mark.parametrize(
    ("kernel_size", "stride", "saved"),
    [(3, 1, 2.0), (5, 1, 2.5), (7, 1, 2.8), (3, 2, 1.2), (5, 2, 5 / 3), (7, 2, 2.0)],
)
def test_multiplications_are_saved(kernel_size: int, stride: int, saved: float) -> None:
    plan = transforms(kernel_size, stride)
    assert plan.outputs * kernel_size / (plan.products * stride) == pytest.approx(saved)


def test_a_kernel_of_too_many_taps_is_refused() -> None:
    with pytest.raises(ScheduleError, match="at most 7 taps a stride for winograd, got 9"):
        transforms(9, 1)


def test_weights_are_packed_by_product_channel_row_and_phase() -> None:
    weight = np.random.default_rng(0).standard_normal((10, 3, 5, 5), dtype=np.float32)
    packed, bias = pack_operator(Workload("winograd", 9, 3, 10, 5, 2), weight, np.ones(10, dtype=np.float32), 8)
    products = transforms(5, 2).products
    assert packed.shape == (2, products * 3 * 5 * 2, 8)
    assert bias.shape == (2, 8)
    by_name = packed.reshape(2, products, 3, 5, 2, 8)
    np.testing.assert_allclose(by_name[0, -1, 2, 4, 0, 7], weight[7, 2, 4, 4])  # the last product is the last tap
    np.testing.assert_array_equal(by_name[1, ..., 2:], 0.0)
