"""A share of the operators tuned: the others take schedules over (`ideas`).

Operators are ranked by how often networks have them times their floating-point operations. The few that make up most
of it are tuned; each of the others takes over what was found for operators of its family and dtype whose sizes are
near: of its own schedules the one with the same tile, order and unrolling, or the nearest to it. With another device's
records (`warm_start`) it first takes over what was best for it there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from chanas.core.arrays import FloatArray
from chanas.operators.workload import Workload
from chanas.prescheduler.ideas import Idea, ideas
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.jobs import TuningJobs
from chanas.prescheduler.tuning.preflight import try_points


@dataclass(frozen=True)
class TunedShare:
    """Result of tuning a share: valid records by workload, best first, and what was taken over for the others."""

    records: dict[Workload, list[TuningRecord]]
    taken: dict[Workload, Idea] = field(default_factory=dict)


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
    known = {w: [] if jobs.warm_start is None else jobs.warm_start.ideas(w) for w in others if w not in records}
    found = {w: list(ideas(w, jobs.target, records, elsewhere)) for w, elsewhere in known.items()}
    points = {w: [idea.point for idea in some] for w, some in found.items() if some}
    working, _ = try_points(points, jobs.target, jobs.pool, jobs.scratch)
    taken = {w: next(i for i in some if i.point == working[w]) for w, some in found.items() if w in working}
    left = [w for w in found if w not in taken]
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
