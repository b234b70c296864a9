"""Application of a schedule point to a TVM function (the primitives of the paper's table 1, through `s_tir.Schedule`).

Every function schedules the stages of one operator, found by their prefix, inside a function that may hold a whole
block.
"""

from __future__ import annotations

import math
from typing import Any

from chanas.compiler.cpu.points import (
    BlockConvPoint,
    ConvPoint,
    DepthwisePoint,
    GroupConvPoint,
    HalfBlockPoint,
    LoopOrder,
    MatrixConvPoint,
    MatrixPoint,
    Padding,
    PointwisePoint,
    PoolPoint,
    ReductionOrder,
    WinogradPoint,
)
from chanas.compiler.cpu.tiles import MARK
from chanas.compiler.space import Split
from chanas.operators.epilogues import LONG
from chanas.operators.winograd import transforms
from chanas.operators.workload import Workload, scales_weights, winograd_axis, winograd_plans


def parallelise(sch: Any, num_fused: int, loops: list[Any]) -> None:
    """for a: for b: …  ->  parallel for a·b: …   (the first `num_fused` loops)

    Comes before `zero_first`: a loop around a reduction whose initialisation is split off can't be made parallel.
    """
    fused = loops[:num_fused]
    sch.parallel(sch.fuse(*fused) if len(fused) > 1 else fused[0])


def split_tiles(sch: Any, loop: Any, factors: Split) -> tuple[Any, Any]:
    """for i  ->  for i_o: for i_i. Where the last tile is smaller, it is compiled apart from the others."""
    extent = int(sch.get(loop).extent)
    outer, inner = sch.split(loop, [*factors])
    if math.prod(factors) > extent:
        sch.annotate(outer, "pragma_loop_partition_hint", 1)
    return outer, inner


def unroll(sch: Any, *loops: Any) -> None:
    for loop in loops:
        sch.unroll(loop)


def unroll_automatically(sch: Any, loop: Any, steps: int, is_explicit: bool) -> None:
    """Have loops in a loop of up to so many steps in all written out, in the program or by LLVM."""
    sch.annotate(loop, "pragma_auto_unroll_max_step", steps)
    sch.annotate(loop, "pragma_unroll_explicit", int(is_explicit))


def vectorize_row(sch: Any, stage: Any, lanes: int) -> int:
    """The innermost loop of a stage of packed rows as vectors of channel blocks of so many lanes, or of parts of them
    where the last one is not full, written out; returns the lanes of these vectors."""
    row = sch.get_loops(stage)[-1]
    own = math.gcd(int(sch.get(row).extent), lanes)
    vectors, vector = sch.split(row, [None, own])
    sch.unroll(vectors)
    sch.vectorize(vector)
    return own


def zero_first(sch: Any, acc: Any, reduce_outer: Any, num_unrolled: int) -> None:
    """Split the zero-initialisation off the reduction, vectorised and written out like the update."""
    init = sch.decompose_reduction(acc, reduce_outer)
    loops = sch.get_loops(init)
    sch.vectorize(loops[-1])
    unroll(sch, *loops[len(loops) - 1 - num_unrolled : -1])


def pointwise(
    sch: Any, workload: Workload, point: PointwisePoint | HalfBlockPoint | MatrixPoint, prefix: str, parallel: bool
) -> None:
    """for n, m, v, k  ->  for n_o, m_o (or m_o, n_o): for k_o: [k_i, m_i, n_i] written out, v a vector; then what
    follows the sums, [m_i, n_i] written out."""
    if isinstance(point, HalfBlockPoint):
        _half_block_pointwise(sch, workload, point, prefix, parallel)
        return
    if isinstance(point, MatrixPoint):
        _matrix_pointwise(sch, workload, point, prefix, parallel)
        return
    acc = sch.get_sblock(f"{prefix}acc")
    tiles, m_i, n_i, v = _split_tiles(sch, point, prefix)
    sch.reorder(*tiles, m_i, n_i, v)
    # Constants of a long epilogue take so many registers that LLVM, where it sees all of a tile at once, keeps the
    # tile's sums in memory, in the loop over input channels too: two to four times as slow with tiles of 27 vectors.
    unroll(sch, *([n_i] if workload.epilogue in LONG else [m_i, n_i]))
    sch.compute_at(acc, tiles[1], preserve_unit_loops=True)
    a_n, a_m, a_v, k = sch.get_loops(acc)[-4:]
    k_o, k_i = sch.split(k, list(point.k))
    sch.reorder(k_o, k_i, a_m, a_n, a_v)
    sch.vectorize(a_v)
    unroll(sch, k_i, a_m, a_n)
    _share_tiles(sch, workload, point, prefix, tiles, parallel)
    zero_first(sch, acc, k_o, 2)


