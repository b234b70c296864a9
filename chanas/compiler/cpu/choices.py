"""Coordinates and rules that the spaces of several operator families share: what is fused, padded, scaled, and when."""

from __future__ import annotations

from chanas.compiler.cpu.points import (
    BlockConvPoint,
    LoopOrder,
    MatrixConvPoint,
    MatrixPoint,
    Padding,
    PointwisePoint,
)
from chanas.compiler.space import Coordinate, Split
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Workload, scales_weights


def parallel_choice(target: HardwareTarget, *fused: int) -> tuple[Coordinate, ...]:
    """The number of outer loops that are fused into the parallel one; a choice only with more than one thread."""
    return (Coordinate.choice("fuse", *fused),) if target.num_threads > 1 else ()


def scale_choice(workload: Workload) -> tuple[Coordinate, ...]:
    """The choice to multiply the input by its gate (and what else comes before the product) tile by tile, where tiles
    have no gaps; weights are always multiplied at once."""
    can_be = workload.scaled and not scales_weights(workload) and not any(axis.has_gaps for axis in workload.axes)
    return (Coordinate.choice("scale_at", 0, 1),) if can_be else ()


def padding_choice(workload: Workload) -> Coordinate:
    """Padding at first or by bands; at first where windows have gaps between them, whose bands TVM fails to size."""
    has_gaps = any(axis.has_gaps for axis in workload.axes)
    return Coordinate.choice("pad_at", Padding.AT_FIRST, *(() if has_gaps else (Padding.BY_BAND,)))


def is_first_order(p: PointwisePoint | MatrixPoint) -> bool:
    """False of a second order of loops, one of which has one tile: both are one program."""
    return p.order is LoopOrder.CHANNELS_OUTSIDE or (p.m.outer > 1 and p.n.outer > 1)


def is_cut(split: Split, extent: int) -> bool:
    """True of tiles the last of which is smaller. A loop over such is in two parts, so that it can't be fused."""
    return split.outer * split.inner > extent


def is_banded_once(p: BlockConvPoint | MatrixConvPoint) -> bool:
    """False of bands of rows that nothing is computed for: where nothing is padded with a band each is one tile high,
    and with one band, or one channel block inside of it, both orders of loops are one program."""
    if p.order is LoopOrder.CHANNELS_OUTSIDE and p.padding is not Padding.BY_BAND:
        return p.h.steps == 1
    is_outside = p.order is LoopOrder.PIXELS_OUTSIDE
    return p.h.bands > 1 and (p.n.outer > 1 if is_outside else p.n.outer == 1)
