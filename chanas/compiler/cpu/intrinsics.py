"""The calls of ours that programs for processors may have; those here are operations on whole vectors, of which the
compiler makes shuffles: numbers in another order, and few again and again.

Written number by number they would be as many loads. Like the bounds of `compiler.expressions` they are calls until
the last pass, when their loops are vectors and a position is a number.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx

from chanas.compiler.cpu.arithmetic import register_bf16
from chanas.compiler.expressions import register_bounds, register_intrinsic

_TURNED, _REPEATED = "tirx.chanas_turned", "tirx.chanas_repeated"


def turned(rows: int, position: Any, vectors: Sequence[Any]) -> Any:
    """The numbers of vectors side by side, a matrix of so many rows, in the order of its columns: of these the vector
    at a position. Each of `vectors` is its number at the lane that is computed.

    two rows of 4 numbers in two vectors: a0 a1 a2 a3 | b0 b1 b2 b3 -> a0 b0 a1 b1 | a2 b2 a3 b3
    """
    register_lanes()
    return tirx.call_intrin("float32", _TURNED, rows, position, *vectors)


def repeated(lane: Any, numbers: Sequence[Any]) -> Any:
    """A lane of the vector of these numbers again and again: of a, b those of a b a b a b …"""
    register_lanes()
    return tirx.call_intrin("float32", _REPEATED, lane, *numbers)


def register_intrinsics() -> None:
    """Make all calls of ours known to the compiler: before it reads a program that has any."""
    register_bf16()
    register_bounds()
    register_lanes()


@functools.cache
def register_lanes() -> None:
    """Make `turned` and `repeated` known to the compiler, once in a process: before it makes one or reads any."""
    for name, lower in ((_TURNED, _lower_turned), (_REPEATED, _lower_repeated)):
        register_intrinsic(name, "numbers of vectors in another order", {"default": lower})


def _lower_repeated(call: Any) -> Any:
    """A shuffle of numbers, which the compiler loads at once where they are neighbours; a choice without vectors."""
    lane, *numbers = call.args
    lanes = tvm.DataType(str(call.ty)).lanes
    if lanes == 1:
        chosen = numbers[0]
        for i, number in enumerate(numbers[1:], 1):
            chosen = tirx.Select(lane % len(numbers) == i, number, chosen)
        return chosen
    singles = [number.value if isinstance(number, tirx.Broadcast) else number for number in numbers]
    return tirx.Shuffle(
        [singles[i % len(singles)] for i in range(lanes)], [tirx.const(i, "int32") for i in range(lanes)]
    )


def _lower_turned(call: Any) -> Any:
    """A shuffle of those vectors that are read."""
    rows, position = (int(getattr(argument, "value", argument)) for argument in call.args[:2])
    vectors, lanes = call.args[2:], tvm.DataType(str(call.ty)).lanes
    columns = len(vectors) * lanes // rows
    places = [e % rows * columns + e // rows for e in range(position * lanes, (position + 1) * lanes)]
    read = sorted({place // lanes for place in places})
    order = [read.index(place // lanes) * lanes + place % lanes for place in places]
    return tirx.Shuffle([vectors[i] for i in read], [tirx.const(i, "int32") for i in order])