def _matrix_pointwise(sch: Any, workload: Workload, point: MatrixPoint, prefix: str, parallel: bool) -> None:
    """for n_o, m_o (or m_o, n_o): all sums of a tile in matrix registers (`tiles`), then what follows the sums, for
    n_i, m_i: v a vector: as many are not written out. The input is packed by tiles of pixels, or at first where each
    serves several channel blocks."""
    acc = sch.get_sblock(f"{prefix}acc")
    tiles, m_i, n_i, v = _split_tiles(sch, point, prefix)
    sch.reorder(*tiles, n_i, m_i, v)
    sch.compute_at(acc, tiles[1], preserve_unit_loops=True)
    if point.packs:
        pack, pixels_outside = sch.get_sblock(f"{prefix}pack"), point.order is LoopOrder.PIXELS_OUTSIDE
        if pixels_outside or point.n.outer == 1:
            sch.compute_at(pack, tiles[0 if pixels_outside else 1], preserve_unit_loops=True)
        elif parallel:
            sch.parallel(sch.fuse(*sch.get_loops(pack)[:2]))
        lanes = int(sch.get(v).extent)
        has_whole_vectors = vectorize_row(sch, pack, lanes) == lanes
        if workload.scaled and not scales_weights(workload):
            if has_whole_vectors:
                sch.compute_inline(sch.get_sblock(f"{prefix}scale"))
            else:
                apply_scale(sch, workload, prefix, None, parallel)
    _share_tiles(sch, workload, point, prefix, tiles, parallel)
    sch.annotate(sch.blockize(sch.get_loops(acc)[-4]), MARK, True)


def _split_tiles(sch: Any, point: PointwisePoint | MatrixPoint, prefix: str) -> tuple[list[Any], Any, Any, Any]:
    """for n, m, v  ->  the loops over tiles in their order, then those of a tile: over pixels, channel blocks, and v, a
    vector."""
    n, m, v = sch.get_loops(sch.get_sblock(f"{prefix}out"))
    m_o, m_i = split_tiles(sch, m, point.m)
    n_o, n_i = split_tiles(sch, n, point.n)
    sch.vectorize(v)
    return [m_o, n_o] if point.order is LoopOrder.PIXELS_OUTSIDE else [n_o, m_o], m_i, n_i, v


def _share_tiles(
    sch: Any, workload: Workload, point: PointwisePoint | MatrixPoint, prefix: str, tiles: list[Any], parallel: bool
) -> None:
    """A gate applied, then tiles shared out among threads, not apart from others that it is applied for at once."""
    pixels_outside, packs = point.order is LoopOrder.PIXELS_OUTSIDE, isinstance(point, MatrixPoint) and point.packs
    if workload.scaled and (scales_weights(workload) or not packs):
        pixels = tiles[0] if pixels_outside else tiles[1]
        apply_scale(sch, workload, prefix, pixels if point.scales_tiles else None, parallel)
    if parallel:
        parallelise(sch, min(point.num_fused, 1 if pixels_outside and (point.scales_tiles or packs) else 2), tiles)


def apply_scale(sch: Any, workload: Workload, prefix: str, tile: Any, parallel: bool) -> None:
    """Multiply weights or input by the gate: all of it at first (`tile` is None), or the input of a tile as needed."""
    scale = sch.get_sblock(f"{prefix}scale")
    if tile is not None:
        sch.compute_at(scale, tile, preserve_unit_loops=True)
    elif parallel:
        loops = sch.get_loops(scale)[:-1]
        sch.parallel(loops[0] if workload.weight_precision.per_word > 1 else sch.fuse(*loops))
    sch.vectorize(sch.get_loops(scale)[-1])


