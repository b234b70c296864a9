"""chanas/operators/winograd.py: fewer multiplications, the same sums, exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.errors import ScheduleError
from chanas.operators.winograd import Matrix, saved_multiplications, transforms
from chanas.operators.workload import Operator, Workload, winograd_axis, winograd_counts

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


@pytest.mark.parametrize(
    ("op", "kernel", "size", "counts"),
    [
        ("winograd", (3, 3), (56, 56), (6 * 3, 14 * 56)),
        ("winograd", (3, 3), (5, 7), (6 * 3, 2 * 5)),
        ("winograd", (7, 1), (17, 17), (10, 5 * 17)),
        ("winograd2", (3, 3), (56, 56), (6 * 6, 14 * 14)),
        ("winograd2", (5, 3), (5, 9), (8 * 6, 2 * 3)),
    ],
)
def test_weights_and_places_are_counted(
    op: Operator, kernel: tuple[int, int], size: tuple[int, int], counts: tuple[int, int]
) -> None:
    workload = Workload(op, size[0], 8, 8, kernel[0], kernel_width=kernel[1], input_width=size[1])
    assert winograd_counts(workload) == counts


def test_a_kernel_of_too_many_taps_saves_nothing() -> None:
    assert saved_multiplications(9, 1) == 0.0
    assert saved_multiplications(9, 2) > 0.0


COLUMNS, ROWS = 1, 0


@pytest.mark.parametrize(
    ("kernel", "strides", "axis"),
    [
        ((3, 3), (1, 1), COLUMNS),
        ((7, 7), (2, 2), COLUMNS),
        ((1, 7), (1, 1), COLUMNS),
        ((7, 1), (1, 1), ROWS),
        ((5, 3), (1, 1), ROWS),
        ((3, 9), (1, 1), ROWS),
        ((3, 3), (1, 2), ROWS),
        ((3, 3), (2, 1), COLUMNS),
    ],
)
def test_tiles_lie_where_they_save_more(kernel: tuple[int, int], strides: tuple[int, int], axis: int) -> None:
    window = {"kernel_width": kernel[1], "column_stride": strides[1]}
    assert winograd_axis(Workload("winograd", 20, 8, 8, kernel[0], strides[0], **window)) == axis


def test_a_kernel_of_too_many_taps_is_refused() -> None:
    with pytest.raises(ScheduleError, match="at most 7 taps a stride for winograd, got 9"):
        transforms(9, 1)


@pytest.mark.parametrize(("kernel", "weights"), [((3, 3), 6 * 3), ((5, 5), 8 * 5), ((7, 1), 10), ((1, 7), 10)])
def test_weights_are_counted_as_they_are_packed(kernel: tuple[int, int], weights: int) -> None:
    workload = Workload("winograd", 9, 3, 10, kernel[0], kernel_width=kernel[1])
    assert workload.weight_bytes == 4 * 10 * (weights * 3 + 1)
