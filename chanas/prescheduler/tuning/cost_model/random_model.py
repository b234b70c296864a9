"""The yardstick: a model that knows nothing, so that what a real one gains can be measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.compiler.space import Point, ScheduleSpace
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.base import FloatArray, Prior


class RandomModel:
    """Predicts random numbers; deterministic for a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def observe(self, space: ScheduleSpace[Any], records: Sequence[TuningRecord]) -> None:
        """Learns nothing."""

    def transfer(self, space: ScheduleSpace[Any], prior: Prior) -> None:
        """Learns nothing."""

    def predict_from_prior(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> FloatArray | None:
        """Return None: nothing is predicted."""
        return None

    def drop(self, space: ScheduleSpace[Any]) -> None:
        """Do nothing: there is nothing to ignore."""

    def predict(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Standard normal means, standard deviations of one."""
        return self._rng.standard_normal(len(points)), np.ones(len(points))
