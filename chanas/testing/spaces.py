"""The schedule spaces that contracts explore, and records of a device that there is none of."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point, ScheduleSpace
from chanas.devices.target_files import describe_target
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord

TARGET = describe_target("xeon-avx512")
LARGE = schedule_space(Workload("pointwise", 14, 96, 192, epilogue="relu"), TARGET)
SIMILAR = schedule_space(Workload("pointwise", 8, 48, 192), TARGET)
SMALL = schedule_space(Workload("pool", 2, 40, 40), TARGET)


def sample(space: ScheduleSpace[Any], num: int, seed: int = 0) -> list[Point]:
    """Distinct points at random."""
    return space.sample(num, np.random.default_rng(seed))


def smooth(point: Point) -> TuningRecord:
    """A record of a device on which close points take similar seconds, no two the same."""
    logs = [(i + 1) * 0.1 * math.log2(max(value, 1)) ** 2 for i, value in enumerate(point)]
    return TuningRecord(point, 1e-6 * math.exp(sum(logs) / len(point)), 1e-9)


def at_random(point: Point) -> TuningRecord:
    """A record that follows no rule, so that nothing can be learned by chance: 1 to 2 µs."""
    number = int.from_bytes(hashlib.sha256(json.dumps(point).encode()).digest()[:4])
    return TuningRecord(point, 1e-6 * (1.0 + number / 2**32), 1e-9)


def failure(point: Point) -> TuningRecord:
    """A record of a point that does not run."""
    return TuningRecord(point, None, None, "timeout: build took more than 20 s")
