"""A device on which blocks are tuned and timed while a table is adapted: every trial and every round of a block goes
to the records of the run, so that a process that ends loses none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point
from chanas.core.arch import BlockConfig
from chanas.core.effort import Effort
from chanas.core.progress import progress_bar
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.measuring.canary import Canary
from chanas.measuring.local.pool import OpenPool, Pool, open_workers
from chanas.operators.steps import tuned_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.records.remeasure import rank_records
from chanas.prescheduler.records.store import BlockRecord, RecordStore, TuningRecord, Work
from chanas.prescheduler.tables.lut import BlockTask, Schedules, StoredRounds, surroundings, time_blocks
from chanas.prescheduler.tuning.budget import occurrences
from chanas.prescheduler.tuning.jobs import TuningJobs
from chanas.prescheduler.tuning.preflight import remaining_workloads, require_families
from chanas.prescheduler.tuning.tuner import Search

_SEARCH = Search(num_initial=3)


class Workers(NamedTuple):
    """Worker processes with their folder, and the canary that tells of drift."""

    pool: Pool
    scratch: Path
    canary: Canary


@dataclass
class Bench:
    """The device and the records of a table that is being made; workers are started when they are first needed.

    timed       blocks that were timed
    tuned       operators that were tuned
    num_trials  schedules that were tried for it
    """

    store: RecordStore
    task: Task
    target: HardwareTarget
    progress: bool = True
    open_pool: OpenPool | None = None
    timed: set[BlockConfig] = field(default_factory=set)
    tuned: set[Workload] = field(default_factory=set)
    num_trials: int = 0
    _open: Callable[[], Workers] | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Bench]:
        """Keep the workers, once they are needed, until the end; what they took is noted in the records."""
        start, started, found = time.monotonic(), time.time(), list[Workers]()
        with contextlib.ExitStack() as stack:

            def open_once() -> Workers:
                if not found:
                    pool, scratch = stack.enter_context(open_workers(self.target, self.open_pool))
                    found.append(Workers(pool, scratch, Canary(self.target, scratch, self.store.add_canary)))
                return found[0]

            self._open = open_once
            try:
                yield self
            finally:
                self._open = None
                for pool, _, _ in found:
                    work = Work(time.monotonic() - start, pool.timing_s, pool.building_s)
                    self.store.note_work(started, work)

    @property
    def workers(self) -> Workers:
        assert self._open is not None, "the bench is not open"
        return self._open()

    def records(self, workload: Workload) -> list[TuningRecord]:
        """Valid records of an operator on this device, best first."""
        known = self.store.load(workload.key)
        if not known:
            return []
        space = schedule_space(workload, self.target)
        return rank_records([r for r in known if space.contains(r.point)])

    def tune(
        self, blocks: Sequence[BlockConfig], effort: Effort, suggested: Mapping[Workload, Sequence[Point]]
    ) -> None:
        """Tune the blocks' operators, with the schedules first that are suggested.

        Raises:
            MeasureError: a family of operators works at no schedule that was tried.
        """
        workloads, target, task = tuned_workloads(blocks, self.target), self.target, self.task
        left = remaining_workloads(workloads, target, self.store, effort.num_trials)
        if not left:
            return
        pool, scratch, canary = self.workers
        require_families(left, target, pool, scratch)
        around = surroundings(task.space, task.num_classes, dtype=target.dtype)
        jobs = TuningJobs(
            pool,
            target,
            self.store,
            effort,
            scratch,
            cold_bytes=around.weight_bytes,
            code_copies=around.num_blocks,
            canary=canary,
            suggested=suggested,
            search=_SEARCH,
        )
        before = {w: len(self.store.load(w.key)) for w in workloads}
        try:
            jobs.run(workloads, self.progress, occurrences(task, target, workloads, seed=effort.seed))
        finally:
            new = {w: len(self.store.load(w.key)) - num for w, num in before.items()}
            self.tuned |= {w for w, num in new.items() if num}
            self.num_trials += sum(new.values())

    def time(self, schedules: Mapping[BlockConfig, Schedules], *, anew: bool = False) -> dict[BlockConfig, BlockRecord]:
        """Time blocks as rows of a table are; those that the records know are not timed again, unless `anew`."""
        found: dict[BlockConfig, BlockRecord] = {}
        todo: list[BlockTask] = []
        for block, points in schedules.items():
            record = None if anew else self.store.load_block(block.key, points)
            if record is None:
                todo.append((block, points, 0))
            else:
                found[block] = record
        if not todo:
            return found
        num, task = len(todo), self.task
        self.timed |= {block for block, _, _ in todo}
        pool, scratch, canary = self.workers
        around = surroundings(task.space, task.num_classes, dtype=self.target.dtype)
        pool.expect(num)
        rounds = None if anew else StoredRounds(self.store)
        timed = time_blocks(todo, pool, self.target, scratch, around, canary, rounds)
        with progress_bar(num, "timing blocks", "block", self.progress, keeps=True) as bar:
            for (block, points, _), outcome in timed:
                record = BlockRecord(points, outcome.seconds, outcome.spread_s, outcome.error, drift=outcome.drift)
                self.store.add_block(block.key, record)
                found[block] = record
                bar.update()
                bar.set_postfix_str(f"{block.key}: {(outcome.seconds or 0) * 1e6:.1f} us")
        return found
