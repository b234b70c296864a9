"""The paper's cost model: a Gaussian process on what schedule points mean, fed by the records of the asked workload and
of those of its family that are most like it, so that a new workload starts with what similar ones have taught
(section 3.5).

Only the order of points within a workload is learnt: y = log seconds, minus the mean of the record's workload, and each
workload has an unknown offset besides (`regression`), since the points that a search tries are better than random ones.

Records of another device are a second place: the same operator's come first, other operators' count as less alike than
those of this device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.arrays import FloatArray
from chanas.core.statistics import spearman
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.guards import Guard
from chanas.prescheduler.tuning.cost_model.history import ELSEWHERE, HERE, History, Place, features
from chanas.prescheduler.tuning.cost_model.regression import Parameters
from chanas.prescheduler.tuning.cost_model.solving import Prediction, Problem, Solve, Solver

# Exact inference is cubic in the number of records. More than these of other workloads gain nothing.
_MAX_RECORDS, _MAX_OTHERS = 320, 128
# Kernel parameters are fitted again when the records have grown by this factor.
_REFIT_GROWTH = 1.6
_MIN_RECORDS = 6
# A workload whose first records order its points against the prediction of others is left to its own records. These
# points were chosen for being equally good, so that their order says little: a stricter limit drops what helps.
_NUM_JUDGED, _MIN_CORRELATION = 8, -0.3

Expected = Callable[[ScheduleSpace[Any], Sequence[Point]], FloatArray]
"""Log seconds float64[N] of points, up to a constant for each workload."""


class GaussianProcessModel:
    """Gaussian process regression on centred log seconds.

    Args:
        history: the records that it goes by.
        solve: fits and predicts; on this machine if it is left out.
        expected: what is subtracted from log seconds before they are learnt; nothing if it is left out.
    """

    def __init__(self, history: History, solve: Solve | None = None, expected: Expected | None = None) -> None:
        self.history = history
        self._expected = expected
        self._forecasts: dict[str, FloatArray] = {}
        """float64[N] of the first records of a workload: what the records of others alone say."""
        self._guards: dict[str, Guard] = {}
        """Trust in others' records, by workload."""
        self._parameters: Parameters | None = None
        self._centre = self._scale = np.zeros(0)
        self._fitted_on = 0
        self._asked: tuple[str, int] | None = None
        self._problem: Problem | None = None
        self._solve: Solve = solve or Solver()

    def observe(self, space: ScheduleSpace[Any], records: Sequence[TuningRecord]) -> None:
        """Add valid records; the process is made anew when it is next asked."""
        valid = [r for r in records if r.seconds is not None]
        if valid:
            self.forecast(space, [r.point for r in valid])
            self.history.add(space, valid)
            self.judge(space)

    def predict(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of centred log seconds; zero and one while there are too few records."""
        asked, own = (space.workload.key, self.history.version), (HERE, space.workload.key)
        if self._asked != asked or self._problem is None:
            others = self._others(space, (HERE, ELSEWHERE))
            if self.history.num([own, *others]) < _MIN_RECORDS:
                return np.zeros(len(points)), np.ones(len(points))
            self._problem, self._asked = self._pose(space, others, own), asked
        self._problem, found = self._predict(self._problem, features(space, points, self.history.target))
        return found.mean, found.deviation

    def predict_from_prior(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> FloatArray | None:
        """The mean of a process that has the other device's records of this operator and of similar ones."""
        others = self._others(space, (ELSEWHERE,))
        if self.history.num(others) < _MIN_RECORDS:
            return None
        return self._predict(self._pose(space, others), features(space, points, self.history.target))[1].mean

    # ---- whether to trust others' records ---------------------------------------------------------------------------
    def leaves_alone(self, key: str) -> bool:
        """True if a workload is left to its own records."""
        return key in self._guards and self._guards[key].is_lost

    def forecast(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> None:
        """Note what this device's records of other workloads say of the first points of a workload, before their own
        records are added."""
        key = space.workload.key
        so_far, num_own = self._forecasts.get(key, np.zeros(0)), self.history.num([(HERE, key)])
        if self.leaves_alone(key) or len(so_far) < num_own or num_own >= _NUM_JUDGED:
            return  # its first records came without a forecast, or were judged
        if self.history.num(self.history.here) - num_own < _MIN_RECORDS:
            return
        problem = self._pose(space, self._others(space, (HERE,)))
        predicted = self._predict(problem, features(space, points, self.history.target))[1].mean
        self._forecasts[key] = np.concatenate([so_far, predicted])

    def judge(self, space: ScheduleSpace[Any]) -> None:
        """Compare the forecasts with the records of the workload, now that these are added."""
        key = space.workload.key
        y = self._y((HERE, key))
        if len(self._forecasts.get(key, ())) == len(y):
            guard = self._guards.setdefault(key, Guard(_NUM_JUDGED, lambda _: _MIN_CORRELATION, spearman))
            guard.judge(self._forecasts[key], y)

    # ---- which records ----------------------------------------------------------------------------------------------
    def _others(self, space: ScheduleSpace[Any], devices: Collection[int]) -> list[Place]:
        """Records besides the workload's own, the most similar first; of a workload that is left alone its own on
        another device."""
        key = space.workload.key
        found = self.history.others(space, devices)
        return [place for place in found if place[1] == key] if self.leaves_alone(key) else found

    def _y(self, place: Place) -> FloatArray:
        """float64[N]: log seconds of records, without what is expected of them."""
        known = self.history.known[place]
        if self._expected is None:
            return np.log(known.seconds)
        expected = [float(self._expected(known.space, points).mean()) for points in known.points]
        return np.log(known.seconds / np.exp(expected))

    # ---- the process ------------------------------------------------------------------------------------------------
    def _pose(self, space: ScheduleSpace[Any], others: Sequence[Place], own: Place | None = None) -> Problem:
        """The process given a workload's own records, then those of others that there is room for; its parameters are
        fitted again when this device's records have grown."""
        chosen = [own] if own is not None and own in self.history.known else []
        parts = [_at_most(_MAX_RECORDS, self.history.known[place].x, self._y(place)) for place in chosen]
        room = min(_MAX_OTHERS, _MAX_RECORDS - sum(len(y) for _, y in parts))
        for place in others:
            if room <= 0:
                break
            chosen.append(place)
            parts.append((self.history.known[place].x[:room], self._y(place)[:room]))
            room -= len(parts[-1][1])
        x, y = np.vstack([x for x, _ in parts]), np.concatenate([y - y.mean() for _, y in parts])
        numbers = {space.workload.key: 0}
        groups = [numbers.setdefault(workload, len(numbers)) for _, workload in chosen]
        sizes = [len(y) for _, y in parts]
        num = self.history.num(self.history.here)
        due = _REFIT_GROWTH * max(self._fitted_on, _MIN_RECORDS / _REFIT_GROWTH)
        is_due = self._parameters is None or num >= due
        if is_due:
            deviation = x.std(axis=0)
            self._centre, self._scale = x.mean(axis=0), np.where(deviation > 1e-9, deviation, 1.0)
            self._fitted_on = num
        return Problem(
            self._standardise(x),
            y,
            np.repeat(np.array(groups, dtype=np.int64), sizes),
            np.repeat(np.array([device for device, _ in chosen], dtype=np.int64), sizes),
            self._parameters,
            is_due,
        )

    def _predict(self, problem: Problem, x: FloatArray) -> tuple[Problem, Prediction]:
        """Features as they are, float64[M, F], to log seconds; and the problem as it is to be asked about again."""
        was_due = problem.is_due
        problem, found = self._solve(problem, self._standardise(x))
        if was_due:
            self._parameters = found.parameters
        return problem, found

    def _standardise(self, x: FloatArray) -> FloatArray:
        return (x - self._centre) / self._scale


def _at_most(num: int, x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The fastest half of `num` records, and as many of the others, evenly spaced from fast to slow."""
    if len(y) <= num:
        return x, y
    order = np.argsort(y, kind="stable")
    rest = order[num // 2 :]
    chosen = np.concatenate([order[: num // 2], rest[np.linspace(0, len(rest) - 1, num - num // 2).astype(np.int64)]])
    return x[chosen], y[chosen]
