"""A cost model from outside the package: the seconds of the nearest points that were measured.

`pyproject.toml` beside it gives the model a name: after `pip install examples/extending`,
`chanas prescheduler --tuner nearest` tunes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.arrays import FloatArray
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.history import HERE, History, features

NEIGHBOURS = 3


class NearestModel:
    """Predicts the mean log seconds of the nearest records of the same operator; their distance is the deviation."""

    def __init__(self, history: History, seed: int) -> None:
        self.history = history

    def observe(self, space: ScheduleSpace[Any], records: Sequence[TuningRecord]) -> None:
        """Add the records that worked to the history."""
        valid = [record for record in records if record.seconds is not None]
        if valid:
            self.history.add(space, valid)

    def predict(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Mean and deviation of log seconds; before anything was measured all points are equal."""
        known = self.history.known.get((HERE, space.workload.key))
        if known is None:
            return np.zeros(len(points)), np.ones(len(points))
        asked = features(space, points, self.history.target)
        distances = np.sqrt(((asked[:, None] - known.x) ** 2).sum(axis=2))
        nearest = np.argsort(distances, axis=1, kind="stable")[:, :NEIGHBOURS]
        log_seconds = np.log(known.seconds)
        mean = (log_seconds - log_seconds.mean())[nearest].mean(axis=1)
        return mean, np.take_along_axis(distances, nearest, axis=1).mean(axis=1)

    def predict_from_prior(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> FloatArray | None:
        """Return None: records of other devices are not asked."""
        return None
