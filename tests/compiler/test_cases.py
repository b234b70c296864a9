"""chanas/compiler/cases.py: the expected outputs are those of plain formulas, in packed form."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from chanas.compiler.cases import (
    ReferenceCase,
    block_case,
    case_seed,
    mean_network_weight_bytes,
    operator_case,
    operator_tensors,
)
from chanas.core.blocks import BlockConfig
from chanas.network.static import block_module, randomise_statistics
from chanas.operators.layout import num_blocks, unpack_channels
from chanas.operators.precision import BFLOAT16
from chanas.operators.steps import block_workloads
from chanas.operators.winograd import as_array, transforms
from chanas.operators.workload import Workload

from .workbench import NANO, NUM_CLASSES, device, workloads

BLOCKS = NANO.all_blocks(NUM_CLASSES)


def taps_of(workload: Workload, products: Any) -> Any:
    """float64[C_out, C_in, k, k]: the weights that a Winograd convolution's were made from."""
    k, plan = workload.kernel_size, transforms(workload.kernel_size, workload.stride)
    shape = (workload.out_channels, plan.products, workload.in_channels, k, workload.stride)
    taps = np.einsum("jt,otcks->ockjs", np.linalg.pinv(as_array(plan.taps_in)), products.reshape(shape))
    return taps.reshape(*taps.shape[:3], -1)[..., :k]


def taps_of_square_tiles(workload: Workload, products: Any) -> Any:
    """The same of one with tiles both ways."""
    plan = transforms(workload.kernel_size, 1)
    shape = (workload.out_channels, plan.products, plan.products, workload.in_channels)
    back = np.linalg.pinv(as_array(plan.taps_in))
    return np.einsum("hi,wj,oijc->ochw", back, back, products.reshape(shape))


