"""`chanas tune --operator KEY`: one operator tuned alone, or its tuning simulated with the records of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.core.effort import Effort, NetworkEffort
from chanas.core.target import HardwareTarget
from chanas.core.units import format_latency
from chanas.core.usage import DTYPES, HERE, SHORT_DTYPES, Usage
from chanas.errors import ConfigError, MeasureError, StageOrderError
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.operators.keys import workload_of_key
from chanas.operators.workload import Workload

if TYPE_CHECKING:
    from chanas.compiler.space import Point, ScheduleSpace
    from chanas.prescheduler.records.store import TuningRecord
    from chanas.prescheduler.tuning.warm_start import WarmStart

# The rest of a network around the operator: megabytes of weights and operators with code of their own between two uses.
_NETWORK_BYTES, _NETWORK_OPERATORS = 16 << 20, 48


@dataclass(frozen=True)
class OperatorTuning:
    """The trials of an operator, in order.

    is_simulated  all are records of a run: nothing was measured
    warm_start    the device whose records of the operator the tuning began with, and how many there are
    """

    workload: Workload
    target: HardwareTarget
    tuner: str
    records: tuple[TuningRecord, ...]
    is_simulated: bool = False
    warm_start: str = ""

    @property
    def best(self) -> TuningRecord:
        """The fastest, by its last measurement in turns where there is one."""
        from chanas.prescheduler.records.remeasure import rank_records

        return rank_records(self.records)[0]

    @property
    def best_s(self) -> float:
        return self.best.last_s

    @property
    def mean_gflops(self) -> float:
        """The mean GFLOP/s of the trials that work."""
        known = [record.seconds for record in self.records if record.seconds is not None]
        return statistics.fmean(map(self.workload.gflops, known))

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Trials, and the best GFLOP/s after them, wherever it becomes better."""
        found: list[tuple[int, float]] = []
        for number, record in enumerate(self.records, 1):
            speed = 0.0 if record.seconds is None else self.workload.gflops(record.seconds)
            if speed > (found[-1][1] if found else 0.0):
                found.append((number, speed))
        return found

    def lines(self) -> Iterator[str]:
        """The tuning for people."""
        failed = sum(not record.is_valid for record in self.records)
        how = "simulated with records" if self.is_simulated else "kept ones included"
        yield f"operator   {self.workload.key}"
        yield f"target     {self.target.name} ({self.target.device})"
        yield f"trials     {len(self.records)} ({failed} failed) by tuner {self.tuner}, {how}"
        if self.warm_start:
            yield f"warm start {self.warm_start}"
        steps = ", ".join(f"{speed:.1f} after {number}" for number, speed in self.curve)
        yield f"curve      GFLOP/s: {steps}"
        speed = self.workload.gflops(self.best_s)
        yield f"best       {speed:.1f} GFLOP/s, {format_latency(self.best_s)}; mean {self.mean_gflops:.1f} GFLOP/s"
        yield f"schedule   --schedule '{json.dumps(list(self.best.point))}'"

    def to_json(self) -> dict[str, Any]:
        """The same as JSON; seconds in s, failures as null."""
        return {
            "operator": self.workload.key,
            "target": self.target.name,
            "fingerprint": self.target.fingerprint,
            "tuner": self.tuner,
            "simulated": self.is_simulated,
            "warm_start": self.warm_start or None,
            "seconds": [record.seconds for record in self.records],
            "mean_gflops": self.mean_gflops,
            "best": {"schedule": list(self.best.point), "seconds": self.best_s},
        }


def tune_operator(
    key: str,
    usage: Usage = HERE,
    *,
    effort: NetworkEffort,
    run: RunDirectory,
    schedule: Sequence[int] | None = None,
    progress: bool = True,
) -> OperatorTuning:
    """Tune one operator; its records lie in the run, and those that are there count as trials.

    Args:
        key: of the operator, whose dtype it is tuned in.
        schedule: the only point that is tried.

    Raises:
        ScheduleError: there is no such operator, or the schedule is none of its points.
        TargetError: the target is unknown or not there.
        ChanasError: as `open_warm_start` says of what the effort names, which has to have records of the operator.
        MeasureError: no schedule that was tried works.
    """
    from chanas.compiler.backends import schedule_space
    from chanas.measuring.devices import timing_device
    from chanas.prescheduler.blocks import Surroundings
    from chanas.prescheduler.records.store import RecordStore
    from chanas.prescheduler.session import open_session
    from chanas.prescheduler.tuning.tuners import check_effort
    from chanas.prescheduler.tuning.warm_start import open_prior

    workload = workload_of_key(key)
    check_effort(effort)
    deadline_s = math.inf if effort.minutes is None else time.monotonic() + 60.0 * effort.minutes
    around = Surroundings(_NETWORK_BYTES, _NETWORK_OPERATORS)
    if workload.dtype in DTYPES.values() and usage.device != "cuda":
        usage = dataclasses.replace(usage, dtype=SHORT_DTYPES[workload.dtype])
    with timing_device(usage) as (target, open_pool):
        space = schedule_space(workload, target)
        warm_start, begun_with = _named_warm_start(effort, run, space, target)
        if effort.warm_start is None and schedule is None:
            warm_start = open_prior(None, run, target)
        suggested: dict[Workload, Sequence[Point]] = {}
        if schedule is not None:
            space.decode(tuple(schedule))
            suggested[workload] = [tuple(schedule)]
        with (
            one_writer(run.records),
            contextlib.closing(RecordStore(run.records, target)) as store,
            open_session(store, target, around, progress, open_pool) as session,
        ):
            if schedule is not None:
                known = {record.point for record in store.load(key)}
                effort = dataclasses.replace(effort, trials=len(known) + (tuple(schedule) not in known) or 1)
            session.require_families([workload], effort)
            jobs = session.jobs(effort, suggested=suggested, warm_start=warm_start, deadline_s=deadline_s)
            jobs.run([workload], progress)
            records = [r for r in store.load(key) if space.means(r.point)]
        if schedule is not None:
            records = [r for r in records if r.point == tuple(schedule)]
        if not any(record.is_valid for record in records):
            error = next((r.error for r in records if r.error), "nothing was tried")
            raise MeasureError(f"no schedule of {key} that was tried works on {target.device} ({error})")
        return OperatorTuning(workload, target, effort.tuner, tuple(records), warm_start=begun_with)


