"""Warm start: the records of one device as what another device's tuning begins with (the same instruction set first).
Where none are named, the schedules that come with chanas for processors of the kind.

A schedule point means the same on two devices whose schedule spaces are the same, which they are when vector width,
number of vector registers and `space_version` are. Threads may differ: the space for several has one coordinate more,
`fuse`, and a point without it stands for all of its values. So may the dtype, for operators whose spaces agree in both.
Between other processors, and where spaces of two dtypes differ, points are mapped to those most like them (`ideas`).
GPUs and other versions of the spaces are refused. What the records are used for: `cost_model`, `tune`.

A file of schedules has the best few points of an operator alone. They have no order that a cost model could learn or be
judged by, so they are suggested: the best of each operator is tried before anything else, the others after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.backends import backend_of, schedule_space
from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.effort import NOTHING
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError, StageOrderError, TargetError
from chanas.files.run import RunDirectory
from chanas.operators.keys import workload_of_key
from chanas.operators.workload import Workload
from chanas.prescheduler.ideas import Idea, agree, by_likeness, points_of
from chanas.prescheduler.records.schedules import SHIPPED, SUFFIX, ScheduleFile, read_schedules, shipped_schedules
from chanas.prescheduler.records.sources import Source, open_records
from chanas.prescheduler.records.store import TuningRecord, own_key
from chanas.prescheduler.tuning.cost_model.guards import SourceTrust
from chanas.prescheduler.tuning.cost_model.history import Prior

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WarmStart:
    """Records of a source by workload key, the best first, for tuning on `target`.

    best_only  the best points of each operator are all that there are
    """

    source: Source
    path: Path
    target: HardwareTarget
    records: Mapping[str, tuple[TuningRecord, ...]] = field(repr=False)
    trust: SourceTrust = field(default_factory=SourceTrust, compare=False)
    best_only: bool = False

    @functools.cached_property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of what there is to take: points and seconds of every workload."""
        content = {k: sorted((r.point, r.seconds) for r in rs) for k, rs in self.records.items()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def describe(self, notes: Iterable[Mapping[str, Any]]) -> str:
        """One line for people, from what `RecordStore.warm_starts` says of its operators; empty where the schedules of
        a file served none."""
        mine = [n for n in notes if (n["source"], n["digest"]) == (self.source.device, self.digest)]
        num, dropped = (sum(n[k] for n in mine) for k in ("num_operators", "num_dropped"))
        mapped = "" if self.source.has_points_of(self.target) else ", schedules mapped"
        if self.best_only:
            made_on = f"{self.source.target.device}, TVM {self.source.compiler}"
            return f"{self.source.device} ({made_on}){mapped}: {num} operators began with its schedules" if num else ""
        return (
            f"{self.source.describe()}, records {self.digest}{mapped}: {num} operators, dropped for {dropped} whose "
            "first points, or those of operators before them, came out in another order"
        )

    def prior(self, space: ScheduleSpace[Any]) -> Prior | None:
        """Return the source's records of an operator, mapped where the spaces don't agree; None if it has none."""
        workload = self.its(space.workload)
        records = self.records.get(workload.key, ())
        if not records:
            return None
        whence = schedule_space(workload, self.source.target)
        prior = prior_from(records, whence, space, (self.source.target, self.target))
        return None if prior is None else dataclasses.replace(prior, trust=self.trust)

    def ideas(self, workload: Workload) -> list[Idea]:
        """The schedule that was best for the operator itself on the other device; none without its records."""
        prior = self.prior(schedule_space(workload, self.target))
        if prior is None:
            return []
        best = int(prior.seconds.argmin())
        return [Idea(self.its(workload), prior.points[best][0], float(prior.seconds[best]), self.source.device)]

    def similar_ideas(self, workload: Workload) -> list[Idea]:
        """The best schedule of the most similar other operator of its family, as the nearest point of the operator;
        none where that family has no records, or the source is of other vectors or registers: there it is worth less
        than the point that promises most (docs/transfer.md)."""
        its = self.its(workload)
        alike = by_likeness(its, (w for w in self._workloads if w != its))
        if not alike or not self.source.has_points_of(self.target):
            return []
        source, targets = alike[0], (self.source.target, self.target)
        spaces = schedule_space(source, self.source.target), schedule_space(workload, self.target)
        prior = prior_from(self.records[source.key][:1], *spaces, targets)
        if prior is None:
            return []
        seconds = float(prior.seconds[0]) * workload.num_flops / source.num_flops
        return [Idea(source, prior.points[0][0], seconds, self.source.device)]

    @functools.cached_property
    def _workloads(self) -> list[Workload]:
        found = []
        for key in (key for key, records in self.records.items() if records):
            with contextlib.suppress(ScheduleError):  # of a family that only the source's chanas has
                found.append(workload_of_key(key))
        return found

    def its(self, workload: Workload) -> Workload:
        """The operator as it is on the source, in its dtype."""
        dtype = self.source.target.dtype
        return workload if workload.dtype == dtype else dataclasses.replace(workload, dtype=dtype, wide=False)


def prior_from(
    records: Iterable[TuningRecord],
    whence: ScheduleSpace[Any],
    space: ScheduleSpace[Any],
    targets: tuple[HardwareTarget, HardwareTarget],
) -> Prior | None:
    """Records of one space, best first, in points of another (`points_of`); the best of those that fall together. None
    where no point works or stands for any.

    targets  whose records they are, and whose points they become
    """
    source, target = targets
    known = [(r.point, r.seconds) for r in records if r.seconds is not None and whence.contains(r.point)]
    points = points_of([p for p, _ in known], whence, space, source.vector_lanes / target.vector_lanes)
    found: dict[tuple[Point, ...], float] = {}
    for some, (_, seconds) in zip(points, known, strict=True):
        if some:
            found[some] = min(seconds, found.get(some, seconds))
    if not found:
        return None
    seconds_there = np.array(list(found.values()), dtype=np.float64)
    return Prior(tuple(found), seconds_there, source if agree(whence, space) else target)


# ---- opening ---------------------------------------------------------------------------------------------------------
def open_prior(named: str | None, run: RunDirectory, target: HardwareTarget) -> WarmStart | None:
    """The beginning of a tuning on `target`: what is named, else the schedules that come with chanas; None with
    `NOTHING`, and where none of those say anything of the target.

    Raises:
        ChanasError: as `open_warm_start` says of what is named.
    """
    if named == NOTHING:
        return None
    return open_shipped(target) if named is None else open_warm_start(named, run, target)


def open_shipped(target: HardwareTarget, folder: Path = SHIPPED) -> WarmStart | None:
    """The schedules that come with chanas which are the nearest to a target; None for GPUs, and, with a warning, where
    all are of another version of the spaces."""
    of_kind = [f for f in shipped_schedules(folder) if f.source.target.kind == target.kind]
    fitting = [f for f in of_kind if not f.source.refusals(target)]
    if fitting:
        return _of_file(min(fitting, key=lambda f: f.source.distance(target)), target)
    if of_kind and backend_of(target).seeds_others:
        refusals = "; ".join(of_kind[0].source.refusals(target))
        names = ", ".join(f.path.name for f in of_kind)
        logger.warning("the schedules that come with chanas (%s) are not used: %s", names, refusals)
    return None


def _of_file(file: ScheduleFile, target: HardwareTarget) -> WarmStart:
    return WarmStart(file.source, file.path, target, file.records, best_only=True)


def open_warm_start(source: str, run: RunDirectory, target: HardwareTarget) -> WarmStart:
    """Records to begin with on `target`.

    Args:
        source: another run directory, a file of records or schedules, or the name of another target of this run, such
            as `cpu`.
        run: where the tuning is at work.

    Raises:
        StageOrderError: there are no records.
        TargetError: none of them is of a device whose points are points of `target`'s spaces; says what differs.
        CheckpointError: the file cannot be read.
    """
    path, name = _locate(source, run)
    if path.suffix == SUFFIX:
        schedules = read_schedules(path)
        _check_fits(schedules.source, path, target)
        return _of_file(schedules, target)
    with open_records(path) as file:
        known = file.sources(target)
        mine = own_key(target)
        usable = known
        if path.resolve() == run.records.resolve():  # its own are used in any case
            own = mine, target.dtype, target.batch
            usable = [s for s in known if (s.device, s.target.dtype, s.target.batch) != own]
        others = [s for s in usable if name == s.target.name or name is None]
        if not others:
            there = ", ".join(sorted({s.target.name for s in usable})) or "no other known device"
            raise StageOrderError(
                f"there is nothing in {path} to warm-start target '{target.name}' from"
                + (f": no records of another target '{name}'" if name else "")
                + f"; there are records of: {there}"
            )
        fitting = [s for s in others if not s.refusals(target)]
        chosen = min(fitting or others, key=lambda s: s.distance(target))
        _check_fits(chosen, path, target)
        return WarmStart(chosen, path, target, file.load(chosen))


def _check_fits(source: Source, path: Path, target: HardwareTarget) -> None:
    """
    Raises:
        TargetError: points of the source are none of `target`'s spaces.
    """
    if refusals := source.refusals(target):
        raise TargetError(
            f"records of {source.describe()} in {path} say nothing about target '{target.name}': "
            f"{'; '.join(refusals)}; tune it without --warm-start"
        )


def _locate(source: str, run: RunDirectory) -> tuple[Path, str | None]:
    """The file of records, and the name of the target in it where one is asked for."""
    path = Path(source)
    if path.is_dir():
        path, name = RunDirectory(path).records, None
    elif path.is_file():
        name = None
    else:
        path, name = run.records, source
    if not path.is_file():
        raise StageOrderError(
            f"there are no records to start from: expected a run directory, a file of records or a target of run "
            f"{run.root}, got '{source}'"
        )
    return path, name
