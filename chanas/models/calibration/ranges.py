"""Ranges of values from the numbers that were seen: which grid of 256 numbers loses least.

`min-max` takes all that was seen, `percentile` all but the outermost 1e-4 at each end, `least squares` the shrunk range
with the least mean squared error, `entropy` the one with the least Kullback-Leibler divergence of what is left from
what was seen (Migacz, 8-bit inference with TensorRT, GTC 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from chanas.core.arrays import Float32Array, FloatArray
from chanas.operators.quantised import Grid

MOST_INPUTS = 300
"""Inputs that ranges are found from, at most."""
NUM_BINS = 4096
"""Bins of a histogram, of which half or more are between the least and the largest number."""
_SHARES = tuple(share / 40 for share in range(40, 7, -1))
"""Parts of the whole range that are tried, the whole one first."""
_OUTERMOST, _NEARLY_0 = 1e-4, 1e-12
_MOST_COUNTED = 1 << 14
"""Numbers of one value of one picture that are counted: every so-and-so-many-th, where there are more."""

Counts = FloatArray


@dataclass
class Histogram:
    """Numbers of a value, counted in bins that become twice as wide where they no longer take all of them.

    low, high  the least and the largest number, and 0
    width      of a bin
    first      place of the first bin: that many bins from 0
    """

    low: float = 0.0
    high: float = 0.0
    width: float = 0.0
    first: int = 0
    counts: Counts = field(default_factory=lambda: np.zeros(NUM_BINS))

    def add(self, values: Float32Array) -> None:
        """Count finite numbers, or some of them where there are very many."""
        self._widen(float(values.min(initial=0.0)), float(values.max(initial=0.0)))
        flat = values[values != 0]  # which every grid has
        step = -(-flat.size // _MOST_COUNTED) | 1  # odd: of channels side by side not the same ones again and again
        if self.width > 0:
            places = np.floor(flat[::step].astype(np.float64) / self.width).astype(np.int64) - self.first
            self.counts += np.bincount(places, minlength=NUM_BINS)

    def _widen(self, low: float, high: float) -> None:
        """Take in a range. The edges of bins that are twice as wide are edges of those before, too."""
        self.low, self.high = min(self.low, low), max(self.high, high)
        width = self.width or (self.high - self.low) / (NUM_BINS - 2)
        while width > 0 and math.floor(self.high / width) - math.floor(self.low / width) >= NUM_BINS:
            width *= 2
        before = self.first + np.arange(NUM_BINS)
        if width > 0:
            ratio, self.first = round(width / (self.width or width)), math.floor(self.low / width)
            places = before // ratio - self.first
            counted = self.counts > 0
            self.counts = np.bincount(places[counted], self.counts[counted], NUM_BINS).astype(np.float64)
        self.width = width

    @property
    def centres(self) -> Counts:
        return (self.first + np.arange(NUM_BINS, dtype=np.float64) + 0.5) * self.width

    def shrunk(self, share: float) -> Grid:
        """The grid of a part of the range, around 0."""
        return Grid.of_range(self.low * share, self.high * share)


def _min_max(seen: Histogram) -> Grid:
    return seen.shrunk(1.0)


def _percentile(seen: Histogram) -> Grid:
    total = seen.counts.cumsum() / max(1.0, seen.counts.sum())
    low = seen.width * (seen.first + int(np.searchsorted(total, _OUTERMOST)))
    high = seen.width * (seen.first + int(np.searchsorted(total, 1.0 - _OUTERMOST)) + 1)
    return Grid.of_range(max(low, seen.low), min(high, seen.high))


def _rounded(seen: Histogram, grid: Grid) -> Float32Array:
    return grid.decode(grid.encode(seen.centres.astype(np.float32)))


def _least_squares(seen: Histogram) -> Grid:
    def error(grid: Grid) -> float:
        return float((seen.counts * (_rounded(seen, grid) - seen.centres) ** 2).sum())

    return min((seen.shrunk(share) for share in _SHARES), key=error)


def _entropy(seen: Histogram) -> Grid:
    """Numbers beyond a range count at its ends in what was seen, and are missing in what is left; numbers on one point
    of a grid share what was counted there evenly, as far as anything was."""

    def divergence(share: float) -> float:
        grid, centres = seen.shrunk(share), seen.centres.astype(np.float32)
        inside = (centres >= share * seen.low) & (centres <= share * seen.high)
        p = np.where(inside, seen.counts, 0.0)
        first, last = np.flatnonzero(inside)[[0, -1]]
        points, there = grid.encode(centres).astype(np.int64), p > 0
        shared = np.bincount(points, p, 256) / np.maximum(1.0, np.bincount(points, there, 256))
        q = np.where(there, shared[points], 0.0)
        p[first] += seen.counts[:first].sum()
        p[last] += seen.counts[last + 1 :].sum()
        if not q.any():
            return np.inf
        p, q = p / p.sum(), q / q.sum()
        kept = p > 0
        return float((p[kept] * np.log(p[kept] / np.maximum(q[kept], _NEARLY_0))).sum())

    return seen.shrunk(min(_SHARES, key=divergence) if seen.counts.any() else 1.0)


METHODS: Mapping[str, Callable[[Histogram], Grid]] = {
    "min-max": _min_max,
    "percentile": _percentile,
    "least squares": _least_squares,
    "entropy": _entropy,
}
