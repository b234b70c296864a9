"""A model that was taught by other tunings (`offline`), corrected by what this one measures.

log seconds = its prediction + a Gaussian process of what is left over. So it orders points before anything was
measured, and what is measured here counts more and more. Where its order is worse than chance, a workload is left to
the process alone, as if there were no such model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.arrays import FloatArray
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.gaussian_process import GaussianProcessModel
from chanas.prescheduler.tuning.cost_model.guards import Guard, chance_deviation
from chanas.prescheduler.tuning.cost_model.history import HERE, History
from chanas.prescheduler.tuning.cost_model.solving import Solve
from chanas.prescheduler.tuning.offline.models import OfflineModel
from chanas.prescheduler.tuning.offline.primitives import primitive_rows

MIN_JUDGED = 4
"""Records of a workload from which on the model's order of them is judged."""


class PretrainedModel:
    """An offline model with a Gaussian process of its errors."""

    def __init__(self, history: History, model: OfflineModel, solve: Solve | None = None) -> None:
        self.history, self._model = history, model
        # Processes of all of the log seconds, and of what the model leaves over.
        self._plain = GaussianProcessModel(history, solve)
        self._rest = GaussianProcessModel(history, solve, self._ask)
        self._predicted: dict[str, dict[Point, float]] = {}
        """Log seconds that the model predicts, by workload and point."""
        self._guards: dict[str, Guard] = {}

    def observe(self, space: ScheduleSpace[Any], records: Sequence[TuningRecord]) -> None:
        """Learn from records, and drop the model for a workload whose records it orders worse than chance by more than
        the standard deviation of chance."""
        valid = [r for r in records if r.seconds is not None]
        if not valid:
            return
        points = [r.point for r in valid]
        self._ask(space, points)
        for process in (self._plain, self._rest):
            process.forecast(space, points)
        self.history.add(space, valid)
        for process in (self._plain, self._rest):
            process.judge(space)
        own = self._own(space)
        guard = self._guards.setdefault(space.workload.key, Guard(MIN_JUDGED, lambda num: -chance_deviation(num)))
        guard.judge(self._ask(space, list(own)), np.array(list(own.values()), dtype=np.float64))

    def predict_from_prior(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> FloatArray | None:
        """float64[N]: log seconds by the other device's records, without the model."""
        return self._plain.predict_from_prior(space, points)

    def predict(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation, float64[N] each, of centred log seconds."""
        if self.is_dropped(space) or not points:
            return self._plain.predict(space, points)
        mean, deviation = self._rest.predict(space, points)
        predicted, own = self._ask(space, points), list(self._own(space))
        centre = float((self._ask(space, own) if own else predicted).mean())
        return mean + predicted - centre, deviation

    def is_dropped(self, space: ScheduleSpace[Any]) -> bool:
        """True if the model's order of the workload's records was worse than chance."""
        key = space.workload.key
        return key in self._guards and self._guards[key].is_lost

    def _own(self, space: ScheduleSpace[Any]) -> dict[Point, float]:
        """Seconds of the workload's points that were measured here."""
        known = self.history.known.get((HERE, space.workload.key))
        return {} if known is None else {p: s for (p,), s in zip(known.points, known.seconds.tolist(), strict=True)}

    def _ask(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> FloatArray:
        """float64[N]: log seconds up to a constant that the model predicts; each point is asked for once."""
        known = self._predicted.setdefault(space.workload.key, {})
        missing = [point for point in dict.fromkeys(points) if point not in known]
        if missing:
            values = self._model.log_seconds(primitive_rows(space, missing, self.history.target))
            known.update(zip(missing, values.tolist(), strict=True))
        return np.array([known[point] for point in points], dtype=np.float64)
