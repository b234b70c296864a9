"""Poolings of windows in channel blocks: down the columns of each window first, then along its rows.

Of a window of 5×5 that is 5 numbers and 5 instead of 25, and the largest number is the same to the bit, NaN too. A row
of what the columns give stays in the nearest cache.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, s_tir, te, tirx

from chanas.compiler.cpu.arithmetic import arithmetic_of, narrow, widen
from chanas.compiler.cpu.generic import MIN_PARALLEL, OPAQUE
from chanas.models import elementwise
from chanas.models.graph import Node
from chanas.operators.precision import BFLOAT16, FLOAT32, INT8

# Most outputs that are written out side by side; neighbours have most of what they are made of in common.
_MAX_TILE = 8


def window_pool(
    builder: Any, reads: Sequence[Any], _lanes: int, *, node: Node, height: int, width: int, parallel: bool
) -> Any:
    """The largest value or the mean of each window; a mean counts the padding only if the network says so.

    Largest values are in the form that the map is in: in blocks of its lanes, in float32, as bits of bfloat16 or as
    whole numbers.
    """
    (x,), (_, _, rows, columns) = reads, node.shape
    blocks, _, lanes = map(int, x.ty.shape)
    shape = (blocks, rows * columns, lanes)
    source = te.placeholder((blocks, height * width, lanes), x.ty.dtype, name="x")
    pooled = _pooled(node, source, height, width)
    sch = s_tir.Schedule(te.create_prim_func([source, pooled]), error_render_level="none")
    _schedule(sch, node, parallel and math.prod(shape) >= MIN_PARALLEL)
    sch.transform_layout("pooled", ("write", 0), lambda b, h, w, v: (b, h * columns + w, v))
    function = sch.mod["main"].without_attr("global_symbol")
    function = function.with_attr("tirx.is_scheduled", True).with_attr("op_pattern", OPAQUE)
    variable = builder.add_func(function, node.op)
    return builder.emit(relax.call_tir(variable, [x], relax.TensorType(shape, x.ty.dtype)))


def _pooled(node: Node, x: Any, height: int, width: int) -> Any:
    """[B, rows, columns, l] of x [B, height · width, l], in its type."""
    a, (_, _, rows, columns) = node.attributes, node.shape
    (kh, kw), (sh, sw), (top, left, _, _) = a["pool_size"], a["strides"], a["padding"]
    is_max = node.op == "max_pool2d"
    both: Callable[[Any, Any], Any] = elementwise.maximum if is_max else operator.add
    # The largest number of a window is also that of the same with rows and columns of its own again for those outside.
    is_clamped = is_max and _reaches(rows, sh, kh, top, height) and _reaches(columns, sw, kw, left, width)
    is_whole = x.dtype == INT8.storage
    nothing = tirx.const(0, x.dtype) if is_whole else tirx.const(-math.inf if is_max else 0.0, "float32")
    own = arithmetic_of(FLOAT32)
    load, store = (widen, narrow) if x.dtype == BFLOAT16.storage else (own.load, own.store)

    def number(b: Any, h: Any, w: Any, v: Any) -> Any:
        if is_clamped:
            return load(x(b, _clamped(h, height) * width + _clamped(w, width), v))
        inside = tirx.all(h >= 0, h < height, w >= 0, w < width)
        return tirx.if_then_else(inside, load(x[b, h * width + w, v]), nothing)

    def of_columns(b: Any, h: Any, w: Any, v: Any) -> Any:
        return _together(both, [number(b, h * sh + i - top, w - left, v) for i in range(kh)])

    shape = (x.shape[0], rows, (columns - 1) * sw + kw, x.shape[2])
    down = te.compute(shape, of_columns, name="down")

    def value(b: Any, h: Any, w: Any, v: Any) -> Any:
        found = _together(both, [down(b, h, w * sw + j, v) for j in range(kw)])
        return store(found) if is_max else found * _share(node, h, w, height, width)

    return te.compute((x.shape[0], rows, columns, x.shape[2]), value, name="pooled")


def _together(both: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """All values by a function of two, in pairs: pairs of one window are pairs of its neighbours too."""
    while len(values) > 1:
        values = [both(*values[i : i + 2]) if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
    return values[0]


def _reaches(outputs: int, stride: int, kernel: int, before: int, size: int) -> bool:
    """True if all windows along an axis have something of the map."""
    return kernel > before and (outputs - 1) * stride - before < size


def _clamped(place: Any, size: int) -> Any:
    return tirx.max(tirx.min(place, size - 1), 0)


def _share(node: Node, h: Any, w: Any, height: int, width: int) -> Any:
    """1 / the number of places in a window that its mean counts."""
    a = node.attributes
    top, left, bottom, right = a["padding"]
    ends = ((height + bottom, -top), (width + right, -left)) if a["count_include_pad"] else ((height, 0), (width, 0))
    sizes = []
    for place, kernel, stride, before, (high, low) in zip(
        (h, w), a["pool_size"], a["strides"], (top, left), ends, strict=True
    ):
        start = place * stride - before
        sizes.append(tirx.min(start + kernel, high) - tirx.max(start, low))
    return tirx.const(1.0, "float32") / (sizes[0] * sizes[1]).astype("float32")


def _schedule(sch: Any, node: Node, parallel: bool) -> None:
    """for b, h, w, v  ->  (parallel) for b, h: a row of columns' values, then for w_o: [w_i] written out, v a vector;
    without the row where no two windows have a column in common."""
    down, pooled = sch.get_sblock("down"), sch.get_sblock("pooled")
    b, h, w, v = sch.get_loops(pooled)
    tile = next(t for t in range(min(_MAX_TILE, node.shape[3]), 0, -1) if node.shape[3] % t == 0)
    _, w_i = sch.split(w, [None, tile])
    sch.vectorize(v)
    sch.unroll(w_i)
    if node.attributes["pool_size"][1] > node.attributes["strides"][1]:
        sch.compute_at(down, h, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(down)[-1])
    else:
        sch.compute_inline(down)
    if parallel:
        sch.parallel(sch.fuse(b, h))
