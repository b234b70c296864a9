"""A program tuned operator by operator."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from chanas.compiler.program import Form, Key, Program, TunedOperation, workloads_of
from chanas.compiler.space import Point
from chanas.core.effort import NetworkEffort
from chanas.core.target import HardwareTarget
from chanas.core.units import format_bytes
from chanas.errors import ConfigError, MeasureError, ModelError
from chanas.measuring.fleet import Pool
from chanas.measuring.worker.serve import memory_limit
from chanas.operators.workload import Workload
from chanas.prescheduler.blocks import Surroundings
from chanas.prescheduler.ideas import Idea, ranked_points
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.records.summary import TrialSummary
from chanas.prescheduler.session import Session
from chanas.prescheduler.tuning.jobs import best_records, legal_records
from chanas.prescheduler.tuning.preflight import try_points
from chanas.prescheduler.tuning.share import tune_share
from chanas.prescheduler.tuning.warm_start import WarmStart

_NUM_LIKELY = 3
_GUESSED_S_PER_FLOP = 1e-10
"""A guess for networks of which nothing was measured."""
_SETTLE_S, _SETTLE_SHARE = 0.4, 0.2
"""Seconds for measuring the best points of an operator again, and the largest part of all time that they get."""
_WORKER_BYTES = 300_000_000
"""Bytes that a worker has allocated when it has loaded TVM."""

DEFAULT = "default"
"""The origin of a schedule that was never measured: of its space the one that promises most (`ranked_points`)."""


@dataclass(frozen=True)
class ChosenOperator:
    """An operator of a program: the one that is taken of those that compute the same, its schedule, and its time alone
    with cold weights.

    taken_from  where its schedule comes from without a trial of its own: another operator (`Idea.origin`), or
                `DEFAULT`; the seconds are a guess then
    """

    workload: Workload
    point: Point
    seconds: float
    taken_from: str = ""


Choices = Mapping[Key, ChosenOperator]


@dataclass(frozen=True)
class TunedOperators:
    """Result of tuning.

    num_stopped operators of which fewer points were tried than were asked for: nothing better than noise was expected
    warm_start  what another device's records, or the schedules that come with chanas, were used for
    tried       trials of the chosen operators
    """

    choices: Choices
    num_new_trials: int = 0
    num_failed_trials: int = 0
    num_stopped: int = 0
    drift: str = ""
    warm_start: str = ""
    tried: Mapping[Key, TrialSummary] = field(default_factory=dict)


def trials_of(choices: Choices, target: HardwareTarget, store: RecordStore) -> dict[Key, TrialSummary]:
    """Trials of the chosen operators in the target's layout, kept ones included. Those of others that compute the same
    are not counted."""
    workloads = {key: choice.workload for key, choice in choices.items()}
    chosen = {key: w for key, w in workloads.items() if Form(key[1], w.dtype) == Form.of(target)}
    return {key: TrialSummary.of(w, legal_records(w, target, store)) for key, w in chosen.items()}


def first_choices(
    program: Program, target: HardwareTarget, store: RecordStore, warm_start: WarmStart | None = None
) -> Choices:
    """Schedules to begin with: the best of those that were measured before; where there are none those of `warm_start`,
    and else the default."""
    records = _records(program, target, store)
    return with_defaults(program, target, choose(program, target, records), warm_start)


def require_records(program: Program, target: HardwareTarget, store: RecordStore) -> None:
    """Refuse a program some of whose operators were never tuned.

    Raises:
        ConfigError: of so many no schedule that works is known; names the first.
    """
    known = choose(program, target, _records(program, target, store))
    every = dict.fromkeys(o.key for o in program.tuned_in(Form.of(target)))
    missing = [choices for choices, lanes in every if (choices, lanes) not in known]
    if missing:
        num, all_ = len(missing), len(every)
        raise ConfigError(
            f"{num} of {all_} operators have no schedule among the records {store.path} (the first: "
            f"{missing[0][0].key}); leave out --no-tuning, or name the run that has them"
        )


def with_defaults(
    program: Program, target: HardwareTarget, choices: Choices, warm_start: WarmStart | None = None
) -> Choices:
    """The choices, and for each operator that has none what `warm_start` has of it, or of the most similar one, if its
    points mean the same on the target: mapped ones have to be tried. Without that the first that computes it, with its
    default schedule: its seconds are guessed from the others'."""
    if warm_start is not None and warm_start.source.has_points_of(target):
        for find in (warm_start.ideas, warm_start.similar_ideas):
            left = {w for o in program.tuned_in(Form.of(target)) if o.key not in choices for w in o.choices}
            choices = {**choose(program, target, {}, {w: idea for w in left for idea in find(w)}), **choices}
    measured = [(c.seconds, c.workload.num_flops) for c in choices.values()]
    per_flop = math.fsum(s for s, _ in measured) / max(1, sum(n for _, n in measured)) or _GUESSED_S_PER_FLOP
    defaults = {}
    for operation in program.tuned_in(Form.of(target)):
        if operation.key not in choices and operation.key not in defaults:
            workload = operation.choices[0]
            [point] = ranked_points(workload, target, 1)
            defaults[operation.key] = ChosenOperator(workload, point, per_flop * workload.num_flops, DEFAULT)
    return {**choices, **defaults}