def _named_warm_start(
    effort: Effort, run: RunDirectory, space: ScheduleSpace[Any], target: HardwareTarget
) -> tuple[WarmStart | None, str]:
    """The records that an effort names to begin with, and what they have of the operator.

    Raises:
        StageOrderError: they are not there, or have none of the operator.
        TargetError: they say nothing about the target.
    """
    from chanas.prescheduler.tuning.warm_start import open_prior

    opened = None if effort.warm_start is None else open_prior(effort.warm_start, run, target)
    if opened is None:
        return None, ""
    prior = opened.prior(space)
    if prior is None:
        raise StageOrderError(
            f"expected records of {opened.its(space.workload).key} in {opened.path} to begin with, got none by "
            f"{opened.source.describe()}; tune it there first, or leave --warm-start out"
        )
    return opened, f"{opened.source.describe()}: {len(prior.points)} records"


def simulate_operator(key: str, usage: Usage = HERE, *, effort: Effort, run: RunDirectory) -> OperatorTuning:
    """The tuning of one operator, played on the records that a run has of it; nothing is measured or written.

    Raises:
        ScheduleError: there is no such operator.
        ConfigError: the run has no records of it in the space, there is no such tuner, or the file of knobs is wrong.
        StageOrderError: the records to begin with are not there, or have none of the operator.
        CheckpointError: the records are damaged.
    """
    from chanas.prescheduler.tuning.replay import replay

    space, target, known = _kept(key, usage, effort, run)
    warm_start, begun_with = _named_warm_start(effort, run, space, target)
    served = replay(space, known, target, effort, warm_start=warm_start)
    return OperatorTuning(space.workload, target, effort.tuner, tuple(served), is_simulated=True, warm_start=begun_with)


def known_operator(key: str, usage: Usage = HERE, *, effort: Effort, run: RunDirectory) -> OperatorTuning:
    """The tuning of one operator as a run has kept it; nothing is measured or written.

    Raises:
        ScheduleError: there is no such operator.
        ConfigError: the run has no record of it that works, or the file of knobs is wrong.
        CheckpointError: the records are damaged.
    """
    space, target, known = _kept(key, usage, effort, run)
    if not any(record.is_valid for record in known):
        raise ConfigError(f"no schedule of {key} among the records of {run.root} works; leave out --no-tuning")
    return OperatorTuning(space.workload, target, effort.tuner, tuple(known))


def _kept(
    key: str, usage: Usage, effort: Effort, run: RunDirectory
) -> tuple[ScheduleSpace[Any], HardwareTarget, list[TuningRecord]]:
    """The space of an operator as an effort has it, on a target, and what a run has tried of it."""
    from chanas.compiler.knobs import changed_spaces, extended
    from chanas.prescheduler.records.sources import open_records
    from chanas.workflows.models.spaces import described_target

    workload = workload_of_key(key)
    target = described_target(usage.device, usage.threads, workload)
    known: list[TuningRecord] = []
    if run.records.is_file():
        with open_records(run.records) as file:
            known = file.tried(target, key)
    if not known:
        raise ConfigError(f"there are no records of {key} in {run.root}; tune it there first")
    (space,) = changed_spaces([workload], target, None if effort.knobs is None else Path(effort.knobs))
    tried = [dataclasses.replace(record, point=extended(record.point, space)) for record in known]
    found = [record for record in tried if space.contains(record.point)]
    if not found:
        raise ConfigError(
            f"none of the {len(known)} records of {key} in {run.root} is of a schedule in its space; give the file of "
            "--knobs that it was tuned with"
        )
    return space, target, found


def parse_schedule(text: str) -> tuple[int, ...]:
    """A point as `lines` shows it.

    Raises:
        ConfigError: it is no list of whole numbers.
    """
    from chanas.compiler.space import read_point

    try:
        return read_point(text)
    except ValueError:
        raise ConfigError(f"expected --schedule as whole numbers, such as '[4, 1, 2]', got {text[:60]}") from None
