"""chanas/compiler/program.py: searched networks as programs, and values as they lie in memory."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from chanas.compiler.cpu.blocks import num_block_parameters
from chanas.compiler.cpu.module import program_module
from chanas.compiler.program import Program, Value, packed_constant, tiled_rows
from chanas.operators.layout import Blocks, input_shape, output_shape
from chanas.operators.precision import precision_of
from chanas.operators.steps import block_workloads

from .workbench import NANO, NUM_CLASSES, device, in_dtypes, random_points

BLOCKS = NANO.largest.blocks(NANO, NUM_CLASSES)


def searched(dtype: str) -> Program:
    target = dataclasses.replace(device(16), dtype=dtype)
    return Program.from_blocks(BLOCKS, [random_points(b, target, np.random.default_rng(0)) for b in BLOCKS], target)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_of_a_searched_network_are_what_its_operators_read_and_write(dtype: str) -> None:
    made, before = searched(dtype), 0
    assert made.inputs[0].memory_shape == input_shape(block_workloads(BLOCKS[0], dtype)[0], Blocks(16))
    for number, block in enumerate(BLOCKS, 1):
        last = block_workloads(block, dtype)[-1]
        value = made.value(number)
        assert (value.memory_shape, value.dtype) == (output_shape(last, Blocks(16)), last.output_storage)
        assert made.operation(number).reads == (before,)
        before = number
    assert made.outputs == (before,)
    assert made.value(before).dtype == "float32"


def test_a_searched_networks_module_takes_an_image_and_an_array_for_each_block() -> None:
    target = device(16)
    main = program_module(searched("float32"), {}, target).module["main"]
    image, *parameters = ((str(p.name), tuple(int(e) for e in p.ty.shape)) for p in main.params)
    size = NANO.largest.resolution
    assert image == ("image", (3, size * size))
    assert parameters == [(f"parameters{i}", (num_block_parameters(b, 16),)) for i, b in enumerate(BLOCKS)]


def test_values_of_a_network_of_several_dtypes_have_each_its_own() -> None:
    target, architecture = device(16), in_dtypes(NANO.largest, "fibiif")
    blocks, rng = architecture.blocks(NANO, NUM_CLASSES), np.random.default_rng(0)
    made = Program.from_blocks(blocks, [random_points(b, target, rng) for b in blocks], target)
    before = made.inputs[0]
    for number, block in enumerate(blocks, 1):
        value = made.value(number)
        assert value.dtype == precision_of(block.output_dtype).storage
        assert number == 1 or before.dtype == precision_of(block.input_dtype).storage
        assert (value.memory_shape == before.memory_shape) or not block.converts
        before = value
    main = program_module(made, {}, target).module["main"]
    _, *parameters = (tuple(int(e) for e in p.ty.shape) for p in main.params)
    num_each = [num_block_parameters(block, 16) for block in blocks]
    assert parameters == [(num,) for num in num_each if num]
    in_bfloat16 = [num for num, block in zip(num_each, blocks, strict=True) if block.converts and not num]
    assert len(in_bfloat16) == sum(block.converts and block.dtype == "bfloat16" for block in blocks) > 0


@pytest.mark.parametrize(("rows", "tiled"), [(1, 1), (14, 14), (17, 18), (196, 196), (197, 198)])
def test_rows_are_a_few_more_in_memory_where_they_cut_into_no_equal_tiles(rows: int, tiled: int) -> None:
    assert tiled_rows(rows) == tiled
    assert Value((1, rows, 40), lanes=16).memory_shape == (3, tiled, 16)


@pytest.mark.parametrize("images", [1, 3])
def test_maps_of_several_images_lie_one_after_the_other(images: int) -> None:
    value = Value((images, 40, 5, 7), lanes=16)
    assert value.memory_shape == (images * 3, 35, 16)
    assert math.prod(Value((images, 40, 5, 7)).memory_shape) == images * 40 * 35


def test_numbers_by_channel_are_packed_for_each_image_and_one_number_stays_one() -> None:
    packed = packed_constant(np.arange(18, dtype=np.float32), 16, 2)
    assert packed.shape == (4, 1, 16)
    np.testing.assert_array_equal(packed[2:], packed[:2])
    np.testing.assert_array_equal(packed[:2].ravel()[:19], [*range(18), 0])
    assert packed_constant(np.ones((1, 1), np.float32), 16).shape == (1, 1, 1)
