"""Attention in channel blocks as one function: softmax(q·kᵀ · scale + what is added) · v for each head, a few rows of
tokens at a time, so that their scores never leave the nearest cache.

Notation: l lanes of a vector, B sequences, H heads, T queries and S keys of a sequence, D numbers of a query, E of a
value. Rows of tokens are [C / l, B·T, l]; what is added is [B or 1, H or 1, T or 1, S].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from chanas.compiler.cpu.generic import OPAQUE
from chanas.compiler.cpu.lowering import SIMPLIFIED
from chanas.compiler.expressions import exp
from chanas.compiler.program import tiled_rows

# Rows of tokens that are computed at once: their sums stay in registers.
_TILES = (8, 7, 6, 11, 9, 10, 13, 12, 5, 14, 4)


@dataclass(frozen=True)
class Heads:
    """The places of an attention's heads in the rows that it reads.

    sequences, heads   B, H
    queries, keys      T, S
    query_channels     D
    value_channels     E
    firsts             channels that the first head begins with in the rows of queries, keys and values
    scale              the factor of all products q·k
    zero_if_masked     rows whose scores are all −∞ give zeros, otherwise NaN, as a softmax does
    """

    sequences: int
    heads: int
    queries: int
    keys: int
    query_channels: int
    value_channels: int
    firsts: tuple[int, int, int]
    scale: float
    zero_if_masked: bool = False

    @property
    def out_channels(self) -> int:
        return self.heads * self.value_channels

    @property
    def rows(self) -> int:
        """Rows of a sequence's queries and what fills up their last tile."""
        return tiled_rows(self.queries)

    def fits(self, lanes: int) -> bool:
        """True if each head has whole channel blocks, and the rows of a sequence can be cut into tiles."""
        channels = (self.query_channels, self.value_channels, *self.firsts)
        return not any(c % lanes for c in channels) and tile_of(self.rows) > 0


def tile_of(rows: int) -> int:
    """The rows of a tile; 0 if the rows of a sequence can't be cut into tiles."""
    return next((tile for tile in _TILES if rows % tile == 0), 0)


