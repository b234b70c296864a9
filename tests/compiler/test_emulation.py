"""chanas/compiler/emulation.py: in float32 a network is PyTorch's; rounded it is about what kernels compute."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import mixed_spaces_and_architectures, seeds

from chanas.compiler.cases import network_grids, random_network
from chanas.compiler.emulation import (
    block_values,
    converted,
    emulated_logits,
    has_int8,
    in_parts,
    quantised_values,
    rounded_value,
)
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.arrays import Float32Array
from chanas.core.blocks import BlockConfig, computing, conversions, with_conversions
from chanas.errors import CheckpointError
from chanas.network.folding import GRIDS, quantise_operators
from chanas.operators.precision import BFLOAT16
from chanas.operators.quantised import Grid

from .workbench import NUM_CLASSES

NETWORK = (
    BlockConfig("stem", 16, 3, 0, 16, 3, 2, "hswish"),
    BlockConfig("mbconv", 8, 16, 48, 16, 3, 1, "relu", residual=True),
    BlockConfig("mbconv", 8, 16, 64, 24, 5, 2, "hswish", use_se=True),
    BlockConfig("mbconv", 4, 24, 24, 24, 7, 1, "hswish", use_se=True, residual=True),
    BlockConfig("head", 4, 24, 0, 40, activation="hswish"),
    BlockConfig("classifier", 1, 40, 32, 10, activation="hswish"),
)
PARAMETERS, IMAGES, _ = random_network(NETWORK, seed=0, batch=20)
IMAGES = IMAGES + 4.0 * np.random.default_rng(0).standard_normal((20, 3, 1, 1), np.float32)
"""Of colours that are not alike, or logits of random networks hardly differ."""
LOGITS = emulated_logits(NETWORK, PARAMETERS, IMAGES)


@pytest.fixture(scope="module")
def calibrated() -> list[Mapping[str, Float32Array]]:
    grids = network_grids(NETWORK, PARAMETERS, IMAGES)
    return [{**tensors, GRIDS: own} for tensors, own in zip(PARAMETERS, grids, strict=True)]


def in_dtypes(*dtypes: str) -> tuple[BlockConfig, ...]:
    """The network with a dtype for each block, and what converts between them."""
    return with_conversions([dataclasses.replace(b, dtype=d) for b, d in zip(NETWORK, dtypes, strict=True)])


def off(found: Float32Array, expected: Float32Array = LOGITS) -> float:
    """The squared error as a share of what differs from image to image."""
    return float(((found - expected) ** 2).sum() / ((expected - expected.mean(axis=0)) ** 2).sum())


# ---- float32 --------------------------------------------------------------------------------------------------------
@settings(max_examples=10)
@given(mixed_spaces_and_architectures(), seeds)
def test_in_float32_a_network_is_pytorchs(member: tuple[SearchSpace, Architecture], seed: int) -> None:
    space, architecture = member
    blocks = architecture.plain.blocks(space, NUM_CLASSES)
    parameters, images, logits = random_network(blocks, seed % 1000, batch=2)
    found = emulated_logits(blocks, parameters, images)
    np.testing.assert_allclose(found, logits, atol=1e-4 * np.abs(logits).max())


def test_images_are_independent() -> None:
    alone = np.concatenate([emulated_logits(NETWORK, PARAMETERS, image[None]) for image in IMAGES])
    np.testing.assert_allclose(emulated_logits(NETWORK, PARAMETERS, IMAGES), alone, rtol=1e-4, atol=1e-5)


def test_fewer_images_are_taken_at_once_the_larger_they_are() -> None:
    longest = []
    for size in (4, 128, 256, 512):
        images = np.broadcast_to(np.arange(150, dtype=np.float32).reshape(-1, 1, 1, 1), (150, 3, size, size))
        parts = [part[:, 0, 0, 0] for part in in_parts(images)]
        np.testing.assert_array_equal(np.concatenate(parts), images[:, 0, 0, 0])
        longest.append(max(map(len, parts)))
    assert longest == sorted(longest, reverse=True)
    assert 1 < longest[-1] < longest[0] < 150


def test_parts_lie_channels_last_in_memory() -> None:
    images = np.random.default_rng(0).standard_normal((9, 3, 5, 7), np.float32)
    (part,) = in_parts(images)
    np.testing.assert_array_equal(part, images)
    assert part.transpose(0, 2, 3, 1).flags.c_contiguous


def test_a_network_has_int8_where_a_block_is_in_it() -> None:
    assert not has_int8(NETWORK, "float32")
    assert has_int8(NETWORK, "int8")
    assert has_int8(in_dtypes("float32", *["int8"] * 4, "float32"), "float32")
    assert not has_int8([dataclasses.replace(b, dtype="float32") for b in NETWORK], "int8")


# ---- int8 -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", range(len(NETWORK)))
def test_a_rounded_operator_is_within_one_step_of_the_exact_one(
    calibrated: list[Mapping[str, Float32Array]], number: int
) -> None:
    """From the same numbers; nearly all are the same."""
    before, block = NETWORK[:number], NETWORK[number]
    x = IMAGES
    for earlier, tensors in zip(before, calibrated, strict=False):
        x = quantised_values(quantise_operators(earlier, tensors), x)[-1]
    operators = quantise_operators(block, calibrated[number])
    exact = [x, *quantised_values(operators, x)]
    grids = [Grid(float(step), int(zero)) for step, zero in calibrated[number][GRIDS]]
    meant = [grid.decode(v) if v.dtype == np.uint8 else v for grid, v in zip(grids, exact, strict=True)]
    for i, operator in enumerate(operators, 1):
        found = rounded_value(operator, [meant[read] for read in operator.step.reads])
        if exact[i].dtype != np.uint8:
            np.testing.assert_allclose(found, meant[i], rtol=1e-3, atol=1e-4 * np.abs(meant[i]).max())
            continue
        steps = np.rint(np.abs(found - meant[i]) / np.float32(grids[i].step))
        assert steps.max() <= 1
        assert (steps > 0).mean() < 0.01


def test_rounded_logits_are_near_exact_ones(calibrated: list[Mapping[str, Float32Array]]) -> None:
    rounded, exact = (emulated_logits(NETWORK, calibrated, IMAGES, "int8", exact=e) for e in (False, True))
    assert off(rounded, exact) < 0.01 * off(exact)
    assert 0.0 < off(rounded) < 0.05


@pytest.mark.parametrize("exact", [False, True])
def test_blocks_in_int8_one_by_one_are_the_network_in_int8(
    calibrated: list[Mapping[str, Float32Array]], exact: bool
) -> None:
    """A map that is converted there and back between them is the same map."""
    named = in_dtypes(*["int8"] * len(NETWORK))
    whole = emulated_logits(NETWORK, calibrated, IMAGES, "int8", exact=exact)
    np.testing.assert_array_equal(emulated_logits(named, calibrated, IMAGES, exact=exact), whole)
    back = [named[0]]
    for block in named[1:]:
        for ends in itertools.permutations(("int8", "float32")) if block.input_dtype == "int8" else ():
            back += conversions(block.input_size, block.in_channels, *ends)
        back.append(block)
    assert len(back) == len(named) + 8
    np.testing.assert_array_equal(emulated_logits(back, calibrated, IMAGES, exact=exact), whole)


def test_the_more_blocks_are_in_int8_the_more_is_lost(calibrated: list[Mapping[str, Float32Array]]) -> None:
    lost = []
    for number in range(len(NETWORK) + 1):
        blocks = in_dtypes(*["int8"] * number, *["float32"] * (len(NETWORK) - number))
        lost.append(off(emulated_logits(blocks, calibrated, IMAGES, exact=True)))
    assert lost[0] < 1e-9
    assert lost[1] < lost[3] < lost[-1]
    assert off(emulated_logits(NETWORK, calibrated, IMAGES, "int8", exact=True)) == lost[-1]


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_network_that_was_not_calibrated_is_refused(
    calibrated: list[Mapping[str, Float32Array]], number: int
) -> None:
    dtypes = ["int8" if i == number else "float32" for i in range(len(NETWORK))]
    parameters = [own if i == number else PARAMETERS[i] for i, own in enumerate(calibrated)]
    assert off(emulated_logits(in_dtypes(*dtypes), parameters, IMAGES)) < 0.05  # others need no grids
    with pytest.raises(CheckpointError, match=f"{GRIDS} of block {NETWORK[number].key} is missing; it was not calib"):
        emulated_logits(in_dtypes(*dtypes), PARAMETERS, IMAGES)


# ---- conversions ----------------------------------------------------------------------------------------------------
def test_a_map_that_is_converted_has_the_nearest_numbers() -> None:
    x, grid = np.random.default_rng(0).standard_normal((2, 24, 7, 7), dtype=np.float32), Grid.of_range(-2.0, 3.0)
    (to_int8,), (from_int8,) = conversions(7, 24, "float32", "int8"), conversions(7, 24, "int8", "float32")
    numbers = converted(to_int8, grid, x, exact=True)
    assert numbers.dtype == np.uint8
    np.testing.assert_array_equal(numbers, grid.encode(x))
    np.testing.assert_array_equal(converted(from_int8, grid, numbers, exact=True), grid.decode(numbers))
    rounded = converted(to_int8, grid, x)
    np.testing.assert_array_equal(rounded, grid.decode(numbers))
    np.testing.assert_array_equal(converted(from_int8, grid, rounded), rounded)
    inside = (x > -2.0) & (x < 3.0)
    assert np.abs(rounded - x)[inside].max() <= 0.501 * grid.step


def test_a_map_in_bfloat16_is_rounded_once() -> None:
    x = np.random.default_rng(0).standard_normal((2, 24, 7, 7), dtype=np.float32)
    (there,), (back,) = conversions(7, 24, "float32", "bfloat16"), conversions(7, 24, "bfloat16", "float32")
    rounded = converted(there, None, x)
    np.testing.assert_array_equal(rounded, BFLOAT16.rounded(x))
    np.testing.assert_array_equal(converted(back, None, rounded), rounded)
    np.testing.assert_array_equal(converted(there, None, x, exact=True), x)


# ---- bfloat16 -------------------------------------------------------------------------------------------------------
def test_in_bfloat16_all_values_but_logits_are_rounded() -> None:
    few = x = IMAGES[:8]
    for block, tensors in zip(NETWORK, PARAMETERS, strict=True):
        values = block_values(block, tensors, x, "bfloat16")
        for value in values if block.kind != "classifier" else values[:-1]:
            np.testing.assert_array_equal(value, BFLOAT16.rounded(value))
        x = values[-1]
    logits = x.reshape(len(x), -1)
    np.testing.assert_array_equal(emulated_logits(NETWORK, PARAMETERS, few, "bfloat16"), logits)
    assert 0.0 < off(logits, LOGITS[:8]) < 0.02
    assert (logits != BFLOAT16.rounded(logits)).any()


def test_a_network_of_three_dtypes_loses_little(calibrated: list[Mapping[str, Float32Array]]) -> None:
    blocks = in_dtypes("float32", "int8", "bfloat16", "int8", "bfloat16", "float32")
    assert len(blocks) > len(computing(blocks)) + 5
    assert 0.0 < off(emulated_logits(blocks, calibrated, IMAGES)) < 0.05
