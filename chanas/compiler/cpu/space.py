"""Schedule spaces of CPUs, one function for each operator family (paper, section 3.5, figure 8, table 1).

A point is a vector of integers (`compiler.space`). The vector axis is always the innermost and the fused outermost
loop always the parallel one, so neither is encoded."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from chanas.compiler.cpu import matrix_space
from chanas.compiler.cpu.choices import (
    is_banded_once,
    is_cut,
    is_first_order,
    padding_choice,
    parallel_choice,
    scale_choice,
)
from chanas.compiler.cpu.matrix_space import in_matrices
from chanas.compiler.cpu.points import (
    BlockConvPoint,
    ConvPoint,
    DepthwisePoint,
    GroupConvPoint,
    HalfBlockPoint,
    LoopOrder,
    Padding,
    PointwisePoint,
    PoolPoint,
    ReductionOrder,
    Vectors,
    WinogradPoint,
)
from chanas.compiler.space import Coordinate, ScheduleSpace, factorisations
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.grouped import abreast
from chanas.operators.layout import num_blocks
from chanas.operators.precision import BFLOAT16, FLOAT32, INT8
from chanas.operators.transposed import phase_of
from chanas.operators.winograd import transforms
from chanas.operators.workload import (
    Axis,
    Workload,
    ends_in_half_a_block,
    spreads_input,
    winograd_axis,
    winograd_plans,
)

_CHANNELS, _PIXELS = LoopOrder.CHANNELS_OUTSIDE, LoopOrder.PIXELS_OUTSIDE

# Registers that a kernel needs besides its accumulators: weights, a broadcast input, and the compiler's temporaries.
_RESERVED_REGISTERS = 4
# The same where all operands are loaded and counted: loads come earlier than they are needed.
_RESERVED_BESIDE_OPERANDS = 2
# The same of 1×1 convolutions in bfloat16, beside the weights of a tile.
_RESERVED_BESIDE_WEIGHTS = 1
# Longest stretch of a loop that is written out: beyond it the compiler takes seconds and the code gets no faster.
_MAX_UNROLLED_REDUCTION = 16

# Sums that hide the latency of multiply-adds, which is four cycles for two at a time. One fewer, as a map of seven
# columns suggests, may be worth it; still fewer are what there is where a map allows no more.
_ENOUGH_ACCUMULATORS, _MIN_ACCUMULATORS = 8, 7
# The same of dot products, each of which waits for the one before it for six cycles.
_MIN_DOT_PRODUCTS = 6
# Multiply-adds written out in one loop body: longer ones don't fit the cache of decoded instructions, and spill.
_MAX_WRITTEN_OUT = 352
# The same for depthwise convolutions, where longer ones cost much time to compile and gain under 1 %; and the tiles
# among which the best ones were, here and of 1×1 convolutions, of samples of 48 points of 13 and 32 points of 17
# workloads on Zen 4.
_MIN_TILE_POINTWISE, _MIN_TILE_PIXELS = 7, 4
_MAX_WRITTEN_OUT_DEPTHWISE, _TILE_DEPTHWISE, _MAX_TILE_ROWS = 200, (4, 16), 2
# Loads for each multiply-add where inputs are loaded as vectors too: cores have at least half as many load units as
# multiply-add units. Where no tile is that frugal, those near the most frugal one.
_MAX_LOADS, _MAX_LOADS_OVER_LEAST = 0.5, 1.25
# Maps with more tiles in a row than these need no tiles of several rows.
_NARROW_COLUMNS = 8


def max_accumulators(target: HardwareTarget) -> int:
    """Vector accumulators that fit in registers beside what else a kernel needs."""
    return target.num_vector_registers - _RESERVED_REGISTERS


class Tile(NamedTuple):
    """The values that are computed in registers at once: so many pixels times vectors of output channels, in so many
    steps of the sum that are written out together and read so many inputs each."""

    pixels: int
    vectors: int
    steps: int
    inputs: int

    @property
    def num_sums(self) -> int:
        return self.pixels * self.vectors

    @property
    def num_registers(self) -> int:
        """Registers where all operands are loaded: the sums and one step's operands. Inputs that are loaded for several
        steps stay; for a single step, operands of the more numerous kind pass through one register."""
        operands = self.inputs + self.vectors if self.steps > 1 else min(self.inputs, self.vectors) + 1
        return self.num_sums + operands

    def loads(self, lanes: int) -> float:
        """Loads for each multiply-add."""
        return -(-self.steps // lanes) / (self.vectors * self.steps) + 1 / self.pixels


def _by_lane(target: HardwareTarget) -> bool:
    """True if inputs are loaded as vectors, of which a multiply-add takes one lane: with the short vectors of NEON.

    Longer vectors come with instructions that read one input from memory into all lanes.
    """
    return target.vector_lanes <= 4


def _allowed(tiles: Collection[Tile], target: HardwareTarget, fewest: int = 1) -> frozenset[Tile]:
    """Select the tiles whose sums fit in registers and that are worth a try.

    All of at least `fewest` sums, as far as the factors allow; with short vectors those that fit with their operands,
    hide the latency of multiply-adds and need few loads for each (the paper's register blocking, section 4.5).
    """
    if not _by_lane(target):
        smallest = min(fewest, max(tile.num_sums for tile in tiles))
        return frozenset(tile for tile in tiles if tile.num_sums >= smallest)
    room = target.num_vector_registers - _RESERVED_BESIDE_OPERANDS
    fitting = [tile for tile in tiles if tile.num_registers <= room]
    smallest = min(_ENOUGH_ACCUMULATORS, max(tile.num_sums for tile in fitting))
    loads = {tile: tile.loads(target.vector_lanes) for tile in fitting if tile.num_sums >= smallest}
    most = max(_MAX_LOADS, _MAX_LOADS_OVER_LEAST * min(loads.values()))
    return frozenset(tile for tile, ratio in loads.items() if ratio <= most)


def _pixels(extent: int, limit: int) -> Coordinate:
    """Tiles of at most so many pixels. One that divides them and leaves registers for two channel blocks is enough."""
    return Coordinate.tiles("m", extent, limit, range(_MIN_TILE_PIXELS, limit // 2 + 1))


def _columns(extent: int, limit: int, fewest: int = 1) -> Coordinate:
    """Tiles of at most so many columns. Four to fifteen keep a core's multiply-add units busy, with a number of channel
    blocks that makes `fewest` sums."""
    sizes = [w for w in range(_MIN_TILE_PIXELS, min(limit, 15) + 1) if limit // w * w >= fewest]
    return Coordinate.tiles("w", extent, limit, sizes)


def _channel_blocks(extent: int, limit: int) -> Coordinate:
    """Tiles of at most so many channel blocks. Two of them or more use each loaded input several times, as long as they
    leave registers for four pixels."""
    return Coordinate.tiles("n", extent, limit, range(2, limit // 4 + 1))


def _window_choices(workload: Workload, target: HardwareTarget) -> tuple[Coordinate, ...]:
    """Order of a sum over windows, outer loops that are fused, and whether a row of taps is written out."""
    orders = ReductionOrder if workload.kernel_area > 1 else (ReductionOrder.CHANNELS_OUTSIDE,)
    unrolls = (0, 1) if workload.axes[1].kernel > 1 else (0,)
    return (
        Coordinate.choice("reduce", *orders),
        *parallel_choice(target, 1, 2),
        Coordinate.choice("unroll", *unrolls),
    )


def _in_blocks(channels: int, lanes: int) -> tuple[tuple[int, ...], ...]:
    """Splits of a loop over input channels of which the inner part divides a block of them."""
    return tuple(o for o in factorisations(channels, 2, lanes) if lanes % o[1] == 0)


def _fitting(pixels: Coordinate, blocks: Coordinate, target: HardwareTarget) -> frozenset[tuple[int, int]]:
    """Tiles of pixels times channel blocks whose sums fit in registers."""
    limit = max_accumulators(target)
    return frozenset((m[1], n[1]) for m in pixels.options for n in blocks.options if m[1] * n[1] <= limit)


def _filling(pixels: Coordinate, blocks: Coordinate, target: HardwareTarget) -> frozenset[tuple[int, int]]:
    """Tiles of pixels times channel blocks that fit in registers and fill them well, as far as the factors allow.

    All that fit for a map of one pixel: it waits for its weights, not for its multiply-adds. Short vectors have their
    own rule (`_allowed`).
    """
    fitting = _fitting(pixels, blocks, target)
    if _by_lane(target):
        return fitting
    fewest_pixels = min(_MIN_TILE_PIXELS, max(m for m, _ in fitting))
    tall = {(m, n) for m, n in fitting if m >= fewest_pixels}
    smallest = min(_MIN_TILE_POINTWISE, max(m * n for m, n in tall)) if fewest_pixels > 1 else 1
    return frozenset((m, n) for m, n in tall if m * n >= smallest)


def _square(pixels: Coordinate, blocks: Coordinate, target: HardwareTarget) -> frozenset[tuple[int, int]]:
    """Tiles of pixels times channel blocks whose sums and weights fit in registers: all of them for a map of one pixel.

    Else, where there are such, those of at least two pixels and two blocks (what is loaded is used twice: with one
    block a kernel reaches three quarters of the peak, with one pixel half) and enough sums to hide a dot product's
    latency.
    """
    registers = target.num_vector_registers - _RESERVED_BESIDE_WEIGHTS
    fitting = {(m[-1], n[-1]) for m in pixels.options for n in blocks.options if (m[-1] + 1) * n[-1] <= registers}
    if fitting and max(m for m, _ in fitting) == 1:
        return frozenset(fitting)
    square = {(m, n) for m, n in fitting if m > 1 and n > 1} or fitting
    smallest = min(_MIN_DOT_PRODUCTS, max(m * n for m, n in square))
    return frozenset((m, n) for m, n in square if m * n >= smallest)


class _Limits(NamedTuple):
    """Limits of the 1×1 convolutions of a precision.

    steps              words of input channels that are written out
    written_out        multiply-adds, or dot products, in one loop body; longer ones cost much time to compile and gain
                       under 1 %
    in_half_blocks     the same where the last channel block is half empty
    tiles              tiles that are worth a try, of pixels, of channel blocks and on a target
    """

    steps: int
    written_out: int
    in_half_blocks: int
    tiles: Callable[[Coordinate, Coordinate, HardwareTarget], frozenset[tuple[int, int]]]


_POINTWISE_LIMITS = {
    FLOAT32: _Limits(_MAX_UNROLLED_REDUCTION, 128, 64, _filling),
    BFLOAT16: _Limits(8, 224, 224, _square),
    INT8: _Limits(8, 224, 224, _filling),
}


def pointwise(workload: Workload, target: HardwareTarget) -> ScheduleSpace[Any]:
    """Tiles of pixels and channel blocks, words of input channels written out, loop order, and where a gate is
    applied; in matrix registers where there are such, but for a map of one pixel, which waits for its weights."""
    lanes, limit = target.vector_lanes, max_accumulators(target)
    if in_matrices(workload, target):
        return matrix_space.pointwise(workload, target)
    if ends_in_half_a_block(workload, lanes):
        return _half_block_pointwise(workload, target)
    limits, per_word = _POINTWISE_LIMITS[workload.input_precision], workload.input_precision.per_word
    words, in_words, blocks = lanes // per_word, per_word > 1, num_blocks(workload.out_channels, lanes)
    # those of one loaded vector, or words of one channel block
    most_steps = min(limits.steps, words) if _by_lane(target) or in_words else limits.steps
    k_options = tuple(
        (o, i)
        for o, i in factorisations(-(-workload.in_channels // per_word), 2, most_steps)
        if words % i == 0 or i % words == 0
    )
    coordinates = (
        _pixels(workload.output_pixels, limit),
        _channel_blocks(blocks, limit),
        Coordinate("split_k", k_options),
        Coordinate.choice("order", _CHANNELS, _PIXELS),
        *parallel_choice(target, 1, 2),
        *scale_choice(workload),
    )
    tiles = {
        Tile(m, n, k, m)
        for m, n in limits.tiles(coordinates[0], coordinates[1], target)
        for _, k in k_options
        if m * n * k <= max(limits.written_out, m * n)
    }
    allowed = frozenset(tiles) if in_words else _allowed(tiles, target)  # all lanes have a word, of short vectors too

    def legal(p: PointwisePoint) -> bool:
        if Tile(p.m.inner, p.n.inner, p.k.inner, p.m.inner) not in allowed:
            return False
        if p.num_fused > 1 and (is_cut(p.m, workload.output_pixels) or is_cut(p.n, blocks)):
            return False
        return is_first_order(p)

    return ScheduleSpace(workload, coordinates, PointwisePoint, legal)


def _half_block_pointwise(workload: Workload, target: HardwareTarget) -> ScheduleSpace[HalfBlockPoint]:
    """Tiles of pixels times all channel blocks; those of the full blocks are cut further."""
    lanes, limit = target.vector_lanes, max_accumulators(target)
    limits = _POINTWISE_LIMITS[workload.input_precision]
    full, at_once = num_blocks(workload.out_channels, lanes) - 1, 2 * workload.input_precision.per_word
    k_options = tuple(
        (o, i)
        for o, i in factorisations(workload.in_channels // at_once, 2, limits.steps // 2)
        if lanes // at_once % i == 0
    )
    coordinates = (
        _pixels(workload.output_pixels, limit),
        Coordinate.split("n", full, innermost_max=limit),
        Coordinate("split_k", k_options),
        *parallel_choice(target, 1),
        *scale_choice(workload),
    )
    tiles = limits.tiles(coordinates[0], coordinates[1], target)

    def legal(p: HalfBlockPoint) -> bool:
        tile = (p.m.inner, p.n.inner)
        return tile in tiles and math.prod(tile) * 2 * p.k.inner <= limits.in_half_blocks

    return ScheduleSpace(workload, coordinates, HalfBlockPoint, legal)


def depthwise(workload: Workload, target: HardwareTarget) -> ScheduleSpace[DepthwisePoint]:
    """Tiles of one or two rows; the padding is part of the input's loads, or comes first where the input is spread. In
    bfloat16 that is dot products of pairs, in square windows with a tap in the middle; or the map of a channel block is
    padded, in float32, and so are the sums. In int8 it may be padded in bytes, for dot products of four taps."""
    limit, (rows, columns) = max_accumulators(target), workload.axes
    paddings: tuple[Padding, ...] = (Padding.AT_FIRST,) if spreads_input(workload) else (Padding.IN_LOADS,)
    if workload.input_precision is not FLOAT32:
        has_middle = rows == columns and rows.dilation == 1 and rows.before == rows.kernel // 2
        in_pairs = workload.input_precision is not BFLOAT16 or has_middle
        paddings = (*(paddings if in_pairs else ()), Padding.BY_BAND)
    if workload.is_quantised and target.has_dots and columns.dilation == 1:
        paddings = (*paddings, Padding.IN_WORDS)
    coordinates = (
        Coordinate.split("h", rows.output, innermost_max=_MAX_TILE_ROWS),
        _columns(columns.output, limit),
        *parallel_choice(target, 1, 2),
        Coordinate.choice("unroll", 0, 1),
        Coordinate.choice("pad_at", *paddings),
    )
    low, high = _TILE_DEPTHWISE
    sizes = {h[1] * w[1] for h in coordinates[0].options for w in coordinates[1].options if h[1] * w[1] <= limit}
    smallest = min(low, max(sizes))
    largest = min((s for s in sizes if s >= smallest), key=lambda s: (max(s, high), s))
    largest = max(largest, min(high, limit))

    def legal(p: DepthwisePoint) -> bool:
        accumulators = p.h.inner * p.w.inner
        if not smallest <= accumulators <= largest or (p.pads_blocks and p.num_fused > 1):
            return False
        return not p.writes_rows_out or accumulators * workload.kernel_area <= _MAX_WRITTEN_OUT_DEPTHWISE

    return ScheduleSpace(workload, coordinates, DepthwisePoint, legal)


def conv(workload: Workload, target: HardwareTarget) -> ScheduleSpace[Any]:
    if in_matrices(workload, target):
        return matrix_space.conv(workload, target)
    limit, (rows, columns) = max_accumulators(target), workload.axes
    blocks = num_blocks(workload.out_channels, target.vector_lanes)
    coordinates = (
        Coordinate.split("h", rows.output, innermost_max=limit),
        _columns(columns.output, limit),
        _channel_blocks(blocks, limit),
        *parallel_choice(target, 1, 2),
        Coordinate.choice("unroll", 0, 1),
        padding_choice(workload),
    )

    def tile(height: int, width: int, vectors: int) -> Tile:  # a row of the kernel is written out
        return Tile(height * width, vectors, columns.kernel, height * width)

    tiles = {
        tile(h[1], w[1], n[1])
        for h, w, n in itertools.product(*(c.options for c in coordinates[:3]))
        if h[1] * w[1] * n[1] <= limit
    }
    allowed = _allowed(tiles, target)

    def legal(p: ConvPoint) -> bool:
        is_fused_cut = p.num_fused > 1 and is_cut(p.n, blocks)
        return tile(p.h.inner, p.w.inner, p.n.inner) in allowed and not is_fused_cut

    return ScheduleSpace(workload, coordinates, ConvPoint, legal)


def _shapes(
    rows: int, columns: Coordinate, vectors: Collection[int], limit: int, fewest: int = 1, narrow: bool = False
) -> set[tuple[int, int, int]]:
    """Rows, columns and vectors of the tiles of at most `limit` sums, in at least `fewest` places as far as the factors
    allow; several rows where a tile has all columns, or anywhere in a narrow map."""
    found = {
        (h_i, w_i, n_i)
        for _, h_i in factorisations(rows, 2, limit)
        for w_o, w_i in columns.options
        for n_i in vectors
        if h_i * w_i * n_i <= limit and (narrow or h_i == 1 or w_o == 1)
    }
    fewest = min(fewest, max(h * w for h, w, _ in found))
    return {(h, w, n) for h, w, n in found if h * w >= fewest}


def _tile_of_sums(columns: Axis, h_i: int, w_i: int, n_i: int, k_i: int, reduction: int) -> Tile:
    """The tile of a convolution of windows whose reduction is ordered so."""
    if reduction == ReductionOrder.TAPS_OUTSIDE:
        return Tile(h_i * w_i, n_i, k_i, h_i * w_i)
    # Innermost, a row of the kernel is written out by the compiler itself, and reads neighbouring columns.
    return Tile(h_i * w_i, n_i, k_i * columns.kernel, h_i * columns.read_by(w_i))


def blockconv(workload: Workload, target: HardwareTarget) -> ScheduleSpace[Any]:
    """Bands of rows in three levels (band, row of the band, row of the tile); columns, channel blocks and the reduction
    in two. A band is what is padded at once, and what all channel blocks are computed from before the next.

    Raises:
        ScheduleError: vectors would be of several groups, which `groupconv` is made for.
    """
    lanes, limit, (rows, columns) = target.vector_lanes, max_accumulators(target), workload.axes
    if workload.outputs_per_group % lanes and workload.groups > 1:
        raise ScheduleError(f"expected groups that fill vectors of {lanes} for blockconv, got workload {workload.key}")
    if in_matrices(workload, target):
        return matrix_space.conv(workload, target)
    blocks = num_blocks(workload.out_channels, lanes)
    pads = workload.kernel_area > 1 or any(max(axis.before, axis.after) for axis in workload.axes)
    per_word = workload.weight_precision.per_word
    k_options = _in_blocks(-(-workload.channels_per_group // per_word), lanes // per_word)
    coordinates = (
        Coordinate.split("h", rows.output, 3, innermost_max=limit),
        _columns(columns.output, limit, _ENOUGH_ACCUMULATORS),
        _channel_blocks(blocks, limit),
        Coordinate("split_k", k_options),
        Coordinate.choice("order", _CHANNELS, _PIXELS),
        *_window_choices(workload, target),
        padding_choice(workload) if pads else Coordinate.choice("pad_at", Padding.IN_LOADS),
    )

    tile = functools.partial(_tile_of_sums, columns)
    # a product of bytes reads its weights from memory, as often as that may be
    fewest = 1 if workload.input_precision is INT8 else _MIN_TILE_PIXELS
    shapes = _shapes(rows.output, coordinates[1], {n for _, n in coordinates[2].options}, limit, fewest)
    reduces = [r for (r,) in next(c.options for c in coordinates if c.name == "reduce")]
    tiles = {tile(*shape, k, r) for shape in shapes for _, k in k_options for r in reduces}
    allowed = _allowed(tiles, target, _MIN_ACCUMULATORS)

    def legal(p: BlockConvPoint) -> bool:
        (_, _, h_i), (w_o, w_i), n_i = p.h, p.w, p.n.inner
        accumulators = h_i * w_i * n_i
        written_out = accumulators * p.k.inner * (columns.kernel if p.writes_columns_out else 1)
        if tile(h_i, w_i, n_i, p.k.inner, p.reduction) not in allowed or (h_i > 1 and w_o > 1):
            return False
        if written_out > max(_MAX_WRITTEN_OUT, accumulators) or (p.num_fused > 1 and is_cut(p.n, blocks)):
            return False
        return is_banded_once(p)

    return ScheduleSpace(workload, coordinates, BlockConvPoint, legal)


def groupconv(workload: Workload, target: HardwareTarget) -> ScheduleSpace[GroupConvPoint]:
    """Sets of groups one after the other, in bands of rows like `blockconv`'s: no two sets read the same inputs. A tile
    has the vectors of some sets, or some of a set's, whose sums are kept until all are there.

    Raises:
        ScheduleError: groups fill their vectors: block convolutions are made for these.
    """
    lanes, limit, (rows, columns) = target.vector_lanes, max_accumulators(target), workload.axes
    shared = abreast(workload, lanes)
    if shared.groups == 1:
        raise ScheduleError(
            f"expected groups that do not fill vectors of {lanes} for groupconv, got workload {workload.key}"
        )
    has_gaps = any(axis.has_gaps for axis in workload.axes)
    coordinates = (
        Coordinate.split("h", rows.output, 3, innermost_max=limit),
        _columns(columns.output, limit, _ENOUGH_ACCUMULATORS),
        Coordinate.split("n", shared.sets * shared.vectors, 3, innermost_max=limit),
        Coordinate("split_k", factorisations(workload.channels_per_group, 2, _MAX_UNROLLED_REDUCTION)),
        *_window_choices(workload, target),
        Coordinate.choice("pad_at", Padding.AT_FIRST if has_gaps else Padding.BY_BAND),
    )

    def fits(n: Vectors) -> bool:
        return n.passes * n.inner == shared.vectors or (n.passes == 1 and n.inner % shared.vectors == 0)

    tile = functools.partial(_tile_of_sums, columns)
    by_name = {c.name: c.options for c in coordinates}
    shapes = _shapes(rows.output, coordinates[1], {n[-1] for n in by_name["split_n"] if fits(Vectors(*n))}, limit)
    tiles = {tile(*shape, k, r) for shape in shapes for _, k in by_name["split_k"] for (r,) in by_name["reduce"]}
    allowed = _allowed(tiles, target, _MIN_ACCUMULATORS)

    def legal(p: GroupConvPoint) -> bool:
        (_, steps, h_i), (w_o, w_i) = p.h, p.w
        if not fits(p.n) or (h_i > 1 and w_o > 1) or (has_gaps and steps > 1):
            return False
        accumulators = h_i * w_i * p.n.inner
        written_out = accumulators * p.k.inner * (columns.kernel if p.writes_columns_out else 1)
        return tile(h_i, w_i, p.n.inner, p.k.inner, p.reduction) in allowed and written_out <= max(
            _MAX_WRITTEN_OUT, accumulators
        )

    return ScheduleSpace(workload, coordinates, GroupConvPoint, legal)


def upconv(workload: Workload, target: HardwareTarget) -> ScheduleSpace[WinogradPoint]:
    """Bands of rows and columns of a phase; the sums of all phases of a band are kept."""
    phase = phase_of(workload)
    space = _sums_of_bands(phase, target, phase.axes[0].output, phase.axes[1].output, phase.kernel_area)
    return dataclasses.replace(space, workload=workload)


def winograd(workload: Workload, target: HardwareTarget) -> ScheduleSpace[WinogradPoint]:
    """Like `blockconv`, but its columns (or rows) are Winograd tiles; the sums of all products of a band are kept."""
    axis, (rows, columns) = winograd_axis(workload), workload.axes
    along = workload.axes[axis]
    tiles = -(-along.output // transforms(along.kernel, along.stride).outputs)
    if axis == 0:
        return _sums_of_bands(workload, target, tiles, columns.output, columns.kernel)
    return _sums_of_bands(workload, target, rows.output, tiles, rows.kernel)


def winograd2(workload: Workload, target: HardwareTarget) -> ScheduleSpace[WinogradPoint]:
    """Like `winograd`, with tiles of rows and columns, several for each weight that is loaded: there are twice as many
    weights, each for half as many sums."""
    plans = winograd_plans(workload)
    rows, columns = (-(-axis.output // plan.outputs) for axis, plan in zip(workload.axes, plans, strict=True))
    return _sums_of_bands(workload, target, rows, columns, 1, _MIN_TILE_PIXELS)


def _sums_of_bands(
    workload: Workload, target: HardwareTarget, size: int, columns: int, taps: int, fewest_places: int = 1
) -> ScheduleSpace[WinogradPoint]:
    """The space of sums in `size` rows and `columns`, of at least so many places as far as the factors allow; the
    compiler writes out the terms of `taps` by itself."""
    lanes, limit = target.vector_lanes, max_accumulators(target)
    blocks = num_blocks(workload.out_channels, lanes)
    k_options = _in_blocks(workload.in_channels, lanes)
    coordinates = (
        Coordinate.split("h", size, 3, innermost_max=limit),
        _columns(columns, limit, _ENOUGH_ACCUMULATORS),
        _channel_blocks(blocks, limit),
        Coordinate("split_k", k_options),
        Coordinate.choice("order", _CHANNELS, _PIXELS),
        *parallel_choice(target, 1, 2),
        padding_choice(workload),
    )
    narrow = columns <= _NARROW_COLUMNS
    shapes = _shapes(size, coordinates[1], {n for _, n in coordinates[2].options}, limit, fewest_places, narrow)
    tiles = {Tile(h * w, n, k * taps, h * w) for h, w, n in shapes for _, k in k_options}
    allowed = _allowed(tiles, target, _MIN_ACCUMULATORS)

    def legal(p: WinogradPoint) -> bool:
        (bands, _, rows), (w_o, w_i), (n_o, n_i) = p.h, p.w, p.n
        accumulators = rows * w_i * n_i
        tile = Tile(rows * w_i, n_i, p.k.inner * taps, rows * w_i)
        if tile not in allowed or not (narrow or rows == 1 or w_o == 1):
            return False
        if accumulators * p.k.inner > max(_MAX_WRITTEN_OUT, accumulators):
            return False
        if (p.order is _PIXELS and (n_o == 1 or bands == 1)) or (p.num_fused > 1 and is_cut(p.n, blocks)):
            return False
        return p.padding is Padding.AT_FIRST or (bands > 1 and (p.order is _PIXELS or n_o == 1))

    return ScheduleSpace(workload, coordinates, WinogradPoint, legal)


def pool(workload: Workload, target: HardwareTarget) -> ScheduleSpace[PoolPoint]:
    limit = max_accumulators(target)
    coordinates = (
        Coordinate.split("c", num_blocks(workload.out_channels, target.vector_lanes), innermost_max=limit),
        Coordinate.split("m", workload.input_pixels, innermost_max=_MAX_UNROLLED_REDUCTION),
    )
    return ScheduleSpace(workload, coordinates, PoolPoint, lambda p: True)
