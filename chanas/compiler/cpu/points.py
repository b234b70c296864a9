"""Points of CPU schedule spaces with names: a dataclass for each family, a field for each coordinate.

`Split` is (outer, inner): loops over tiles and inside a tile, or of a reduction the loop that stays and what is written
out. Fields of coordinates that a space does not have stand at what their absence means.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from chanas.compiler.space import Named, Split, choice, loop


class LoopOrder(IntEnum):
    """The outermost loop over the output."""

    CHANNELS_OUTSIDE = 0
    PIXELS_OUTSIDE = 1


class ReductionOrder(IntEnum):
    """The outermost loop over the terms of a sum: groups of input channels, or taps of the kernel."""

    CHANNELS_OUTSIDE = 0
    TAPS_OUTSIDE = 1


class Padding(IntEnum):
    """Time of padding: all of the input at first, the rows of a band with the band, or each value as it is loaded (a
    1×1 convolution has nothing to pad). Of a depthwise convolution a band is a channel block; in int8 it may stay in
    bytes, of which neighbours are words as they are loaded."""

    AT_FIRST = 0
    BY_BAND = 1
    IN_LOADS = 2
    IN_WORDS = 3


class Bands(NamedTuple):
    """Factors of the loop over output rows: bands, steps of a band, rows of a tile."""

    bands: int
    steps: int
    tile_rows: int


@dataclass(frozen=True, slots=True)
class PointwisePoint:
    """m: pixels; n: channel blocks; k: input channels, or pairs of them in bfloat16; num_fused: outer loops that become
    the parallel one; scales_tiles: a gate multiplies the input tile by tile, not all at first."""

    m: Split = loop("m")
    n: Split = loop("n")
    k: Split = loop("k")
    order: LoopOrder = choice("order")
    num_fused: int = choice("fuse", 1)
    scales_tiles: bool = choice("scale_at")


@dataclass(frozen=True, slots=True)
class HalfBlockPoint:
    """A 1×1 convolution whose last channel block is half empty: n are the full blocks, k the pairs (fours in bfloat16)
    of input channels that the half one takes at once. Tiles have all channel blocks."""

    m: Split = loop("m")
    n: Split = loop("n")
    k: Split = loop("k")
    scales_tiles: bool = choice("scale_at")


@dataclass(frozen=True, slots=True)
class MatrixPoint:
    """A 1×1 convolution in matrix registers: m: pixels; n: channel blocks; packs: the input is packed into
    whole rows of registers first; the rest as of `PointwisePoint`."""

    m: Split = loop("m")
    n: Split = loop("n")
    order: LoopOrder = choice("order")
    num_fused: int = choice("fuse", 1)
    scales_tiles: bool = choice("scale_at")
    packs: bool = choice("pack")


@dataclass(frozen=True, slots=True)
class DepthwisePoint:
    """h, w: rows and columns; writes_rows_out: the loop over the kernel's rows is written out too."""

    h: Split = loop("h")
    w: Split = loop("w")
    num_fused: int = choice("fuse", 1)
    writes_rows_out: bool = choice("unroll")
    padding: Padding = choice("pad_at")

    @property
    def pads_blocks(self) -> bool:
        """True if the map of a channel block is padded before it is read."""
        return self.padding in (Padding.BY_BAND, Padding.IN_WORDS)


@dataclass(frozen=True, slots=True)
class ConvPoint:
    """h, w: rows and columns; n: channel blocks; a band is what lies between two paddings, one tile's rows."""

    h: Split = loop("h")
    w: Split = loop("w")
    n: Split = loop("n")
    num_fused: int = choice("fuse", 1)
    writes_rows_out: bool = choice("unroll")
    padding: Padding = choice("pad_at")


@dataclass(frozen=True, slots=True)
class BlockConvPoint:
    """h: rows; w: columns; n: channel blocks; k: input channels; writes_columns_out: the loop over the kernel's columns
    is written out too."""

    h: Bands = loop("h")
    w: Split = loop("w")
    n: Split = loop("n")
    k: Split = loop("k")
    order: LoopOrder = choice("order")
    reduction: ReductionOrder = choice("reduce")
    num_fused: int = choice("fuse", 1)
    writes_columns_out: bool = choice("unroll")
    padding: Padding = choice("pad_at")


