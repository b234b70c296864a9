"""Convolutions and poolings of values as the framework has them: windows that move along all axes after the second."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import te, tirx

from chanas.compiler.cpu.generic import KEPT
from chanas.models.graph import Node
from chanas.models.reducers import LARGEST


def _windows(node: Node, num: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Strides, dilations, and what lies before the first number along each of the last axes."""
    a = node.attributes
    return a["strides"], a["dilation"], a["padding"][:num]


def conv(node: Node, lanes: int, x: Any, weight: Any, bias: Any = None) -> Any:
    """Maps [N, C, …] by weights [C_out, C / groups, …]; `padding` has what lies before each axis, then after each."""
    num = len(node.shape) - 2
    strides, dilation, before = _windows(node, num)
    each_in, each_out = int(weight.shape[1]), node.shape[1] // node.attributes["groups"]
    extents = [int(e) for e in x.shape[2:]]
    wide = [int(e) + sum(node.attributes["padding"][axis::num]) for axis, e in enumerate(x.shape[2:])]

    def outside(n: Any, c: Any, *i: Any) -> Any:
        there = [j - b for j, b in zip(i, before, strict=True)]
        inside = tirx.all(*(tirx.all(p >= 0, p < e) for p, e in zip(there, extents, strict=True)))
        return tirx.if_then_else(inside, x[(n, c, *there)], tirx.const(0, node.dtype))

    padded = te.compute((*x.shape[:2], *wide), outside, name="padded", attrs={KEPT: 1}) if wide != extents else x
    c = te.reduce_axis((0, each_in), name="c")
    k = [te.reduce_axis((0, int(e)), name=f"k{axis}") for axis, e in enumerate(weight.shape[2:])]

    def term(n: Any, o: Any, *i: Any) -> Any:
        there = [j * s + t * d for j, s, t, d in zip(i, strides, k, dilation, strict=True)]
        return te.sum(padded[(n, o // each_out * each_in + c, *there)] * weight[(o, c, *k)], axis=[c, *k])

    out = te.compute(node.shape, term, name="conv")
    return out if bias is None else te.compute(node.shape, lambda *i: out[i] + bias[i[1]], name="biased")


def conv_transpose(node: Node, lanes: int, x: Any, weight: Any, bias: Any = None) -> Any:
    """The transposed convolution of maps [N, C, …] by weights [C, C_out / groups, …], of an `upconv` [C_out, C, …]:
    each output adds up the inputs whose windows it lies in."""
    num, a = len(node.shape) - 2, node.attributes
    is_upconv = node.op == "upconv"
    groups, dilation = (1, (1,) * num) if is_upconv else (a["groups"], a["dilation"])
    before = a["crop"][:num] if is_upconv else a["padding"][:num]
    each_in, each_out = int(x.shape[1]) // groups, node.shape[1] // groups
    c = te.reduce_axis((0, each_in), name="c")
    k = [te.reduce_axis((0, int(e)), name=f"k{axis}") for axis, e in enumerate(weight.shape[2:])]

    def term(n: Any, o: Any, *i: Any) -> Any:
        reached = [j + b - t * d for j, b, t, d in zip(i, before, k, dilation, strict=True)]
        there = [tirx.floordiv(r, s) for r, s in zip(reached, a["strides"], strict=True)]
        hits = [
            tirx.all(tirx.floormod(r, s) == 0, p >= 0, p < int(e))
            for r, s, p, e in zip(reached, a["strides"], there, x.shape[2:], strict=True)
        ]
        source = o // each_out * each_in + c
        factor = weight[(o, source, *k)] if is_upconv else weight[(source, o % each_out, *k)]
        value = tirx.if_then_else(tirx.all(*hits), x[(n, source, *there)], tirx.const(0, node.dtype))
        return te.sum(value * factor, axis=[c, *k])

    out = te.compute(node.shape, term, name="conv_transpose")
    return out if bias is None else te.compute(node.shape, lambda *i: out[i] + bias[i[1]], name="biased")


def pool(node: Node, lanes: int, x: Any) -> Any:
    """The largest number, the mean, or the place of the largest number of each window, along all axes after the second.

    A mean counts the padding if `count_include_pad`; windows beyond it are cut off. Places count through the maps of a
    channel, by columns with `column_major`, and on through all images and channels.
    """
    a, num = node.attributes, len(node.shape) - 2
    strides, dilation, before = _windows(node, num)
    after = a["padding"][num:]
    extents = [int(e) for e in x.shape[2:]]
    k = [te.reduce_axis((0, e), name=f"k{axis}") for axis, e in enumerate(a["pool_size"])]

    def places(i: Sequence[Any], taps: Sequence[Any]) -> list[Any]:
        return [j * s + t * d - b for j, s, t, d, b in zip(i, strides, taps, dilation, before, strict=True)]

    def inside(there: Sequence[Any]) -> Any:
        return tirx.all(*(tirx.all(p >= 0, p < e) for p, e in zip(there, extents, strict=True)))

    def tap(n: Any, c: Any, *i: Any) -> Any:
        there = places(i, k)
        is_float, is_mean = str(x.dtype).startswith("float"), node.op == "avg_pool2d"
        least = tirx.const(-math.inf, x.dtype) if is_float else tirx.min_value(x.dtype)
        nothing = tirx.const(0.0, node.dtype) if is_mean else least
        return tirx.if_then_else(inside(there), x[(n, c, *there)], nothing)

    fold = te.sum if node.op == "avg_pool2d" else LARGEST
    found = te.compute(node.shape, lambda *i: fold(tap(*i), axis=k), name="window")
    if node.op == "max_pool2d":
        return found
    if node.op == "avg_pool2d":
        return te.compute(node.shape, lambda *i: found[i] * _share(node, i[2:], extents, after), name="mean")
    taps = [te.reduce_axis((0, e), name=f"t{axis}") for axis, e in enumerate(a["pool_size"])]
    order = range(num) if not a["column_major"] else range(num - 1, -1, -1)

    def number(n: Any, c: Any, *i: Any) -> Any:
        there = places(i, taps)
        safe = [tirx.max(tirx.min(p, e - 1), 0) for p, e in zip(there, extents, strict=True)]
        here = functools.reduce(lambda total, axis: total * extents[axis] + there[axis], order, tirx.const(0, "int32"))
        is_it = tirx.all(inside(there), x[(n, c, *safe)] == found[(n, c, *i)])
        return te.min(tirx.Select(is_it, here, tirx.max_value("int32")), axis=taps)

    first = te.compute(node.shape, number, name="places", attrs={KEPT: 1})
    size, channels = math.prod(extents), int(x.shape[1])
    return te.compute(
        node.shape, lambda n, c, *i: ((n * channels + c) * size + first[(n, c, *i)]).astype("int64"), name="place"
    )


def _share(node: Node, i: Sequence[Any], extents: Sequence[int], after: Sequence[int]) -> Any:
    """One by the numbers that a window's mean is of."""
    a, num = node.attributes, len(extents)
    count: Any = tirx.const(1, "int32")
    for j, kernel, stride, dilation, before, behind, extent in zip(
        i, a["pool_size"], a["strides"], a["dilation"], a["padding"][:num], after, extents, strict=True
    ):
        low, high = (-before, extent + behind) if a["count_include_pad"] else (0, extent)
        first = j * stride - before
        # taps at first + t · dilation, 0 ≤ t < kernel, of which those in [low, high) count
        begin = tirx.max(tirx.floordiv(low - first + dilation - 1, dilation), 0)
        end = tirx.min(tirx.floordiv(high - first + dilation - 1, dilation), kernel)
        count = count * tirx.max(end - begin, 0)
    return tirx.const(1.0, "float32") / tirx.max(count, 1).astype("float32")


def neighbours(node: Node, lanes: int, x: Any) -> Any:
    """Sums over `size` channels around each one."""
    size, channels = node.attributes["size"], int(x.shape[1])
    k = te.reduce_axis((0, size), name="k")

    def term(n: Any, c: Any, *i: Any) -> Any:
        there = c + k - (size - 1) // 2
        value = tirx.if_then_else(tirx.all(there >= 0, there < channels), x[(n, there, *i)], tirx.const(0.0, "float32"))
        return te.sum(value, axis=k)

    return te.compute(node.shape, term, name="neighbours")


WINDOWS: Mapping[str, Callable[..., Any]] = {
    "conv2d": conv,
    "conv": conv,
    "upconv": conv_transpose,
    "conv_transpose": conv_transpose,
    "max_pool2d": pool,
    "avg_pool2d": pool,
    "max_pool_place": pool,
    "neighbours": neighbours,
}
"""These operators by name."""
