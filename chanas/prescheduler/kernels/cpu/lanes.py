"""An operation on whole vectors: their numbers in another order, of which the compiler makes shuffles.

Written number by number it would be as many loads. Like the bounds of `workloads.expressions` it is a call until the
last pass, when its loops are vectors and its position is a number.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx

_TURNED = "tirx.chanas_turned"


def turned(rows: int, position: Any, vectors: Sequence[Any]) -> Any:
    """The numbers of vectors side by side, a matrix of so many rows, in the order of its columns: of these the vector
    at a position. Each of `vectors` is its number at the lane that is computed.

    two rows of 4 numbers in two vectors: a0 a1 a2 a3 | b0 b1 b2 b3 -> a0 b0 a1 b1 | a2 b2 a3 b3
    """
    register_lanes()
    return tirx.call_intrin("float32", _TURNED, rows, position, *vectors)


@functools.cache
def register_lanes() -> None:
    """Make `turned` known to the compiler, once in a process: before it makes one or reads any."""
    from tvm.ir import _ffi_api

    _ffi_api.RegisterOp(_TURNED, "numbers of vectors in another order")
    tvm.ir.register_op_attr(_TURNED, "TCallEffectKind", int(tirx.CallEffectKind.Pure.value))
    tvm.ir.register_op_attr(_TURNED, "TVectorizable", True)
    tvm.ir.register_op_attr(_TURNED, "TScriptPrinterName", _TURNED.removeprefix("tirx."))
    tirx.op.register_intrin_lowering(_TURNED, target="default", f=_lower)


def _lower(call: Any) -> Any:
    """A shuffle of those vectors that are read."""
    rows, position = (int(getattr(argument, "value", argument)) for argument in call.args[:2])
    vectors, lanes = call.args[2:], tvm.DataType(str(call.ty)).lanes
    columns = len(vectors) * lanes // rows
    places = [e % rows * columns + e // rows for e in range(position * lanes, (position + 1) * lanes)]
    read = sorted({place // lanes for place in places})
    order = [read.index(place // lanes) * lanes + place % lanes for place in places]
    return tirx.Shuffle([vectors[i] for i in read], [tirx.const(i, "int32") for i in order])