def _half_block_pointwise(sch: Any, workload: Workload, point: HalfBlockPoint, prefix: str, parallel: bool) -> None:
    """for m_o: the full blocks (for n_o: for k_o: [k_i, m_i, n_i] written out, v a vector), then the half one (for k_o:
    [k_i, m_i] written out), then what follows the sums, for n: [m_i] written out."""
    acc, tail, mixed, out = (sch.get_sblock(f"{prefix}{name}") for name in ("acc", "tail", "mixed", "out"))
    n, m, v = sch.get_loops(out)
    m_o, m_i = split_tiles(sch, m, point.m)
    sch.reorder(m_o, n, m_i, v)
    sch.vectorize(v)
    unroll(sch, n, m_i)
    sch.compute_at(tail, m_o, preserve_unit_loops=True)
    t_m, t_v, pair = sch.get_loops(tail)[-3:]
    p_o, p_i = sch.split(pair, list(point.k))
    sch.reorder(p_o, p_i, t_m, t_v)
    sch.vectorize(t_v)
    unroll(sch, p_i, t_m)
    mixed_stages = [mixed]
    if workload.input_precision.per_word == 1:  # pairs in vectors of their own
        twice = sch.get_sblock(f"{prefix}twice")
        sch.compute_at(twice, p_i, preserve_unit_loops=True)
        sch.unroll(sch.get_loops(twice)[-2])
        mixed_stages.append(twice)
    for stage in mixed_stages:
        w_o, w_i = sch.split(sch.get_loops(stage)[-1], [None, 2])
        sch.reorder(w_i, w_o)
        sch.vectorize(w_o)
        sch.unroll(w_i)
    sch.compute_at(acc, m_o, preserve_unit_loops=True)
    a_n, a_m, a_v, k = sch.get_loops(acc)[-4:]
    n_o, n_i = sch.split(a_n, list(point.n))
    pairs, unrolled = point.k
    k_o, k_i = sch.split(k, [pairs, 2 * unrolled])
    sch.reorder(n_o, k_o, k_i, a_m, n_i, a_v)
    sch.vectorize(a_v)
    unroll(sch, k_i, a_m, n_i)
    if workload.scaled:
        apply_scale(sch, workload, prefix, m_o if point.scales_tiles else None, parallel)
    if parallel:
        parallelise(sch, 1, [m_o])
    zero_first(sch, acc, k_o, 2)
    zero_first(sch, tail, p_o, 1)


def _window(sch: Any, point: DepthwisePoint | ConvPoint, prefix: str) -> tuple[list[Any], Any, list[Any]]:
    """for c, h, w, v  ->  for c_o, h_o, w_o: [h_i, w_i, c_i] written out, v a vector; the accumulator inside w_o.

    Returns the outer loops, the accumulator's block, and the accumulator's loops from its channel block inwards.
    """
    acc, out = sch.get_sblock(f"{prefix}acc"), sch.get_sblock(f"{prefix}out")
    c, h, w, v = sch.get_loops(out)
    h_o, h_i = sch.split(h, list(point.h))
    w_o, w_i = split_tiles(sch, w, point.w)
    c_o, c_i = sch.split(c, [None, 1]) if isinstance(point, DepthwisePoint) else split_tiles(sch, c, point.n)
    sch.reorder(c_o, h_o, w_o, h_i, w_i, c_i, v)
    sch.vectorize(v)
    unroll(sch, h_i, w_i, c_i)
    sch.compute_at(acc, w_o, preserve_unit_loops=True)
    return [c_o, h_o, w_o], acc, sch.get_loops(acc)[3:]


def _place_padding(sch: Any, pad: Any, padding: Padding, band: Any, parallel: bool) -> None:
    """Vectors of padded input, by bands or at first, in parallel then."""
    if padding in (Padding.BY_BAND, Padding.IN_WORDS):
        sch.compute_at(pad, band, preserve_unit_loops=True)
    loops = sch.get_loops(pad)
    sch.vectorize(loops[-1])
    if padding is Padding.AT_FIRST and parallel:
        sch.parallel(loops[0])


