"""chanas/models/calibration/probe.py: values of a program are what the framework would have, however they lie."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.compiler.program import Form, Program, Value
from chanas.core.arrays import Float32Array
from chanas.models.calibration.probe import Values
from chanas.operators.layout import Blocks
from chanas.operators.quantised import Grid

RNG = np.random.default_rng(0)
GRID = Grid.of_range(-3.0, 3.0)
SHAPES = {
    "whole blocks": (1, 16, 3, 5),
    "lanes beyond the channels": (1, 13, 3, 5),
    "several images": (2, 13, 2, 2),
    "one pixel": (1, 11, 1, 1),
    "rows": (1, 6, 16),
    "rows beyond the last": (1, 197, 5),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def on_the_grid(shape: tuple[int, ...]) -> Float32Array:
    return GRID.decode(GRID.encode(RNG.standard_normal(shape, dtype=np.float32)))


def lying(x: Float32Array, dtype: str) -> Values:
    """The values of a program with one input, `x` in channel blocks, with other numbers where nothing is read."""
    value = Value(x.shape, lanes=8).in_form(Form(8, dtype))
    program = Program((value,), 8, grids={0: GRID})
    maps = x if value.channel_axis == 1 else np.moveaxis(x, -1, 1).reshape(1, value.channels, -1)
    stored = np.full(value.memory_shape, 77.0, np.float32)
    by_image = stored.reshape(value.images, value.blocks, -1, 8)
    packed = Blocks(8).pack(maps).reshape(value.images, value.blocks, -1, 8)
    by_image[:, :, : value.pixels] = packed
    beyond = value.channels % 8
    if beyond:
        by_image[:, -1, :, beyond:] = 77.0
    return Values(program, {0: GRID.encode(stored) if dtype == "int8" else stored})


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@each_shape
def test_a_value_has_the_shape_and_the_numbers_of_the_framework(shape: tuple[int, ...], dtype: str) -> None:
    x = on_the_grid(shape)
    np.testing.assert_array_equal(lying(x, dtype)[0], x)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@each_shape
def test_all_numbers_of_a_value_are_there_and_no_others(shape: tuple[int, ...], dtype: str) -> None:
    x = on_the_grid(shape)
    np.testing.assert_array_equal(np.sort(lying(x, dtype).numbers(0)), np.sort(x.ravel()))


@each_shape
def test_means_are_by_channel(shape: tuple[int, ...]) -> None:
    x = on_the_grid(shape)
    axes = (0, 2, 3) if x.ndim == 4 else tuple(range(x.ndim - 1))
    np.testing.assert_allclose(lying(x, "float32").means(0), x.mean(axis=axes, dtype=np.float64), rtol=1e-6)


def test_a_plain_value_is_as_it_is() -> None:
    x = RNG.standard_normal((2, 3), dtype=np.float32)
    values = Values(Program((Value(x.shape),), 8), {0: x})
    np.testing.assert_array_equal(values[0], x)
    np.testing.assert_array_equal(values.numbers(0), x.ravel())
