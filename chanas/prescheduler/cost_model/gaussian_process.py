"""The paper's cost model: a Gaussian process on what schedule points mean, fed by the records of the asked workload and
of those of its family that are most like it, so that a new workload starts with what similar ones have taught
(section 3.5).

Only the order of points within a workload is learnt: y = log seconds, minus the mean of the record's workload, and each
workload has an unknown offset besides (`regression`), since the points that a search tries are better than random ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from chanas.prescheduler.cost_model.base import FloatArray
from chanas.prescheduler.cost_model.features import features
from chanas.prescheduler.cost_model.regression import IntArray, Parameters, Regression, fit
from chanas.prescheduler.records import TuningRecord
from chanas.prescheduler.space import Point, ScheduleSpace
from chanas.prescheduler.workload import Workload
from chanas.target import HardwareTarget

# Exact inference is cubic in the number of records. More than these of other workloads gain nothing.
_MAX_RECORDS, _MAX_OTHERS = 320, 128
# Kernel parameters are fitted again when the records have grown by this factor.
_REFIT_GROWTH = 1.6
_MIN_RECORDS = 6
# A workload whose first records order its points against what others foretold is left to its own records. These points
# were chosen for being alike good, so that their order says little: a stricter limit drops what helps.
_NUM_JUDGED, _MIN_CORRELATION = 8, -0.3


def description(workload: Workload) -> FloatArray:
    """float64[8]: what makes two workloads of a family alike, each unit about as much as a factor of 2 in a size."""
    sizes = [workload.input_size, workload.in_channels, workload.out_channels]
    shape = [1.5 * math.log2(workload.kernel_size), 1.5 * math.log2(workload.stride)]
    kind = [0.25 * (workload.epilogue == "none"), 0.5 * workload.residual, 0.5 * workload.scaled]
    return np.array([*(math.log2(s) for s in sizes), *shape, *kind])


class GaussianProcessModel:
    """Gaussian process regression on centred log seconds."""

    def __init__(self, target: HardwareTarget) -> None:
        self._target = target
        self._x: dict[str, FloatArray] = {}
        self._y: dict[str, FloatArray] = {}
        self._descriptions: dict[str, FloatArray] = {}
        self._foretold: dict[str, FloatArray] = {}
        """float64[N] of the first records of a workload: what the records of others alone say."""
        self._alone: set[str] = set()
        self._parameters: Parameters | None = None
        self._centre = self._scale = np.zeros(0)
        self._fitted_on = 0
        self._asked: str | None = None
        self._regression: Regression | None = None

    @property
    def num_records(self) -> int:
        return sum(len(y) for y in self._y.values())

    def observe(self, space: ScheduleSpace, records: Sequence[TuningRecord]) -> None:
        """Add valid records; the process is made anew when it is next asked."""
        valid = [r for r in records if r.seconds is not None]
        if not valid:
            return
        key = space.workload.key
        x = features(space, [r.point for r in valid], self._target)
        y = np.log(np.array([r.seconds for r in valid], dtype=np.float64))
        self._descriptions[key] = description(space.workload)
        foretold = self._foretell(key, x)
        self._x[key] = np.vstack([self._x[key], x]) if key in self._x else x
        self._y[key] = np.concatenate([self._y[key], y]) if key in self._y else y
        if foretold is not None:
            self._judge(key, foretold)
        self._asked = None

    def predict(self, space: ScheduleSpace, points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of centred log seconds; zero and one while there are too few records."""
        key = space.workload.key
        self._descriptions[key] = description(space.workload)
        if self._num_usable(key) < _MIN_RECORDS:
            return np.zeros(len(points)), np.ones(len(points))
        with threadpool_limits(1):
            if self._asked != key:
                self._regression, self._asked = self._regress(key, with_own=True), key
            assert self._regression is not None
            return self._regression.predict(self._standardised(features(space, points, self._target)), 0)

    # ---- which records ----------------------------------------------------------------------------------------------
    def _num_usable(self, key: str) -> int:
        return len(self._y.get(key, ())) if key in self._alone else self.num_records

    def _select(self, key: str, with_own: bool) -> tuple[FloatArray, FloatArray, IntArray]:
        """Features, centred log seconds and groups: own records (group 0), then those of the most similar workloads."""
        parts = [(self._x[key], self._y[key])] if with_own and key in self._y else []
        parts = [_at_most(_MAX_RECORDS, *own) for own in parts]
        num = sum(len(y) for _, y in parts)
        room = min(_MAX_OTHERS, _MAX_RECORDS - num)
        first = 0 if parts else 1
        for other in self._nearest(key):
            if room <= 0:
                break
            parts.append((self._x[other][:room], self._y[other][:room]))
            room -= len(parts[-1][1])
        groups = np.repeat(np.arange(first, first + len(parts)), [len(y) for _, y in parts])
        return np.vstack([x for x, _ in parts]), np.concatenate([y - y.mean() for _, y in parts]), groups

    def _nearest(self, key: str) -> list[str]:
        """The other workloads that have records, the most similar first; none for one that is left alone."""
        others = [] if key in self._alone else [k for k in self._y if k != key]
        if not others:
            return []
        away = np.abs(np.array([self._descriptions[k] for k in others]) - self._descriptions[key]).sum(1)
        return [others[i] for i in np.argsort(away, kind="stable")]

    # ---- whether to trust others' records ---------------------------------------------------------------------------
    def _foretell(self, key: str, x: FloatArray) -> FloatArray | None:
        """float64[N]: what others' records say about the first points of a workload; None later, or without others."""
        so_far = self._foretold.get(key, np.zeros(0))
        own = len(self._y.get(key, ()))
        if key in self._alone or len(so_far) < own or own >= _NUM_JUDGED:
            return None  # its first records came without a forecast, or were judged
        if self.num_records - own < _MIN_RECORDS:
            return None
        with threadpool_limits(1):
            mean, _ = self._regress(key, with_own=False).predict(self._standardised(x), 0)
        return np.concatenate([so_far, mean])

    def _judge(self, key: str, foretold: FloatArray) -> None:
        from scipy.stats import spearmanr

        self._foretold[key] = foretold
        y = self._y[key]
        if len(y) < _NUM_JUDGED or not (np.ptp(foretold) > 0.0 and np.ptp(y) > 0.0):
            return
        if spearmanr(foretold, y).statistic < _MIN_CORRELATION:
            self._alone.add(key)

    # ---- the process ------------------------------------------------------------------------------------------------
    def _regress(self, key: str, with_own: bool) -> Regression:
        """The process given the records that matter for a workload; its parameters are fitted again now and then."""
        x, y, groups = self._select(key, with_own)
        if self._parameters is None or self.num_records >= _REFIT_GROWTH * self._fitted_on:
            deviation = x.std(axis=0)
            self._centre, self._scale = x.mean(axis=0), np.where(deviation > 1e-9, deviation, 1.0)
            self._parameters = fit(self._standardised(x), y, groups, self._parameters)
            self._fitted_on = self.num_records
        return Regression(self._standardised(x), y, groups, self._parameters)

    def _standardised(self, x: FloatArray) -> FloatArray:
        return (x - self._centre) / self._scale


def _at_most(num: int, x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The fastest half of `num` records, and as many of the others, evenly spaced from fast to slow."""
    if len(y) <= num:
        return x, y
    order = np.argsort(y, kind="stable")
    rest = order[num // 2 :]
    chosen = np.concatenate([order[: num // 2], rest[np.linspace(0, len(rest) - 1, num - num // 2).astype(np.int64)]])
    return x[chosen], y[chosen]
