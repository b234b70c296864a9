"""A table for a new device from tables of others: a few blocks are timed there with the schedules that are known of
them, and all others are predicted. Every round of a block is kept in the records of the run, so that a process that
ends loses none."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chanas.core import genome
from chanas.core.arch import BlockConfig
from chanas.core.latency import LatencyLUT, LUTHeader, LUTRow
from chanas.core.progress import progress_bar
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.errors import LUTError, MeasureError
from chanas.files.run import RunDirectory
from chanas.operators.steps import device_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.kernels.backends import backend_of, schedule_space
from chanas.prescheduler.measuring.canary import Canary
from chanas.prescheduler.measuring.local.locks import run_lock
from chanas.prescheduler.measuring.local.pool import OpenPool, open_workers
from chanas.prescheduler.records.store import BlockRecord, RecordStore, Work
from chanas.prescheduler.tables.lut import (
    BlockTask,
    Schedules,
    StoredRounds,
    existing_table,
    new_header,
    surroundings,
    time_blocks,
)
from chanas.prescheduler.tables.transfer.ratios import Prior, choose, predict, prior_of
from chanas.prescheduler.tuning.warm_start import Source, agree, matching_points
from chanas.prescheduler.workloads.space import Point

MIN_MEASURED = 5
_NETWORKS_FOR_USAGE = 256


@dataclass(frozen=True)
class AdaptedTable:
    """A table as it is stored, and what came of making it.

    num_new    blocks that were timed now
    holes      blocks without a row: the first source has none either, its schedules are not of this device's spaces, or
               they failed
    """

    lut: LatencyLUT
    path: Path
    num_new: int
    holes: tuple[BlockConfig, ...]

    @property
    def predicted_errors(self) -> list[float]:
        """Relative standard deviations of the rows that were predicted."""
        return [r.predicted_error for r in self.lut.rows.values() if r.predicted_error is not None]


def adapt(
    run: RunDirectory,
    task: Task,
    target: HardwareTarget,
    sources: Sequence[LatencyLUT],
    blocks: Sequence[BlockConfig],
    num_measured: int,
    *,
    progress: bool = True,
    open_pool: OpenPool | None = None,
) -> AdaptedTable:
    """Write the run's table of `target`, in which `num_measured` of `blocks` were measured and the others predicted.

    Rows that an earlier table of this device has measured stay, and count; those of other blocks stay, too. Schedules
    are those of the first source.

    Raises:
        RunBusyError: a prescheduler is at work in the run directory.
        LUTError: no block of the first source can be compiled for the target with its schedules.
        MeasureError: too few blocks could be timed.
    """
    check_source(sources[0], target)
    with run_lock(run.root):
        store = RecordStore(run.records, target)
        try:
            return _Adaptation(run, task, target, tuple(sources), tuple(blocks), progress, open_pool).make(
                store, num_measured
            )
        finally:
            store.close()


def check_source(lut: LatencyLUT, target: HardwareTarget) -> None:
    """Raise LUTError where a table's schedules are not of the target's schedule spaces, with what differs."""
    made_on = lut.header.target
    versions = lut.header.space_version or backend_of(target).space_version
    differences = Source("", made_on, lut.header.compiler, versions).differences(target)
    if made_on.dtype != target.dtype:
        differences.append(f"dtype {made_on.dtype_name} instead of {target.dtype_name}")
    if differences:
        raise LUTError(
            f"the schedules of the table of target '{made_on.name}' ({made_on.device}) can't be used on target "
            f"'{target.name}': {'; '.join(differences)}; name a table of a device like this one first, or run "
            "`chanas prescheduler`"
        )


def order_by_doubt(lut: LatencyLUT, task: Task, seed: int = 0) -> list[BlockConfig]:
    """Blocks whose seconds were predicted, first those that leave the most doubt about a random network: the standard
    deviation of their seconds times the number of networks that have them."""
    rng = np.random.default_rng(seed)
    counts: dict[str, int] = {}
    for sub_space in task.space.sub_spaces:
        each = -(-_NETWORKS_FOR_USAGE // len(task.space.sub_spaces))
        for architecture in genome.decode(task.space, genome.sample(task.space, each, rng, sub_space)):
            for block in architecture.blocks(task.space, task.num_classes):
                counts[block.key] = counts.get(block.key, 0) + 1

    def doubt(block: BlockConfig) -> float:
        row = lut.rows[block.key]
        return (row.predicted_error or 0.0) * row.median_s * (0.5 + counts.get(block.key, 0))

    return sorted(lut.predicted(task.blocks(None)), key=doubt, reverse=True)


def known_schedules(blocks: Sequence[BlockConfig], source: LatencyLUT, target: HardwareTarget) -> dict[str, Schedules]:
    """Schedules of a source's rows as points of the target's spaces, by block; without blocks for which there are none.

    Where the target has a coordinate that the source has not, such as loops fused for several threads, its first option
    that is legal is taken.
    """
    found: dict[tuple[Workload, Point], Point | None] = {}

    def take_over(workload: Workload, its: Workload, point: Point) -> Point | None:
        whence, space = schedule_space(its, source.header.target), schedule_space(workload, target)
        if not agree(whence, space) or not whence.contains(point):
            return None
        return next(matching_points(whence.groups(point), space), None)

    out: dict[str, Schedules] = {}
    for block in blocks:
        row = source.rows.get(block.key)
        its = device_workloads(block, source.header.target)
        if row is None or [w.key for w in its] != [key for key, _ in row.schedules]:
            continue
        chosen: list[tuple[str, Point]] = []
        for workload, other, (_, point) in zip(device_workloads(block, target), its, row.schedules, strict=True):
            if (workload, point) not in found:
                found[workload, point] = take_over(workload, other, point)
            taken = found[workload, point]
            if taken is not None:
                chosen.append((workload.key, taken))
        if len(chosen) == len(its):
            out[block.key] = tuple(chosen)
    return out


@dataclass(frozen=True)
class _Adaptation:
    """A table that is being made, and from what."""

    run: RunDirectory
    task: Task
    target: HardwareTarget
    sources: tuple[LatencyLUT, ...]
    blocks: tuple[BlockConfig, ...]
    progress: bool
    open_pool: OpenPool | None

    def make(self, store: RecordStore, num_measured: int) -> AdaptedTable:
        """Choose blocks, time them, predict the others, and write the table."""
        existing = existing_table(self.run, self.task.space, self.target)
        asked = {block.key for block in self.blocks}
        old = {} if existing is None else existing.rows
        rows = {key: row for key, row in old.items() if row.predicted_error is None or key not in asked}
        schedules = known_schedules(self.blocks, self.sources[0], self.target)
        known = [b for b in self.blocks if b.key in schedules or b.key in rows]
        if not any(b.key in schedules for b in known):
            raise LUTError(
                f"the table of target '{self.sources[0].header.target.name}' has none of the {len(self.blocks)} blocks "
                "with schedules for this device; run `chanas prescheduler`"
            )
        prior = prior_of(known, self.sources)
        measured = [i for i, block in enumerate(known) if block.key in rows]
        chosen = choose(prior, max(0, num_measured - len(measured)), measured)
        num_new = self._time(store, {known[i]: schedules[known[i].key] for i in chosen}, rows)
        failed = {known[i].key for i in chosen} - rows.keys()
        predicted = self._predict(known, prior, schedules, rows)
        rows.update((key, row) for key, row in predicted.items() if key not in failed)
        lut = LatencyLUT(self._header(store, existing), rows)
        if existing is not None and not num_new and existing.rows == rows:
            lut.calibration = existing.calibration
        path = self.run.lut(self.target.name)
        lut.save(path)
        return AdaptedTable(lut, path, num_new, tuple(lut.missing(self.blocks)))

    def _time(self, store: RecordStore, schedules: Mapping[BlockConfig, Schedules], rows: dict[str, LUTRow]) -> int:
        """Add a row for each block that the records know or that can be timed; how many were timed now."""
        todo: list[BlockTask] = []
        for block, points in schedules.items():
            record = store.load_block(block.key, points)
            if record is None:
                todo.append((block, points, 0))
            else:
                _keep(rows, block, record)
        num_new = len(todo)
        if not num_new:
            return 0
        task, start, started = self.task, time.monotonic(), time.time()
        around = surroundings(task.space, task.num_classes, dtype=self.target.dtype)
        with (
            open_workers(self.target, self.open_pool) as (pool, scratch),
            progress_bar(num_new, "timing blocks", "block", self.progress) as bar,
        ):
            pool.expect(num_new)
            canary = Canary(self.target, scratch, store.add_canary)
            try:
                for (block, points, _), outcome in time_blocks(
                    todo, pool, self.target, scratch, around, canary, StoredRounds(store)
                ):
                    record = BlockRecord(points, outcome.seconds, outcome.spread_s, outcome.error, drift=outcome.drift)
                    store.add_block(block.key, record)
                    _keep(rows, block, record)
                    bar.update()
                    bar.set_postfix_str(f"{block.key}: {(outcome.seconds or 0) * 1e6:.1f} us")
            finally:
                store.note_work(started, Work(time.monotonic() - start, pool.timing_s, pool.building_s))
        return num_new

    def _predict(
        self, known: Sequence[BlockConfig], prior: Prior, schedules: Mapping[str, Schedules], rows: Mapping[str, LUTRow]
    ) -> dict[str, LUTRow]:
        """A row for each block that has none, from those that were measured."""
        there = [i for i, block in enumerate(known) if block.key in rows]
        if len(there) < MIN_MEASURED:
            raise MeasureError(
                f"expected at least {MIN_MEASURED} measured blocks to predict the others from, got {len(there)}; run "
                "the command again with more of them (--measure), or `chanas prescheduler`"
            )
        seconds = np.log([rows[known[i].key].median_s for i in there])
        found = predict(prior, there, seconds)
        return {
            b.key: LUTRow(float(np.exp(log_s)), 0.0, 0, schedules[b.key], predicted_error=float(deviation))
            for b, log_s, deviation in zip(known, found.log_seconds, found.deviations, strict=True)
            if b.key not in rows
        }

    def _header(self, store: RecordStore, existing: LatencyLUT | None) -> LUTHeader:
        target, space, total = self.target, self.task.space, store.total_work()
        before = () if existing is None else existing.header.adapted_from
        notes = [
            {
                "target": lut.header.target.name,
                "device": lut.header.target.device,
                "fingerprint": lut.header.target.fingerprint,
                "num_rows": len(lut.rows),
            }
            for lut in self.sources
        ]
        return new_header(
            target,
            space,
            built_in_s=total.wall_s or None,
            timing_s=total.timing_s if total.wall_s else None,
            adapted_from=(*before, *(note for note in notes if note not in before)),
        )


def _keep(rows: dict[str, LUTRow], block: BlockConfig, record: BlockRecord) -> None:
    """Add the row of a block that was timed; nothing where that failed."""
    if record.seconds is not None:
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="seconds")
        rows[block.key] = LUTRow(record.seconds, record.spread_s or 0.0, 0, record.schedules, when)
