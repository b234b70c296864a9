"""Schedule spaces of GPUs: what is a vector register and a core on a CPU is a thread and a block here.

Every loop over outputs is split in three, whose product is its extent: blocks of the grid, threads of a block, and
values of a thread (kept in registers); reductions in two or three. A point lists the factors, then the width of the
loads into shared memory, what is unrolled, which loop runs over neighbouring blocks. Limits come from the target's
descriptor. Spaces are larger than a CPU's (up to millions of points) and drawn from, not listed.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from chanas.errors import ScheduleError
from chanas.gpu import GPUFeatures
from chanas.prescheduler.cuda_operators import is_dense, num_rows
from chanas.prescheduler.space import Coordinate, Named, Point, ScheduleSpace, factorisations
from chanas.prescheduler.workload import Workload
from chanas.target import HardwareTarget

_FLOAT_BYTES = 4
# Registers of a thread besides its accumulators: addresses, loop counters, what a load brings.
_RESERVED_REGISTERS = 24
# More threads in one direction than these leave too few in the other; more values than these spill.
_MAX_THREADS, _MAX_VALUES, _MAX_ACCUMULATORS = 64, 8, 64
_MAX_VALUES_DEPTHWISE = 16
# Input channels (times taps) that a block takes into shared memory at once.
_MAX_DEPTH = 64
# Threads that share one sum, and terms of it that are written out.
_MAX_SHARED_SUM, _MAX_WRITTEN_OUT = 64, 16
# Multiply-adds of one thread that are written out: the compiler's time grows with them.
_MAX_UNROLLED = 128
# Spaces of no more points, legal or not, are listed; of the others points are drawn until they are legal.
_MAX_LISTED = 4096
_ATTEMPTS_PER_POINT = 2000
_VECTORS = (1, 2, 4)


class GPUSpace(ScheduleSpace):
    """A schedule space whose points are drawn, because they are too many to be listed."""

    def sample(self, num: int, rng: np.random.Generator) -> list[Point]:
        """Up to `num` distinct random legal points, each as likely as any other.

        Raises:
            ScheduleError: no point is within the limits.
        """
        points = self._drawn(num, rng)
        if num and not points:
            raise ScheduleError(f"no schedule of {self.workload.key} is within the limits of the GPU's description")
        return points

    def _drawn(self, num: int, rng: np.random.Generator) -> list[Point]:
        if math.prod(len(c.options) for c in self.coordinates) <= _MAX_LISTED:
            return super().sample(num, rng)
        found: dict[Point, None] = {}
        for _ in range(num * _ATTEMPTS_PER_POINT):
            if len(found) >= num:
                break
            named = {c.name: c.options[rng.integers(len(c.options))] for c in self.coordinates}
            if self.legal(named):
                found[self.encode(named)] = None
        return list(found)


@functools.lru_cache(maxsize=512)
def gpu_space(workload: Workload, target: HardwareTarget) -> GPUSpace:
    """The space of a workload on a GPU, from the limits of its descriptor.

    Raises:
        ScheduleError: the operator is not there for GPUs.
        TargetError: the target is none.
    """
    gpu = target.required_gpu
    if workload.op == "depthwise":
        return _depthwise(workload, gpu)
    if workload.op == "pool" or is_dense(workload):
        return _reduction(workload, gpu)
    if workload.op in ("pointwise", "conv", "blockconv"):
        return _product(workload, gpu)
    raise ScheduleError(f"operator {workload.op} is not there for GPUs ({workload.key})")


def _tiles(name: str, extent: int, threads: int = _MAX_THREADS, values: int = _MAX_VALUES) -> Coordinate:
    """Blocks, threads and values of a loop over outputs."""
    options = [o for o in factorisations(extent, 3, values) if o[1] <= threads]
    return Coordinate(f"split_{name}", tuple(options))


def _threads_at_least(gpu: GPUFeatures, *coordinates: Coordinate) -> int:
    """A warp, or what a small operator allows."""
    return min(gpu.warp_size, math.prod(max(o[1] for o in c.options) for c in coordinates))


def _fits(gpu: GPUFeatures, threads: int, values: int, shared_floats: int) -> bool:
    """Whether a block's threads, registers and shared memory are within the GPU's limits."""
    registers = values + _RESERVED_REGISTERS
    return (
        threads <= gpu.max_threads_per_block
        and registers <= gpu.max_registers_per_thread
        and threads * registers <= gpu.registers_per_block
        and shared_floats * _FLOAT_BYTES <= gpu.max_shared_bytes_per_block
    )


def _vectors(extent: int) -> tuple[int, ...]:
    """Widths of a load along a loop: those of a CUDA float, float2 and float4 that divide it."""
    return tuple(v for v in _VECTORS if extent % v == 0)


def _product(workload: Workload, gpu: GPUFeatures) -> GPUSpace:
    """Rows of pixels times columns of output channels; taps and input channels in two."""
    taps = workload.kernel_size**2
    rows, columns = _tiles("m", num_rows(workload.output_size)), _tiles("n", workload.out_channels)
    images = workload.op == "conv"  # neighbouring channels of an image are far apart
    coordinates = (
        rows,
        columns,
        Coordinate("split_tap", factorisations(taps, 2, taps if images else workload.kernel_size)),
        Coordinate("split_c", factorisations(workload.in_channels, 2, _MAX_DEPTH)),
        Coordinate.choice("load_input", *((1,) if images else _vectors(workload.in_channels))),
        Coordinate.choice("load_weights", *_vectors(workload.out_channels)),
        Coordinate.choice("order", 0, 1),
        Coordinate.choice("unroll", 0, 1),
    )
    fewest = _threads_at_least(gpu, rows, columns)

    def legal(p: Named) -> bool:
        (m_b, m_t, m_v), (n_b, n_t, n_v), tap, c = p["split_m"], p["split_n"], p["split_tap"][1], p["split_c"][1]
        depth, height, width = tap * c, m_t * m_v, n_t * n_v
        threads, accumulators = m_t * n_t, m_v * n_v
        if not fewest <= threads or accumulators > _MAX_ACCUMULATORS or depth > _MAX_DEPTH:
            return False
        if c % p["load_input"][0] or width % p["load_weights"][0]:
            return False
        if p["unroll"][0] and accumulators * depth > _MAX_UNROLLED:
            return False
        if p["order"][0] and (m_b == 1 or n_b == 1):  # one program in both orders
            return False
        return _fits(gpu, threads, accumulators + m_v + n_v, depth * (height + width))

    return GPUSpace(workload, coordinates, legal)


def _depthwise(workload: Workload, gpu: GPUFeatures) -> GPUSpace:
    """Tiles of rows, columns and channels; the input under a block's tile in shared memory, or read where it is."""
    size, k, stride = workload.output_size, workload.kernel_size, workload.stride
    splits = (_tiles("h", size, 16, 4), _tiles("w", size, 32, 4), _tiles("c", workload.out_channels, values=4))
    coordinates = (
        *splits,
        Coordinate.choice("cache", 0, 1),
        Coordinate.choice("load_input", *_vectors(workload.out_channels)),
        Coordinate.choice("unroll", 0, 1),
    )
    fewest = _threads_at_least(gpu, *splits)

    def legal(p: Named) -> bool:
        h, w, c = (p[f"split_{loop}"] for loop in "hwc")
        threads, accumulators, channels = h[1] * w[1] * c[1], h[2] * w[2] * c[2], c[1] * c[2]
        halo = ((h[1] * h[2] - 1) * stride + k) * ((w[1] * w[2] - 1) * stride + k) * channels if p["cache"][0] else 0
        if not fewest <= threads or c[2] not in _VECTORS:
            return False
        if channels % p["load_input"][0] or (not p["cache"][0] and p["load_input"][0] > 1):
            return False
        if accumulators > _MAX_VALUES_DEPTHWISE or (p["unroll"][0] and accumulators * k * k > _MAX_UNROLLED):
            return False
        return _fits(gpu, threads, 2 * accumulators, halo)

    return GPUSpace(workload, coordinates, legal)


def _reduction(workload: Workload, gpu: GPUFeatures) -> GPUSpace:
    """One sum for each output channel, shared by threads: terms of a thread, threads of a sum, terms written out."""
    terms = workload.input_size**2 if workload.op == "pool" else workload.in_channels
    columns = Coordinate("split_n", tuple(o for o in factorisations(workload.out_channels, 2, _MAX_THREADS)))
    sums = Coordinate(
        "split_k", tuple(o for o in factorisations(terms, 3, _MAX_WRITTEN_OUT) if o[1] <= _MAX_SHARED_SUM)
    )
    fewest = min(gpu.warp_size, max(o[1] for o in columns.options) * max(o[1] for o in sums.options))

    def legal(p: Named) -> bool:
        threads = p["split_n"][1] * p["split_k"][1]
        return threads >= fewest and _fits(gpu, threads, 2 * p["split_k"][2], threads)

    return GPUSpace(workload, (columns, sums), legal)
