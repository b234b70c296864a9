"""Opinions of other devices about a new one, weighted by how far its measurements bear them out.

Notation: N points, F features, S sources (other devices).

An opinion expects log seconds m(x) of each point and is corrected by a process (`process`), which may also be wrong in
proportion to slopes h:
    alone     m = 0: what is measured here, nothing else
    source j  m = log seconds on that device, centred over its valid points; h = m, so that differences are stretched,
              and what other sources are off from it, so that the new device may lie between them
    all       m = the mean over sources, where there are several; h = each source
Each is there with several lengths, noises and sizes of differences of its process; a length of zero takes m as it is,
point by point. Their weights are their evidence: how probable each held every measurement before it was made (Bayesian
model averaging; ensembles of processes of other tasks: Feurer, Letham and Bakshy, 2018). `alone` begins with half of
the weight, so that a device which says nothing of this one loses the rest within a few measurements: this is the
guard. An opinion that has lost all but a ten-thousandth of the weight of the strongest is dropped for good; `alone`
never is.

Points that do not work are none of the processes' business: how probable it is that one works is a model of its own
(`validity`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from chanas.core.genome import FloatArray
from chanas.prescheduler.tuning.transfer.process import Distances, FiniteProcess
from chanas.prescheduler.tuning.transfer.validity import Validity

ALONE, ALL = -1, -2
"""Opinions beside those of the sources 0, 1, …"""
# Lengths of processes in units of the root of the number of parameters: differences of standardised features grow with
# it. Noise is what a point has for itself: little, or a fifth of the variance. Where points have nothing to do with
# each other (a length of zero) it is no different from differences: one is enough.
_LENGTHS = (0.0, 0.25, 0.5, 1.0, 2.0)
_NOISES = (0.1, 0.5)
# How much points differ from what is expected: by a factor of about two, or by a fifth.
_DIFFERENCES = (0.77, 0.2)
_PRIOR_ALONE = 0.5
_DROPPED, _NEGLIGIBLE = 1e-4, 1e-2
# Of one's opinions the heaviest choose: what each says of 100,000 points takes some milliseconds.
_MOST_ASKED = 8


@dataclass(frozen=True)
class _Opinion:
    whose: int
    process: FiniteProcess


def _expectations(sources: FloatArray, num_points: int) -> Iterator[tuple[int, FloatArray, FloatArray]]:
    """Yield whose opinion, m float64[N], and slopes float64[R, N]; a source that knows no point has none."""
    yield ALONE, np.zeros(num_points), np.zeros((0, num_points))
    knows = ~np.isnan(sources)
    usable = np.flatnonzero(knows.any(axis=0)).tolist()
    centred = [sources[:, j] - sources[knows[:, j], j].mean() for j in usable]
    filled = [np.where(np.isnan(column), 0.0, column) for column in centred]
    for j, column in zip(usable, filled, strict=True):
        others = [other - column for k, other in zip(usable, filled, strict=True) if k != j]
        yield j, column, np.array([column, *others])
    if len(usable) > 1:
        slopes = np.array(filled)
        num = np.maximum(knows[:, usable].sum(axis=1), 1)
        yield ALL, slopes.sum(axis=0) / num, slopes - slopes.mean(axis=1, keepdims=True)


class Mixture:
    """Opinions about all points, given the measurements so far."""

    def __init__(self, x: FloatArray, sources: FloatArray) -> None:
        """Begin without measurements.

        Args:
            x: float64[N, F], as `encode` makes it.
            sources: float64[N, S] of log seconds on other devices; NaN where a point does not work or is not known.
        """
        num_parameters = float(x.var(axis=0).sum()) if x.shape[1] else 1.0
        self._distances = Distances(x / math.sqrt(max(num_parameters, 1e-12)))
        self._num_points = len(x)
        self._validity = Validity(len(x), sources)
        kinds = [(length, noise) for length in _LENGTHS for noise in (_NOISES if length else _NOISES[:1])]
        expectations = list(_expectations(sources, len(x)))
        self._opinions = []
        for whose, m, slopes in expectations:
            weight = _PRIOR_ALONE if whose == ALONE else (1.0 - _PRIOR_ALONE) / (len(expectations) - 1)
            for length, noise in kinds:
                own = weight / len(_LENGTHS) / (len(_NOISES) if length else 1) / len(_DIFFERENCES)
                for difference in _DIFFERENCES:
                    process = FiniteProcess(
                        m,
                        self._distances,
                        length,
                        noise,
                        difference=difference,
                        slopes=slopes,
                        evidence=math.log(own),
                    )
                    self._opinions.append(_Opinion(whose, process))
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
        """Take in a tried point, NaN where it does not work; opinions that nothing speaks for are dropped."""
        row = self._distances.row(index)
        self._validity.observe(index, not math.isnan(log_seconds), row)
        if math.isnan(log_seconds):
            return
        if self._level is None:
            self._level = log_seconds
        self._distances.add(index, row)
        for opinion in self._opinions:
            opinion.process.observe(index, log_seconds - self._level)
        weights = self._weights()
        least = _DROPPED * weights.max()
        self._opinions = [o for o, w in zip(self._opinions, weights, strict=True) if w > least or o.whose == ALONE]

    def predict(self) -> FloatArray:
        """float64[N]: log seconds of all points, up to a constant before the first measurement."""
        mean = np.full(self._num_points, self._level or 0.0)
        by_length: dict[float, FloatArray] = {}
        for opinion, weight in zip(self._opinions, self._weights().tolist(), strict=True):
            process = opinion.process
            coefficients = process.coefficients()
            mean += weight * process.trend(coefficients)
            by_length[process.length] = by_length.get(process.length, 0.0) + weight * coefficients
        for length, coefficients in by_length.items():
            mean += self._distances.spread(length, coefficients)
        return mean

    def works(self) -> FloatArray | None:
        """float64[N]: how probable it is that each point works; None while no point is known to fail anywhere."""
        return self._validity.probabilities()

    def expected_improvement(self, best: float, whose: int) -> FloatArray:
        """float64[N]: by how much each point, if it works, is expected to be below `best` log seconds, in one's
        opinion."""
        level = self._level or 0.0
        own = [(o, w) for o, w in zip(self._opinions, self._weights().tolist(), strict=True) if o.whose == whose]
        own = sorted(own, key=lambda pair: -pair[1])[:_MOST_ASKED]
        least = _NEGLIGIBLE * own[0][1]
        gains = [w * o.process.expected_improvement(best - level) for o, w in own if w >= least]
        out: FloatArray = np.sum(gains, axis=0)
        return out
