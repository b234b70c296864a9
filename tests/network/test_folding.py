"""chanas/network/folding.py: folded weights are the same weights, and a block has those of its operators."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from chanas.core.arch import BlockConfig
from chanas.errors import CheckpointError
from chanas.network.folding import fold_batch_norm, fold_operators, pack_block, split_tensors
from chanas.network.static import StaticNetwork, block_module, randomise_statistics
from chanas.operators.layout import ROWS, Blocks
from chanas.operators.precision import Array
from chanas.testing.layouts import numbered


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
    rows, (together,) = pack_block(block, tensors, ROWS), pack_block(block, tensors, Blocks(8))
    assert len(rows) == 2 * num_operators
    folded = fold_operators(block, tensors)
    each = [part.ravel() for operator in folded for part in Blocks(8).pack_parameters(*operator)]
    np.testing.assert_array_equal(together, np.concatenate(each))


def test_the_feature_layer_gets_a_bias_of_zeros() -> None:
    _, bias, *_ = pack_block(CLASSIFIER, tensors_of(block_module(CLASSIFIER)), ROWS)
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
        pack_block(block, tensors, Blocks(8))


def test_the_parameters_of_a_network_are_split_into_those_of_its_blocks() -> None:
    network = StaticNetwork(NETWORK)
    parts = split_tensors(tensors_of(network), NETWORK)
    assert len(parts) == len(NETWORK)
    for part, block in zip(parts, network.blocks, strict=True):
        own = tensors_of(block)
        assert part.keys() == own.keys()
        assert all(np.array_equal(part[name], own[name]) for name in own)
