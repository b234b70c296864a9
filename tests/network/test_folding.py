"""chanas/network/folding.py: packed and folded weights are the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chanas.core.arch import BlockConfig
from chanas.core.layouts import num_blocks
from chanas.errors import CheckpointError
from chanas.network.folding import (
    Array,
    fold_batch_norm,
    pack_block,
    pack_channels,
    pack_operator,
    pack_operators,
    pack_rows,
    split_tensors,
    unpack_channels,
)
from chanas.network.static import StaticNetwork, block_module, randomise_statistics
from chanas.operators.workload import Workload

lanes_of_a_vector = st.sampled_from([1, 4, 8, 16])
shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)


def numbered(*shape: int) -> Array:
    """1, 2, 3, …, so that every element can be told apart and none is zero."""
    return np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


# ---- for GPUs -------------------------------------------------------------------------------------------------------
def test_rows_of_a_product_are_taps_then_inputs_then_outputs() -> None:
    weight, bias = numbered(6, 4, 3, 3), numbered(6)
    rows, same = pack_rows(Workload("blockconv", 7, 4, 6, 3), weight, bias)
    assert rows.shape == (9, 4, 6)
    assert rows[5, 2, 3] == weight[3, 2, 1, 2]
    np.testing.assert_array_equal(same, bias)
    assert pack_rows(Workload("pointwise", 7, 4, 5), numbered(5, 4), numbered(5))[0].shape == (1, 4, 5)


def test_rows_of_a_depthwise_convolution_are_taps_then_channels() -> None:
    weight = numbered(6, 1, 3, 3)
    rows, _ = pack_rows(Workload("depthwise", 7, 6, 6, 3), weight, numbered(6))
    assert rows.shape == (9, 6)
    assert rows[7, 4] == weight[4, 0, 2, 1]


def test_float16_products_have_two_inputs_side_by_side() -> None:
    weight, bias = numbered(6, 4), numbered(6)
    rows, same = pack_rows(Workload("pointwise", 7, 4, 6, dtype="float16"), weight, bias)
    assert (rows.shape, rows.dtype, same.dtype) == ((1, 2, 6, 2), np.float16, np.float32)
    assert rows[0, 1, 5, 0] == weight[5, 2]
    assert rows[0, 1, 5, 1] == weight[5, 3]
    stem = Workload("conv", 7, 3, 6, 3, dtype="float16")
    assert pack_rows(stem, numbered(6, 3, 3, 3), bias)[0].dtype == np.float32


# ---- packing --------------------------------------------------------------------------------------------------------
@given(st.integers(1, 50), shapes, lanes_of_a_vector)
def test_unpacking_is_the_inverse_of_packing(channels: int, rest: tuple[int, ...], lanes: int) -> None:
    values = numbered(channels, *rest)
    packed = pack_channels(values, lanes)
    assert packed.shape == (num_blocks(channels, lanes), *rest, lanes)
    assert packed.dtype == np.float32
    assert packed.flags.c_contiguous
    np.testing.assert_array_equal(unpack_channels(packed, channels), values)


@given(st.integers(1, 50), lanes_of_a_vector)
def test_channels_beyond_the_last_are_zero(channels: int, lanes: int) -> None:
    packed = pack_channels(numbered(channels, 3), lanes)
    assert np.count_nonzero(packed) == 3 * channels
    assert np.all(packed[-1, :, (channels - 1) % lanes + 1 :] == 0.0)


def test_a_lane_is_a_channel() -> None:
    packed = pack_channels(numbered(6, 2), lanes=4)
    assert packed[0].tolist() == [[1, 3, 5, 7], [2, 4, 6, 8]]
    assert packed[1].tolist() == [[9, 11, 0, 0], [10, 12, 0, 0]]


@pytest.mark.parametrize(("channels", "expected"), [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_round_up(channels: int, expected: int) -> None:
    assert num_blocks(channels, 16) == expected


@pytest.mark.parametrize(
    ("workload", "shape", "packed_shape"),
    [
        (Workload("pointwise", 7, 8, 24), (24, 8, 1, 1), (2, 8, 16)),
        (Workload("depthwise", 7, 24, 24, 5), (24, 1, 5, 5), (2, 25, 16)),
        (Workload("conv", 7, 3, 24, 3), (24, 3, 3, 3), (2, 27, 16)),
        (Workload("pointwise", 1, 32, 10), (10, 32), (1, 32, 16)),
    ],
    ids=["pointwise", "depthwise", "convolution", "dense"],
)
def test_weights_are_packed_in_the_order_of_the_reduction(
    workload: Workload, shape: tuple[int, ...], packed_shape: tuple[int, ...]
) -> None:
    weight = numbered(*shape)
    packed, bias = pack_operator(workload, weight, numbered(shape[0]), lanes=16)
    assert packed.shape == packed_shape
    assert bias.shape == (packed_shape[0], 16)
    for channel in (0, shape[0] - 1):
        block, lane = divmod(channel, 16)
        np.testing.assert_array_equal(packed[block, :, lane], weight[channel].ravel())


# ---- batch normalisation --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("kernel_size", "groups"), [(1, 1), (3, 1), (5, 12)])
def test_a_folded_convolution_is_convolution_and_batch_normalisation(kernel_size: int, groups: int, seed: int) -> None:
    torch.manual_seed(seed)
    conv = nn.Conv2d(12, 24, kernel_size, padding=kernel_size // 2, groups=groups, bias=False)
    bn = nn.BatchNorm2d(24, eps=1e-5)
    randomise_statistics(bn, seed)
    parts = (conv.weight, bn.weight, bn.bias, bn.running_mean, bn.running_var)
    weight, bias = fold_batch_norm(*(p.detach().numpy() for p in parts if p is not None))
    assert weight.dtype == bias.dtype == np.float32
    x = torch.randn(2, 12, 7, 7)
    with torch.inference_mode():
        expected = bn.eval()(conv(x))
        got = nn.functional.conv2d(
            x, torch.from_numpy(weight), torch.from_numpy(bias), padding=kernel_size // 2, groups=groups
        )
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_folding_leaves_what_it_folds_alone() -> None:
    arrays = [numbered(4, 2, 1, 1), *(numbered(4) for _ in range(4))]
    copies = [a.copy() for a in arrays]
    fold_batch_norm(*arrays)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_a_channel_without_variance_folds_to_something_finite() -> None:
    ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    weight, bias = fold_batch_norm(np.ones((2, 1, 1, 1), np.float32), ones, zeros, zeros, zeros)
    np.testing.assert_allclose(weight.ravel(), 1.0 / np.sqrt(1e-5), rtol=1e-6)
    assert bias.tolist() == [0.0, 0.0]


# ---- blocks and networks --------------------------------------------------------------------------------------------
STEM = BlockConfig("stem", 8, 3, 0, 8, 3, 2, "hswish")
PLAIN = BlockConfig("mbconv", 4, 8, 8, 8, 3, 1, "relu", residual=True)
EVERYTHING = BlockConfig("mbconv", 4, 8, 24, 16, 5, 2, "hswish", use_se=True)
HEAD = BlockConfig("head", 2, 16, 0, 24, activation="hswish")
CLASSIFIER = BlockConfig("classifier", 1, 24, 16, 5, activation="hswish")
NETWORK = (STEM, PLAIN, EVERYTHING, HEAD, CLASSIFIER)


def tensors_of(module: nn.Module) -> dict[str, Array]:
    return {name: value.numpy() for name, value in module.state_dict().items()}


@pytest.mark.parametrize(
    ("block", "num_operators"), [(STEM, 1), (PLAIN, 2), (EVERYTHING, 5), (HEAD, 1), (CLASSIFIER, 2)]
)
def test_a_block_has_weights_and_bias_of_each_of_its_operators(block: BlockConfig, num_operators: int) -> None:
    tensors = tensors_of(block_module(block))
    packed = pack_operators(block, tensors, lanes=8)
    assert np.array_equal(pack_block(block, tensors, lanes=8), np.concatenate([part.ravel() for part in packed]))
    assert len(packed) == 2 * num_operators
    assert [p.ndim for p in packed] == [3, 2] * num_operators


def test_the_feature_layer_gets_a_bias_of_zeros() -> None:
    _, bias, *_ = pack_operators(CLASSIFIER, tensors_of(block_module(CLASSIFIER)), lanes=8)
    assert np.all(bias == 0.0)


@pytest.mark.parametrize(
    ("block", "name"),
    [
        (STEM, "conv.bn.running_var"),
        (PLAIN, "project.conv.weight"),
        (EVERYTHING, "se.reduce.bias"),
        (CLASSIFIER, "linear.bias"),
    ],
)
def test_a_missing_parameter_is_an_error_that_names_it(block: BlockConfig, name: str) -> None:
    tensors = tensors_of(block_module(block))
    del tensors[name]
    with pytest.raises(CheckpointError, match=f"parameter {name} of block {block.key} is missing"):
        pack_block(block, tensors, lanes=8)


def test_the_parameters_of_a_network_are_split_into_those_of_its_blocks() -> None:
    network = StaticNetwork(NETWORK)
    parts = split_tensors(tensors_of(network), len(NETWORK))
    assert len(parts) == len(NETWORK)
    for part, block in zip(parts, network.blocks, strict=True):
        own = tensors_of(block)
        assert part.keys() == own.keys()
        assert all(np.array_equal(part[name], own[name]) for name in own)
