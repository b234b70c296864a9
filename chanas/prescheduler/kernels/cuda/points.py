"""Points of GPU schedule spaces with names: a dataclass for each family, a field for each coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from chanas.prescheduler.workloads.space import Named, Split, choice_of, split_of


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


def _tiles(named: Named, loop: str) -> Tiles:
    return Tiles(*named[f"split_{loop}"])


@dataclass(frozen=True, slots=True)
class ProductPoint:
    """m: rows; n: columns; taps, channels: of the sum, the inner factor at once in shared memory; at_once: words
    multiplied in one go; stages: tiles in shared memory; shares: groups of threads that share a sum."""

    m: Tiles
    n: Tiles
    taps: Split
    channels: Split
    input_vector: int
    weight_vector: int
    by_columns: bool
    at_once: int
    stages: int
    shares: int
    on_tensor_cores: bool

    @classmethod
    def of(cls, named: Named) -> ProductPoint:
        return cls(
            _tiles(named, "m"),
            _tiles(named, "n"),
            split_of(named, "tap"),
            split_of(named, "c"),
            choice_of(named, "load_input"),
            choice_of(named, "load_weights"),
            bool(choice_of(named, "order")),
            choice_of(named, "unroll"),
            choice_of(named, "stages"),
            choice_of(named, "shares"),
            bool(choice_of(named, "mma")),
        )

    @property
    def splits(self) -> dict[str, tuple[int, ...]]:
        """Groups by the names of their coordinates."""
        return {"split_m": self.m, "split_n": self.n, "split_tap": self.taps, "split_c": self.channels}


@dataclass(frozen=True, slots=True)
class DepthwisePoint:
    """h, w, c: rows, columns and channels; in_shared_memory: the input under a block's tile is loaded there first."""

    h: Tiles
    w: Tiles
    c: Tiles
    in_shared_memory: bool
    input_vector: int
    writes_taps_out: bool

    @classmethod
    def of(cls, named: Named) -> DepthwisePoint:
        return cls(
            _tiles(named, "h"),
            _tiles(named, "w"),
            _tiles(named, "c"),
            bool(choice_of(named, "cache")),
            choice_of(named, "load_input"),
            bool(choice_of(named, "unroll")),
        )


@dataclass(frozen=True, slots=True)
class ReductionPoint:
    """n: output channels, of blocks and of a block's threads; k: terms of each one's sum."""

    n: Split
    k: SharedSum

    @classmethod
    def of(cls, named: Named) -> ReductionPoint:
        return cls(split_of(named, "n"), SharedSum(*named["split_k"]))


@dataclass(frozen=True, slots=True)
class SqueezePoint:
    """n: columns of the dense layer; shares: threads of a column's sum; vector: words of a load; at_once: loads written
    out."""

    n: Split
    shares: int
    vector: int
    at_once: int

    @classmethod
    def of(cls, named: Named) -> SqueezePoint:
        return cls(
            split_of(named, "n"),
            choice_of(named, "shares"),
            choice_of(named, "load_input"),
            choice_of(named, "unroll"),
        )