def working_choices(target: HardwareTarget, choices: Choices, pool: Pool, scratch: Path) -> Choices:
    """Choices whose schedules that nobody measured here were built, run and compared each alone, and replaced by the
    next likely ones where they do not work.

    Raises:
        MeasureError: of an operator none works; names it.
    """
    unproven = {key: c for key, c in choices.items() if c.taken_from}
    points = {
        c.workload: list(dict.fromkeys([c.point, *ranked_points(c.workload, target, _NUM_LIKELY)]))
        for c in unproven.values()
    }
    working, errors = try_points(points, target, pool, scratch)
    for chosen in unproven.values():
        if chosen.workload not in working:
            raise MeasureError(f"no schedule of operator {chosen.workload.key} works ({errors[chosen.workload][0]})")
    replaced = {key: c for key, c in unproven.items() if working[c.workload] != c.point}
    return {
        **choices,
        **{key: replace(c, point=working[c.workload], taken_from=DEFAULT) for key, c in replaced.items()},
    }


def tune_program(
    program: Program,
    session: Session,
    effort: NetworkEffort,
    *,
    warm_start: WarmStart | None = None,
    deadline_s: float = math.inf,
    keep_best: Callable[[Choices], object] | None = None,
) -> TunedOperators:
    """Tune the operators of a program that are in the layout of the session's target, most where most of its time goes;
    every kept record is reused. An operator for which there was no time, or of which no schedule that was tried works,
    has that of `warm_start` or its default one.

    Args:
        warm_start: what the tuning begins with (`open_prior`).
        deadline_s: reading of `time.monotonic` at which tuning ends, whatever minutes the effort has.
        keep_best: gets what is best so far, about once a minute.

    Raises:
        MeasureError: families of operators do not work on the device.
    """
    store, target = session.store, session.target
    operations = program.tuned_in(Form.of(target))
    workloads = workloads_of(operations)
    before = store.count()
    left_s = max(0.0, deadline_s - time.monotonic())
    settle_s = min(_SETTLE_S * len(workloads), _SETTLE_SHARE * left_s)
    jobs = session.jobs(
        effort,
        warm_start=warm_start,
        deadline_s=deadline_s - settle_s,
        end_s=deadline_s,
        keep_best=None if keep_best is None else lambda: keep_best(first_choices(program, target, store, warm_start)),
    )
    if left_s:
        session.require_families(workloads, effort)
    groups, counts = [o.choices for o in operations], _counts(operations, workloads)
    found = tune_share(jobs, workloads, counts, effort.tune_share, groups, session.progress)
    choices = with_defaults(program, target, choose(program, target, found.records, found.taken), warm_start)
    after = store.count()
    used = "" if warm_start is None else warm_start.describe(store.warm_starts([w.key for w in workloads]))
    stopped = sum(jobs.is_stopped(w) for w in workloads)
    return TunedOperators(
        choices,
        sum(after) - sum(before),
        after[1] - before[1],
        stopped,
        session.canary.describe(),
        used,
        trials_of(choices, target, store),
    )


