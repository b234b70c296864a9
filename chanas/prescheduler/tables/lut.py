"""Filling the latency table: tune the operators of every block, then time each block compiled and fused, with weights
as cold as they are inside a network (paper, sections 3.5 and 3.6, equation 4)."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chanas.compiler.backends import backend_of
from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.blocks import BlockConfig
from chanas.core.effort import TableEffort
from chanas.core.latency import LatencyLUT, LUTHeader, LUTRow
from chanas.core.target import HardwareTarget, tvm_version
from chanas.core.task import Task
from chanas.errors import ChanasError, MeasureError
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.measuring.fleet import OpenPool
from chanas.operators.steps import device_workloads, tuned_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.blocks import Schedules, surroundings
from chanas.prescheduler.ideas import Idea
from chanas.prescheduler.records.store import BlockRecord, RecordStore, TuningRecord, Work
from chanas.prescheduler.session import Session, open_session
from chanas.prescheduler.tables.calibrate import calibrate
from chanas.prescheduler.tables.networks import check_schedules
from chanas.prescheduler.tuning.budget import occurrences
from chanas.prescheduler.tuning.give_up import describe_errors
from chanas.prescheduler.tuning.share import TunedShare, tune_share
from chanas.prescheduler.tuning.warm_start import WarmStart

# When a block built from the best schedules fails, the next best of each operator are tried this many times.
_FALLBACKS = 2


@dataclass(frozen=True)
class PrescheduleSummary:
    """The result of a run of the prescheduler."""

    lut: LatencyLUT
    path: Path
    num_operators: int
    num_new_trials: int
    num_failed_trials: int
    num_new_blocks: int
    drift: str = ""
    """Changes of the machine's speed during the run (`Canary.describe`)."""
    work: Work = field(default_factory=Work)
    """Seconds of this run (wall, timing, building), without the calibration."""
    warm_start: str = ""
    """The use of another device's records for this run (`WarmStart.describe`)."""


def preschedule(
    run: RunDirectory,
    task: Task,
    target: HardwareTarget,
    effort: TableEffort,
    *,
    only: Sequence[BlockConfig] | None = None,
    warm_start: WarmStart | None = None,
    progress: bool = True,
    open_pool: OpenPool | None = None,
) -> PrescheduleSummary:
    """Tune all operators of the space (or of some sub-spaces) and write the LUT; every kept record is reused. It is
    calibrated unless nothing of it has changed since it last was.

    Args:
        only: these blocks alone are tuned and timed, and no other row changes.
        warm_start: what the tuning begins with (`open_prior`).
        open_pool: is for devices that are not this machine.

    Raises:
        ConfigError: there is no such sub-space.
        RunBusyError: another process writes to the run directory.
        MeasureError: a family of operators works at no schedule that was tried, and nothing is tuned (`preflight`); or
            blocks remain for which no combination of schedules works: the LUT holds all others.
    """
    sub_spaces = task.space.named_sub_spaces(effort.sub_spaces)
    blocks = task.table_blocks(target.dtype, sub_spaces) if only is None else tuple(only)
    around = surroundings(task.space, task.num_classes, dtype=target.dtype)
    with one_writer(run.records):
        for unfinished in run.luts.glob(".*.tmp"):  # of processes that were killed
            unfinished.unlink(missing_ok=True)
        with (
            contextlib.closing(RecordStore(run.records, target)) as store,
            open_session(store, target, around, progress, open_pool) as session,
        ):
            made, failure = _Build(run, task, effort, warm_start, sub_spaces, blocks, session).make()
        holes = made.lut.missing(blocks)
        if holes:
            raise MeasureError(
                f"{len(holes)} of {len(blocks)} blocks could not be measured (the first: {holes[0].key}); the LUT "
                f"holds the others; {failure}; run the command again to retry, with more "
                "trials where no schedule of an operator worked"
            )
        if effort.calibrate and (made.lut.calibration is None or made.num_new_blocks):
            made.lut.calibration = calibrate(
                made.lut,
                task,
                target,
                num_networks=effort.calibrate,
                sub_spaces=sub_spaces,
                seed=effort.seed,
                progress=progress,
                open_pool=open_pool,
            )
            made.lut.save(made.path)
        return made


