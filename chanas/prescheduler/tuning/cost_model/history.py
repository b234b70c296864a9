"""Records that cost models predict from, of one family of operators on this device and on another one; and what a cost
model is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from chanas.compiler.backends import backend_of
from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.arrays import FloatArray
from chanas.core.target import HardwareTarget
from chanas.prescheduler.ideas import description
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.guards import SourceTrust

HERE, ELSEWHERE = 0, 1
"""The devices that records come from: this one, or that of a warm start."""
# What records elsewhere count as further away than those of this device, in the units of `description`.
_AWAY = 1.0

Place = tuple[int, str]
"""A device, and the key of a workload."""


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

    def best(self, num: int) -> list[Point]:
        """A point of each of the fastest records."""
        return [points[0] for points in self.points[:num]]


class CostModel(Protocol):
    """Predicts log seconds of schedule points of one family of operators from the history of all its workloads."""

    @property
    def history(self) -> History:
        """The records that it goes by; those of another device are added there, and dropped."""

    def observe(self, space: ScheduleSpace[Any], records: Sequence[TuningRecord]) -> None:
        """Add records of this device to the history; what was forecast of them is judged."""

    def predict(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation, float64[N] each, of log seconds up to a constant per workload."""

    def predict_from_prior(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> FloatArray | None:
        """float64[N] of the log seconds that the other device's records alone say; None when they say nothing."""


@dataclass(frozen=True)
class Known:
    """N records of one workload on one device.

    about    float64[8] of the workload (`description`)
    points   those that each record stands for
    x        float64[N, F]
    seconds  float64[N]
    """

    space: ScheduleSpace[Any]
    about: FloatArray
    points: tuple[tuple[Point, ...], ...]
    x: FloatArray
    seconds: FloatArray


class History:
    """The valid records of a family by device and workload, and which of them may be asked about a workload."""

    def __init__(self, target: HardwareTarget) -> None:
        self.target = target
        self.known: dict[Place, Known] = {}
        self.version = 0
        """Number of changes: what was made from the records holds for as long as it stays the same."""
        self._dropped: set[str] = set()
        """Workloads that another device's records mislead."""

    def add(self, space: ScheduleSpace[Any], records: Sequence[TuningRecord]) -> None:
        """Add valid records of this device."""
        points = [r.point for r in records]
        seconds = np.array([r.seconds for r in records], dtype=np.float64)
        x = features(space, points, self.target)
        new = Known(space, description(space.workload), tuple((p,) for p in points), x, seconds)
        place = HERE, space.workload.key
        if (old := self.known.get(place)) is not None:
            x, seconds = np.vstack([old.x, new.x]), np.concatenate([old.seconds, new.seconds])
            new = replace(new, points=old.points + new.points, x=x, seconds=seconds)
        self.known[place] = new
        self.version += 1

    def add_elsewhere(self, space: ScheduleSpace[Any], prior: Prior) -> None:
        """Add another device's records; one that stands for several points lies in their middle."""
        if prior.points:
            x = np.array([features(space, points, prior.target).mean(axis=0) for points in prior.points])
            about = description(space.workload)
            self.known[ELSEWHERE, space.workload.key] = Known(space, about, prior.points, x, prior.seconds)
            self.version += 1

    def drop_elsewhere(self, space: ScheduleSpace[Any]) -> None:
        """Ask the other device's records no more about this operator."""
        self._dropped.add(space.workload.key)
        self.version += 1

    def num(self, places: Collection[Place]) -> int:
        """Records at some places together."""
        return sum(len(self.known[place].seconds) for place in places if place in self.known)

    @property
    def here(self) -> list[Place]:
        """The places of this device."""
        return [place for place in self.known if place[0] == HERE]

    def others(self, space: ScheduleSpace[Any], devices: Collection[int]) -> list[Place]:
        """Places besides that of a workload on this device, without what misleads it, the most similar first: what
        another device says of the workload itself, then other workloads."""
        key = space.workload.key
        found = [
            (device, other)
            for device, other in self.known
            if device in devices and (device, other) != (HERE, key) and (device == HERE or key not in self._dropped)
        ]
        if not found:
            return []
        away = np.abs(np.array([self.known[place].about for place in found]) - description(space.workload)).sum(1)
        away += np.array([-np.inf if other == key else _AWAY * device for device, other in found])
        return [found[i] for i in np.argsort(away, kind="stable")]


def features(space: ScheduleSpace[Any], points: Sequence[Point], target: HardwareTarget) -> FloatArray:
    """float64[N, F]: points on the machine, with the same F for every workload, so that a cost model carries over.

    All are logarithms of counts, ratios or flags; each kind of processor has its own (`compiler/*/features.py`).
    """
    backend = backend_of(target)
    return np.array([backend.features(space, space.groups(p), target) for p in points])