@dataclass(frozen=True, slots=True)
class MatrixConvPoint:
    """A convolution of windows in matrix registers: h: rows; w: columns; n: channel blocks."""

    h: Bands = loop("h")
    w: Split = loop("w")
    n: Split = loop("n")
    order: LoopOrder = choice("order")
    num_fused: int = choice("fuse", 1)
    padding: Padding = choice("pad_at")


class Vectors(NamedTuple):
    """Factors of the loop over vectors of sums: what is stored at once, passes over it, vectors of a tile."""

    stores: int
    passes: int
    inner: int


@dataclass(frozen=True, slots=True)
class GroupConvPoint:
    """h: rows; w: columns; n: vectors of whole sets of groups; k: input channels of a group."""

    h: Bands = loop("h")
    w: Split = loop("w")
    n: Vectors = loop("n")
    k: Split = loop("k")
    reduction: ReductionOrder = choice("reduce")
    num_fused: int = choice("fuse", 1)
    writes_columns_out: bool = choice("unroll")
    padding: Padding = choice("pad_at")


@dataclass(frozen=True, slots=True)
class WinogradPoint:
    """h: rows; w: Winograd tiles of a row (columns of a phase); n: channel blocks; k: input channels."""

    h: Bands = loop("h")
    w: Split = loop("w")
    n: Split = loop("n")
    k: Split = loop("k")
    order: LoopOrder = choice("order")
    num_fused: int = choice("fuse", 1)
    padding: Padding = choice("pad_at")


@dataclass(frozen=True, slots=True)
class PoolPoint:
    """c: channel blocks; m: pixels, the reduction."""

    c: Split = loop("c")
    m: Split = loop("m")


_PADDING = {
    Padding.AT_FIRST: "padded at first",
    Padding.BY_BAND: "padded by bands of rows",
    Padding.IN_LOADS: "padded as values are loaded",
    Padding.IN_WORDS: "padded in bytes, four of which are loaded as a word",
}


def in_words(named: Named) -> str:
    """A point of any family for people: `tiles of 7 pixels × 2 channel blocks, 8 input channels written out`.

    A channel block is a vector of channels; a tile is what stays in registers.
    """
    last = {name.removeprefix("split_"): group[-1] for name, group in named.items() if name.startswith("split_")}
    rows_columns = [f"{last['h']} × {last['w']} pixels"] if "h" in last else []
    pixels = [_number_of(last["m"], "pixel")] if "m" in last else []
    channels = [_number_of(last[name], "channel block") for name in ("n", "c") if name in last]
    words = [f"tiles of {' × '.join([*rows_columns, *pixels, *channels])}"]
    if last.get("k", 1) > 1:
        words.append(f"{last['k']} input channels written out")
    chosen = {name: group[0] for name, group in named.items()}
    if chosen.get("unroll"):
        words.append("the kernel written out")
    if len(named.get("split_h", ())) == 3 and named["split_h"][0] > 1:
        words.append(f"{named['split_h'][0]} bands of rows")
    if "order" in named:
        words.append("channels outside" if chosen["order"] == LoopOrder.CHANNELS_OUTSIDE else "pixels outside")
    if chosen.get("reduce") == ReductionOrder.TAPS_OUTSIDE:
        words.append("taps outside channels")
    if chosen.get("pack"):
        words.append("the input packed for matrix registers")
    if "pad_at" in named:
        words.append(_PADDING[Padding(chosen["pad_at"])])
    if chosen.get("scale_at"):
        words.append("the gate applied tile by tile")
    if "fuse" in named:
        words.append(f"{_number_of(chosen['fuse'], 'outer loop')} shared out")
    return ", ".join(words)


def _number_of(num: int, what: str) -> str:
    return f"{num} {what}{'s' if num > 1 else ''}"
