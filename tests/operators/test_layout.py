"""chanas/operators/layout.py: packed activations and weights are the same numbers, at the places that kernels read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.core.arrays import Float32Array
from chanas.operators.layout import (
    PLAIN,
    ROWS,
    Blocks,
    Layout,
    in_words,
    input_shape,
    num_blocks,
    operator_inputs,
    output_shape,
    pack_channels,
    unpack_channels,
)
from chanas.operators.precision import BFLOAT16, from_bits
from chanas.operators.winograd import transforms
from chanas.operators.workload import Workload
from chanas.testing.layouts import WORKLOADS, LayoutContract, numbered, weight_of

LAYOUTS: dict[str, Layout] = {"blocks of 16": Blocks(16), "blocks of 4": Blocks(4), "rows": ROWS, "plain": PLAIN}
lanes_of_a_vector = st.sampled_from([1, 4, 8, 16])
shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)


def packed(workload: Workload, weight: Float32Array, layout: Layout) -> list[np.ndarray]:
    return layout.pack_parameters(workload, weight, numbered(workload.out_channels))


# ---- of every layout ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS, scope="class")
class TestLayouts(LayoutContract):
    @pytest.fixture(autouse=True)
    def chosen(self, layout: Layout) -> None:
        self.layout = layout


def test_blocks_put_the_parameters_of_a_block_into_one_array() -> None:
    parts = [part for w in WORKLOADS[:2] for part in packed(w, weight_of(w), Blocks(16))]
    assert len(Blocks(16).together(parts)) == 1


def test_an_operator_reads_its_input_its_parameters_and_its_extras_in_this_order() -> None:
    workload, layout = WORKLOADS[6], Blocks(16)
    inputs = operator_inputs(workload, layout)
    assert [a.name for a in inputs] == ["x", "weights", "bias", "gate", "shift", "residual"]
    assert [a.shape for a in inputs] == [(2, 49, 16), (2, 21, 16), (2, 16), (2, 1, 16), (2, 1, 16), (2, 49, 16)]
    assert {a.dtype for a in operator_inputs(replace(workload, dtype="bfloat16"), layout)} == {"uint16", "float32"}


def test_an_image_is_plain_in_any_layout() -> None:
    stem = replace(WORKLOADS[0], batch=2)
    assert input_shape(stem, Blocks(16)) == input_shape(stem, ROWS) == (6, 81)
    assert output_shape(stem, Blocks(16)) == (4, 25, 16)
    assert output_shape(stem, ROWS) == (56, 24)


# ---- channels in blocks ---------------------------------------------------------------------------------------------
@given(st.integers(1, 50), shapes, lanes_of_a_vector)
def test_channels_are_packed_and_unpacked(channels: int, rest: tuple[int, ...], lanes: int) -> None:
    values = numbered(channels, *rest)
    blocks = pack_channels(values, lanes)
    assert blocks.shape == (num_blocks(channels, lanes), *rest, lanes)
    assert blocks.dtype == np.float32
    assert blocks.flags.c_contiguous
    np.testing.assert_array_equal(unpack_channels(blocks, channels), values)


@given(st.integers(1, 50), lanes_of_a_vector)
def test_channels_beyond_the_last_are_zero(channels: int, lanes: int) -> None:
    blocks = pack_channels(numbered(channels, 3), lanes)
    assert np.count_nonzero(blocks) == 3 * channels
    assert np.all(blocks[-1, :, (channels - 1) % lanes + 1 :] == 0.0)


def test_an_output_has_beyond_its_channels_what_the_epilogue_makes_of_zero() -> None:
    workload = Workload("pointwise", 1, 8, 10, epilogue="hsigmoid", batch=2)
    for image in Blocks(16).expected(workload, numbered(2, 10, 1, 1)):
        assert image[0, 10:].tolist() == [0.5] * 6


def test_a_lane_is_a_channel() -> None:
    blocks = pack_channels(numbered(6, 2), lanes=4)
    assert blocks[0].tolist() == [[1, 3, 5, 7], [2, 4, 6, 8]]
    assert blocks[1].tolist() == [[9, 11, 0, 0], [10, 12, 0, 0]]


@pytest.mark.parametrize(("channels", "expected"), [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_round_up(channels: int, expected: int) -> None:
    assert num_blocks(channels, 16) == expected


@pytest.mark.parametrize(
    "workload",
    [
        Workload("pointwise", 7, 8, 24),
        Workload("depthwise", 7, 24, 24, 5),
        Workload("conv", 7, 3, 24, 3),
        Workload("conv", 7, 3, 24, 3, dtype="bfloat16"),
        Workload("pointwise", 1, 32, 10),
    ],
    ids=lambda w: w.key,
)
def test_weights_are_in_the_order_of_the_sum(workload: Workload) -> None:
    weight = weight_of(workload)
    blocks, bias = packed(workload, weight, Blocks(16))
    for channel in (0, workload.out_channels - 1):
        block, lane = divmod(channel, 16)
        np.testing.assert_array_equal(blocks[block, :, lane], weight[channel].ravel())
        assert bias[block, lane] == channel + 1


def test_weights_of_winograds_are_in_the_order_of_products_channels_rows_and_phases() -> None:
    weight = np.random.default_rng(0).standard_normal((10, 3, 5, 5), dtype=np.float32)
    blocks, _ = packed(Workload("winograd", 9, 3, 10, 5, 2), weight, Blocks(8))
    by_name = blocks.reshape(2, transforms(5, 2).products, 3, 5, 2, 8)
    np.testing.assert_allclose(by_name[0, -1, 2, 4, 0, 7], weight[7, 2, 4, 4])  # the last product is the last tap
    np.testing.assert_array_equal(by_name[1, ..., 2:], 0.0)


def test_weights_of_tiles_of_rows_are_those_of_columns_with_the_axes_swapped() -> None:
    weight = np.random.default_rng(0).standard_normal((10, 3, 7, 2), dtype=np.float32)
    tall, wide = (Workload("winograd", 9, 3, 10, k, kernel_width=9 - k) for k in (7, 2))
    np.testing.assert_array_equal(packed(tall, weight, Blocks(8))[0], packed(wide, weight.swapaxes(2, 3), Blocks(8))[0])


def test_weights_of_square_tiles_are_in_the_order_of_products_and_channels() -> None:
    weight = np.random.default_rng(0).standard_normal((10, 3, 5, 3), dtype=np.float32)
    workload = Workload("winograd2", 9, 3, 10, 5, kernel_width=3)
    blocks, _ = packed(workload, weight, Blocks(8))
    np.testing.assert_allclose(blocks.reshape(2, 8, 6, 3, 8)[0, -1, -1, 2, 7], weight[7, 2, 4, 2])
    assert workload.weight_bytes == 4 * 10 * (8 * 6 * 3 + 1)


# ---- words ----------------------------------------------------------------------------------------------------------
def halves_of(words: Float32Array) -> tuple[Float32Array, Float32Array]:
    """The lower and the upper half of each word."""
    bits = words.view(np.uint32)
    return from_bits(bits.astype(np.uint16)), from_bits((bits >> 16).astype(np.uint16))


@pytest.mark.parametrize(("depth", "run"), [(1, 1), (2, 2), (7, 7), (16, 16), (9, 3), (25, 5), (16, 4), (49, 7)])
def test_words_are_of_neighbours_in_a_run_and_an_odd_one_is_with_zero(depth: int, run: int) -> None:
    values = np.random.default_rng(depth).standard_normal((3, depth, 16)).astype(np.float32)
    low, high = (half.reshape(3, depth // run, -1, 16) for half in halves_of(in_words(values, run, BFLOAT16)))
    runs = BFLOAT16.rounded(values).reshape(3, depth // run, run, 16)
    np.testing.assert_array_equal(low, runs[:, :, 0::2])
    np.testing.assert_array_equal(high[:, :, : run // 2], runs[:, :, 1::2])
    assert not np.any(high[:, :, run // 2 :])


def test_a_depthwise_convolutions_words_are_of_taps_of_a_row_and_its_biases_float32() -> None:
    workload = Workload("depthwise", 7, 20, 20, 3, dtype="bfloat16")
    words, bias = packed(workload, weight_of(workload), Blocks(16))
    low, high = halves_of(words)
    assert words.shape == (2, 6, 16)
    assert (low[0, 2, 0], high[0, 2, 0], low[0, 3, 0], high[0, 3, 0]) == (4, 5, 6, 0)
    np.testing.assert_array_equal(bias.ravel()[:20], numbered(20))


# ---- rows of channels -----------------------------------------------------------------------------------------------
def test_spare_rows_of_a_map_are_not_a_number() -> None:
    rows = ROWS.pack(np.ones((1, 3, 7, 7), dtype=np.float32))
    assert rows.shape == (56, 3)
    assert np.isnan(rows[49:]).all()
    assert (rows[:49] == 1.0).all()
    assert ROWS.expected(Workload("pointwise", 7, 3, 3), np.ones((1, 3, 7, 7), np.float32)).shape == (49, 3)


def test_rows_of_a_product_are_taps_then_inputs_then_outputs() -> None:
    workload = Workload("blockconv", 7, 4, 6, 3)
    weight = weight_of(workload)
    rows, bias = packed(workload, weight, ROWS)
    assert rows[5, 2, 3] == weight[3, 2, 1, 2]
    np.testing.assert_array_equal(bias, numbered(6))
    assert packed(Workload("pointwise", 7, 4, 5), numbered(5, 4), ROWS)[0].shape == (1, 4, 5)


def test_rows_of_a_depthwise_convolution_are_taps_then_channels() -> None:
    workload = Workload("depthwise", 7, 6, 6, 3)
    weight = weight_of(workload)
    rows, _ = packed(workload, weight, ROWS)
    assert rows.shape == (9, 6)
    assert rows[7, 4] == weight[4, 0, 2, 1]


def test_float16_products_have_two_inputs_next_to_each_other() -> None:
    workload = Workload("pointwise", 7, 4, 6, dtype="float16")
    weight = numbered(6, 4)
    rows, bias = packed(workload, weight, ROWS)
    assert (rows.shape, rows.dtype, bias.dtype) == ((1, 2, 6, 2), np.float16, np.float32)
    assert rows[0, 1, 5].tolist() == [weight[5, 2], weight[5, 3]]
    stem = Workload("conv", 7, 3, 6, 3, dtype="float16")
    assert packed(stem, weight_of(stem), ROWS)[0].dtype == np.float32