def depthwise(sch: Any, workload: Workload, point: DepthwisePoint, prefix: str, parallel: bool) -> None:
    """for c, h, w, v  ->  for c, h_o, w_o: for rh: [rw, h_i, w_i] written out, v a vector."""
    pad = sch.get_sblock(f"{prefix}pad")
    if point.padding is Padding.IN_LOADS:
        sch.compute_inline(pad)
    outer, acc, (c, h, w, v, rh, rw) = _window(sch, point, prefix)
    sch.reorder(rh, rw, h, w, c, v)
    sch.vectorize(v)
    unroll(sch, rw, h, w, c)
    if point.writes_rows_out:
        sch.unroll(rh)
    if point.padding is not Padding.IN_LOADS:
        _place_padding(sch, pad, point.padding, outer[0], parallel)
    if point.padding is Padding.IN_WORDS:
        _place_words(sch, prefix, outer[0])
    if parallel:  # a channel block's padding serves all its rows
        parallelise(sch, 1 if point.pads_blocks else point.num_fused, outer)
    zero_first(sch, acc, rh, 3)


def _place_words(sch: Any, prefix: str, blocks: Any) -> None:
    """Words of a channel block's weights, and what its sums have too much."""
    words, less = (sch.get_sblock(f"{prefix}{name}") for name in ("words", "less"))
    sch.compute_at(less, blocks, preserve_unit_loops=True)
    lane, taps = sch.get_loops(less)[-2:]
    sch.reorder(taps, lane)
    sch.vectorize(lane)
    zero_first(sch, less, taps, 0)
    sch.compute_at(words, blocks, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(words)[-1])


def conv(sch: Any, workload: Workload, point: ConvPoint | MatrixConvPoint, prefix: str, parallel: bool) -> None:
    if isinstance(point, MatrixConvPoint):
        _matrix_conv(sch, workload, point, prefix, parallel)
        return
    pad = sch.get_sblock(f"{prefix}pad")
    outer, acc, (n, h, w, v, rc, rh, rw) = _window(sch, point, prefix)
    sch.reorder(rc, rh, rw, h, w, n, v)
    sch.vectorize(v)
    unroll(sch, rw, h, w, n)
    if point.writes_rows_out:
        sch.unroll(rh)
    if point.padding is Padding.BY_BAND:
        sch.compute_at(pad, outer[1], preserve_unit_loops=True)
    if parallel:
        parallelise(sch, point.num_fused, outer)
    zero_first(sch, acc, rc, 3)


def _split_bands(
    sch: Any, point: BlockConvPoint | GroupConvPoint, prefix: str, blocks: Split, pixels_outside: bool
) -> tuple[list[Any], Any, Any]:
    """for c, h, w, v  ->  for c_o, band (or band, c_o), h_m, w_o: [h_i, w_i, c_i] written out, v a vector.

    Returns the outer loops, that over bands, and the innermost that stays.
    """
    c, h, w, v = sch.get_loops(sch.get_sblock(f"{prefix}out"))
    band, h_m, h_i = sch.split(h, list(point.h))
    w_o, w_i = split_tiles(sch, w, point.w)
    if isinstance(point, GroupConvPoint):  # sets of groups may have more vectors than there are blocks of outputs
        c_o, c_i = sch.split(c, list(blocks))
    else:
        c_o, c_i = split_tiles(sch, c, blocks)
    outer = [band, c_o] if pixels_outside else [c_o, band]
    sch.reorder(*outer, h_m, w_o, h_i, w_i, c_i, v)
    sch.vectorize(v)
    unroll(sch, h_i, w_i, c_i)
    return outer, band, w_o


def _share_bands(
    sch: Any, point: BlockConvPoint | WinogradPoint, outer: list[Any], acc: Any, reduce_outer: Any, parallel: bool
) -> None:
    """Bands shared out among threads, with the channel blocks around them unless a band's padding serves them all; then
    the zero-initialisation."""
    if parallel:
        parallelise(sch, min(point.num_fused, _fusable(point)), outer)
    zero_first(sch, acc, reduce_outer, 3)


def _fusable(point: BlockConvPoint | MatrixConvPoint | WinogradPoint) -> int:
    """Outer loops that may be fused: not that over channel blocks with the bands whose padding serves all of them."""
    return 1 if point.padding is Padding.BY_BAND and point.order is LoopOrder.PIXELS_OUTSIDE else 2


def _order_sums(sch: Any, acc: Any, point: BlockConvPoint | GroupConvPoint) -> Any:
    """for c, h, w, v, k, rh, rw  ->  for k_o, rh, rw (or rh, rw, k_o): [k_i, h, w, c] written out, v a vector; returns
    the outermost of these loops."""
    c, h, w, v, k, rh, rw = sch.get_loops(acc)[-7:]
    k_o, k_i = sch.split(k, list(point.k))
    reduction = [rh, rw, k_o] if point.reduction is ReductionOrder.TAPS_OUTSIDE else [k_o, rh, rw]
    sch.reorder(*reduction, k_i, h, w, c, v)
    sch.vectorize(v)
    unroll(sch, k_i, h, w, c)
    if point.writes_columns_out:
        sch.unroll(rw)
    return reduction[0]


