"""The interface of cost models, and the known ones by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.trust import SourceTrust

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prior:
    """Another device's records of one operator: N of them, the fastest first, in points of this device's space.

    points   for each record the points that it stands for: several where this space has a coordinate more
    seconds  float64[N] on that device
    target   that device: what a point means to its caches
    trust    in that device's records, by all operators that have any
    """

    points: tuple[tuple[Point, ...], ...]
    seconds: FloatArray
    target: HardwareTarget
    trust: SourceTrust = field(default_factory=SourceTrust, compare=False)


class CostModel(Protocol):
    """Predicts log seconds of schedule points of one operator family; learns from the records of all its workloads."""

    def observe(self, space: ScheduleSpace[Any], records: Sequence[TuningRecord]) -> None:
        """Learn from new records (failed ones are left out)."""

    def transfer(self, space: ScheduleSpace[Any], prior: Prior) -> None:
        """Learn what another device says of an operator, as far as the two devices turn out to be alike."""

    def predict_from_prior(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> FloatArray | None:
        """float64[N] of the log seconds that the other device's records alone say; None when they say nothing."""

    def drop(self, space: ScheduleSpace[Any]) -> None:
        """Ignore the other device's records for this operator from now on."""

    def predict(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation, float64[N] each, of log seconds up to a constant per workload."""
