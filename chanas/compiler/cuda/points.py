"""Points of GPU schedule spaces with names, a dataclass for each family and a field for each coordinate; and the sizes
of a product kernel (1×1 and k×k convolutions over all channels) that follow from its point.

    out[m, n] = Σ over taps and channels of input[m, tap, channel] · weights[tap, channel, n]

A block computes a tile of rows × columns. It takes one stretch of taps × channels after the other: both sides' tiles
into shared memory, then it multiplies them. Memory is counted in words of 32 bits: a float32, or two float16 that are
neighbours in the sum's direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from chanas.compiler.cuda.intrinsics import WARP, TensorCore, tensor_core
from chanas.compiler.cuda.operators import output_rows, row_words
from chanas.compiler.space import Split, choice, loop
from chanas.core.gpu import GPUFeatures
from chanas.operators.workload import Workload

MMA_ROWS, MMA_COLUMNS = 16, 8
"""Rows and columns of one instruction of the tensor cores."""
# Words after each row of the input's tile, so that the rows that a warp reads at once lie in different banks of shared
# memory and still start at 16 bytes; weights of tensor cores: rows 8 (mod 32) words apart, for the same reason.
_ROW_PAD, _BANKS = 4, 32
WORD_BYTES = 4


class Tiles(NamedTuple):
    """Factors of a loop over outputs: blocks of the grid, threads (or warps) of a block, values of one of these."""

    blocks: int
    threads: int
    values: int


class SharedSum(NamedTuple):
    """Factors of a loop over terms: turns of a thread, threads that share the sum, terms written out."""

    turns: int
    threads: int
    written_out: int


@dataclass(frozen=True, slots=True)
class ProductPoint:
    """m: rows; n: columns; taps, channels: of the sum, the inner factor at once in shared memory; at_once: words
    multiplied in one go; stages: tiles in shared memory; shares: groups of threads that share a sum."""

    m: Tiles = loop("m")
    n: Tiles = loop("n")
    taps: Split = loop("tap")
    channels: Split = loop("c")
    input_vector: int = choice("load_input")
    weight_vector: int = choice("load_weights")
    by_columns: bool = choice("order")
    at_once: int = choice("unroll")
    stages: int = choice("stages")
    shares: int = choice("shares")
    on_tensor_cores: bool = choice("mma")

    @property
    def splits(self) -> dict[str, tuple[int, ...]]:
        """Groups by the names of their coordinates."""
        return {"split_m": self.m, "split_n": self.n, "split_tap": self.taps, "split_c": self.channels}


@dataclass(frozen=True, slots=True)
class DepthwisePoint:
    """h, w, c: rows, columns and channels; in_shared_memory: the input under a block's tile is loaded there first."""

    h: Tiles = loop("h")
    w: Tiles = loop("w")
    c: Tiles = loop("c")
    in_shared_memory: bool = choice("cache")
    input_vector: int = choice("load_input")
    writes_taps_out: bool = choice("unroll")


@dataclass(frozen=True, slots=True)
class ReductionPoint:
    """n: output channels, of blocks and of a block's threads; k: terms of each one's sum."""

    n: Split = loop("n")
    k: SharedSum = loop("k")


@dataclass(frozen=True, slots=True)
class SqueezePoint:
    """n: columns of the dense layer; shares: threads of a column's sum; vector: words of a load; at_once: loads written
    out."""

    n: Split = loop("n")
    shares: int = choice("shares")
    vector: int = choice("load_input")
    at_once: int = choice("unroll")


@dataclass(frozen=True)
class ProductPlan:
    """Sizes of a kernel, in rows, columns and words.

    height, width     rows and columns of a block's tile
    blocks            of rows, and of columns
    depth             words of a row that a block takes at once
    num_stretches     how often it does, all shares together
    shares            groups of threads that each add up a part of the stretches
    threads           of one share
    values            sums of a thread
    stages            tiles that are in shared memory at once: with 2, the next is loaded while one is used
    """

    rows: int
    columns: int
    row_words: int
    height: int
    width: int
    blocks: tuple[int, int]
    taps: int
    channel_words: int
    num_channel_steps: int
    num_stretches: int
    shares: int
    threads: int
    values: int
    stages: int
    input_vector: int
    weight_vector: int
    core: TensorCore | None
    values_per_word: int

    @property
    def depth(self) -> int:
        return self.taps * self.channel_words

    @property
    def stretches_each(self) -> int:
        return self.num_stretches // self.shares

    @property
    def input_pitch(self) -> int:
        """Words from row to row of the input's tile."""
        return self.depth + _ROW_PAD

    @property
    def weight_pitch(self) -> int:
        """Words from row to row of the weights' tile."""
        return self.width + ((MMA_COLUMNS - self.width) % _BANKS if self.core else 0)

    @property
    def input_tile(self) -> int:
        return self.height * self.input_pitch

    @property
    def weight_tile(self) -> int:
        return self.depth * self.weight_pitch

    @property
    def num_tiles(self) -> int:
        """Number of tiles of each side in shared memory."""
        return self.stages * self.shares

    @property
    def input_turns(self) -> int:
        """Vectors that a thread loads of a stretch of the input."""
        return -(-self.height * self.depth // (self.input_vector * self.threads))

    @property
    def weight_turns(self) -> int:
        return -(-self.depth * self.width // (self.weight_vector * self.threads))

    @property
    def words_in_flight(self) -> int:
        """Registers of a thread for what it loads of a stretch."""
        return self.input_turns * self.input_vector + self.weight_turns * self.weight_vector

    @property
    def rows_over(self) -> bool:
        """True if the last block of rows reaches beyond the maps."""
        return self.blocks[0] * self.height > self.rows

    @property
    def columns_over(self) -> bool:
        return self.blocks[1] * self.width > self.columns

    @property
    def words_over(self) -> bool:
        """True if the last stretch takes more channels than there are."""
        return self.num_channel_steps * self.channel_words > self.row_words

    @property
    def shared_bytes(self) -> int:
        """Tiles of all stages and shares, and where shares leave their sums."""
        sums = (self.shares - 1) * self.threads * self.values
        return WORD_BYTES * (self.num_tiles * (self.input_tile + self.weight_tile) + sums)


def tensor_core_of(workload: Workload, gpu: GPUFeatures) -> TensorCore | None:
    """The instruction that computes the operator's products; none for images, of which channels are few and apart, and
    none in float32, which it would round."""
    if workload.reads_image or workload.in_channels % 2:
        return None
    return tensor_core(workload.dtype, gpu.capability)


def product_plan(workload: Workload, p: ProductPoint, gpu: GPUFeatures) -> ProductPlan:
    """Return the sizes that a point encodes."""
    core = tensor_core_of(workload, gpu) if p.on_tensor_cores else None
    (m_b, m_t, m_v), (n_b, n_t, n_v) = p.m, p.n
    (tap_o, tap_i), (c_o, c_i) = p.taps, p.channels
    per_word = workload.input_precision.per_word
    return ProductPlan(
        rows=output_rows(workload),
        columns=workload.out_channels,
        row_words=row_words(workload),
        height=m_t * m_v,
        width=n_t * n_v,
        blocks=(m_b, n_b),
        taps=tap_i,
        channel_words=c_i // per_word,
        num_channel_steps=c_o,
        num_stretches=tap_o * c_o,
        shares=p.shares,
        threads=m_t * n_t * (WARP if core else 1),
        values=m_v * n_v // (WARP if core else 1),
        stages=p.stages,
        input_vector=p.input_vector,
        weight_vector=p.weight_vector,
        core=core,
        values_per_word=per_word,
    )