def blockconv(
    sch: Any, workload: Workload, point: BlockConvPoint | MatrixConvPoint, prefix: str, parallel: bool
) -> None:
    """for c, h, w, v, k, rh, rw  ->  for c_o, band (or band, c_o), h_m, w_o: for k_o, rh, rw (or rh, rw, k_o):
    [k_i, h_i, w_i, c_i] written out, v a vector."""
    if isinstance(point, MatrixConvPoint):
        _matrix_conv(sch, workload, point, prefix, parallel)
        return
    pad = sch.get_sblock(f"{prefix}pad")
    if point.padding is Padding.IN_LOADS:
        sch.compute_inline(pad)
    outer, band, w_o = _split_bands(sch, point, prefix, point.n, point.order is LoopOrder.PIXELS_OUTSIDE)
    acc = sch.get_sblock(f"{prefix}acc")
    sch.compute_at(acc, w_o, preserve_unit_loops=True)
    reduce_outer = _order_sums(sch, acc, point)
    if point.padding is not Padding.IN_LOADS:
        _place_padding(sch, pad, point.padding, band, parallel)
    _share_bands(sch, point, outer, acc, reduce_outer, parallel)


def _matrix_conv(sch: Any, workload: Workload, point: MatrixConvPoint, prefix: str, parallel: bool) -> None:
    """for c, h, w, v, k, rh, rw  ->  for c_o, band (or band, c_o), h_m, w_o: all sums of a tile in matrix registers
    (`tiles`), then what follows the sums, for c_i, h_i, w_i: v a vector. Inputs are packed as they are padded."""
    acc, pad = sch.get_sblock(f"{prefix}acc"), sch.get_sblock(f"{prefix}pad")
    c, h, w, v = sch.get_loops(sch.get_sblock(f"{prefix}out"))
    band, h_m, h_i = sch.split(h, list(point.h))
    w_o, w_i = split_tiles(sch, w, point.w)
    c_o, c_i = split_tiles(sch, c, point.n)
    outer = [band, c_o] if point.order is LoopOrder.PIXELS_OUTSIDE else [c_o, band]
    sch.reorder(*outer, h_m, w_o, c_i, h_i, w_i, v)
    sch.vectorize(v)
    sch.compute_at(acc, w_o, preserve_unit_loops=True)
    if point.padding is Padding.BY_BAND:
        sch.compute_at(pad, band, preserve_unit_loops=True)
    elif parallel:
        sch.parallel(sch.fuse(*sch.get_loops(pad)[:2]))
    if workload.reads_image:  # the channels of a pixel written out, so that the compiler stores those of many at once
        sch.unroll(sch.get_loops(pad)[-1])
        sch.vectorize(sch.get_loops(sch.get_sblock(f"{prefix}words"))[-1])
    else:
        vectorize_row(sch, pad, int(sch.get(v).extent))
    if parallel:
        parallelise(sch, min(point.num_fused, _fusable(point)), outer)
    sch.annotate(sch.blockize(sch.get_loops(acc)[-7]), MARK, True)


