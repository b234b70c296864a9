"""A scheduled function as one row of features for each of its stores: MetaSchedule's, which are those of TenSet (Zheng
et al., 2021) and eight about the operator as a whole.

They are of the lowered program, which takes some ten milliseconds for each point.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from chanas import interrupts
from chanas.compiler.space import Point
from chanas.core.target import HardwareTarget
from chanas.devices.lean_tvm import hide_torch
from chanas.errors import ScheduleError
from chanas.operators.keys import workload_of_key
from chanas.operators.workload import Workload
from chanas.prescheduler.tuning.offline.primitives import Float32Array, Rows

WIDTH = 172
"""Numbers of a store."""
_PART = 32
"""Points that a process is handed at a time."""

Job = tuple[str, HardwareTarget, list[Point]]
"""A workload's key, the device and points of it."""


def segment_rows(workload: Workload, target: HardwareTarget, points: Sequence[Point]) -> Rows:
    """The stores of scheduled functions, F = `WIDTH`.

    Raises:
        ScheduleError: a point is not one of the workload's space, or the target is a GPU.
    """
    return Rows.join(_extract(workload, target, points))


def extract_all(jobs: Sequence[Job], num_processes: int) -> Iterator[list[Float32Array]]:
    """The stores of each job's points, in order, by so many processes; by this one if there are none."""
    parts = [(key, target, points[i : i + _PART]) for key, target, points in jobs for i in range(0, len(points), _PART)]
    with contextlib.ExitStack() as stack:
        if num_processes and len(parts) > 1:
            context = multiprocessing.get_context("spawn")
            with interrupts.left_to_parent():
                pool = stack.enter_context(context.Pool(num_processes, initializer=hide_torch))
            results: Iterator[list[Float32Array]] = pool.imap(_extract_part, parts)
        else:
            results = map(_extract_part, parts)
        for _, _, points in jobs:
            found: list[Float32Array] = []
            for _ in range(math.ceil(len(points) / _PART)):
                found += next(results)
            yield found


def _extract_part(job: Job) -> list[Float32Array]:
    key, target, points = job
    return _extract(workload_of_key(key), target, points)


def _extract(workload: Workload, target: HardwareTarget, points: Sequence[Point]) -> list[Float32Array]:
    from tvm import s_tir
    from tvm.s_tir.meta_schedule import MeasureCandidate
    from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

    from chanas.compiler.backends import schedule_operator

    if target.gpu is not None:
        raise ScheduleError(f"features of stores are there for processors alone, got target '{target.name}'")
    schedules = [s_tir.Schedule(schedule_operator(workload, point, target)) for point in points]
    if not schedules:
        return []
    context = _context(schedules[0].mod, target)
    found = PerStoreFeature(extract_workload=True).extract_from(context, [MeasureCandidate(s, []) for s in schedules])
    return [rows.numpy().astype(np.float32) for rows in found]


def _context(module: Any, target: HardwareTarget) -> Any:
    """The context of an extraction. Its own constructor parses all intrinsics of GPUs, which takes a minute."""
    from tvm.s_tir.meta_schedule import TuneContext, _ffi_api

    context = TuneContext.__new__(TuneContext)
    options = (None, None, "main", 1, -1, None)  # no search, one thread, any seed, no log
    context.__init_handle_by_constructor__(_ffi_api.TuneContext, module, target.tvm_target(), *options)
    return context
