"""Schedules for operators that are not tuned: those of the most similar tuned ones (Transfer-Tuning: Gibson and Cano,
2022; Verma et al., 2024, section 4.4).

Operators are ranked by how often networks have them times their floating-point operations. The few that make up most
of it are tuned; each of the others takes over what was found for operators of its family and dtype whose sizes are
near: of its own schedules the one with the same tile, order and unrolling, or the nearest to it. With another device's
records (`warm_start`) it first takes over what was best for it there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point
from chanas.core.genome import FloatArray
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.gaussian_process import description
from chanas.prescheduler.tuning.jobs import TuningJobs
from chanas.prescheduler.tuning.mapping import nearest_point
from chanas.prescheduler.tuning.preflight import try_points
from chanas.prescheduler.tuning.warm_start import WarmStart

# Schedules that an operator is given, from so many similar ones: where the first does not work, the next may.
_NUM_TAKEN = 3


@dataclass(frozen=True)
class TakenOver:
    """A schedule that was not tried on an operator.

    source     workload that it was found for
    seconds    those of the source, in proportion to the operations: a guess
    device     where it was found, as records call devices; empty: here
    """

    source: Workload
    point: Point
    seconds: float
    device: str = ""

    @property
    def origin(self) -> str:
        """The source's key, and the device if it is another one: `pointwise-… on 7fde38404424/2t/…`."""
        return f"{self.source.key} on {self.device}" if self.device else self.source.key

    def to_json(self) -> dict[str, str]:
        """The entry of a table's header: the source's key, and the device if it is another one."""
        return {"source": self.source.key} | ({"device": self.device} if self.device else {})


@dataclass(frozen=True)
class TunedShare:
    """Result of tuning a share: valid records by workload, best first, and what was taken over for the others."""

    records: dict[Workload, list[TuningRecord]]
    taken: dict[Workload, TakenOver] = field(default_factory=dict)


def tune_share(
    jobs: TuningJobs,
    workloads: Sequence[Workload],
    counts: FloatArray,
    share: float,
    groups: Sequence[Sequence[Workload]] = (),
    progress: bool = True,
) -> TunedShare:
    """Tune the operators that make up a share of all operations; the others take schedules over.

    An operator that has records from before keeps its own schedule. What is taken over is built and its result compared
    as that of a trial is; an operator at which nothing of it works is tuned after all.

    Args:
        jobs: tunes.
        workloads: W of them, without duplicates.
        counts: float64[A, W], how often networks have each.
        share: above 0; with 1 all are tuned.
        groups: workloads that compute the same.
        progress: show a progress bar.

    Raises:
        MeasureError: as `TuningJobs.run` says.
    """
    place = {w: i for i, w in enumerate(workloads)}

    def run(some: Sequence[Workload]) -> dict[Workload, list[TuningRecord]]:
        whole = [g for g in groups if all(w in some for w in g)]
        return jobs.run(some, progress, counts[:, [place[w] for w in some]], whole)

    weights = counts.mean(axis=0) * np.array([w.num_flops for w in workloads])
    chosen = workloads if share >= 1.0 else significant(workloads, weights, share, groups)
    records = run(chosen)
    others = [w for w in workloads if w not in records]
    records |= {w: kept for w in others if (kept := jobs.best_records(w))}
    ideas = {
        w: [*known_elsewhere(w, jobs.warm_start, jobs.target), *take_over(w, records, jobs.target)]
        for w in others
        if w not in records
    }
    points = {w: [idea.point for idea in some] for w, some in ideas.items() if some}
    working, _ = try_points(points, jobs.target, jobs.pool, jobs.scratch)
    taken = {w: next(i for i in some if i.point == working[w]) for w, some in ideas.items() if w in working}
    left = [w for w in ideas if w not in taken]
    return TunedShare(records | run(left) if left else records, taken)


def significant(
    workloads: Sequence[Workload], weights: FloatArray, share: float, groups: Iterable[Sequence[Workload]] = ()
) -> list[Workload]:
    """The fewest workloads that cover a share of all weight, and the heaviest of each family and dtype besides.

    Args:
        workloads: W of them.
        weights: float64[W], how often networks have each, times its operations.
        share: above 0, at most 1.
        groups: workloads that compute the same, of which all are tuned or none.
    """
    place = {w: i for i, w in enumerate(workloads)}
    together = {w: {w} for w in workloads}
    for group in groups:
        for workload in group:
            together[workload] |= {w for w in group if w in place}
    order = sorted(workloads, key=lambda w: -weights[place[w]])
    chosen: set[Workload] = set()
    for family in dict.fromkeys((w.op, w.dtype) for w in order):
        chosen |= together[next(w for w in order if (w.op, w.dtype) == family)]
    total = float(weights.sum())
    covered: set[Workload] = set()
    for workload in order:
        if math.fsum(weights[place[w]] for w in covered) >= share * total * (1.0 - 1e-9):
            break
        covered |= together[workload]
    return [w for w in workloads if w in chosen | covered]


def take_over(
    workload: Workload, tuned: Mapping[Workload, Sequence[TuningRecord]], target: HardwareTarget
) -> list[TakenOver]:
    """Distinct schedules of the most similar tuned workloads, the most similar first; none if no family member works.

    `tuned` has the valid records of each workload, best first.
    """
    alike = [w for w, records in tuned.items() if records and (w.op, w.dtype) == (workload.op, workload.dtype)]
    mine = description(workload)
    alike.sort(key=lambda w: (float(np.abs(description(w) - mine).sum()), w.key))
    space = schedule_space(workload, target)
    found: dict[Point, TakenOver] = {}
    for source in alike:
        best = tuned[source][0]
        point = nearest_point(schedule_space(source, target).groups(best.point), space)
        seconds = (best.again_s or best.seconds or math.inf) * workload.num_flops / source.num_flops
        found.setdefault(point, TakenOver(source, point, seconds))
        if len(found) == _NUM_TAKEN:
            break
    return list(found.values())


def known_elsewhere(workload: Workload, warm_start: WarmStart | None, target: HardwareTarget) -> list[TakenOver]:
    """The schedule that was best for the operator itself on another device; none without such records."""
    prior = None if warm_start is None else warm_start.prior(schedule_space(workload, target))
    if warm_start is None or prior is None:
        return []
    best = int(prior.seconds.argmin())
    point, seconds = prior.points[best][0], float(prior.seconds[best])
    return [TakenOver(warm_start.its(workload), point, seconds, warm_start.source.device)]
