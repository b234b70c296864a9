"""The paper's cost model: a Gaussian process on what schedule points mean, fed by the records of the asked workload and
of those of its family that are most like it, so that a new workload starts with what similar ones have taught
(section 3.5).

Only the order of points within a workload is learnt: y = log seconds, minus the mean of the record's workload, and each
workload has an unknown offset besides (`regression`), since the points that a search tries are better than random ones.

Records of another device (`transfer`) are a second place: the same operator's come first, other operators' count as
less alike than those of this device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.prescheduler.ideas import description
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.base import FloatArray, Prior
from chanas.prescheduler.tuning.cost_model.features import features
from chanas.prescheduler.tuning.cost_model.regression import IntArray, Parameters
from chanas.prescheduler.tuning.cost_model.solving import Prediction, Problem, Solve, Solver

# Exact inference is cubic in the number of records. More than these of other workloads gain nothing.
_MAX_RECORDS, _MAX_OTHERS = 320, 128
# Kernel parameters are fitted again when the records have grown by this factor.
_REFIT_GROWTH = 1.6
_MIN_RECORDS = 6
# A workload whose first records order its points against the prediction of others is left to its own records. These
# points were chosen for being equally good, so that their order says little: a stricter limit drops what helps.
_NUM_JUDGED, _MIN_CORRELATION = 8, -0.3
# Where records come from: this device, or the one that a warm start is from. What the latter's count as further away
# than this one's, in the units of `description`.
_HERE, _ELSEWHERE = 0, 1
_AWAY = 1.0

_Kept = tuple[int, str]
"""A device, and the key of a workload."""


@dataclass(frozen=True)
class _Selection:
    """Records that a process is made of: float64[N, F] and [N], int64[N] twice; group 0 is the asked workload."""

    x: FloatArray
    y: FloatArray
    groups: IntArray
    devices: IntArray


class GaussianProcessModel:
    """Gaussian process regression on centred log seconds.

    Args:
        target: whose points they are.
        solve: fits and predicts; on this machine if it is left out.
    """

    def __init__(self, target: HardwareTarget, solve: Solve | None = None) -> None:
        self._target = target
        self._x: dict[_Kept, FloatArray] = {}
        self._y: dict[_Kept, FloatArray] = {}
        self._descriptions: dict[str, FloatArray] = {}
        self._predicted: dict[str, FloatArray] = {}
        """float64[N] of the first records of a workload: what the records of others alone say."""
        self._alone: set[str] = set()
        self._dropped: set[str] = set()
        """Workloads that another device's records mislead."""
        self._parameters: Parameters | None = None
        self._centre = self._scale = np.zeros(0)
        self._fitted_on = 0
        self._asked: str | None = None
        self._problem: Problem | None = None
        self._solve: Solve = solve or Solver()

    @property
    def num_records(self) -> int:
        """Number of records of this device."""
        return sum(len(y) for (place, _), y in self._y.items() if place == _HERE)

    def observe(self, space: ScheduleSpace[Any], records: Sequence[TuningRecord]) -> None:
        """Add valid records; the process is made anew when it is next asked."""
        valid = [r for r in records if r.seconds is not None]
        if not valid:
            return
        key, kept = space.workload.key, (_HERE, space.workload.key)
        x = features(space, [r.point for r in valid], self._target)
        y = np.log(np.array([r.seconds for r in valid], dtype=np.float64))
        self._descriptions[key] = description(space.workload)
        predicted = self._predict_from_others(key, x)
        self._x[kept] = np.vstack([self._x[kept], x]) if kept in self._x else x
        self._y[kept] = np.concatenate([self._y[kept], y]) if kept in self._y else y
        if predicted is not None:
            self._judge(key, predicted)
        self._asked = None

    def transfer(self, space: ScheduleSpace[Any], prior: Prior) -> None:
        """Add another device's records; one that stands for several points lies in their middle."""
        key = space.workload.key
        if not prior.points:
            return
        self._descriptions[key] = description(space.workload)
        x = [features(space, points, prior.target).mean(axis=0) for points in prior.points]
        self._x[_ELSEWHERE, key], self._y[_ELSEWHERE, key] = np.array(x), np.log(prior.seconds)
        self._asked = None

    def predict_from_prior(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> FloatArray | None:
        """The mean of a process that has the other device's records of this operator and of similar ones."""
        key = space.workload.key
        self._descriptions[key] = description(space.workload)
        if self._num_usable(key, (_ELSEWHERE,)) < _MIN_RECORDS:
            return None
        problem = self._pose(self._select(key, with_own=False, places=(_ELSEWHERE,)))
        return self._predict(problem, features(space, points, self._target))[1].mean

    def drop(self, space: ScheduleSpace[Any]) -> None:
        self._dropped.add(space.workload.key)
        self._asked = None

    def predict(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of centred log seconds; zero and one while there are too few records."""
        key = space.workload.key
        self._descriptions[key] = description(space.workload)
        if self._num_usable(key) < _MIN_RECORDS:
            return np.zeros(len(points)), np.ones(len(points))
        if self._asked != key or self._problem is None:
            self._problem, self._asked = self._pose(self._select(key, with_own=True)), key
        self._problem, found = self._predict(self._problem, features(space, points, self._target))
        return found.mean, found.deviation

    # ---- which records ----------------------------------------------------------------------------------------------
    def _num_usable(self, key: str, places: Collection[int] = (_HERE, _ELSEWHERE)) -> int:
        own = len(self._y.get((_HERE, key), ())) if _HERE in places else 0
        return own + sum(len(self._y[kept]) for kept in self._others(key, places))

    def _select(self, key: str, with_own: bool, places: Collection[int] = (_HERE, _ELSEWHERE)) -> _Selection:
        """Centred log seconds of own records, then those of the most similar workloads, with their features."""
        chosen = [(_HERE, key)] if with_own and (_HERE, key) in self._y else []
        parts = [_at_most(_MAX_RECORDS, self._x[kept], self._y[kept]) for kept in chosen]
        room = min(_MAX_OTHERS, _MAX_RECORDS - sum(len(y) for _, y in parts))
        for kept in self._nearest(key, places):
            if room <= 0:
                break
            chosen.append(kept)
            parts.append((self._x[kept][:room], self._y[kept][:room]))
            room -= len(parts[-1][1])
        numbers = {key: 0}
        groups = [numbers.setdefault(workload, len(numbers)) for _, workload in chosen]
        sizes = [len(y) for _, y in parts]
        return _Selection(
            np.vstack([x for x, _ in parts]),
            np.concatenate([y - y.mean() for _, y in parts]),
            np.repeat(np.array(groups, dtype=np.int64), sizes),
            np.repeat(np.array([place for place, _ in chosen], dtype=np.int64), sizes),
        )

    def _nearest(self, key: str, places: Collection[int] = (_HERE, _ELSEWHERE)) -> list[_Kept]:
        """`_others`, the most similar first: what another device says of the workload itself, then other workloads."""
        others = self._others(key, places)
        if not others:
            return []
        away = np.abs(np.array([self._descriptions[k] for _, k in others]) - self._descriptions[key]).sum(1)
        away += np.array([-np.inf if k == key else _AWAY * place for place, k in others])
        return [others[i] for i in np.argsort(away, kind="stable")]

    def _others(self, key: str, places: Collection[int]) -> list[_Kept]:
        """Records besides those of the workload on this device, without what misleads it."""
        return [
            (place, other)
            for place, other in self._y
            if place in places
            and (place, other) != (_HERE, key)
            and not (place == _ELSEWHERE and key in self._dropped)
            and not (other != key and key in self._alone)
        ]

    # ---- whether to trust others' records ---------------------------------------------------------------------------
    def _predict_from_others(self, key: str, x: FloatArray) -> FloatArray | None:
        """float64[N]: what this device's records of other workloads say about the first points of a workload; None
        later, or without others."""
        so_far = self._predicted.get(key, np.zeros(0))
        own = len(self._y.get((_HERE, key), ()))
        if key in self._alone or len(so_far) < own or own >= _NUM_JUDGED:
            return None  # its first records came without a forecast, or were judged
        if self.num_records - own < _MIN_RECORDS:
            return None
        problem = self._pose(self._select(key, with_own=False, places=(_HERE,)))
        return np.concatenate([so_far, self._predict(problem, x)[1].mean])

    def _judge(self, key: str, predicted: FloatArray) -> None:
        from scipy.stats import spearmanr

        self._predicted[key] = predicted
        y = self._y[_HERE, key]
        if len(y) < _NUM_JUDGED or not (np.ptp(predicted) > 0.0 and np.ptp(y) > 0.0):
            return
        if spearmanr(predicted, y).statistic < _MIN_CORRELATION:
            self._alone.add(key)

    # ---- the process ------------------------------------------------------------------------------------------------
    def _predict(self, problem: Problem, x: FloatArray) -> tuple[Problem, Prediction]:
        """Features as they are, float64[M, F], to log seconds; and the problem as it is to be asked about again."""
        was_due = problem.is_due
        problem, found = self._solve(problem, self._standardise(x))
        if was_due:
            self._parameters = found.parameters
        return problem, found

    def _pose(self, chosen: _Selection) -> Problem:
        """The process given some records; its parameters are fitted again when this device's have grown."""
        due = _REFIT_GROWTH * max(self._fitted_on, _MIN_RECORDS / _REFIT_GROWTH)
        is_due = self._parameters is None or self.num_records >= due
        if is_due:
            deviation = chosen.x.std(axis=0)
            self._centre, self._scale = chosen.x.mean(axis=0), np.where(deviation > 1e-9, deviation, 1.0)
            self._fitted_on = self.num_records
        x = self._standardise(chosen.x)
        return Problem(x, chosen.y, chosen.groups, chosen.devices, self._parameters, is_due)

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