def groupconv(sch: Any, workload: Workload, point: GroupConvPoint, prefix: str, parallel: bool) -> None:
    """for c, h, w, v, k, rh, rw  ->  for c_o, band, h_m, w_o: (for c_m:) for k_o, rh, rw (or rh, rw, k_o): [k_i, h_i,
    w_i, c_i] written out, v a vector; then outputs, lanes in another order, [h_i, w_i, c_m, c_i] written out."""
    pad, acc, sums, out = (sch.get_sblock(f"{prefix}{name}") for name in ("pad", "acc", "sums", "out"))
    stores, passes, inner = point.n
    outer, band, w_o = _split_bands(sch, point, prefix, Split(stores, passes * inner), pixels_outside=False)
    if passes == 1:
        sch.compute_inline(sums)
        sch.compute_at(acc, w_o, preserve_unit_loops=True)
    else:
        sch.compute_at(sums, w_o, preserve_unit_loops=True)
        s_c, s_h, s_w, s_v = sch.get_loops(sums)[-4:]
        s_o, s_i = sch.split(s_c, [passes, inner])
        sch.reorder(s_o, s_h, s_w, s_i, s_v)
        sch.vectorize(s_v)
        unroll(sch, s_h, s_w, s_i)
        sch.compute_at(acc, s_o, preserve_unit_loops=True)
    reduce_outer = _order_sums(sch, acc, point)
    if point.padding is Padding.BY_BAND:
        sch.compute_at(pad, band, preserve_unit_loops=True)
    elif parallel:
        sch.parallel(sch.get_loops(pad)[0])
    side_by_side = sch.get_loops(pad)[-1]
    lanes = int(sch.get(sch.get_loops(out)[-1]).extent)
    if int(sch.get(side_by_side).extent) % lanes == 0:
        vector, side_by_side = sch.split(side_by_side, [None, lanes])
        sch.unroll(vector)
    sch.vectorize(side_by_side)
    if parallel:
        parallelise(sch, point.num_fused, outer)
    zero_first(sch, acc, reduce_outer, 3)


def winograd(sch: Any, workload: Workload, point: WinogradPoint, prefix: str, parallel: bool) -> None:
    """for c, h, w, v  ->  for c_o, band (or band, c_o): the sums of the band, then its outputs.

    Sums: for product, h_m, w_o: for k_o, rh, rs: [k_i, h_i, w_i, c_i] written out, v a vector. Outputs: for c_i, row,
    tile: [outputs of a tile] written out.
    """
    pad, tiles, acc = (sch.get_sblock(f"{prefix}{n}") for n in ("pad", "tiles", "acc"))
    axis = winograd_axis(workload)
    along = workload.axes[axis]
    outputs = transforms(along.kernel, along.stride).outputs
    outer, band = _outputs_of_bands(sch, point, prefix, (1, outputs) if axis == 1 else (outputs, 1))
    k_o = _sums_of_bands(sch, point, prefix, outer)
    if axis == 0:  # rows of a tile are constants too
        row, column, within, v = sch.get_loops(sch.get_sblock(f"{prefix}out"))[-4:]
        tile_row, row_within = sch.split(row, [None, outputs])
        sch.reorder(tile_row, column, row_within, within, v)
        sch.unroll(row_within)
    _place_tiles(sch, tiles, point, band, parallel)
    _place_padding(sch, pad, point.padding, band, parallel)
    _share_bands(sch, point, outer, acc, k_o, parallel)


def _place_tiles(sch: Any, tiles: Any, point: WinogradPoint, band: Any, parallel: bool) -> tuple[Any, Any]:
    """Transformed inputs by bands or at first, in parallel then, all products of a tile written out; returns the loops
    over channel blocks and rows."""
    if point.padding is Padding.BY_BAND:
        sch.compute_at(tiles, band, preserve_unit_loops=True)
    product, *places, v = sch.get_loops(tiles)[-len(sch.get(tiles).iter_vars) :]
    sch.reorder(*places, product, v)
    sch.unroll(product)
    sch.vectorize(v)
    if point.padding is Padding.AT_FIRST and parallel:
        sch.parallel(places[0])
    return places[0], places[1]


def winograd2(sch: Any, workload: Workload, point: WinogradPoint, prefix: str, parallel: bool) -> None:
    """The loops of `winograd`; inputs are transformed a row of tiles at a time, outputs a tile at a time."""
    names = ("pad", "rows", "tiles", "acc", "columns", "out")
    pad, rows, tiles, acc, columns, out = (sch.get_sblock(f"{prefix}{n}") for n in names)
    down, along = winograd_plans(workload)
    outer, band = _outputs_of_bands(sch, point, prefix, (down.outputs, along.outputs))
    row, tile, within, v = sch.get_loops(out)[-4:]
    tile_row, row_within = sch.split(row, [None, down.outputs])
    sch.reorder(tile_row, tile, row_within, within, v)
    sch.unroll(row_within)
    sch.compute_at(columns, tile, preserve_unit_loops=True)
    c_i, *_, c_w, c_v = sch.get_loops(columns)[-5:]
    unroll(sch, c_i, c_w)
    sch.vectorize(c_v)
    k_o = _sums_of_bands(sch, point, prefix, outer)
    _, t_h = _place_tiles(sch, tiles, point, band, parallel)
    sch.compute_at(rows, t_h, preserve_unit_loops=True)
    r_i, _, _, r_w, r_v = sch.get_loops(rows)[-5:]
    sch.reorder(r_w, r_i, r_v)
    sch.unroll(r_i)
    sch.vectorize(r_v)
    _place_padding(sch, pad, point.padding, band, parallel)
    _share_bands(sch, point, outer, acc, k_o, parallel)


