"""Kernels that copy maps in another form: in channel blocks of other lanes, or in another type."""

from __future__ import annotations

from typing import Any

from chanas.compiler.cpu.batches import over_images
from chanas.compiler.cpu.generic import MIN_PARALLEL
from chanas.compiler.program import FormChange
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.layout import Blocks, num_blocks
from chanas.operators.precision import INT8, precision_of


def changing(change: FormChange, target: HardwareTarget) -> Any:
    """A scheduled `tirx.PrimFunc` `main` from a map, and its grid where there is one, to its copy: for b, m: vectors of
    the smaller blocks' lanes. Lanes of the copy that no block of the map has are zero. Float32 becomes the nearest
    number.

    Raises:
        ScheduleError: both lanes and type differ.
    """
    from tvm import s_tir, te, tirx

    from chanas.compiler.cpu.arithmetic import arithmetic_of, import_instructions
    from chanas.compiler.expressions import fused_multiply_add

    if not change.is_possible:
        raise ScheduleError(f"expected a change of lanes or of type, got {change.before} to {change.after}")
    forms = (change.before, change.after)
    precisions = [precision_of(form.dtype) for form in forms]
    load, store = arithmetic_of(precisions[0]).load, arithmetic_of(precisions[1]).store
    grid = te.placeholder((2,), "float32", name="grid")
    fewest, most = sorted(form.lanes for form in forms)
    lanes, ratio, num = fewest, most // fewest, num_blocks(change.channels, fewest)
    before, after = (Blocks(form.lanes).shape(change.channels, change.pixels) for form in forms)
    x = te.placeholder(before, precisions[0].storage, name="x")

    def split(b: Any, m: Any, v: Any) -> Any:
        return x[b // ratio, m, b % ratio * lanes + v]

    def joined(b: Any, m: Any, v: Any) -> Any:
        block = b * ratio + v // lanes
        found = x[block, m, v % lanes]
        return found if num % ratio == 0 else tirx.if_then_else(block < num, found, tirx.const(0, x.dtype))

    def copied(b: Any, m: Any, v: Any) -> Any:
        value = (joined if change.after.lanes > change.before.lanes else split)(b, m, v)
        if precisions[0] == precisions[1]:
            return value
        if change.after.dtype == INT8.dtype:
            return store(fused_multiply_add(load(value), grid[0], grid[1]))
        if change.before.dtype == INT8.dtype:
            return store((load(value) - grid[1]) * grid[0])
        return store(load(value))

    copy = te.compute(after, copied, name="copy")
    arguments = [x, *([grid] if change.reads_grid else []), copy]
    sch = s_tir.Schedule(te.create_prim_func(arguments), error_render_level="none")
    b, m, v = sch.get_loops(sch.get_sblock("copy"))
    pieces, vector = sch.split(v, [None, lanes])
    sch.unroll(pieces)
    sch.vectorize(vector)
    if target.num_threads > 1 and change.channels * change.pixels >= MIN_PARALLEL:
        b = sch.fuse(b, m)
        sch.parallel(b)
    import_instructions(sch, b, target, *precisions)
    return over_images(sch.mod["main"], change.images, (1,) if change.reads_grid else ())
