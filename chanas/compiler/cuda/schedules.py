"""Application of a point of a GPU's space to a TVM function: split, reorder, fuse, bind to blocks and threads, cache in
shared memory and registers, compute_at, vectorize, unroll (the paper's table 1).

Blocks are one loop (`blockIdx.x`), so is a block's team of threads (`threadIdx.x`); threads that share a sum are
`threadIdx.y`. Products (1×1 and k×k over all channels) are written down in `product`, `squeeze` in `squeeze`.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir

from chanas.compiler.cuda import operators
from chanas.compiler.cuda.operators import Compute, operator_function, store_vector
from chanas.compiler.cuda.points import DepthwisePoint, ReductionPoint
from chanas.core.gpu import GPUFeatures
from chanas.operators.workload import Workload

# Loads of a thread that are written out, so that none waits for the one before.
_MAX_LOADS_IN_FLIGHT = 4


def _schedule_of(workload: Workload, compute: Compute) -> Any:
    return s_tir.Schedule(operator_function(workload, compute), error_render_level="none")


def _load_together(sch: Any, stage: Any, num_threads: int, vector: int) -> None:
    """A block's threads fill a buffer in shared memory: for i, j  ->  for turn: for thread: vector of values of j

    One loop is around the stage's own ones. What is padding is the same for all values of a vector, because the last
    loop is over channels and `vector` divides it.
    """
    loops = sch.get_loops(stage)[1:]
    if vector > 1:
        loops[-1], values = sch.split(loops[-1], [None, vector])
        sch.vectorize(values)
    whole = sch.fuse(*loops)
    turns, thread = sch.split(whole, [None, num_threads])
    sch.bind(thread, "threadIdx.x")
    if int(sch.get(turns).extent) <= _MAX_LOADS_IN_FLIGHT:
        sch.unroll(turns)


def _store(sch: Any, loop: Any, extent: int) -> None:
    """A thread's values of one row leave in vectors of up to four."""
    vector = store_vector(extent)
    if vector == 1:
        sch.unroll(loop)
        return
    if extent > vector:
        rest, loop = sch.split(loop, [None, vector])
        sch.unroll(rest)
    sch.vectorize(loop)


def depthwise(workload: Workload, point: DepthwisePoint, gpu: GPUFeatures) -> Any:
    """for b, h, w, c  ->  blocks of one image's rows × columns × channels, with the input under them (and its halo) in
    shared memory or read where it is; each thread has rows × columns of a few channels."""
    sch = _schedule_of(workload, operators.depthwise)
    taken, acc, out = (sch.get_sblock(name) for name in ("input", "acc", "out"))
    image, *loops = sch.get_loops(out)
    tiles = (point.h, point.w, point.c)
    split = [sch.split(loop, list(tile)) for loop, tile in zip(loops, tiles, strict=True)]
    num_threads = math.prod(tile.threads for tile in tiles)
    blocks, threads, values = zip(*split, strict=True)
    sch.reorder(image, *blocks, *threads, *values)
    block, thread = sch.fuse(image, *blocks), sch.fuse(*threads)
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    _store(sch, values[2], point.c.values)
    sch.unroll(values[0])
    sch.unroll(values[1])

    sch.compute_at(acc, thread, preserve_unit_loops=True)
    sch.set_scope(acc, 0, "local")
    if point.in_shared_memory:
        sch.set_scope(taken, 0, "shared")
        sch.compute_at(taken, block, preserve_unit_loops=True)
        _load_together(sch, taken, num_threads, point.input_vector)
    else:
        sch.compute_inline(taken)
    h, w, c, rh, rw = sch.get_loops(acc)[-5:]
    sch.reorder(rh, rw, h, w, c)
    for loop in (h, w, c, *((rh, rw) if point.writes_taps_out else ())):
        sch.unroll(loop)
    for loop in sch.get_loops(sch.decompose_reduction(acc, rh))[-3:]:
        sch.unroll(loop)
    return sch.mod["main"]


def dense(workload: Workload, point: ReductionPoint, gpu: GPUFeatures) -> Any:
    """A product of a matrix and one vector."""
    return _reduction(_schedule_of(workload, operators.dense), point)


def pool(workload: Workload, point: ReductionPoint, gpu: GPUFeatures) -> Any:
    """A mean over pixels."""
    return _reduction(_schedule_of(workload, operators.pool), point)


def _reduction(sch: Any, point: ReductionPoint) -> Any:
    """for m, n, k  ->  blocks of one row's columns: threads x are columns, threads y share each column's sum; every
    thread adds its terms in a register, then the threads of a column add theirs."""
    acc, out = sch.get_sblock("acc"), sch.get_sblock("out")
    k = sch.get_loops(acc)[-1]
    _, k_t, _ = sch.split(k, list(point.k))
    partial = sch.rfactor(k_t, 0)
    image, n = sch.get_loops(out)
    block, thread = sch.split(n, list(point.n))
    sch.bind(sch.fuse(image, block), "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    acc = sch.get_sblock("acc")
    sch.compute_at(acc, thread, preserve_unit_loops=True)
    share, row, column = sch.get_loops(acc)[-3:]
    sch.reorder(row, column, share)
    sch.bind(share, "threadIdx.y")
    sch.compute_at(partial, share, preserve_unit_loops=True)
    sch.set_scope(acc, 0, "local")
    sch.set_scope(partial, 0, "local")
    *_, p_o, p_i = sch.get_loops(partial)
    sch.unroll(p_i)
    sch.decompose_reduction(partial, p_o)
    return sch.mod["main"]
