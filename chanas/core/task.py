"""The task of all stages, and the limits of a search besides latency."""

from __future__ import annotations

from dataclasses import dataclass

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.blocks import DTYPE_LETTERS, BlockConfig


@dataclass(frozen=True)
class Task:
    """A search space, and the number of classes that its networks tell apart.

    left_out  sub-spaces that searches keep away from: no accuracy of them is known
    """

    space: SearchSpace
    num_classes: int
    left_out: tuple[SubSpace, ...] = ()

    @property
    def sub_spaces(self) -> tuple[SubSpace, ...]:
        """Those that are searched."""
        return tuple(s for s in self.space.sub_spaces if s not in self.left_out)

    def blocks(self, sub_spaces: tuple[SubSpace, ...] | None = None) -> tuple[BlockConfig, ...]:
        """Every block of the space, or of some sub-spaces."""
        return self.space.all_blocks(self.num_classes, sub_spaces)

    def table_blocks(self, dtype: str, sub_spaces: tuple[SubSpace, ...] | None = None) -> tuple[BlockConfig, ...]:
        """Every block that a latency table of a dtype has a row of: with those that convert to and from float32, where
        networks may have blocks in both."""
        conversions = self.space.all_conversions(dtype, sub_spaces) if dtype in DTYPE_LETTERS else ()
        return self.blocks(sub_spaces) + conversions


@dataclass(frozen=True)
class Limits:
    """Hard limits besides latency; None is no limit.

    macs         multiply-accumulates of one image
    params       parameters
    peak_memory  bytes of activations at once
    """

    macs: float | None = None
    params: float | None = None
    peak_memory: float | None = None

    def to_json(self) -> dict[str, float]:
        """The limits that are set, as bundles and results store them."""
        limits = {"macs": self.macs, "params": self.params, "peak_memory_bytes": self.peak_memory}
        return {name: limit for name, limit in limits.items() if limit is not None}


NO_LIMITS = Limits()
