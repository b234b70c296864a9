"""Schedule spaces of GPUs: what is a vector register and a core on a CPU is a thread and a block here.

Every loop over outputs is split in three, whose product is its extent: blocks of the grid, threads of a block, and
values of a thread (kept in registers); reductions in two or three. A point lists the factors, then the width of the
loads into shared memory, what is unrolled, which loop runs over neighbouring blocks; of products also whether the next
stretch is loaded while one is used (`stages`), how many groups of threads share a sum (`shares`), and whether tensor
cores multiply (`mma`). Limits come from the target's descriptor. Spaces are larger than a CPU's (up to millions of
points) and drawn from, not listed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from chanas.compiler.cuda.intrinsics import TensorCore
from chanas.compiler.cuda.operators import output_rows, row_words
from chanas.compiler.cuda.points import (
    MMA_COLUMNS,
    MMA_ROWS,
    WORD_BYTES,
    DepthwisePoint,
    ProductPlan,
    ProductPoint,
    ReductionPoint,
    SqueezePoint,
    product_plan,
    tensor_core_of,
)
from chanas.compiler.cuda.squeeze import squeeze_plan
from chanas.compiler.space import Coordinate, Decoded, Named, Point, ScheduleSpace, factorisations
from chanas.core.gpu import GPUFeatures
from chanas.errors import ScheduleError
from chanas.operators.workload import Workload

# Registers of a thread besides its accumulators: addresses, loop counters, what a load brings.
_RESERVED_REGISTERS = 24
# More threads in one direction than these leave too few in the other; more values than these spill.
_MAX_THREADS, _MAX_VALUES, _MAX_ACCUMULATORS = 64, 8, 64
_MAX_VALUES_DEPTHWISE = 16
# Input channels (times taps) that a block takes into shared memory at once.
_MAX_DEPTH = 64
# Threads that share one sum, and terms of it that are written out.
_MAX_SHARED_SUM, _MAX_WRITTEN_OUT = 64, 16
# Multiply-adds of one thread that are written out, and `mma.sync` of one warp: the compiler's time grows with them.
_MAX_UNROLLED, _MAX_MMA = 128, 32
# Groups of threads among which a tile's sums are shared out, for maps that are too small to fill the GPU by themselves.
_SHARES = (1, 2, 4, 8)
# Words that a thread has on their way from memory, loads of one side among them; rows and columns of a block's tile.
_MAX_IN_FLIGHT, _MAX_LOADS, _MAX_TILE = 32, 8, 256
# Warps in one direction, and rows or columns of one.
_WARPS, _MAX_WARP_TILE = (1, 2, 4), 64
# Spaces of no more points, legal or not, are listed; of the others points are drawn until they are legal.
_MAX_LISTED = 4096
_ATTEMPTS_PER_POINT = 2000
# Points that are drawn at once where others would take all.
_MAX_DRAWN = 128
_VECTORS = (1, 2, 4)


@dataclass(frozen=True)
class GPUSpace(ScheduleSpace[Decoded]):
    """A schedule space whose points are drawn, because they are too many to be listed.

    kinds  where a coordinate's options depend on what multiplies (threads or warps): those of each, of which a point
           has one; empty where they do not
    """

    kinds: tuple[dict[str, tuple[tuple[int, ...], ...]], ...] = field(default=(), compare=False)

    extra_knobs: ClassVar[tuple[str, ...]] = ()

    def takes(self, coordinate: Coordinate, group: tuple[int, ...]) -> bool:
        return group in coordinate.options

    def groups(self, point: Point) -> Named:
        """The groups of a point by name: what a GPU's limits rule out is no schedule.

        Raises:
            ScheduleError: the point has the wrong length, a group is not among its options, or the whole is illegal.
        """
        named = super().groups(point)
        if not self.legal(named):
            raise ScheduleError(f"point {list(point)} is not legal for workload {self.workload.key}")
        return named

    @property
    def is_listed(self) -> bool:
        return self.num_combinations <= _MAX_LISTED

    @property
    def middle(self) -> Point:
        return self.sample(1, np.random.default_rng(0))[0]

    def shuffled(self, rng: np.random.Generator) -> list[Point]:
        return self.sample(min(self.num_points, _MAX_DRAWN), rng)

    def sample(self, num: int, rng: np.random.Generator) -> list[Point]:
        """Up to `num` distinct random legal points, of each kind about as many; each as likely as any other of it.

        Raises:
            ScheduleError: no point is within the limits.
        """
        points = self._drawn(num, rng)
        if num and not points:
            raise ScheduleError(f"no schedule of {self.workload.key} is within the limits of the GPU's description")
        return points

    def _drawn(self, num: int, rng: np.random.Generator) -> list[Point]:
        if not self.kinds and self.is_listed:
            return super().sample(num, rng)
        found: dict[Point, None] = {}
        for attempt in range(num * _ATTEMPTS_PER_POINT):
            if len(found) >= num:
                break
            kind = self.kinds[attempt % len(self.kinds)] if self.kinds else {}
            options = ((c.name, kind.get(c.name, c.options)) for c in self.coordinates)
            named = {name: some[rng.integers(len(some))] for name, some in options}
            if self.legal(named):
                found[self.encode(named)] = None
        return list(found)


def _tiles(name: str, extent: int, threads: int = _MAX_THREADS, values: int = _MAX_VALUES) -> Coordinate:
    """Blocks, threads and values of a loop over outputs."""
    options = [o for o in factorisations(extent, 3, values) if o[1] <= threads]
    return Coordinate(f"split_{name}", tuple(options))


def _threads_at_least(gpu: GPUFeatures, *coordinates: Coordinate) -> int:
    """A warp, or what a small operator allows."""
    return min(gpu.warp_size, math.prod(max(o[1] for o in c.options) for c in coordinates))


def _fits(gpu: GPUFeatures, threads: int, values: int, shared_floats: int) -> bool:
    """True if a block's threads, registers and shared memory are within the GPU's limits."""
    registers = values + _RESERVED_REGISTERS
    return (
        threads <= gpu.max_threads_per_block
        and registers <= gpu.max_registers_per_thread
        and threads * registers <= gpu.registers_per_block
        and shared_floats * WORD_BYTES <= gpu.max_shared_bytes_per_block
    )


def _vectors(extent: int) -> tuple[int, ...]:
    """Widths of a load along a loop: those of a CUDA float, float2 and float4 that divide it."""
    return tuple(v for v in _VECTORS if extent % v == 0)


def _operands(p: ProductPoint, plan: ProductPlan, per_word: int, core: TensorCore | None) -> int | None:
    """Registers of a thread's operands of products; None where they don't divide the tile, or are too many products to
    write one after the other."""
    rows, columns, at_once = p.m.values, p.n.values, p.at_once
    if p.on_tensor_cores:
        products = plan.values // 4 * (plan.depth * per_word // core.depth) if core else 0
        return None if at_once > 1 or products > _MAX_MMA else rows // MMA_ROWS * 4 + columns // MMA_COLUMNS * 2
    if plan.depth % at_once or plan.values * at_once * per_word > _MAX_UNROLLED:
        return None
    return per_word * (rows * at_once + columns)


def product(workload: Workload, gpu: GPUFeatures) -> GPUSpace[ProductPoint]:
    """Rows of pixels (of all images together) times columns of output channels; taps and input channels in two.

    With tensor cores (`mma`) threads are warps, whose tiles have 16 rows and 8 columns or multiples; they may stand out
    over the edge, so that the factors' product is the loop's extent or more.
    """
    taps, channels, core = workload.kernel_size**2, workload.in_channels, tensor_core_of(workload, gpu)
    rows, columns, per_word = output_rows(workload), workload.out_channels, workload.input_precision.per_word
    images = workload.op == "conv"  # neighbouring channels of an image are far apart
    by_thread = {
        "split_m": _tiles("m", rows).options,
        "split_n": _tiles("n", columns).options,
        "split_tap": factorisations(taps, 2, taps if images else workload.kernel_size),
        "split_c": factorisations(channels, 2, _MAX_DEPTH * per_word),
    }
    by_warp = {} if core is None or columns % 2 else _warp_tiles(rows, columns, taps, channels, core)
    splits = tuple(
        Coordinate(name, tuple(dict.fromkeys((*options, *by_warp.get(name, ())))))
        for name, options in by_thread.items()
    )
    coordinates = (
        *splits,
        Coordinate.choice("load_input", *((1,) if images else _vectors(row_words(workload)))),
        Coordinate.choice("load_weights", *_vectors(columns)),
        Coordinate.choice("order", 0, 1),
        Coordinate.choice("unroll", *_VECTORS),
        Coordinate.choice("stages", 1, 2),
        Coordinate.choice("shares", *_SHARES),
        Coordinate.choice("mma", *((0, 1) if by_warp else (0,))),
    )
    most = math.prod(max(o[1] for o in by_thread[s]) for s in ("split_m", "split_n"))
    fewest = min(gpu.warp_size, -(-most // 2))  # of a few columns of a few images half: all would leave few points

    def legal(p: ProductPoint) -> bool:
        options = by_warp if p.on_tensor_cores else by_thread
        if any(factors not in options[name] for name, factors in p.splits.items()):
            return False
        plan = product_plan(workload, p, gpu)
        if p.by_columns and 1 in plan.blocks:  # one program in both orders
            return False
        if plan.num_stretches % plan.shares or (plan.stages > 1 and plan.stretches_each == 1):
            return False
        if p.channels.inner % (per_word * plan.input_vector) or plan.width % plan.weight_vector:
            return False
        if plan.depth > _MAX_DEPTH or plan.words_in_flight > _MAX_IN_FLIGHT:
            return False
        if max(plan.input_turns, plan.weight_turns) > _MAX_LOADS:
            return False
        if not fewest <= plan.threads <= gpu.max_threads_per_block:
            return False
        operands = _operands(p, plan, per_word, core)
        if operands is None:
            return False
        registers = plan.values + operands + plan.words_in_flight
        if plan.values > _MAX_ACCUMULATORS or plan.height > _MAX_TILE or plan.width > _MAX_TILE:
            return False
        return _fits(gpu, plan.threads * plan.shares, registers, plan.shared_bytes // WORD_BYTES)

    kinds = tuple({**of, "mma": ((i,),)} for i, of in enumerate((by_thread, by_warp))) if by_warp else ()
    return GPUSpace(workload, coordinates, ProductPoint, legal, kinds=kinds)


def _warp_tiles(
    rows: int, columns: int, taps: int, channels: int, core: TensorCore
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Splits for tensor cores: (blocks, warps, rows or columns of a warp), one tap at a time, whole instructions."""

    def over(extent: int, unit: int) -> tuple[tuple[int, ...], ...]:
        """List the tiles that cover a loop and reach beyond its edge by less than a warp's part."""
        found = []
        for warps in _WARPS:
            for part in range(unit, _MAX_WARP_TILE + 1, unit):
                tile = warps * part
                if part & (part - 1) == 0 or extent % tile == 0:
                    blocks = -(-extent // tile)
                    if blocks * tile - extent < max(part, unit):
                        found.append((blocks, warps, part))
        return tuple(found)

    stretches = tuple(
        (-(-channels // depth), depth)
        for depth in (core.depth, 2 * core.depth, 4 * core.depth)
        if depth < channels + core.depth
    )
    return {
        "split_m": over(rows, MMA_ROWS),
        "split_n": over(columns, MMA_COLUMNS),
        "split_tap": ((taps, 1),),
        "split_c": stretches,
    }


def depthwise(workload: Workload, gpu: GPUFeatures) -> GPUSpace[DepthwisePoint]:
    """Tiles of rows, columns and channels of one image; the input under a block's tile in shared memory, or read where
    it is."""
    size, k, stride = workload.output_size, workload.kernel_size, workload.stride
    splits = (_tiles("h", size, 16, 4), _tiles("w", size, 32, 4), _tiles("c", workload.out_channels, values=4))
    coordinates = (
        *splits,
        Coordinate.choice("cache", 0, 1),
        Coordinate.choice("load_input", *_vectors(workload.out_channels)),
        Coordinate.choice("unroll", 0, 1),
    )
    fewest = _threads_at_least(gpu, *splits)

    def legal(p: DepthwisePoint) -> bool:
        (_, h_t, h_v), (_, w_t, w_v), (_, c_t, c_v) = p.h, p.w, p.c
        threads, accumulators, channels = h_t * w_t * c_t, h_v * w_v * c_v, c_t * c_v
        halo = ((h_t * h_v - 1) * stride + k) * ((w_t * w_v - 1) * stride + k) * channels if p.in_shared_memory else 0
        if not fewest <= threads or c_v not in _VECTORS:
            return False
        if channels % p.input_vector or (not p.in_shared_memory and p.input_vector > 1):
            return False
        if accumulators > _MAX_VALUES_DEPTHWISE or (p.writes_taps_out and accumulators * k * k > _MAX_UNROLLED):
            return False
        return _fits(gpu, threads, 2 * accumulators, halo)

    return GPUSpace(workload, coordinates, DepthwisePoint, legal)


def reduction(workload: Workload, gpu: GPUFeatures) -> GPUSpace[ReductionPoint]:
    """One sum for each output channel of an image, shared by threads: terms of a thread, threads of a sum, terms
    written out."""
    terms = workload.input_size**2 if workload.op == "pool" else workload.in_channels
    columns = Coordinate.split("n", workload.out_channels, innermost_max=_MAX_THREADS)
    sums = Coordinate(
        "split_k", tuple(o for o in factorisations(terms, 3, _MAX_WRITTEN_OUT) if o[1] <= _MAX_SHARED_SUM)
    )
    fewest = _threads_at_least(gpu, columns, sums)

    def legal(p: ReductionPoint) -> bool:
        threads = p.n.inner * p.k.threads
        return threads >= fewest and _fits(gpu, threads, 2 * p.k.written_out, threads)

    return GPUSpace(workload, (columns, sums), ReductionPoint, legal)


def squeeze(workload: Workload, gpu: GPUFeatures) -> GPUSpace[SqueezePoint]:
    """Columns of the dense layer in two; how many threads share a column's sum; loads of a thread."""
    coordinates = (
        Coordinate.split("n", workload.out_channels, innermost_max=_MAX_THREADS),
        Coordinate.choice("shares", *(1 << i for i in range(11))),
        Coordinate.choice("load_input", *_vectors(row_words(workload))),
        Coordinate.choice("unroll", *_VECTORS, 8),
    )

    def legal(p: SqueezePoint) -> bool:
        plan = squeeze_plan(workload, p)
        loads = plan.vector * plan.at_once
        if plan.threads < gpu.warp_size or plan.shares > plan.words or loads > _MAX_IN_FLIGHT // 2:
            return False
        return _fits(gpu, plan.threads, 2 * loads * plan.per_word, plan.shared_bytes // WORD_BYTES)

    return GPUSpace(workload, coordinates, SqueezePoint, legal)
