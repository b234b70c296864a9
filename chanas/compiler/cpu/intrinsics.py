"""The calls of ours that programs for processors may have: who reads such a program imports this module first. Those
here are operations on whole vectors, of which the compiler makes shuffles: numbers in another order, and few again and
again.

Written number by number they would be as many loads. They are calls until the last pass, when their loops are vectors
and a position is a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx

from chanas.compiler.cpu import arithmetic  # noqa: F401 -- whose calls programs may have, too
from chanas.compiler.expressions import Intrinsic


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


_turned = Intrinsic("tirx.chanas_turned", {"default": _lower_turned})
_repeated = Intrinsic("tirx.chanas_repeated", {"default": _lower_repeated})


def turned(rows: int, position: Any, vectors: Sequence[Any]) -> Any:
    """The numbers of vectors side by side, a matrix of so many rows, in the order of its columns: of these the vector
    at a position. Each of `vectors` is its number at the lane that is computed.

    two rows of 4 numbers in two vectors: a0 a1 a2 a3 | b0 b1 b2 b3 -> a0 b0 a1 b1 | a2 b2 a3 b3
    """
    return _turned(rows, position, *vectors)


def repeated(lane: Any, numbers: Sequence[Any]) -> Any:
    """A lane of the vector of these numbers again and again: of a, b those of a b a b a b …"""
    return _repeated(lane, *numbers)
