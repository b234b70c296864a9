"""Kernels that copy maps from channel blocks of some lanes to blocks of others."""

from __future__ import annotations

from typing import Any

from chanas.compiler.cpu.batches import over_images
from chanas.compiler.cpu.generic import MIN_PARALLEL
from chanas.compiler.program import LayoutChange
from chanas.operators.layout import Blocks, num_blocks


def changing(change: LayoutChange, parallel: bool) -> Any:
    """A scheduled `tirx.PrimFunc` `main` from a map to its copy: for b, m: vectors of the smaller blocks' lanes. Lanes
    of the copy that no block of the map has are zero."""
    from tvm import s_tir, te, tirx

    lanes = min(change.before, change.after)
    ratio, num = max(change.before, change.after) // lanes, num_blocks(change.channels, lanes)
    before, after = (Blocks(n).shape(change.channels, change.pixels) for n in (change.before, change.after))
    x = te.placeholder(before, name="x")

    def split(b: Any, m: Any, v: Any) -> Any:
        return x[b // ratio, m, b % ratio * lanes + v]

    def joined(b: Any, m: Any, v: Any) -> Any:
        block = b * ratio + v // lanes
        found = x[block, m, v % lanes]
        return found if num % ratio == 0 else tirx.if_then_else(block < num, found, tirx.const(0, "float32"))

    copy = te.compute(after, joined if change.after > change.before else split, name="copy")
    sch = s_tir.Schedule(te.create_prim_func([x, copy]), error_render_level="none")
    b, m, v = sch.get_loops(sch.get_sblock("copy"))
    pieces, vector = sch.split(v, [None, lanes])
    sch.unroll(pieces)
    sch.vectorize(vector)
    if parallel and change.channels * change.pixels >= MIN_PARALLEL:
        sch.parallel(sch.fuse(b, m))
    return over_images(sch.mod["main"], change.images, ())
