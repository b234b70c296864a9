"""A model that was taught by other tunings (`offline`), corrected by what this one measures.

log seconds = its prediction + a Gaussian process of what is left over. So it orders points before anything was
measured, and what is measured here counts more and more. Where its order is worse than chance, a workload is left to
the process alone, as if there were no such model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.base import FloatArray, Prior
from chanas.prescheduler.tuning.cost_model.gaussian_process import GaussianProcessModel
from chanas.prescheduler.tuning.cost_model.solving import Solve
from chanas.prescheduler.tuning.offline.models import OfflineModel
from chanas.prescheduler.tuning.offline.primitives import primitive_rows
from chanas.prescheduler.tuning.tuner import rank_correlation

MIN_JUDGED = 4
"""Records of a workload from which on the model's order of them is judged."""


class PretrainedModel:
    """An offline model with a Gaussian process of its errors."""

    def __init__(self, target: HardwareTarget, model: OfflineModel, solve: Solve | None = None) -> None:
        self._target, self._model = target, model
        self._plain, self._rest = GaussianProcessModel(target, solve), GaussianProcessModel(target, solve)
        """Processes of all of the log seconds, and of what the model leaves over."""
        self._predicted: dict[str, dict[Point, float]] = {}
        """Log seconds that the model predicts, by workload and point."""
        self._own: dict[str, dict[Point, float]] = {}
        """Valid seconds that were measured here, by workload and point."""
        self._dropped: set[str] = set()

    def observe(self, space: ScheduleSpace[Any], records: Sequence[TuningRecord]) -> None:
        """Learn from records, and drop the model for a workload that it misleads."""
        self._plain.observe(space, records)
        valid = [(r, r.seconds) for r in records if r.seconds is not None]
        if not valid:
            return
        predicted = self._ask(space, [r.point for r, _ in valid])
        shifts = np.exp(predicted).tolist()
        self._rest.observe(
            space, [dataclasses.replace(r, seconds=s / shift) for (r, s), shift in zip(valid, shifts, strict=True)]
        )
        self._own.setdefault(space.workload.key, {}).update((r.point, s) for r, s in valid)
        self._judge(space)

    def transfer(self, space: ScheduleSpace[Any], prior: Prior) -> None:
        """Learn what another device says of an operator."""
        self._plain.transfer(space, prior)
        shifts = [float(self._ask(space, points).mean()) for points in prior.points]
        self._rest.transfer(space, dataclasses.replace(prior, seconds=prior.seconds / np.exp(shifts)))

    def predict_from_prior(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> FloatArray | None:
        """float64[N]: log seconds by the other device's records, without the model."""
        return self._plain.predict_from_prior(space, points)

    def drop(self, space: ScheduleSpace[Any]) -> None:
        """Ignore the other device's records for this operator."""
        self._plain.drop(space)
        self._rest.drop(space)

    def predict(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation, float64[N] each, of centred log seconds."""
        key = space.workload.key
        if key in self._dropped or not points:
            return self._plain.predict(space, points)
        predicted = self._ask(space, points)
        own = self._own.get(key)
        centre = float(self._ask(space, list(own)).mean()) if own else float(predicted.mean())
        mean, deviation = self._rest.predict(space, points)
        return mean + predicted - centre, deviation

    def is_dropped(self, space: ScheduleSpace[Any]) -> bool:
        """True if the model's order of the workload's records was worse than chance."""
        return space.workload.key in self._dropped

    def _judge(self, space: ScheduleSpace[Any]) -> None:
        """Drop the model if its rank correlation is below zero by more than its standard deviation without any
        relation (Kendall, 1938)."""
        own = self._own[space.workload.key]
        num = len(own)
        if num < MIN_JUDGED:
            return
        tau = rank_correlation(self._ask(space, list(own)), np.array(list(own.values()), dtype=np.float64))
        if tau is not None and tau < -math.sqrt(2.0 * (2 * num + 5) / (9.0 * num * (num - 1))):
            self._dropped.add(space.workload.key)

    def _ask(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> FloatArray:
        """float64[N]: log seconds up to a constant that the model predicts; each point is asked for once."""
        known = self._predicted.setdefault(space.workload.key, {})
        missing = [point for point in dict.fromkeys(points) if point not in known]
        if missing:
            values = self._model.log_seconds(primitive_rows(space, missing, self._target))
            known.update(zip(missing, values.tolist(), strict=True))
        return np.array([known[point] for point in points], dtype=np.float64)
