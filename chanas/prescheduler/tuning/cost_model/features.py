"""Features of a schedule point on the machine, so that a cost model carries over between workloads.

All features are logarithms of counts, ratios or flags; each kind of processor has its own (`kernels/*/features.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.compiler.backends import backend_of
from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.target import HardwareTarget


def features(space: ScheduleSpace[Any], points: Sequence[Point], target: HardwareTarget) -> npt.NDArray[np.float64]:
    """float64[N, F], with the same F for every workload."""
    backend = backend_of(target)
    return np.array([backend.features(space, space.groups(p), target) for p in points])
