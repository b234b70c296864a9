"""chanas/compiler/cpu/tiles.py: sums in matrix registers. What LLVM's text does is tried by an interpreter of its few
instructions; processors that have the registers run the contract of the families with them."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te

from chanas.compiler.cpu.tiles import (
    MAX_ROWS,
    MAX_WORDS,
    ROW_BYTES,
    MatrixTile,
    Window,
    in_matrix_registers,
    row_tiles,
    text_of,
)
from chanas.operators.precision import BFLOAT16, INT8, Precision, from_bits

LANES = 16
Bytes = npt.NDArray[np.uint8]
MULTIPLIED: dict[str, Callable[[Any], Any]] = {
    "tdpbf16ps": lambda tile: from_bits(tile.view(np.uint16)),
    "tdpbusd": lambda tile: tile.astype(np.int32),
}
"""The numbers of a register that an instruction multiplies."""
_CALL = re.compile(r"call void @llvm\.x86\.(\w+)\((.*)\)")
_SHAPES = re.compile(r'c"([^"]*)"')


@given(pixels=st.integers(1, 300))
def test_row_tiles_take_every_pixel_in_as_few_registers_as_there_can_be(pixels: int) -> None:
    rows, firsts = row_tiles(pixels)
    assert {pixel for first in firsts for pixel in range(first, first + rows)} == set(range(pixels))
    assert rows <= MAX_ROWS
    assert len(firsts) == -(-pixels // MAX_ROWS)


class Interpreter:
    """Runs the text of `text_of` on memory of bytes: pointers are places in it."""

    def __init__(self, text: str, memory: Bytes, arguments: dict[str, int], precision: Precision) -> None:
        self.memory, self.values, self.sums = memory, {"entry": 0} | arguments, self.sums_of(precision)
        shapes = bytes.fromhex(_SHAPES.findall(text)[0].replace("\\", ""))
        self.shapes = [(shapes[48 + i], int.from_bytes(shapes[16 + 2 * i : 18 + 2 * i], "little")) for i in range(8)]
        self.tiles: dict[int, Any] = {}
        body = text[text.index("entry:") : text.index("\n}")]
        assert all(rows <= MAX_ROWS and row_bytes <= ROW_BYTES for rows, row_bytes in self.shapes)
        self.blocks: dict[str, list[str]] = {}
        for line in body.splitlines():
            if line.endswith(":"):
                self.blocks[line[:-1]] = lines = []
            else:
                lines.append(line.strip())

    @staticmethod
    def sums_of(precision: Precision) -> Any:
        """The type of sums."""
        return np.int32 if precision is INT8 else np.float32

    def run(self) -> int:
        """Runs it from the first loads of tiles on; returns the number of products."""
        before, here, self.num_products = "", "start", 0
        while here:
            before, here = here, self._block(before, here)
        return self.num_products

    def value(self, text: str) -> int:
        text = text.split()[-1]
        return self.values[text] if text.startswith("%") else int(text)

    def _block(self, before: str, here: str) -> str:
        for line in self.blocks[here]:
            if called := _CALL.match(line):
                self._call(called[1], called[2].split(", "))
            elif line.startswith("br i1"):
                condition, yes, no = line.removeprefix("br ").split(", ")
                return (yes if self.value(condition) else no).removeprefix("label %")
            elif line.startswith("br"):
                return line.removeprefix("br label %")
            elif line.startswith("ret"):
                return ""
            else:
                name, _, expression = line.partition(" = ")
                self.values[name] = self._value(expression, before)
        raise AssertionError(f"block {here} has no end")

    def _value(self, expression: str, before: str) -> int:
        operation, _, rest = expression.partition(" ")
        if operation == "phi":
            (given,) = [a for a, b in re.findall(r"\[ (\S+), %(\S+) \]", rest) if b == before]
            return self.value(given)
        a, b = (self.value(part) for part in rest.removeprefix("i8, ").split(", "))
        if operation == "icmp":
            return int(a < b)
        return a * b if operation == "mul" else a + b

    def _rows(self, register: int, pointer: str, stride: str) -> Iterator[slice]:
        rows, width = self.shapes[register]
        for row in range(rows):
            place = self.value(pointer) + row * self.value(stride)
            assert 0 <= place <= len(self.memory) - width, "outside of what was given"
            yield slice(place, place + width)

    def _call(self, name: str, arguments: list[str]) -> None:
        if name in ("ldtilecfg", "tilerelease"):
            return
        first, *others = arguments
        register = self.value(first)
        if name == "tilezero":
            self.tiles[register] = np.zeros((self.shapes[register][0], LANES), self.sums)
        elif name == "tileloadd64":
            self.tiles[register] = np.stack([self.memory[part] for part in self._rows(register, *others)])
        elif name == "tilestored64":
            for row, part in zip(self.tiles[register], self._rows(register, *others), strict=True):
                self.memory[part] = row.view(np.uint8)
        else:
            a, b = (self.tiles[self.value(other)] for other in others)
            assert a.shape[1] // 4 == b.shape[0], "shapes that the processor refuses"
            a, b = MULTIPLIED[name](a), MULTIPLIED[name](b.view(np.int8) if name == "tdpbusd" else b)
            per_word = b.shape[1] // LANES
            for i in range(per_word):
                self.tiles[register] += a[:, i::per_word] @ b[:, i::per_word]
            self.num_products += 1


IMAGE = 48
"""Numbers of a pixel of an image with more channels than a register's row has in bfloat16."""
WINDOWS = st.builds(Window, st.integers(1, 3), st.integers(1, 2), st.integers(1, 2))


