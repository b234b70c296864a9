"""What a cost model is, and the known ones by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chanas.errors import ConfigError, unknown_name
from chanas.prescheduler.records import TuningRecord
from chanas.prescheduler.space import Point, ScheduleSpace
from chanas.target import HardwareTarget

FloatArray = npt.NDArray[np.float64]


class CostModel(Protocol):
    """Predicts log seconds of schedule points of one operator family; learns from the records of all its workloads."""

    def observe(self, space: ScheduleSpace, records: Sequence[TuningRecord]) -> None:
        """Learn from new records (failed ones are left out)."""

    def predict(self, space: ScheduleSpace, points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation, float64[N] each, of log seconds up to a constant per workload."""


def cost_model(name: str, target: HardwareTarget, seed: int) -> CostModel:
    """A new cost model by name.

    Raises:
        ConfigError: the name is unknown.
    """
    from chanas.prescheduler.cost_model.gaussian_process import GaussianProcessModel
    from chanas.prescheduler.cost_model.random_model import RandomModel

    known: dict[str, Callable[[], CostModel]] = {
        "gp": lambda: GaussianProcessModel(target),
        "random": lambda: RandomModel(seed),
    }
    if name not in known:
        raise ConfigError(unknown_name("cost model", name, known))
    return known[name]()
