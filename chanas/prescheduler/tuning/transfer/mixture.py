"""Opinions of other devices about a new one, weighted by how far its measurements bear them out.

Notation: N points, F features, S sources (other devices).

An opinion expects log seconds m(x) of each point and is corrected by a process (`process`):
    alone     m = 0: what is measured here, nothing else
    source j  m = log seconds on that device, centred over its valid points
    all       m = the mean over sources, where there are several
Each is there with several lengths and noises of its process. Their weights are their evidence: how probable each held
every measurement before it was made (Bayesian model averaging; ensembles of processes of other tasks: Feurer, Letham
and Bakshy, 2018). `alone` begins with half of the weight, so that a device which says nothing of this one loses the
rest within a few measurements: this is the guard. An opinion that has lost all but a ten-thousandth of the weight of
the strongest is dropped for good; `alone` never is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from chanas.core.genome import FloatArray
from chanas.prescheduler.tuning.transfer.process import FiniteProcess, matern_row

ALONE, ALL = -1, -2
"""Opinions beside those of the sources 0, 1, …"""
# Lengths of processes in units of the root of F: differences of standardised features grow with it.
_LENGTHS = (0.25, 0.5, 1.0, 2.0)
_NOISES = (0.03, 0.2)
_PRIOR_ALONE = 0.5
_DROPPED, _NEGLIGIBLE = 1e-4, 1e-2


@dataclass(frozen=True)
class _Opinion:
    whose: int
    length: int
    process: FiniteProcess


def encode(values: FloatArray) -> FloatArray:
    """float64[N, F]: parameters float64[N, P] of configurations, logarithms of positive ones, standardised; those that
    are the same everywhere are left out."""
    varied = values[:, np.ptp(values, axis=0) > 0.0]
    columns = [np.log2(c) if c.min() > 0.0 else c for c in varied.T]
    return np.array([(c - c.mean()) / c.std() for c in columns]).T


class Mixture:
    """Opinions about all points, given the measurements so far."""

    def __init__(self, x: FloatArray, sources: FloatArray) -> None:
        """Begin without measurements.

        Args:
            x: float64[N, F], standardised.
            sources: float64[N, S] of log seconds on other devices; NaN where a point does not work or is not known.
        """
        centred = sources - np.nanmean(sources, axis=0) if sources.size else sources
        known = np.where(np.isnan(centred), 0.0, centred)
        expected = {ALONE: np.zeros(len(x))} | dict(enumerate(known.T))
        if known.shape[1] > 1:
            expected[ALL] = known.mean(axis=1)
        self._scaled = [x / (length * math.sqrt(x.shape[1])) for length in _LENGTHS]
        num_each = len(_LENGTHS) * len(_NOISES)
        self._opinions = []
        for whose, m in expected.items():
            weight = _PRIOR_ALONE if whose == ALONE else (1.0 - _PRIOR_ALONE) / (len(expected) - 1)
            for length in range(len(_LENGTHS)):
                for noise in _NOISES:
                    process = FiniteProcess(m, noise, math.log(weight / num_each))
                    self._opinions.append(_Opinion(whose, length, process))
        self._level: float | None = None

    def _weights(self) -> FloatArray:
        """float64 of each opinion that is left; they sum to one."""
        evidence = np.array([o.process.evidence for o in self._opinions])
        weights = np.exp(evidence - evidence.max())
        out: FloatArray = weights / weights.sum()
        return out

    def weights(self) -> dict[int, float]:
        """Weight of `ALONE`, of each source by its number and of `ALL`; those that were dropped are missing."""
        found: dict[int, float] = {}
        for opinion, weight in zip(self._opinions, self._weights().tolist(), strict=True):
            found[opinion.whose] = found.get(opinion.whose, 0.0) + weight
        return found

    @property
    def trust(self) -> float:
        """The weight of all opinions but `ALONE`."""
        return 1.0 - self.weights()[ALONE]

    @property
    def leader(self) -> int:
        """`ALONE` while it has half of the weight, else the strongest of the others."""
        weights = self.weights()
        alone = weights.pop(ALONE)
        return ALONE if alone >= 0.5 or not weights else max(weights, key=weights.__getitem__)

    def observe(self, index: int, log_seconds: float) -> None:
        """Take in a measured point; opinions that nothing speaks for are dropped."""
        if self._level is None:
            self._level = log_seconds
        rows = {length: matern_row(self._scaled[length], index) for length in {o.length for o in self._opinions}}
        for opinion in self._opinions:
            opinion.process.observe(index, log_seconds - self._level, rows[opinion.length])
        weights = self._weights()
        least = _DROPPED * weights.max()
        self._opinions = [o for o, w in zip(self._opinions, weights, strict=True) if w > least or o.whose == ALONE]

    def predict(self) -> FloatArray:
        """float64[N]: log seconds of all points, up to a constant before the first measurement."""
        mean: FloatArray = np.einsum("o,on->n", self._weights(), np.array([o.process.mean for o in self._opinions]))
        return mean + (self._level or 0.0)

    def expected_improvement(self, best: float, whose: int) -> FloatArray:
        """float64[N]: by how much each point is expected to be below `best` log seconds, in the opinion of one."""
        level = self._level or 0.0
        gain = np.zeros_like(self._opinions[0].process.mean)
        own = [(o, w) for o, w in zip(self._opinions, self._weights().tolist(), strict=True) if o.whose == whose]
        least = _NEGLIGIBLE * max(w for _, w in own)
        for opinion, weight in own:
            if weight >= least:
                gain += weight * opinion.process.expected_improvement(best - level)
        return gain
