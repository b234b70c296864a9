"""chanas/network/folding.py: folded weights are the same weights, and a block has those of its operators."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from chanas.compiler.cpu.blocks import num_block_parameters
from chanas.core.arrays import Float32Array
from chanas.core.blocks import BlockConfig, computing, with_conversions
from chanas.devices.host import load_target
from chanas.errors import CheckpointError
from chanas.network.folding import (
    GRIDS,
    block_operators,
    fold_batch_norm,
    fold_operators,
    pack_block,
    packed_parameters,
    split_tensors,
    with_parameters,
)
from chanas.network.static import StaticNetwork, block_module, randomise_statistics
from chanas.operators.layout import ROWS, Blocks
from chanas.operators.quantised import Grid
from chanas.operators.steps import block_workloads
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


def tensors_of(module: nn.Module) -> dict[str, Float32Array]:
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


# ---- several dtypes -------------------------------------------------------------------------------------------------
DTYPES = ("float32", "int8", "bfloat16", "int8", "float32")
MIXED = with_conversions([dataclasses.replace(b, dtype=d) for b, d in zip(NETWORK, DTYPES, strict=True)])
HOST_8 = dataclasses.replace(load_target("cpu"), vector_lanes=8)


@pytest.fixture(scope="module")
def calibrated() -> list[dict[str, Float32Array]]:
    """Parameters of each block, with grids that differ everywhere."""
    found = []
    for number, block in enumerate(NETWORK):
        num_grids = 1 + len(block_workloads(block, "int8"))
        grids = [(0.01 * (1 + number) + 0.001 * i, 100 + 10 * number + i) for i in range(num_grids)]
        found.append({**tensors_of(block_module(block)), GRIDS: np.array(grids, np.float32)})
    return found


def test_what_converts_has_no_parameters_and_the_grid_of_its_neighbour(
    calibrated: list[dict[str, Float32Array]],
) -> None:
    kinds = [block.kind for block in MIXED]
    assert kinds == ["stem", "encode", "mbconv", "decode", "encode", "mbconv", "decode", "encode", "head", "classifier"]
    found = list(with_parameters(MIXED, calibrated))
    assert [block for block, _, _ in found] == list(MIXED)
    assert [tensors for block, tensors, _ in found if not block.converts] == calibrated
    assert all(not tensors for block, tensors, _ in found if block.converts)
    grids = {i: grid for i, (_, _, grid) in enumerate(found) if grid is not None}
    ends = {1: calibrated[1][GRIDS][0], 3: calibrated[1][GRIDS][-1], 7: calibrated[3][GRIDS][0]}
    assert grids == {i: Grid(float(step), int(zero)) for i, (step, zero) in ends.items()}


@pytest.mark.parametrize("number", [1, 3])
def test_a_conversion_beside_a_block_that_was_not_calibrated_is_refused(
    calibrated: list[dict[str, Float32Array]], number: int
) -> None:
    damaged = [*calibrated]
    damaged[number] = {name: value for name, value in damaged[number].items() if name != GRIDS}
    with pytest.raises(CheckpointError, match=f"{GRIDS} of block {NETWORK[number].key} is missing"):
        packed_parameters(MIXED, damaged, HOST_8)
    others = [own if i in (1, 3) else {k: v for k, v in own.items() if k != GRIDS} for i, own in enumerate(calibrated)]
    assert len(packed_parameters(MIXED, others, HOST_8)) == len(NETWORK) + 3


def test_a_network_has_the_arguments_of_its_blocks_each_in_its_dtype(calibrated: list[dict[str, Float32Array]]) -> None:
    packed = iter(packed_parameters(MIXED, calibrated, HOST_8))
    own = dict(zip(computing(MIXED), calibrated, strict=True))
    for block, _, grid in with_parameters(MIXED, calibrated):
        if not block.converts:
            (expected,) = pack_block(dataclasses.replace(block, dtype=""), own[block], Blocks(8), block.dtype)
            np.testing.assert_array_equal(next(packed), expected)
            assert len(expected) == num_block_parameters(block, 8)
        elif grid is not None:
            factor = grid.inverse if block.kind == "encode" else grid.step
            np.testing.assert_array_equal(next(packed), np.array([factor, grid.zero], np.float32))
            assert num_block_parameters(block, 8) == 2
        else:
            assert num_block_parameters(block, 8) == 0
    assert next(packed, None) is None


def test_a_blocks_own_dtype_goes_before_that_of_the_network(calibrated: list[dict[str, Float32Array]]) -> None:
    own = dataclasses.replace(EVERYTHING, dtype="int8")
    for dtype in ("float32", "bfloat16", "int8"):
        (found,) = pack_block(own, calibrated[2], Blocks(8), dtype)
        np.testing.assert_array_equal(found, pack_block(EVERYTHING, calibrated[2], Blocks(8), "int8")[0])
        assert [o.step.workload for o in block_operators(own, calibrated[2], dtype)] == [*block_workloads(own)]


def test_parameters_are_split_among_the_blocks_that_compute() -> None:
    tensors = tensors_of(StaticNetwork(NETWORK))
    mixed, plain = split_tensors(tensors, MIXED), split_tensors(tensors, NETWORK)
    assert len(mixed) == len(NETWORK) < len(MIXED)
    assert [part.keys() for part in mixed] == [part.keys() for part in plain]
