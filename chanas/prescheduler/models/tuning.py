"""A program tuned operator by operator."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from chanas.core.target import HardwareTarget
from chanas.core.units import format_bytes
from chanas.errors import MeasureError, ModelError
from chanas.operators.workload import Workload
from chanas.prescheduler.measuring.canary import Canary
from chanas.prescheduler.measuring.local.pool import OpenPool, open_workers
from chanas.prescheduler.measuring.local.worker import memory_limit
from chanas.prescheduler.models.graph import Constant
from chanas.prescheduler.models.program import Program
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning.give_up import describe_errors
from chanas.prescheduler.tuning.jobs import TuningJobs
from chanas.prescheduler.tuning.preflight import remaining_workloads, require_families
from chanas.prescheduler.tuning.take_over import TakenOver, tune_share
from chanas.prescheduler.tuning.tuner import TuneConfig
from chanas.prescheduler.tuning.warm_start import WarmStart
from chanas.prescheduler.workloads.space import Point

_WORKER_BYTES = 300_000_000
"""Bytes that a worker has allocated when it has loaded TVM."""


@dataclass(frozen=True)
class ChosenOperator:
    """An operator of a program: the one that is taken of those that compute the same, its schedule, and its time alone
    with cold weights.

    taken_from  operator whose schedule it took over without a trial (`TakenOver.origin`); the seconds are a guess then
    """

    workload: Workload
    point: Point
    seconds: float
    taken_from: str = ""


Choices = Mapping[tuple[Workload, ...], ChosenOperator]


@dataclass(frozen=True)
class ModelSettings:
    """The effort that a network is tuned with.

    config     trials per operator, kept ones included
    minutes    the time after which no operator that has a schedule is tried further; without end where it is None
    cost_model gp, random, or attention:FILE (`cost_model.models`)
    tune_share the fewest operators that make up so much of all operations are tuned; the others take schedules over
    """

    config: TuneConfig
    minutes: float | None = None
    cost_model: str = "gp"
    seed: int = 0
    warm_start: WarmStart | None = None
    tune_share: float = 1.0


@dataclass(frozen=True)
class TunedOperators:
    """Result of tuning.

    num_stopped operators of which fewer points were tried than were asked for: nothing better than noise was expected
    warm_start  what another device's records were used for, where there were any
    """

    choices: Choices
    num_new_trials: int
    num_failed_trials: int
    num_stopped: int
    drift: str
    warm_start: str = ""


def tune_program(
    program: Program,
    target: HardwareTarget,
    store: RecordStore,
    settings: ModelSettings,
    *,
    progress: bool = True,
    open_pool: OpenPool | None = None,
) -> TunedOperators:
    """Tune the operators of a program, most where most of its time goes; every kept record is reused.

    Raises:
        MeasureError: an operator works at no schedule that was tried.
    """
    workloads, before = program.workloads(), store.count()
    with open_workers(target, open_pool) as (pool, scratch):
        canary = Canary(target, scratch, store.add_canary)
        jobs = TuningJobs(
            pool,
            target,
            store,
            settings.config,
            scratch,
            settings.cost_model,
            settings.seed,
            weight_bytes(program),
            len(program.tuned),
            canary,
            settings.warm_start,
            math.inf if settings.minutes is None else time.monotonic() + 60.0 * settings.minutes,
        )
        left = remaining_workloads(workloads, target, store, settings.config)
        require_families(left, target, pool, scratch)
        groups, counts = [o.choices for o in program.tuned], _counts(program, workloads)
        found = tune_share(jobs, workloads, counts, settings.tune_share, groups, progress)
        choices = choose(program, found.records, found.taken)
        for operation in program.tuned:
            if operation.choices not in choices:
                given_up = describe_errors(jobs.failed_families) or store.most_frequent_error()
                raise MeasureError(
                    f"no schedule of operator {operation.choices[0].key} works ({given_up}); run the command again "
                    "with more trials"
                )
    after, start = store.count(), settings.warm_start
    used = "" if start is None else start.describe(store.warm_starts([w.key for w in workloads]))
    stopped = sum(jobs.is_stopped(w) for w in workloads)
    return TunedOperators(choices, sum(after) - sum(before), after[1] - before[1], stopped, canary.describe(), used)


def weight_bytes(program: Program) -> int:
    """Bytes of a program's weights: how much passes through the caches before an operator runs again."""
    return sum(o.weight.nbytes for o in program.tuned if o.weight is not None)


def check_provable(program: Program) -> None:
    """Refuse a network that cannot be proven in the end, before the time for tuning it is spent: a worker holds its
    weights twice, as the case's arrays and as tensors.

    Raises:
        ModelError: they are more than a worker may allocate.
    """
    constants = sum(r.value.nbytes for o in program.others for r in o.reads if isinstance(r, Constant))
    weights, limit = weight_bytes(program) + constants, memory_limit()
    needed = 2 * weights + activation_bytes(program) + _WORKER_BYTES
    if needed > limit:
        raise ModelError(
            f"the network has {format_bytes(weights)} of weights, and proving it takes about "
            f"{format_bytes(needed)} in one process, which may allocate {format_bytes(limit)}; tune a smaller network"
        )


def _counts(program: Program, workloads: Sequence[Workload]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """float64[1, W]: occurrences of each operator in the program; those that compute the same count as often each."""
    column = {w: i for i, w in enumerate(workloads)}
    counts = np.zeros((1, len(workloads)))
    for operation in program.tuned:
        for workload in operation.choices:
            counts[0, column[workload]] += 1.0
    return counts


def choose(
    program: Program,
    records: Mapping[Workload, Sequence[TuningRecord]],
    taken: Mapping[Workload, TakenOver] = MappingProxyType({}),
) -> Choices:
    """The fastest of the operators that compute the same, for those of which any works; what was measured goes before
    what was taken over."""
    chosen: dict[tuple[Workload, ...], ChosenOperator] = {}
    for operation in program.tuned:
        best = [
            ChosenOperator(workload, found[0].point, found[0].again_s or found[0].seconds or math.inf)
            for workload in operation.choices
            if (found := records.get(workload))
        ]
        best = best or [
            ChosenOperator(workload, idea.point, idea.seconds, idea.origin)
            for workload in operation.choices
            if (idea := taken.get(workload))
        ]
        if best:
            chosen[operation.choices] = min(best, key=lambda c: c.seconds)
    return chosen


def activation_bytes(program: Program) -> int:
    """Peak bytes of values that are needed at one time, without what an operator keeps for itself."""
    lanes = program.lanes
    last: dict[int, int] = dict.fromkeys(program.outputs, len(program.operations))
    for i, operation in enumerate(program.operations):
        for read in operation.reads:
            if isinstance(read, int):
                last[read] = max(last.get(read, 0), i)
    first = len(program.inputs)
    live: dict[int, int] = {}
    peak = 0
    for i, operation in enumerate(program.operations):
        value = operation.value
        live[first + i] = math.prod(value.memory_shape(lanes)) * np.dtype(value.dtype).itemsize
        peak = max(peak, sum(live.values()))
        live = {v: size for v, size in live.items() if last.get(v, -1) > i}
    return peak


def share_of_others(choices: Choices, program: Program, seconds: float) -> float:
    """The share of a network's time that its tuned operators, timed alone, do not account for; at least 0."""
    tuned = math.fsum(choices[o.choices].seconds for o in program.tuned)
    return max(0.0, 1.0 - tuned / seconds)