@dataclass(frozen=True)
class _Build:
    """A table that is being made: of which blocks, with which effort, and where."""

    run: RunDirectory
    task: Task
    effort: TableEffort
    warm_start: WarmStart | None
    sub_spaces: tuple[SubSpace, ...]
    blocks: tuple[BlockConfig, ...]
    session: Session

    def make(self) -> tuple[PrescheduleSummary, str]:
        """The table as it is stored, and why blocks may be missing."""
        session, store, target, warm_start = self.session, self.session.store, self.session.target, self.warm_start
        before, workloads = store.count(), tuned_workloads(self.blocks, target)
        jobs = session.jobs(self.effort, warm_start=warm_start)
        session.require_families(workloads, self.effort)
        counts = occurrences(self.task, target, workloads, self.sub_spaces, seed=self.effort.seed)
        try:
            tuned = tune_share(jobs, workloads, counts, self.effort.tune_share, progress=session.progress)
            lut = self._time(tuned)
        finally:
            work = session.note_work()
        after, total, path = store.count(), store.total_work(), self.run.lut(target.name)
        if total.wall_s:
            lut.header = dataclasses.replace(lut.header, built_in_s=total.wall_s, timing_s=total.timing_s)
            lut.save(path)
        given_up, frequent = describe_errors(jobs.failed_families), store.most_frequent_error()
        summary = PrescheduleSummary(
            lut,
            path,
            len(workloads),
            sum(after) - sum(before),
            after[1] - before[1],
            len(session.timed),
            session.canary.describe(),
            work,
            "" if warm_start is None else warm_start.describe(lut.header.warm_starts),
        )
        return summary, f"given up: {given_up}" if given_up else f"what failed most often: {frequent}"

    def _time(self, tuned: TunedShare) -> LatencyLUT:
        """The table with a row for each block that could be timed, saved."""
        target, store, path = self.session.target, self.session.store, self.run.lut(self.session.target.name)
        # those of an operator that took a schedule over have no seconds
        records = tuned.records | {w: [TuningRecord(t.point, None)] for w, t in tuned.taken.items()}
        existing = existing_table(self.run, self.task.space, target)
        header = self._header(records.keys(), tuned.taken, existing)
        lut = LatencyLUT(header, {} if existing is None else dict(existing.rows))
        trials = {w.key: len(store.load(w.key)) for w in records}

        def keep(block: BlockConfig, record: BlockRecord) -> None:
            row = row_of(record, sum(trials[key] for key, _ in record.schedules))
            if row is None:
                lut.rows.pop(block.key, None)
            else:
                lut.rows[block.key] = row

        todo: dict[BlockConfig, list[Schedules]] = {}
        for block in self.blocks:
            ranked = ranked_schedules(block, target, records)
            known = _known(store, block, ranked)
            if known is not None:
                keep(block, known)
            elif ranked:
                todo[block] = ranked
            else:
                lut.rows.pop(block.key, None)
        if existing is not None and not todo and lut.rows.keys() == existing.rows.keys():
            lut.calibration = existing.calibration
        try:
            self.session.time(todo, keep=keep)
        finally:
            lut.save(path)
        return lut

    def _header(
        self, workloads: Iterable[Workload], taken: Mapping[Workload, Idea], existing: LatencyLUT | None
    ) -> LUTHeader:
        kept = () if existing is None else existing.rows.values()
        now_tuned = {w.key for w in workloads}
        tuned = now_tuned | {key for row in kept for key, _ in row.schedules}
        adapted_from = () if existing is None else existing.header.adapted_from
        before = () if existing is None else existing.header.taken_over
        taken_over = [note for note in before if note["operator"] not in now_tuned]
        taken_over += [{"operator": w.key, **t.to_json()} for w, t in taken.items()]
        return new_header(
            self.session.target,
            self.task.space,
            seed=self.effort.seed,
            warm_starts=self.session.store.warm_starts(tuned),
            adapted_from=adapted_from,
            taken_over=tuple(taken_over),
        )


def new_header(target: HardwareTarget, space: SearchSpace, **known: Any) -> LUTHeader:
    """Header of a table of a space that is made now for a target.

    Args:
        known: more fields of the header.
    """
    backend = backend_of(target)
    return LUTHeader(
        target,
        tvm_version(),
        space.name,
        space.digest,
        target.dtype,
        target.batch,
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        timing=backend.timing,
        space_version=backend.space_version,
        **known,
    )


def row_of(record: BlockRecord, num_trials: int) -> LUTRow | None:
    """The row of a block that was timed, after so many trials of its operators; none where it failed."""
    if record.seconds is None:
        return None
    measured_at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="seconds")
    return LUTRow(record.seconds, record.spread_s or 0.0, num_trials, record.schedules, measured_at)


def existing_table(run: RunDirectory, space: SearchSpace, target: HardwareTarget) -> LatencyLUT | None:
    """An earlier table of these blocks and schedules on the same device; any other is replaced."""
    try:
        lut = LatencyLUT.load(run.lut(target.name))
        lut.check(space, target)
        check_schedules(lut)
    except ChanasError:
        return None
    return lut


def ranked_schedules(
    block: BlockConfig, target: HardwareTarget, records: Mapping[Workload, Sequence[TuningRecord]]
) -> list[Schedules]:
    """The best points of all operators, then the next best ones, and so on (of an operator that has fewer, the last);
    none when one has none."""
    workloads = device_workloads(block, target)
    if not all(records[w] for w in workloads):
        return []
    ranks = range(_FALLBACKS + 1)
    ranked = (tuple((w.key, records[w][min(i, len(records[w]) - 1)].point) for w in workloads) for i in ranks)
    return list(dict.fromkeys(ranked))


def _known(store: RecordStore, block: BlockConfig, ranked: Sequence[Schedules]) -> BlockRecord | None:
    """The kept measurement at the best schedules, or at the next best ones where the better ones are known to fail."""
    for schedules in ranked:
        known = store.load_block(block.key, schedules)
        if known is None or known.seconds is not None:
            return known
    return None
