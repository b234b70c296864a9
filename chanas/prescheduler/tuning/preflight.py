"""Check that each family of operators works on a device. One small operator of each is built, run and compared with
PyTorch before anything is tuned: what can't work is told in a second, not after thousands of candidates that crash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from chanas.compiler.backends import case_of, has_schedules, schedule_space
from chanas.compiler.space import Point
from chanas.core.target import HardwareTarget
from chanas.devices.timing import ONCE
from chanas.errors import MeasureError
from chanas.measuring.candidates import Candidate, CandidatePipeline
from chanas.measuring.fleet import Pool
from chanas.measuring.messages import OperatorAt
from chanas.operators.workload import Operator, Workload
from chanas.prescheduler.records.store import RecordStore
from chanas.prescheduler.tuning.give_up import describe_errors, remedy

PREFIX = "preflight-"
"""Prefix of the names of a check's files."""
# A family fails when so many points of its operator do: one that is beyond a compiler says little of the others.
_NUM_POINTS = 3
_SMALL: tuple[Workload, ...] = (
    Workload("conv", 8, 3, 16, 3, 2, "hswish"),
    Workload("blockconv", 8, 16, 16, 3, 1, "relu"),
    Workload("groupconv", 8, 16, 16, 3, 1, "relu", groups=8),
    Workload("winograd", 8, 16, 16, 3, 1, "relu"),
    Workload("winograd2", 8, 16, 16, 3, 1, "relu"),
    Workload("pointwise", 8, 16, 48, epilogue="relu"),
    Workload("depthwise", 8, 16, 16, 3, 1, "relu"),
    Workload("pool", 8, 16, 16),
    Workload("squeeze", 8, 48, 16, epilogue="relu"),
    Workload("upconv", 8, 16, 16, 2, 2, "relu"),
)


def all_families(target: HardwareTarget) -> tuple[Workload, ...]:
    """One small operator of each family that there is on the target in its dtype."""
    small = (replace(w, dtype=target.dtype, batch=target.batch) for w in _SMALL)
    return tuple(workload for workload in small if has_schedules(workload, target))


def one_of_each(workloads: Iterable[Workload]) -> tuple[Workload, ...]:
    """The operator of fewest floating-point operations of each family, in the families' order."""
    cheapest: dict[Operator, Workload] = {}
    for workload in workloads:
        known = cheapest.setdefault(workload.op, workload)
        if workload.num_flops < known.num_flops:
            cheapest[workload.op] = workload
    return tuple(cheapest.values())


def check_families(
    workloads: Sequence[Workload], target: HardwareTarget, pool: Pool, scratch: Path
) -> dict[str, str | None]:
    """Build, run and compare each workload, all side by side, at up to three random points until one works.

    Args:
        workloads: one of each family (`one_of_each`, `all_families`).
        target: what they are built for.
        pool: where they are built and run.
        scratch: an existing folder for files, of which none is left.

    Returns:
        The error of each family, in order; None where it works.

    Raises:
        ChanasError: the disk is full.
    """
    points = {w: schedule_space(w, target).sample(_NUM_POINTS, np.random.default_rng(0)) for w in workloads}
    working, errors = try_points(points, target, pool, scratch)
    return {w.op: None if w in working else errors[w][0] for w in workloads}


def try_points(
    points: Mapping[Workload, Sequence[Point]], target: HardwareTarget, pool: Pool, scratch: Path
) -> tuple[dict[Workload, Point], dict[Workload, list[str]]]:
    """Build, run and compare each workload, all side by side, at one of its points after the other until one works.

    Returns:
        The points that work, and the errors of the others, by workload.

    Raises:
        ChanasError: the disk is full.
    """
    line: CandidatePipeline[Workload] = CandidatePipeline(pool)
    left = {w: list(some) for w, some in points.items()}
    cases = {w: scratch / f"{PREFIX}{w.key}.npz" for w in points}
    working: dict[Workload, Point] = {}
    errors: dict[Workload, list[str]] = {w: [] for w in points}
    for workload, case in cases.items():
        case_of(workload, target).save(case)
        line.submit(_candidate(workload, left[workload][0], target, case))
    while line.num_in_flight:
        for candidate, outcome in line.finished():
            workload = candidate.token
            point = left[workload].pop(0)
            if outcome.error is None:
                working[workload] = point
                continue
            errors[workload].append(outcome.error)
            if left[workload]:
                line.submit(_candidate(workload, left[workload][0], target, cases[workload]))
    for case in cases.values():
        case.unlink(missing_ok=True)
    return working, errors


def _candidate(workload: Workload, point: Point, target: HardwareTarget, case: Path) -> Candidate[Workload]:
    library = case.with_name(f"{case.stem}-{'_'.join(map(str, point))}.so")
    return Candidate(
        token=workload,
        what=OperatorAt(workload, point),
        target=target,
        library=library,
        case=case,
        settings=ONCE,
    )


def remaining_workloads(
    workloads: Sequence[Workload], target: HardwareTarget, store: RecordStore, num_trials: int
) -> list[Workload]:
    """The workloads that a tuning with kept records may still make trials of: all with untried points, as long as the
    common budget is not used up."""
    tried, size = {}, {}
    for workload in workloads:
        space = schedule_space(workload, target)
        tried[workload] = sum(space.contains(r.point) for r in store.load(workload.key))
        size[workload] = space.num_points
    if sum(tried.values()) >= sum(min(num_trials, size[w]) for w in workloads):
        return []
    return [w for w in workloads if tried[w] < size[w]]


def require_families(workloads: Sequence[Workload], target: HardwareTarget, pool: Pool, scratch: Path) -> None:
    """Check one operator of each family among the workloads.

    Raises:
        MeasureError: a family does not work; the message says which, what was said, and what to do instead.
        ChanasError: the disk is full.
    """
    checks = check_families(one_of_each(workloads), target, pool, scratch)
    errors = {family: error for family, error in checks.items() if error is not None}
    if errors:
        raise MeasureError(
            f"operators in {target.dtype_name} do not work on {target.device}, compiled for {target.instruction_set}: "
            f"{describe_errors(errors)}; {remedy(target)}"
        )
