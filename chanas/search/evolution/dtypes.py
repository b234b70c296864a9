"""The dtypes of an architecture's blocks, chosen by shortest paths instead of by chance.

Of one architecture, what dtypes cost of its accuracy is a sum over blocks, and its latency one over blocks and what
converts between neighbours. So dtypes that are best for a price of a second are a shortest path over (block, dtype),
and those of a few prices are the corners of the best trade of accuracy for latency (Lagrangian relaxation). An
evolution that chooses among these has to find architectures alone.

Notation: N architectures, M prices, T = P + 4 places of blocks in order, Q dtypes, L genome length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from chanas.core.arch import SearchSpace
from chanas.core.arrays import BoolArray, FloatArray
from chanas.core.genome import GenomeLayout, Genomes, canonical, dtypes_in_order
from chanas.core.latency import LatencyTable
from chanas.search.evolution.constraints import Constraint, violation

Improve = Callable[[Genomes], Genomes]
"""The same architectures, in better dtypes."""
_PRICES = np.array([0.0, *np.geomspace(1 / 64, 64, 13), np.inf])
"""Prices of all of a network's seconds, over what the dtypes of all its blocks cost."""
_LEAST_LOSS = 1e-6


class DtypeChoice:
    """Dtypes of architectures that are the best ones for some price of a second.

    Args:
        losses: float64[Q, T], what a block in each dtype costs of the accuracy.
        constraints: those on latency are summed up, each in shares of what is usual.
    """

    def __init__(self, space: SearchSpace, losses: FloatArray, constraints: Sequence[Constraint]) -> None:
        self.space, self.losses, self.constraints = space, losses, constraints
        self._tables = [c.table.blocks for c in constraints if isinstance(c.table, LatencyTable)]

    def within(self, genomes: Genomes) -> Genomes:
        """int16[N, L]: the least loss inside the limits, of several prices; where none is inside, the fastest."""
        rows = self._of_prices(genomes, _PRICES)
        flat = rows.reshape(-1, rows.shape[-1])
        shape = rows.shape[:2]
        excess = violation(self.constraints, flat).reshape(shape)
        order = np.lexsort((self._loss(flat).reshape(shape), excess), axis=1)
        return rows[np.arange(len(rows)), order[:, 0]]

    def along(self, genomes: Genomes, rng: np.random.Generator) -> Genomes:
        """int16[N, L]: the best dtypes for a random price each."""
        rows = self._of_prices(genomes, _PRICES)
        return rows[np.arange(len(rows)), rng.integers(len(_PRICES), size=len(rows))]

    def _loss(self, genomes: Genomes) -> FloatArray:
        """float64[N]: the sum of what dtypes cost."""
        each = self.losses[dtypes_in_order(self.space, genomes), np.arange(self.losses.shape[1])]
        found: FloatArray = (each * self._used(genomes)).sum(axis=1)
        return found

    def _of_prices(self, genomes: Genomes, prices: FloatArray) -> Genomes:
        """int16[N, M, L]: the same architectures in the best dtypes for each price; for an infinite one the fastest."""
        own, change = self._costs(genomes)  # [N, T, Q], [N, T - 1, Q, Q], in shares of a usual network's seconds
        most = max(_LEAST_LOSS, float(self.losses.max(axis=0).sum()))
        price = np.where(np.isinf(prices), 1.0, prices * most)[:, None]
        losses = np.where(np.isinf(prices), 0.0, 1.0)[:, None, None] * self.losses.T  # [M, T, Q]
        used = self._used(genomes)
        num, (length, num_dtypes) = len(prices), own.shape[1:]
        least = price * own[:, None, 0] + losses[:, 0]  # [N, M, Q]
        came_from = np.empty((length, len(genomes), num, num_dtypes), np.int64)
        stays = np.arange(num_dtypes)
        for place in range(1, length):
            ways = least[..., None] + price[..., None] * change[:, None, place - 1]
            step = ways.min(axis=2) + price * own[:, None, place] + losses[:, place]
            here = used[:, place, None, None]
            came_from[place] = np.where(here, ways.argmin(axis=2), stays)
            least = np.where(here, step, least)
        dtypes = np.empty((len(genomes), num, length), np.int64)
        dtypes[..., -1] = least.argmin(axis=-1)
        for place in range(length - 1, 0, -1):
            after = dtypes[..., place, None]
            dtypes[..., place - 1] = np.take_along_axis(came_from[place], after, axis=-1)[..., 0]
        layout = GenomeLayout(self.space)
        rows = np.repeat(genomes[:, None], num, axis=1)
        rows[..., layout.dtypes] = dtypes[..., 2:-2]
        rows[..., layout.fixed_dtypes] = dtypes[..., [0, 1, -2, -1]]
        return canonical(self.space, rows.reshape(-1, rows.shape[-1])).reshape(rows.shape)

    def _costs(self, genomes: Genomes) -> tuple[FloatArray, FloatArray]:
        parts = [table.by_dtype(genomes) for table in self._tables]
        scales = [1.0 / max(float(own.min(axis=2).sum(axis=1).mean()), 1e-12) for own, _ in parts]
        own: FloatArray = np.sum([scale * one for scale, (one, _) in zip(scales, parts, strict=True)], axis=0)
        change: FloatArray = np.sum([scale * one for scale, (_, one) in zip(scales, parts, strict=True)], axis=0)
        return own, change

    def _used(self, genomes: Genomes) -> BoolArray:
        """bool[N, T]: places that an architecture has a block at."""
        ends = np.ones((len(genomes), 2), dtype=bool)
        return np.concatenate([ends, GenomeLayout(self.space).active(genomes), ends], axis=1)
