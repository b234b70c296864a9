"""Probability that a point works on a new device at all, when not all do.

Notation: N points, S sources (other devices), n points that were tried.

Several opinions, each with a probability for every point:
    source j    points that work there work here with one probability, the others with another; each of the two
                has a beta distribution, which begins at ten to one for the same as there
    neighbours  what is near works alike: (½ + Σ κ worked) / (1 + Σ κ), sums over tried points, κ = exp(−(d / l)²)
Opinions are weighted by how probable each held every outcome before it was known, as in `mixture`. Without a point that
failed anywhere every point has the same probability, and nothing changes.
"""

from __future__ import annotations

import numpy as np

from chanas.core.genome import FloatArray

# Pseudo-trials behind what a source says: enough for ten to one, few enough to be unlearned in a few trials.
_LIKELY, _UNLIKELY = 1.0, 0.1
# In units of the root of F, where configurations share about as many limits as latencies.
_LENGTHS = (0.25, 0.5)


class Validity:
    """Probabilities that points work, given the trials so far."""

    def __init__(self, num_points: int, sources: FloatArray) -> None:
        """Begin without trials; `sources` is float64[N, S], NaN where a point does not work on a source. Sources on
        which all points work, or none, say nothing of single ones and are left out."""
        works = ~np.isnan(sources)
        self._works = [column for column in works.T if column.any() and not column.all()]
        # By source: of points that work there and of others, pseudo-counts that they work here and that they don't.
        self._counts = np.array([[[_UNLIKELY, _LIKELY], [_LIKELY, _UNLIKELY]]] * len(self._works)).reshape(-1, 2, 2)
        # By length: kernels of tried points that worked, and of those that did not.
        self._near = np.full((len(_LENGTHS), 2, num_points), 0.5)
        self._evidence = np.zeros(len(self._works) + len(_LENGTHS))
        self._any_failed = bool(self._works)

    def observe(self, index: int, worked: bool, distance: FloatArray) -> None:
        """Take in one trial; `distance` is float64[N] of its point to all, in units of the root of F."""
        probable = np.array([column[index] for column in self._by_opinion()])
        self._evidence += np.log(probable if worked else 1.0 - probable)
        for counts, works in zip(self._counts, self._works, strict=True):
            counts[int(works[index]), 0 if worked else 1] += 1.0
        for near, length in zip(self._near, _LENGTHS, strict=True):
            near[0 if worked else 1] += np.exp(-((distance / length) ** 2))
        self._any_failed |= not worked

    def _by_opinion(self) -> list[FloatArray]:
        """float64[N] of each opinion."""
        shares = self._counts[:, :, 0] / self._counts.sum(axis=2)
        out = [share[works.astype(np.int64)] for share, works in zip(shares, self._works, strict=True)]
        return out + [near[0] / near.sum(axis=0) for near in self._near]

    def probabilities(self) -> FloatArray | None:
        """float64[N]; None while no point is known to fail anywhere."""
        if not self._any_failed:
            return None
        weights = np.exp(self._evidence - self._evidence.max())
        out: FloatArray = sum(
            weight * column for weight, column in zip(weights / weights.sum(), self._by_opinion(), strict=True)
        )
        return out