def emit_attention(builder: Any, reads: Sequence[Any], lanes: int, *, heads: Heads, parallel: bool) -> Any:
    """The call of a function for one attention, on queries, keys, values and what is added to the scores."""
    shape = (heads.out_channels // lanes, heads.sequences * heads.rows, lanes)
    function = scheduled_attention([tuple(int(e) for e in r.ty.shape) for r in reads], heads, shape, parallel)
    done = {"tirx.is_scheduled": True, "op_pattern": OPAQUE}
    variable = builder.add_func(function.without_attr("global_symbol").with_attrs(done), "attention")
    attended = builder.emit(relax.call_tir(variable, list(reads), relax.TensorType(shape, "float32")))
    num = heads.sequences * heads.queries
    if heads.sequences == 1 or shape[1] == num == tiled_rows(num):
        return attended

    def in_rows(x: Any) -> Any:  # without what fills up the tiles of each sequence
        def element(c: Any, m: Any, v: Any) -> Any:
            m = tirx.min(m, num - 1)
            return x[c, m // heads.queries * heads.rows + m % heads.queries, v]

        return te.compute((shape[0], tiled_rows(num), lanes), element, name="rows")

    return builder.emit_te(in_rows, attended, primfunc_name_hint="rows")


def scheduled_attention(
    shapes: Sequence[tuple[int, ...]], heads: Heads, out_shape: tuple[int, int, int], parallel: bool
) -> Any:
    """A `tirx.PrimFunc` of the tensors that are read, by their shapes, and of the output with its `Heads.rows`."""
    reads = [te.placeholder(shape, "float32", name=f"read{i}") for i, shape in enumerate(shapes)]
    out, folds = _expression(reads, heads, out_shape)
    sch = Schedule(te.create_prim_func([*reads, out]), error_render_level="none")
    _schedule(sch, heads, out_shape, folds, parallel)
    return sch.mod["main"].with_attr(SIMPLIFIED, True)


def _expression(reads: Sequence[Any], a: Heads, out_shape: tuple[int, int, int]) -> tuple[Any, int]:
    """The output, and the number of steps in which the lanes of a vector are folded to one number."""
    (q, k, v, *added), lanes, rows, last = reads, out_shape[2], a.rows, a.keys - 1
    blocks, nothing = -(-a.keys // lanes), tirx.const(-math.inf, "float32")
    every = (a.sequences, a.heads, rows)

    def channel(x: Any, first: int, h: Any, size: int, c: Any, row: Any) -> Any:
        return x[(first + h * size) // lanes + c // lanes, row, c % lanes]

    def key(b: Any, h: Any, j: Any, d: Any, lane: Any) -> Any:
        row = b * a.keys + tirx.min(j * lanes + lane, last)
        return channel(k, a.firsts[1], h, a.query_channels, d, row)

    keys = te.compute((a.sequences, a.heads, blocks, a.query_channels, lanes), key, name="keys")
    d = te.reduce_axis((0, a.query_channels), name="d")

    def product(b: Any, h: Any, i: Any, j: Any, lane: Any) -> Any:
        query = channel(q, a.firsts[0], h, a.query_channels, d, b * a.queries + tirx.min(i, a.queries - 1))
        return te.sum(query * keys[b, h, j, d, lane], axis=d)

    acc = te.compute((*every, blocks, lanes), product, name="acc")

    def score(b: Any, h: Any, i: Any, j: Any, lane: Any) -> Any:
        place = (b, h, tirx.min(i, a.queries - 1), tirx.min(j * lanes + lane, last))
        value = acc[b, h, i, j, lane] * tirx.const(a.scale, "float32")
        for term in added:
            value = value + term[tuple(0 if int(e) == 1 else p for p, e in zip(place, term.shape, strict=True))]
        return value if a.keys % lanes == 0 else tirx.Select(j * lanes + lane < a.keys, value, nothing)

    scores = te.compute((*every, blocks, lanes), score, name="scores")
    # Of scores that are all −∞ the lowest finite number, which leaves them so; of some NaN any number: the sum is NaN.
    largest, folds = _folded(te.max, scores, "largest")
    powers = te.compute(
        scores.shape, lambda b, h, i, j, lane: exp(scores[b, h, i, j, lane] - largest[b, h, i, 0, 0]), name="powers"
    )
    total, _ = _folded(te.sum, powers, "total")

    def inverse(b: Any, h: Any, i: Any, one: Any) -> Any:
        zero, found = tirx.const(0.0, "float32"), total[b, h, i, 0, 0]
        share = tirx.const(1.0, "float32") / found
        return tirx.Select(found == zero, zero, share) if a.zero_if_masked else share

    inverses = te.compute((*every, 1), inverse, name="inverse")
    j = te.reduce_axis((0, a.keys), name="j")

    def mix(b: Any, h: Any, i: Any, e: Any, lane: Any) -> Any:
        value = v[a.firsts[2] // lanes + h * (a.value_channels // lanes) + e, b * a.keys + j, lane]
        return te.sum(powers[b, h, i, j // lanes, j % lanes] * value, axis=j)

    mixed = te.compute((*every, a.value_channels // lanes, lanes), mix, name="mixed")
    each = a.value_channels // lanes

    def out(c: Any, m: Any, lane: Any) -> Any:
        b, h, i = m // rows, c // each, m % rows
        return mixed[b, h, i, c % each, lane] * inverses[b, h, i, 0]

    return te.compute(out_shape, out, name="out"), folds


def _folded(fold: Callable[..., Any], x: Any, name: str) -> tuple[Any, int]:
    """The sum or the largest along the last two axes, [B, H, T, 1]: vectors first, then halves of vectors; and in how
    many steps."""
    *rest, blocks, lanes = x.shape
    j = te.reduce_axis((0, blocks), name="j")
    found = te.compute((*rest, 1, lanes), lambda b, h, i, _, v: fold(x[b, h, i, j, v], axis=j), name=f"{name}_parts")
    both = te.max if fold is te.max else lambda one, other: one + other
    width, steps = int(lanes) // 2, 0
    while width:
        found = _halved(both, found, width, f"{name}{steps}")
        width, steps = width // 2, steps + 1
    return found, steps


def _halved(both: Callable[[Any, Any], Any], x: Any, width: int, name: str) -> Any:
    shape = (*x.shape[:-1], width)
    return te.compute(shape, lambda *i: both(x[i], x[(*i[:-1], i[-1] + width)]), name=name)


def _schedule(sch: Any, a: Heads, out_shape: tuple[int, int, int], folds: int, parallel: bool) -> None:
    """for b, h: the keys transposed, then for each tile of rows: scores, their largest, powers and sum, then for each
    block of values: the rows written out, v a vector."""
    lanes, rows, tile = out_shape[2], a.rows, tile_of(a.rows)
    c, m, v = sch.get_loops(sch.get_sblock("out"))
    h, e = sch.split(c, [a.heads, a.value_channels // lanes])
    b, i, r = sch.split(m, [a.sequences, rows // tile, tile])
    sch.reorder(b, h, i, e, r, v)
    _write_out(sch, r, v)
    sums = [_sum(sch, "mixed", e)]
    folded = {kind: [f"{kind}{step}" for step in reversed(range(folds))] for kind in ("total", "largest")}
    for name in ("inverse", *folded["total"]):
        _map(sch, name, i)
    sums.append(_sum(sch, "total_parts", i))
    for name in ("powers", *folded["largest"]):
        _map(sch, name, i)
    sums.append(_sum(sch, "largest_parts", i))
    _map(sch, "scores", i)
    sums.append(_sum(sch, "acc", i))
    keys = sch.get_sblock("keys")
    if parallel:
        sch.parallel(sch.fuse(b, h, i))
        sch.parallel(sch.fuse(*sch.get_loops(keys)[:3]))
    else:
        sch.compute_at(keys, h, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(keys)[-1])
    for block, reduced in sums:
        _write_out(sch, *sch.get_loops(sch.decompose_reduction(block, reduced))[-2:])


def _write_out(sch: Any, rows: Any, vector: Any) -> None:
    sch.unroll(rows)
    sch.vectorize(vector)


def _sum(sch: Any, name: str, at: Any) -> tuple[Any, Any]:
    """for b, h, r, block, v, k  ->  for block: for k: [r] written out, v a vector; returns the stage and k."""
    stage = sch.get_sblock(name)
    sch.compute_at(stage, at, preserve_unit_loops=True)
    *_, rows, block, v, k = sch.get_loops(stage)
    sch.reorder(block, k, rows, v)
    _write_out(sch, rows, v)
    return stage, k


def _map(sch: Any, name: str, at: Any) -> None:
    """A stage computed where its tile is used, its last loop a vector."""
    stage = sch.get_sblock(name)
    sch.compute_at(stage, at, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(stage)[-1])
