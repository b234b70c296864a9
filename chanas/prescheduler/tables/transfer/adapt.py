"""A table for a new device from tables of others: a few blocks are timed there with the schedules that are known of
them, or with what a few trials make of these, and all others are predicted."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from chanas.compiler.space import Point
from chanas.core import genome
from chanas.core.blocks import BlockConfig
from chanas.core.effort import MIN_MEASURED, AdaptEffort
from chanas.core.latency import LatencyLUT, LUTHeader, LUTRow
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.errors import LUTError, MeasureError
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.measuring.fleet import OpenPool
from chanas.operators.steps import device_workloads, tuned_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.blocks import Schedules, surroundings
from chanas.prescheduler.records.store import BlockRecord, RecordStore, TuningRecord
from chanas.prescheduler.session import Session, open_session
from chanas.prescheduler.tables.lut import existing_table, new_header, ranked_schedules, row_of
from chanas.prescheduler.tables.transfer.ratios import Prior, choose, predict, prior_of
from chanas.prescheduler.tables.transfer.schedules import (
    Chosen,
    KnownSchedules,
    check_source,
    choose_untried,
    known_schedules,
)
from chanas.prescheduler.tuning.budget import occurrences
from chanas.prescheduler.tuning.jobs import best_records
from chanas.prescheduler.tuning.preflight import remaining_workloads

_NETWORKS_FOR_USAGE = 256
# Standard deviations by which a block is slower than all others say from which on its operators are tuned, the largest
# share of blocks for which that is done, and how many trials they have then.
_SURPRISING, _MOST_DOUBTFUL, _MORE_TRIALS = 2.0, 0.1, 2


@dataclass(frozen=True)
class AdaptedTable:
    """A table as it is stored, and what came of making it.

    num_new     blocks that were timed now
    holes       blocks without a row: the first source has none either, or its schedules failed
    num_tuned   operators that were tuned now, with `num_trials` schedules in all
    """

    lut: LatencyLUT
    path: Path
    num_new: int
    holes: tuple[BlockConfig, ...]
    num_tuned: int = 0
    num_trials: int = 0

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
    effort: AdaptEffort,
    *,
    progress: bool = True,
    open_pool: OpenPool | None = None,
) -> AdaptedTable:
    """Write the run's table of `target`, in which some of `blocks` were measured and the others predicted.

    Rows that an earlier table of this device has measured stay, and count; those of other blocks stay, too. Schedules
    are those of the first source.

    Raises:
        RunBusyError: a prescheduler is at work in the run directory.
        LUTError: the first source is of another kind of device, or has schedules for the target of too few blocks.
        MeasureError: too few blocks could be timed, or a family of operators works at no schedule that was tried.
    """
    check_source(sources[0], target)
    around = surroundings(task.space, task.num_classes, dtype=target.dtype)
    with (
        one_writer(run.records),
        contextlib.closing(RecordStore(run.records, target)) as store,
        open_session(store, target, around, progress, open_pool) as session,
    ):
        return _Adaptation(run, task, session, tuple(sources), tuple(blocks), effort).make()


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


@dataclass(frozen=True)
class _Adaptation:
    """A table that is being made, and from what; `tuned` are operators that were tuned for it."""

    run: RunDirectory
    task: Task
    session: Session
    sources: tuple[LatencyLUT, ...]
    blocks: tuple[BlockConfig, ...]
    effort: AdaptEffort
    tuned: set[Workload] = field(default_factory=set)

    def make(self) -> AdaptedTable:
        """Choose blocks, tune and time them, predict the others, and write the table."""
        session, target = self.session, self.session.target
        existing, before = existing_table(self.run, self.task.space, target), session.store.count()
        asked = {block.key for block in self.blocks}
        old = {} if existing is None else existing.rows
        rows = {key: row for key, row in old.items() if row.predicted_error is None or key not in asked}
        schedules = known_schedules(self.blocks, self.sources[0], target)
        known = [b for b in self.blocks if b.key in schedules.rows or b.key in rows]
        if not any(b.key in schedules.rows for b in known):
            raise LUTError(
                f"the table of target '{self.sources[0].header.target.name}' has none of the {len(self.blocks)} blocks "
                "with schedules for this device; run `chanas prescheduler`"
            )
        if len(known) < MIN_MEASURED:
            raise LUTError(
                f"expected a table with at least {MIN_MEASURED} of the {len(self.blocks)} blocks to predict the others "
                f"from, got one with {len(known)}; name another table, or run `chanas prescheduler`"
            )
        prior = prior_of(known, self.sources)
        measured = [i for i, block in enumerate(known) if block.key in rows]
        chosen = [known[i] for i in choose(prior, max(0, self.effort.measure - len(measured)), measured)]
        try:
            self._measure(chosen, schedules, rows)
            self._measure_doubtful(chosen, known, prior, schedules, rows)
        finally:
            session.note_work()
        failed = {b.key for b in chosen} - rows.keys()
        # what was found for operators of other blocks is taken over, too
        records = self._records([b for b in self.blocks if b.key in schedules.rows])
        taken = choose_untried([b for b in known if b.key not in rows], schedules, target, records)
        predicted = self._predict(known, prior, taken.rows, rows)
        rows.update((key, row) for key, row in predicted.items() if key not in failed)
        lut = LatencyLUT(self._header(existing, taken, rows), rows)
        if existing is not None and not session.timed and existing.rows == rows:
            lut.calibration = existing.calibration
        path = self.run.lut(target.name)
        lut.save(path)
        num_trials = sum(session.store.count()) - sum(before)
        holes = tuple(lut.missing(self.blocks))
        return AdaptedTable(lut, path, len(session.timed), holes, len(self.tuned), num_trials)

    def _measure(self, chosen: Sequence[BlockConfig], known: KnownSchedules, rows: dict[str, LUTRow]) -> None:
        """Add a row for each block that can be timed; where schedules were mapped, its operators are tuned first."""
        schedules = {b: known.rows[b.key] for b in chosen}
        if known.are_mapped and self.effort.num_trials and chosen:
            self._tune(chosen, self.effort, known.suggestions)
            schedules = self._best_here(chosen)
        self._keep(self.session.known_or_timed(schedules), rows)

    def _measure_doubtful(
        self,
        chosen: Sequence[BlockConfig],
        known: Sequence[BlockConfig],
        prior: Prior,
        schedules: KnownSchedules,
        rows: dict[str, LUTRow],
    ) -> None:
        """Tune the operators of blocks that failed, and of those that are slower than all others say, and time these
        blocks anew. The faster of two timings counts: what disturbs one only adds to it."""
        if not self.effort.num_trials or not chosen:
            return
        most = math.ceil(_MOST_DOUBTFUL * len(chosen))
        slow = _slower_than_expected(chosen, known, prior, rows)
        doubtful = [*(b for b in chosen if b.key not in rows), *slow][:most]
        if not doubtful:
            return
        suggested = {w: list(points) for w, points in schedules.suggestions.items()}
        for block in doubtful:
            workloads = device_workloads(block, self.session.target)
            for workload, (_, point) in zip(workloads, schedules.rows[block.key], strict=True):
                suggested.setdefault(workload, [point])
        self._tune(doubtful, replace(self.effort, trials=_MORE_TRIALS * self.effort.num_trials), suggested)
        better = self._best_here(doubtful)
        same = {b: points for b, points in better.items() if b.key in rows and rows[b.key].schedules == points}
        others = {b: points for b, points in better.items() if b not in same}
        again = self.session.known_or_timed(others)
        if same:
            again |= self.session.time({b: (points,) for b, points in same.items()}, anew=True)
        slower = {b for b, r in again.items() if b.key in rows and rows[b.key].median_s <= (r.seconds or math.inf)}
        self._keep({b: r for b, r in again.items() if b not in slower}, rows)

    def _tune(
        self, blocks: Sequence[BlockConfig], effort: AdaptEffort, suggested: Mapping[Workload, Sequence[Point]]
    ) -> None:
        """Tune the blocks' operators, with the schedules first that are suggested; nothing where all trials were made.

        Raises:
            MeasureError: a family of operators works at no schedule that was tried.
        """
        session, store = self.session, self.session.store
        workloads = tuned_workloads(blocks, session.target)
        if not remaining_workloads(workloads, session.target, store, effort.num_trials):
            return
        session.require_families(workloads, effort)
        before = {w: len(store.load(w.key)) for w in workloads}
        counts = occurrences(self.task, session.target, workloads, seed=effort.seed)
        session.jobs(effort, suggested=suggested).run(workloads, session.progress, counts)
        self.tuned.update(w for w, num in before.items() if len(store.load(w.key)) > num)

    def _records(self, blocks: Sequence[BlockConfig]) -> dict[Workload, list[TuningRecord]]:
        """Valid records on this device of the blocks' operators, best first."""
        target, store = self.session.target, self.session.store
        return {w: best_records(w, target, store) for w in tuned_workloads(blocks, target)}

    def _best_here(self, blocks: Sequence[BlockConfig]) -> dict[BlockConfig, Schedules]:
        """The best schedules that were found here of those of the blocks all of whose operators have some."""
        records = self._records(blocks)
        found = {b: ranked_schedules(b, self.session.target, records) for b in blocks}
        return {b: ranked[0] for b, ranked in found.items() if ranked}

    def _keep(self, records: Mapping[BlockConfig, BlockRecord], rows: dict[str, LUTRow]) -> None:
        """Add the rows of blocks that were timed; nothing where that failed."""
        for block, record in records.items():
            row = row_of(record, sum(len(self.session.store.load(key)) for key, _ in record.schedules))
            if row is not None:
                rows[block.key] = row

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

    def _header(self, existing: LatencyLUT | None, taken: Chosen, rows: Mapping[str, LUTRow]) -> LUTHeader:
        total = self.session.store.total_work()
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
        used = {key for row in rows.values() for key, _ in row.schedules}
        now = {w.key: source.key for w, source in taken.taken_over.items()}
        earlier = () if existing is None else existing.header.taken_over
        kept = [note for note in earlier if note["operator"] in used - now.keys() - {w.key for w in self.tuned}]
        return new_header(
            self.session.target,
            self.task.space,
            built_in_s=total.wall_s or None,
            timing_s=total.timing_s if total.wall_s else None,
            adapted_from=(*before, *(note for note in notes if note not in before)),
            taken_over=(*kept, *({"operator": key, "source": source} for key, source in now.items() if key in used)),
        )


def _slower_than_expected(
    chosen: Sequence[BlockConfig], known: Sequence[BlockConfig], prior: Prior, rows: Mapping[str, LUTRow]
) -> list[BlockConfig]:
    """Those of the chosen blocks that took longer than all others say, the most surprising first."""
    there = [i for i, block in enumerate(known) if block.key in rows]
    if len(there) < MIN_MEASURED:
        return []
    seconds = np.log([rows[known[i].key].median_s for i in there])
    surprises = predict(prior.select(there), range(len(there)), seconds).surprises
    found = {known[i]: float(s) for i, s in zip(there, surprises, strict=True) if s > _SURPRISING}
    return sorted((b for b in chosen if b in found), key=lambda b: -found[b])
