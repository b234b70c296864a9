"""Operators that read or write at places which are numbers themselves: gathering, scattering, and what finds places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.models.graph import Constant, Read
from chanas.models.reading.call import Call, reads
from chanas.models.reading.making import constant

_NUMBERS = "numbers, and with them the shape of its output,"


@reads("Gather", attributes=["axis"])
def _gather(call: Call) -> Read:
    make, x, numbers = call.make, call.input(0), call.input(1)
    before = call.shape(0)
    axis = call.axis("axis", 0, len(before))
    if isinstance(numbers, Constant):
        places = numbers.value.astype(np.int64)
        if places.size and not (-before[axis] <= places.min() and places.max() < before[axis]):
            raise call.refused(f"takes place {int(places.max())} of {before[axis]} along axis {axis}")
        flat = np.where(places < 0, places + before[axis], places).ravel()
        if flat.size and (np.diff(flat) == 1).all():  # a part
            part = make.slice(x, axis, int(flat[0]), flat.size)
            return make.reshape(part, (*before[:axis], *places.shape, *before[axis + 1 :]))
    return make.take(x, numbers, axis)


@reads("GatherElements", attributes=["axis"])
def _gather_elements(call: Call) -> Read:
    axis = call.axis("axis", 0, len(call.shape(0)))
    return call.make.node("gather_elements", [call.input(0), call.input(1)], call.shape(1), axis=axis)


@reads("GatherND", attributes=["batch_dims"])
def _gather_nd(call: Call) -> Read:
    batch, data, numbers = int(call.attribute("batch_dims", 0)), call.shape(0), call.shape(1)
    shape = (*numbers[:-1], *data[batch + numbers[-1] :])
    return call.make.node("gather_nd", [call.input(0), call.input(1)], shape, batch_dims=batch)


@reads("ScatterElements", "Scatter", attributes=["axis", "reduction"])
def _scatter_elements(call: Call) -> Read:
    return _scattered(call, "scatter_elements", axis=call.axis("axis", 0, len(call.shape(0))))


@reads("ScatterND", attributes=["reduction"])
def _scatter_nd(call: Call) -> Read:
    return _scattered(call, "scatter_nd")


def _scattered(call: Call, op: str, **facts: Any) -> Read:
    reduction = call.choice("reduction", "none", ("none", "add", "mul", "max", "min"))
    return call.make.node(op, [call.input(i) for i in range(3)], call.shape(0), reduction=reduction, **facts)


@reads("TensorScatter", attributes=["axis", "mode"])
def _tensor_scatter(call: Call) -> Read:
    """A cache whose places from a number on, one for each sequence, are those of an update; `circular`: beyond the end
    they begin again."""
    make, cache, update = call.make, call.input(0), call.input(1)
    shape = call.shape(0)
    axis, mode = call.axis("axis", -2, len(shape)), call.choice("mode", "linear", ("linear", "circular"))
    length, num = shape[axis], call.shape(1)[axis]
    begins = call.input(2) if call.has(2) else constant(np.zeros(shape[0]), "int64")
    begins = make.cast(make.along(begins, 0, len(shape)), "int64")
    there = make.each("subtract", make.along(constant(np.arange(length), "int64"), axis, len(shape)), begins)
    if mode == "circular":
        there = make.each("floor_mod", there, make.number(length, there))
    is_new = make.each(
        "logical_and",
        make.each("greater_equal", there, make.number(0, there)),
        make.each("less", there, make.number(num, there)),
    )
    inside = make.broadcast(make.clip(there, 0, num - 1), shape)
    new = make.node("gather_elements", [update, inside], shape, axis=axis)
    return make.each("where", is_new, new, cache)


@reads("MaxUnpool", attributes=["kernel_shape", "pads", "strides"])
def _max_unpool(call: Call) -> Read:
    """Zeros with the numbers of a pooling at the places that this gave, which count through all maps of the size that
    the window says; a larger output has zeros behind them."""
    make, x, shape = call.make, call.input(0), call.shape(0)
    kernel = call.attribute("kernel_shape")
    num = len(kernel)
    strides, pads = call.attribute("strides", (1,) * num), call.attribute("pads", (0,) * (2 * num))
    own = [
        (e - 1) * s - b - a + k
        for e, s, b, a, k in zip(shape[2:], strides, pads[:num], pads[num:], kernel, strict=True)
    ]
    whole = (*shape[:2], *own)
    zeros = make.broadcast(make.number(0, x), (math.prod(whole),))
    flat = [make.reshape(call.input(i), (math.prod(shape),)) for i in (1, 0)]
    found = make.node("scatter_elements", [zeros, *flat], (math.prod(whole),), axis=0, reduction="none")
    found = make.reshape(found, whole)
    if not call.has(2):
        return found
    beyond = [w - e for w, e in zip(call.whole(2, "shape"), whole, strict=True)]
    return make.pad(found, (0,) * len(whole), beyond, make.number(0, x))


# ---- places that are found ------------------------------------------------------------------------------------------
@reads("Compress", attributes=["axis"])
def _compress(call: Call) -> Read:
    """Parts whose condition, which has to be known, is true."""
    make, x = call.make, call.input(0)
    kept = np.flatnonzero(call.known(1, "condition"))
    if "axis" not in call.given:
        x = make.reshape(x, (math.prod(call.shape(0)),))
    axis = call.axis("axis", 0, make.rank(x))
    return make.take(x, constant(kept, "int64"), axis)


@reads("NonZero")
def _non_zero(call: Call) -> Read:
    return constant(np.stack(np.nonzero(np.atleast_1d(call.known(0, _NUMBERS)))), "int64")


@reads("Unique", attributes=["axis", "sorted"])
def _unique(call: Call) -> Sequence[Read]:
    """Numbers, or parts along an axis, each once; where each stands first, which each is, and how often it is there."""
    x = call.known(0, _NUMBERS)
    axis = call.axis("axis", 0, x.ndim) if "axis" in call.given else None
    found, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.ravel()
    if not call.attribute("sorted", 1):
        order = np.argsort(first)
        found = found[order] if axis is None else np.take(found, order, axis)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return [Constant(np.ascontiguousarray(found)), *(constant(places, "int64") for places in (first, inverse, counts))]


@reads("ReverseSequence", attributes=["batch_axis", "time_axis"])
def _reverse_sequence(call: Call) -> Read:
    make, x = call.make, call.input(0)
    rank = len(call.shape(0))
    batch, time = call.axis("batch_axis", 1, rank), call.axis("time_axis", 0, rank)
    return make.node("reverse_sequence", [x, call.input(1)], call.shape(0), batch_axis=batch, time_axis=time)
