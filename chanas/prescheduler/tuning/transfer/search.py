"""Choice of the point that is measured next on a new device."""

from __future__ import annotations

import math

import numpy as np

from chanas.core.genome import FloatArray
from chanas.prescheduler.tuning.transfer.mixture import Mixture

# Points that are drawn at random before only the model chooses, every other one of the first trials.
_NUM_RANDOM = 4
# Where other devices are believed this much, nothing has to be drawn at random any more.
_TRUSTED = 0.7
# A point at random, or one chosen before any is known to work, works about as probably as the surest, by this share.
_SURE = 0.5
# Improvements of log seconds that are none: then the order is that of what is predicted.
_NOTHING = 1e-9


class TransferSearch:
    """A search of a finite space that is asked and told.

    It goes by the leading opinion alone: in an average, what a source that is wrong promises would always look larger
    than what is there to be gained. Every other of the first trials is a point at random, so that the others, which
    the model chose, have something to be compared with. An invalid point is a trial that is spent; what is gained by
    a point counts by how probable it is that the point works.
    """

    def __init__(self, x: FloatArray, sources: FloatArray, rng: np.random.Generator) -> None:
        """Begin. x float64[N, F] and sources float64[N, S] as in `Mixture`."""
        self.model = Mixture(x, sources)
        self._order = rng.permutation(len(x))
        self._num_random = 0
        self._tried = np.zeros(len(x), dtype=np.bool_)
        self._has_sources = not np.isnan(sources).all()
        self.best = math.inf
        """The smallest log seconds that were measured."""

    def propose(self) -> int:
        """The next point to measure; it was not tried.

        Raises:
            ValueError: all were tried.
        """
        if self._tried.all():
            raise ValueError("expected a point that was not tried, got none: all were")
        works = self.model.works()
        if self._is_random_next():
            self._num_random += 1
            return self._at_random(works)
        if math.isfinite(self.best):
            score = self.model.expected_improvement(self.best, self.model.leader)
            if works is not None:
                score *= works
        if not math.isfinite(self.best) or score[~self._tried].max() < _NOTHING:
            score = -self.model.predict()
            score[self._unsure(works)] = -np.finfo(np.float64).max
        score[self._tried] = -math.inf
        return int(self._order[np.argmax(score[self._order])])  # equals at random

    def _unsure(self, works: FloatArray | None) -> np.ndarray:
        """bool[N]: points that are too likely to fail."""
        if works is None:
            return np.zeros(len(self._tried), dtype=np.bool_)
        least: float = _SURE * works[~self._tried].max()
        return works < least

    def _at_random(self, works: FloatArray | None) -> int:
        left = self._order[~self._tried[self._order]]
        return int(left[np.argmin(self._unsure(works)[left])])

    def _is_random_next(self) -> bool:
        if self._num_random >= _NUM_RANDOM or (self._has_sources and self.model.trust > _TRUSTED):
            return False
        num_tried = int(self._tried.sum())
        return num_tried % 2 == (1 if self._has_sources else 0)

    def observe(self, index: int, log_seconds: float) -> None:
        """Take in a measured point; NaN where it does not work."""
        self._tried[index] = True
        if not math.isnan(log_seconds):
            self.best = min(self.best, log_seconds)
        self.model.observe(index, log_seconds)