def by_formula(workload: Workload, case: ReferenceCase, lanes: int) -> Any:
    """float64[C, H, W]: the operator computed in numpy from its packed arguments."""
    size, out, k, stride = workload.input_size, workload.output_size, workload.kernel_size, workload.stride
    rest: list[Any] = [a.astype(np.float64) for a in case.arguments]
    x = rest.pop(0)
    if workload.op != "conv":
        x = unpack_channels(x, workload.in_channels)
    x = x.reshape(-1, size, size)
    if workload.op == "pool":
        return x.mean(axis=(1, 2), keepdims=True)
    weights = unpack_channels(rest.pop(0), workload.out_channels)
    if workload.op == "winograd":
        weights = taps_of(workload, weights)
    if workload.op == "winograd2":
        weights = taps_of_square_tiles(workload, weights)
    bias = unpack_channels(rest.pop(0), workload.out_channels)
    if workload.scaled:
        x = x * unpack_channels(rest.pop(0), workload.in_channels).reshape(-1, 1, 1)
    padded = np.pad(x, ((0, 0), (k // 2, k // 2), (k // 2, k // 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), axis=(1, 2))[:, ::stride, ::stride]
    if workload.op == "depthwise":
        y = np.einsum("chwij,cij->chw", windows, weights.reshape(-1, k, k))
    else:
        y = np.einsum("chwij,ocij->ohw", windows, weights.reshape(-1, x.shape[0], k, k))
    y = y + bias.reshape(-1, 1, 1)
    gate = np.clip(y + 3.0, 0.0, 6.0) / 6.0
    y = {"none": y, "relu": np.maximum(y, 0.0), "hswish": y * gate, "hsigmoid": gate}[workload.epilogue]
    return y + (unpack_channels(rest.pop(0), workload.out_channels).reshape(-1, out, out) if workload.residual else 0.0)


@settings(max_examples=40)
@given(workloads, st.sampled_from([16, 8, 4]))
def test_an_operator_is_its_formula(workload: Workload, lanes: int) -> None:
    case = operator_case(workload, device(lanes))
    out = workload.output_size
    assert case.expected.shape == (num_blocks(workload.out_channels, lanes), out * out, lanes)
    got = unpack_channels(case.expected, workload.out_channels).reshape(-1, out, out)
    np.testing.assert_allclose(got, by_formula(workload, case, lanes), rtol=1e-4, atol=1e-4)


@settings(max_examples=30)
@given(workloads, st.sampled_from([16, 8, 4]))
def test_padding_channels_are_zero_but_in_gates(workload: Workload, lanes: int) -> None:
    case = operator_case(workload, device(lanes))
    padding = case.expected[-1, :, workload.out_channels % lanes or lanes :]
    assert np.all(padding == (0.5 if workload.epilogue == "hsigmoid" else 0.0))


@pytest.mark.parametrize(("stride", "padding", "output_padding"), [(2, 0, 0), (2, 1, 1), (3, 2, 1), (1, 2, 0)])
def test_a_transposed_convolution_is_pytorchs(stride: int, padding: int, output_padding: int) -> None:
    after = padding - output_padding
    workload = Workload("upconv", 5, 4, 8, 4, stride, padding=(padding, padding, after, after))
    tensors = operator_tensors(workload)
    assert tensors.weight is not None
    assert tensors.bias is not None
    x, weight, bias = (torch.from_numpy(t) for t in (tensors.x, tensors.weight, tensors.bias))
    expected = functional.conv_transpose2d(x, weight.transpose(0, 1), bias, stride, padding, output_padding)
    assert tensors.out.shape == expected.shape
    np.testing.assert_allclose(tensors.out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.key)
def test_a_block_is_its_pytorch_module(block: BlockConfig) -> None:
    lanes, seed = 16, case_seed(block.key)
    case = block_case(block, device(lanes))
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        module = block_module(block).eval()
        randomise_statistics(module, seed)
        x = case.arguments[0] if block.kind == "stem" else unpack_channels(case.arguments[0], block.in_channels)
        shape = (1, -1) if block.kind == "classifier" else (1, block.in_channels, block.input_size, block.input_size)
        expected = module(torch.from_numpy(x).reshape(shape))[0].reshape(block.out_channels, -1)
    np.testing.assert_array_equal(unpack_channels(case.expected, block.out_channels), expected.numpy())
    assert case.weights == tuple(range(1, len(case.arguments)))
    assert case.weight_bytes >= sum(w.weight_bytes for w in block_workloads(block))  # packed weights are padded


def test_a_block_of_bfloat16_has_fewer_parameters() -> None:
    plain, mine = (block_case(BLOCKS[3], dataclasses.replace(device(16), dtype=d)) for d in ("float32", "bfloat16"))
    assert mine.weight_bytes < 0.6 * plain.weight_bytes
    assert mine.tolerance == BFLOAT16.block_tolerance > plain.tolerance


def test_gates_and_residuals_are_not_weights() -> None:
    case = operator_case(Workload("pointwise", 2, 8, 8, scaled=True, residual=True), device(8))
    assert len(case.arguments) == 5
    assert case.weights == (1, 2)
    assert case.weight_bytes == 4 * (8 * 8 + 8)


def test_a_case_is_the_same_in_every_process_and_leaves_the_generators_alone() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first, again = block_case(BLOCKS[1], device(16)), block_case(BLOCKS[1], device(16))
    assert torch.equal(before, torch.random.get_rng_state())
    for a, b in zip(first.arguments, again.arguments, strict=True):
        np.testing.assert_array_equal(a, b)
    assert case_seed("pool-7px") == 3276257859


def test_a_saved_case_has_what_the_case_has(tmp_path: Path) -> None:
    case = operator_case(Workload("pointwise", 2, 8, 8, scaled=True), device(8))
    case.save(tmp_path / "case.npz")
    loaded = ReferenceCase.load(tmp_path / "case.npz")
    assert (loaded.weights, loaded.tolerance) == (case.weights, case.tolerance)
    for found, expected in zip((*loaded.arguments, loaded.expected), (*case.arguments, case.expected), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_mean_network_weighs_the_mean_of_the_networks() -> None:
    def weigh(network: tuple[BlockConfig, ...]) -> int:
        return mean_network_weight_bytes([network])

    small, large = NANO.smallest.blocks(NANO, 5), NANO.largest.blocks(NANO, 5)
    assert weigh(small) < weigh(large)
    assert mean_network_weight_bytes([small, large]) == (weigh(small) + weigh(large)) // 2