@pytest.mark.parametrize("precision", [BFLOAT16, INT8], ids=lambda precision: precision.dtype)
@given(
    row=st.sampled_from([4, LANES, 64, IMAGE]),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 40)),
    windows=st.tuples(WINDOWS, WINDOWS),
    blocks=st.integers(1, 5),
    in_channels=st.integers(1, 140),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_the_text_sums_products_of_all_channels_and_taps_and_touches_nothing_else(
    precision: Precision,
    row: int,
    sizes: tuple[int, int],
    windows: tuple[Window, Window],
    blocks: int,
    in_channels: int,
    seed: int,
) -> None:
    """Input and weights are whole numbers, in bfloat16 small ones, so that sums are exact; around arrays are NaN. A
    pixel has numbers of an image (4 or many, of as many channels), of a channel block, or of a whole row."""
    rng, per_word = np.random.default_rng(seed), precision.per_word
    lowest, highest, largest = (0, 255, 127) if precision is INT8 else (-4, 4, 4)
    if row == IMAGE:
        in_channels = row - in_channels % 2
    else:
        row = min(row, ROW_BYTES // precision.item_bytes)
        in_channels = min(in_channels, row) if row == 4 else in_channels
    words, stretches = -(-in_channels // per_word), -(-in_channels // row)
    (lines, pixels), (down, along), taps = sizes, windows, windows[0].taps * windows[1].taps
    height, width = (window.read_by(num) for window, num in zip(windows, sizes, strict=True))
    x = np.zeros((stretches * row, height, width), np.float32)
    x[:in_channels] = rng.integers(lowest, highest + 1, (in_channels, height, width))
    w = np.zeros((per_word * words, taps, blocks * LANES), np.float32)
    w[:in_channels] = rng.integers(-largest, largest + 1, (in_channels, taps, blocks * LANES))
    in_words = np.ascontiguousarray(w.reshape(words, per_word, taps, blocks, LANES).transpose(3, 2, 0, 4, 1))
    encode_weights = precision.encode_weights or precision.encode
    nan = np.full(64, 0xFF, np.uint8)
    parts = [
        precision.encode(np.ascontiguousarray(x.reshape(stretches, row, height, width).transpose(0, 2, 3, 1))),
        encode_weights(in_words),
        np.zeros((blocks, lines, pixels, LANES), Interpreter.sums_of(precision)),
    ]
    memory, places = nan, []
    for part in parts:
        places.append(len(memory))
        memory = np.concatenate([memory, part.reshape(-1).view(np.uint8), nan])
    before, row_bytes = memory.copy(), row * precision.item_bytes
    arguments = {
        "%a": places[0],
        "%a_stretch": height * width * row_bytes,
        "%a_line": width * row_bytes,
        "%w": places[1],
        "%w_block": words * taps * 64,
        "%c": places[2],
        "%c_block": lines * pixels * 64,
        "%c_line": pixels * 64,
    }
    text = text_of(MatrixTile(precision, pixels, blocks, words, row_bytes, lines, windows))
    num_products = Interpreter(text, memory, arguments, precision).run()
    sums = slice(places[2], places[2] + parts[2].nbytes)
    expected = np.zeros((blocks * LANES, lines, pixels), np.float32)
    for tap, (r, s) in enumerate(itertools.product(range(down.taps), range(along.taps))):
        under = x[: per_word * words, r * down.dilation :, s * along.dilation :]
        under = under[:, :: down.stride, :: along.stride][:, :lines, :pixels]
        expected += np.einsum("kn,khw->nhw", w[:, tap], under)
    expected = expected.reshape(blocks, LANES, lines, pixels).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(memory[sums].view(parts[2].dtype).reshape(expected.shape), expected)
    memory[sums] = before[sums]
    np.testing.assert_array_equal(memory, before)
    at_once = stretches * taps
    if words * per_word == row:  # taps are neighbours, or all numbers of a pixel
        joined = along.taps if along.dilation == 1 else 1
        at_once = down.taps * along.taps // joined * -(-joined * words // MAX_WORDS)
    assert num_products == lines * len(row_tiles(pixels).firsts) * blocks * at_once


def test_a_function_is_called_after_what_its_text_depends_on() -> None:
    tile = MatrixTile(BFLOAT16, 49, 3, 80, 32)
    assert tile.name in text_of(tile)
    of_windows = [dataclasses.replace(tile, windows=(Window(*sizes), Window())) for sizes in ((2,), (1, 2), (1, 1, 2))]
    further = [dataclasses.replace(tile, windows=(Window(), Window(2))), dataclasses.replace(tile, lines=2)]
    others = [MatrixTile(INT8, 49, 3, 80, 32), MatrixTile(BFLOAT16, 3, 49, 80, 32), MatrixTile(BFLOAT16, 49, 80, 3, 32)]
    packed = MatrixTile(BFLOAT16, 49, 3, 80, 64)
    every = [tile, packed, *of_windows, *further, *others]
    assert len({each.name for each in every}) == len(every)


def test_blocks_without_the_mark_stay_what_they_are() -> None:
    x = te.placeholder((4, 16), name="x")
    k = te.reduce_axis((0, 4), name="k")
    y = te.compute((16,), lambda i: te.sum(x[k, i], axis=k), name="y")
    function = te.create_prim_func([x, y])
    assert in_matrix_registers(function).script() == function.script()
