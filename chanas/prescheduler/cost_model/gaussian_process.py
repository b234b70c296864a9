"""The paper's cost model: a Gaussian process on what schedule points mean, fed by the records of every workload of an
operator family, so that a new workload starts with what similar ones have taught (section 3.5).

Notation: N records, F features; y = log seconds, minus the mean of the record's workload, so that only the order of
points within a workload is learnt.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from chanas.prescheduler.cost_model.base import FloatArray
from chanas.prescheduler.cost_model.features import features
from chanas.prescheduler.records import TuningRecord
from chanas.prescheduler.space import Point, ScheduleSpace
from chanas.target import HardwareTarget

# Exact inference is cubic in the number of records: with these it takes some 10 ms.
_MAX_RECORDS = 320
# Kernel parameters are fitted again when the records have grown by this factor.
_REFIT_GROWTH = 1.6
_MIN_RECORDS = 6


class GaussianProcessModel:
    """Gaussian process regression (scikit-learn) on centred log seconds."""

    def __init__(self, target: HardwareTarget, seed: int) -> None:
        self._target = target
        self._rng = np.random.default_rng(seed)
        self._x: dict[str, FloatArray] = {}
        self._y: dict[str, FloatArray] = {}
        self._kernel = ConstantKernel(1.0, (1e-2, 1e2)) * RBF(2.0, (0.2, 50.0)) + WhiteKernel(0.05, (1e-4, 1.0))
        self._fitted_on = 0
        self._regressor: GaussianProcessRegressor | None = None
        self._scaler: StandardScaler | None = None
        self._stale = False

    @property
    def num_records(self) -> int:
        return sum(len(y) for y in self._y.values())

    def observe(self, space: ScheduleSpace, records: Sequence[TuningRecord]) -> None:
        """Add valid records; the process is fitted again when it is next asked."""
        valid = [r for r in records if r.seconds is not None]
        if not valid:
            return
        key = space.workload.key
        x = features(space, [r.point for r in valid], self._target)
        y = np.log(np.array([r.seconds for r in valid], dtype=np.float64))
        self._x[key] = np.vstack([self._x[key], x]) if key in self._x else x
        self._y[key] = np.concatenate([self._y[key], y]) if key in self._y else y
        self._stale = True

    def predict(self, space: ScheduleSpace, points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of centred log seconds; zero and one while there are too few records."""
        if self.num_records < _MIN_RECORDS:
            return np.zeros(len(points)), np.ones(len(points))
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            if self._stale:
                self._fit(space.workload.key)
            assert self._regressor is not None
            assert self._scaler is not None
            x = self._scaler.transform(features(space, points, self._target))
            mean, deviation = self._regressor.predict(x, return_std=True)
        return np.asarray(mean), np.asarray(deviation)

    def _fit(self, asked: str) -> None:
        """All records of the workload that is asked about, and a random share of the others."""
        x = np.vstack(list(self._x.values()))
        y = np.concatenate([v - v.mean() for v in self._y.values()])
        owner = np.concatenate([np.full(len(v), key == asked) for key, v in self._y.items()])
        others = np.flatnonzero(~owner)
        room = max(_MAX_RECORDS - int(owner.sum()), 0)
        if len(others) > room:
            others = self._rng.choice(others, room, replace=False)
        chosen = np.concatenate([np.flatnonzero(owner), others])
        self._scaler = StandardScaler().fit(x)
        grown = self.num_records >= _REFIT_GROWTH * self._fitted_on and len(chosen) < _MAX_RECORDS
        refit = grown or self._fitted_on == 0  # the first time with however many: a resumed run starts with thousands
        regressor = GaussianProcessRegressor(
            self._kernel, optimizer="fmin_l_bfgs_b" if refit else None, normalize_y=True, alpha=1e-8
        )
        regressor.fit(self._scaler.transform(x[chosen]), y[chosen])
        if refit:
            self._kernel = regressor.kernel_
            self._fitted_on = self.num_records
        self._regressor, self._stale = regressor, False