def upconv(sch: Any, workload: Workload, point: WinogradPoint, prefix: str, parallel: bool) -> None:
    """The loops of `winograd` with phases for products: the sums of a band, then its outputs, each from its phase."""
    pad, acc = sch.get_sblock(f"{prefix}pad"), sch.get_sblock(f"{prefix}acc")
    rows, columns = workload.axes
    outer, band = _outputs_of_bands(sch, point, prefix, (rows.stride, columns.stride))
    k_o = _sums_of_bands(sch, point, prefix, outer)
    _place_padding(sch, pad, point.padding, band, parallel)
    _share_bands(sch, point, outer, acc, k_o, parallel)


def _outputs_of_bands(sch: Any, point: WinogradPoint, prefix: str, outputs: tuple[int, int]) -> tuple[list[Any], Any]:
    """Outputs of bands, where so many rows and columns of the output are made of the sums at one place.

    Returns the outer loops and that over bands.
    """
    out = sch.get_sblock(f"{prefix}out")
    bands, h_m, h_i = point.h
    c, h, w, v = sch.get_loops(out)
    band, row = sch.split(h, [bands, h_m * h_i * outputs[0]])
    tile, within = sch.split(w, [None, outputs[1]])
    c_o, c_i = split_tiles(sch, c, point.n)
    outer = [band, c_o] if point.order is LoopOrder.PIXELS_OUTSIDE else [c_o, band]
    sch.reorder(*outer, c_i, row, tile, within, v)
    sch.vectorize(v)
    sch.unroll(within)
    return outer, band


def _sums_of_bands(sch: Any, point: WinogradPoint, prefix: str, outer: list[Any]) -> Any:
    """Sums of a band, before its outputs. Returns the outermost loop of the reduction."""
    acc, sums = sch.get_sblock(f"{prefix}acc"), sch.get_sblock(f"{prefix}sums")
    _, h_m, h_i = point.h
    sch.compute_at(sums, outer[1], preserve_unit_loops=True)
    product, s_c, s_h, s_w, s_v = sch.get_loops(sums)[-5:]
    s_ho, s_hi = sch.split(s_h, [h_m, h_i])
    s_wo, s_wi = split_tiles(sch, s_w, point.w)
    sch.reorder(product, s_ho, s_wo, s_hi, s_wi, s_c, s_v)
    sch.vectorize(s_v)
    unroll(sch, s_hi, s_wi, s_c)
    sch.compute_at(acc, s_wo, preserve_unit_loops=True)
    num_around = len(sch.get_loops(sums)) - 4
    _, a_c, a_h, a_w, a_v, k, *taps = sch.get_loops(acc)[num_around:]
    k_o, k_i = sch.split(k, list(point.k))
    sch.reorder(k_o, *taps, k_i, a_h, a_w, a_c, a_v)
    sch.vectorize(a_v)
    unroll(sch, k_i, a_h, a_w, a_c)
    return k_o


def pool(sch: Any, workload: Workload, point: PoolPoint, prefix: str, parallel: bool) -> None:
    """for c, v, m  ->  for c_o: for m_o: [m_i, c_i] written out, v a vector."""
    acc, out = sch.get_sblock(f"{prefix}acc"), sch.get_sblock(f"{prefix}out")
    c, _, v = sch.get_loops(out)
    c_o, c_i = sch.split(c, list(point.c))
    sch.vectorize(v)
    sch.unroll(c_i)
    sch.compute_at(acc, c_o, preserve_unit_loops=True)
    a_c, a_one, a_v, m = sch.get_loops(acc)[-4:]
    m_o, m_i = sch.split(m, list(point.m))
    sch.reorder(m_o, m_i, a_c, a_one, a_v)
    sch.vectorize(a_v)
    unroll(sch, m_i, a_c)
    if parallel:
        sch.parallel(c_o)
    zero_first(sch, acc, m_o, 2)
