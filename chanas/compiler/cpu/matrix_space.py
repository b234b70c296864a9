"""Schedule spaces of convolutions whose sums are in matrix registers (`tiles`): pixels × channel blocks, without
a loop over input channels."""

from __future__ import annotations

from chanas.compiler.cpu.choices import is_banded_once, is_first_order, padding_choice, parallel_choice, scale_choice
from chanas.compiler.cpu.points import LoopOrder, MatrixConvPoint, MatrixPoint
from chanas.compiler.space import Coordinate, ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.operators.layout import num_blocks
from chanas.operators.precision import BFLOAT16, FLOAT32
from chanas.operators.workload import Workload

# Pixels of a tile, which matrix registers have 16 of each.
_MIN_PIXELS, _MAX_PIXELS = 8, 256


def in_matrices(workload: Workload, target: HardwareTarget) -> bool:
    """True of a convolution whose sums are in matrix registers; of one pixel they are not, since it waits for its
    weights. In bfloat16 an image is rounded for them."""
    in_words = workload.weight_precision.per_word > 1 or (workload.reads_image and workload.dtype == BFLOAT16.dtype)
    return target.has_matrices and in_words and workload.groups == 1 and workload.output_pixels > 1


def _most_sums(target: HardwareTarget) -> int:
    """Pixels times channel blocks whose sums fit in half of the first cache."""
    return target.l1_bytes // 2 // (target.vector_lanes * FLOAT32.item_bytes)


def pointwise(workload: Workload, target: HardwareTarget) -> ScheduleSpace[MatrixPoint]:
    """Tiles of pixels that fill half of a register at least, as far as the factors allow. Inputs of several channel
    blocks may be packed; those with gaps between pixels are."""
    lanes, has_strides = target.vector_lanes, any(axis.stride > 1 for axis in workload.axes)
    packs = (1,) if has_strides else (0, 1) if num_blocks(workload.in_channels, lanes) > 1 else (0,)
    coordinates = (
        Coordinate.split("m", workload.output_pixels, innermost_max=_MAX_PIXELS),
        Coordinate.split("n", num_blocks(workload.out_channels, lanes)),
        Coordinate.choice("order", *LoopOrder),
        *parallel_choice(target, 1, 2),
        *scale_choice(workload),
        Coordinate.choice("pack", *packs),
    )
    fewest = min(_MIN_PIXELS, max(m for _, m in coordinates[0].options))
    most = max(_most_sums(target), fewest)

    def legal(p: MatrixPoint) -> bool:
        if not fewest <= p.m.inner <= p.m.inner * p.n.inner <= most or (p.packs and p.scales_tiles):
            return False
        return is_first_order(p)

    return ScheduleSpace(workload, coordinates, MatrixPoint, legal)


def conv(workload: Workload, target: HardwareTarget) -> ScheduleSpace[MatrixConvPoint]:
    """Bands of rows like those of convolutions in vectors; tiles of several rows where they have all columns."""
    rows, columns = workload.axes
    coordinates = (
        Coordinate.split("h", rows.output, 3, innermost_max=_MAX_PIXELS),
        Coordinate.split("w", columns.output, innermost_max=_MAX_PIXELS),
        Coordinate.split("n", num_blocks(workload.out_channels, target.vector_lanes)),
        Coordinate.choice("order", *LoopOrder),
        *parallel_choice(target, 1, 2),
        padding_choice(workload),
    )
    widest = max(w for _, w in coordinates[1].options)
    fewest, most = min(_MIN_PIXELS, widest), max(_most_sums(target), widest)

    def legal(p: MatrixConvPoint) -> bool:
        rows = p.h.tile_rows
        is_tile = fewest <= p.w.inner <= rows * p.w.inner * p.n.inner <= most and (rows == 1 or p.w.outer == 1)
        return is_tile and is_banded_once(p)

    return ScheduleSpace(workload, coordinates, MatrixConvPoint, legal)