def around(program: Program) -> Surroundings:
    """All operators of a program, which run between two uses of one."""
    return Surroundings(weight_bytes(program), len(program.tuned))


def weight_bytes(program: Program) -> int:
    """Bytes of a program's weights: how much passes through the caches before an operator runs again."""
    return sum(o.weight.nbytes for o in program.tuned if o.weight is not None)


def check_provable(program: Program) -> None:
    """Refuse a network that cannot be proven in the end, before the time for tuning it is spent: a worker holds its
    weights twice, as the case's arrays and as tensors.

    Raises:
        ModelError: they are more than a worker may allocate.
    """
    constants = sum(r.nbytes for o in program.others for r in o.reads if not isinstance(r, int))
    weights, limit = weight_bytes(program) + constants, memory_limit()
    needed = 2 * weights + activation_bytes(program) + _WORKER_BYTES
    if needed > limit:
        raise ModelError(
            f"the network has {format_bytes(weights)} of weights, and proving it takes about "
            f"{format_bytes(needed)} in one process, which may allocate {format_bytes(limit)}; tune a smaller network"
        )


def _records(program: Program, target: HardwareTarget, store: RecordStore) -> dict[Workload, list[TuningRecord]]:
    """Valid records of each operator in the target's layout, best first."""
    return {w: best_records(w, target, store) for w in workloads_of(program.tuned_in(Form.of(target)))}


def _counts(
    operations: Sequence[TunedOperation], workloads: Sequence[Workload]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """float64[1, W]: occurrences of each operator; those that compute the same count as often each."""
    column = {w: i for i, w in enumerate(workloads)}
    counts = np.zeros((1, len(workloads)))
    for operation in operations:
        for workload in operation.choices:
            counts[0, column[workload]] += 1.0
    return counts


def choose(
    program: Program,
    target: HardwareTarget,
    records: Mapping[Workload, Sequence[TuningRecord]],
    taken: Mapping[Workload, Idea] = MappingProxyType({}),
) -> Choices:
    """The fastest of the operators that compute the same in the target's layout, for those of which any works; what was
    measured goes before what was taken over."""
    chosen: dict[Key, ChosenOperator] = {}
    for operation in program.tuned_in(Form.of(target)):
        best = [
            ChosenOperator(workload, found[0].point, found[0].last_s)
            for workload in operation.choices
            if (found := records.get(workload))
        ]
        best = best or [
            ChosenOperator(workload, idea.point, idea.seconds, idea.origin)
            for workload in operation.choices
            if (idea := taken.get(workload))
        ]
        if best:
            chosen[operation.key] = min(best, key=lambda c: c.seconds)
    return chosen


def activation_bytes(program: Program) -> int:
    """Peak bytes of values that are needed at one time, without what an operator keeps for itself."""
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
        live[first + i] = math.prod(value.memory_shape) * np.dtype(value.dtype).itemsize
        peak = max(peak, sum(live.values()))
        live = {v: size for v, size in live.items() if last.get(v, -1) > i}
    return peak


def share_of_others(choices: Choices, program: Program, seconds: float) -> float:
    """The share of a network's time that its tuned operators, timed alone, do not account for; at least 0."""
    tuned = math.fsum(choices[o.key].seconds for o in program.tuned)
    return max(0.0, 1.0 - tuned / seconds)
