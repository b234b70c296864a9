"""Warm start: the records of one device as what another device's tuning begins with (the same instruction set first).

A schedule point means the same on two devices whose schedule spaces are the same, which they are when vector width,
number of vector registers and `space_version` are. Threads may differ: the space for several has one coordinate more,
`fuse`, and a point without it stands for all of its values. So may the dtype, for operators whose spaces agree in both.
Between other processors, and where spaces of two dtypes differ, points are mapped to those most like them (`ideas`).
GPUs and other versions of the spaces are refused. What the records are used for: `cost_model`, `tune`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.backends import backend_of, schedule_space
from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.target import HardwareTarget, tvm_version
from chanas.errors import StageOrderError, TargetError
from chanas.files.run import RunDirectory
from chanas.operators.workload import Workload
from chanas.prescheduler.ideas import Idea, agree, points_of
from chanas.prescheduler.records.sources import Source, open_records
from chanas.prescheduler.records.store import TuningRecord, device_key
from chanas.prescheduler.tuning.cost_model.guards import SourceTrust
from chanas.prescheduler.tuning.cost_model.history import Prior


@dataclass(frozen=True)
class WarmStart:
    """Records of a source by workload key, the best first, for tuning on `target`."""

    source: Source
    path: Path
    target: HardwareTarget
    records: Mapping[str, tuple[TuningRecord, ...]] = field(repr=False)
    trust: SourceTrust = field(default_factory=SourceTrust, compare=False)

    @functools.cached_property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of what there is to take: points and seconds of every workload."""
        content = {k: sorted((r.point, r.seconds) for r in rs) for k, rs in self.records.items()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def describe(self, notes: Iterable[Mapping[str, Any]]) -> str:
        """One line for people, from what `RecordStore.warm_starts` says of its operators."""
        mine = [n for n in notes if (n["source"], n["digest"]) == (self.source.device, self.digest)]
        num, dropped = (sum(n[k] for n in mine) for k in ("num_operators", "num_dropped"))
        mapped = "" if self.source.has_points_of(self.target) else ", schedules mapped"
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
def open_warm_start(source: str, run: RunDirectory, target: HardwareTarget) -> WarmStart:
    """Records to begin with on `target`.

    Args:
        source: another run directory, a file of records, or the name of another target of this run, such as `cpu`.
        run: where the tuning is at work.

    Raises:
        StageOrderError: there are no records.
        TargetError: none of them is of a device whose points are points of `target`'s spaces; says what differs.
        CheckpointError: the file cannot be read.
    """
    path, name = _locate(source, run)
    with open_records(path) as file:
        known = file.sources(target)
        mine = device_key(target, tvm_version(), backend_of(target).space_version)
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
        if not fitting:
            nearest = min(others, key=lambda s: s.distance(target))
            raise TargetError(
                f"records of {nearest.describe()} in {path} say nothing about target '{target.name}': "
                f"{'; '.join(nearest.refusals(target))}; tune it without --warm-start"
            )
        chosen = min(fitting, key=lambda s: s.distance(target))
        return WarmStart(chosen, path, target, file.load(chosen))


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
