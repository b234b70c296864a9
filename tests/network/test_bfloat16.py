"""chanas/network/bfloat16.py: bits, and weights in words of two."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from chanas.network.bfloat16 import Array, from_bits, pair_rows, pair_taps, rounded, to_bits
from chanas.network.folding import pack_operator
from chanas.operators.workload import Workload

finite = st.floats(width=32, allow_subnormal=False, min_value=-(2.0**126), max_value=2.0**126)
vectors = arrays(np.float32, st.integers(1, 40), elements=finite)


def words_of(packed: Array) -> tuple[Array, Array]:
    """The lower and the upper half of each word."""
    words = packed.view(np.uint32)
    return from_bits(words.astype(np.uint16)), from_bits((words >> 16).astype(np.uint16))


@given(vectors)
def test_rounding_is_pytorchs(values: Array) -> None:
    expected = torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(rounded(values), expected)


@given(arrays(np.uint16, st.integers(1, 40), elements=st.integers(0, 0x7F7F)))
def test_what_is_a_bfloat16_stays_what_it_is(bits: np.ndarray) -> None:
    np.testing.assert_array_equal(to_bits(from_bits(bits)), bits)


@given(arrays(np.uint32, st.integers(1, 40), elements=st.integers(0x7F800001, 0x7FFFFFFF)), st.booleans())
def test_nan_stays_nan_whatever_its_bits(bits: np.ndarray, is_negative: bool) -> None:
    assert np.isnan(rounded((bits | np.uint32(is_negative << 31)).view(np.float32))).all()


def test_infinity_stays_infinity() -> None:
    np.testing.assert_array_equal(rounded(np.array([np.inf, -np.inf], np.float32)), [np.inf, -np.inf])


@given(vectors)
def test_rounding_errs_by_at_most_half_a_step(values: Array) -> None:
    tiny = np.float32(2.0**-126)
    assert np.all(np.abs(rounded(values) - values) <= np.maximum(np.abs(values) * 2.0**-8, tiny))


@pytest.mark.parametrize("depth", [1, 2, 7, 16])
def test_rows_are_paired_and_an_odd_one_is_with_zero(depth: int) -> None:
    packed = np.random.default_rng(depth).standard_normal((3, depth, 16)).astype(np.float32)
    low, high = words_of(pair_rows(packed))
    assert low.shape == (3, -(-depth // 2), 16)
    np.testing.assert_array_equal(low, rounded(packed[:, 0::2]))
    np.testing.assert_array_equal(high[:, : depth // 2], rounded(packed[:, 1::2]))
    assert not np.any(high[:, depth // 2 :])


@pytest.mark.parametrize("kernel_size", [1, 3, 4, 5, 7])
def test_taps_are_paired_within_a_row_of_the_kernel(kernel_size: int) -> None:
    packed = np.random.default_rng(0).standard_normal((2, kernel_size**2, 16)).astype(np.float32)
    low, high = words_of(pair_taps(packed, kernel_size))
    assert low.shape == (2, kernel_size * -(-kernel_size // 2), 16)
    rows = packed.reshape(2, kernel_size, kernel_size, 16)
    np.testing.assert_array_equal(low.reshape(2, kernel_size, -1, 16), rounded(rows[:, :, 0::2]))
    np.testing.assert_array_equal(
        high.reshape(2, kernel_size, -1, 16)[:, :, : kernel_size // 2], rounded(rows[:, :, 1::2])
    )


def test_a_conv_keeps_its_float32_weights() -> None:
    weight = np.random.default_rng(0).standard_normal((8, 1, 3, 3)).astype(np.float32)
    bias = np.zeros(8, np.float32)
    in_bits, plain = (Workload("conv", 7, 1, 8, 3, dtype=dtype) for dtype in ("bfloat16", "float32"))
    packed = (pack_operator(workload, weight, bias, 16) for workload in (in_bits, plain))
    for mine, same in zip(*packed, strict=True):
        np.testing.assert_array_equal(mine, same)
    depthwise = Workload("depthwise", 7, 8, 8, 3, dtype="bfloat16")
    assert pack_operator(depthwise, weight, bias, 16)[0].shape == (1, 6, 16)


@pytest.mark.parametrize(
    "workload",
    [Workload("pointwise", 7, 1, 20, dtype="bfloat16"), Workload("depthwise", 7, 20, 20, dtype="bfloat16")],
    ids=lambda w: w.op,
)
def test_biases_stay_float32(workload: Workload) -> None:
    weight = np.ones((20, 1, 1, 1), np.float32)
    bias = np.linspace(-1, 1, 20, dtype=np.float32)
    np.testing.assert_array_equal(pack_operator(workload, weight, bias, 16)[1].ravel()[:20], bias)
