"""A device at work for one run: operators are tuned and blocks are timed on it, and every trial and every round of a
block goes to the records as it ends, so that a process that is ended loses none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chanas.compiler.program import Form
from chanas.core.blocks import BlockConfig
from chanas.core.effort import Effort
from chanas.core.progress import progress_bar
from chanas.core.target import HardwareTarget
from chanas.measuring.canary import Canary
from chanas.measuring.fleet import OpenPool, Pool, open_workers
from chanas.operators.workload import Workload
from chanas.prescheduler.blocks import BlockTask, Schedules, Surroundings, time_blocks
from chanas.prescheduler.records.store import BlockRecord, RecordStore, Work
from chanas.prescheduler.tuning.jobs import TuningJobs
from chanas.prescheduler.tuning.preflight import remaining_workloads, require_families


@dataclass
class Session:
    """Workers of a device with a folder for their files, the records, and the canary that tells of drift.

    around  what runs in a network between two uses of an operator or a block
    timed   blocks that were timed
    """

    store: RecordStore
    target: HardwareTarget
    around: Surroundings
    pool: Pool
    scratch: Path
    progress: bool = True
    timed: set[BlockConfig] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.canary = Canary(self.target, self.scratch, self.store.add_canary)
        self._started, self._start_s = time.time(), time.monotonic()

    @contextlib.contextmanager
    def on(self, target: HardwareTarget) -> Iterator[Session]:
        """The same device with maps in another form, as `target` says, and records and files of its own."""
        scratch = self.scratch / f"blocks-of-{Form.of(target)}"
        scratch.mkdir(exist_ok=True)
        with contextlib.closing(RecordStore(self.store.path, target)) as store:
            made = replace(self, target=target, store=store, scratch=scratch)
            made.canary = self.canary  # the machine's speed is the same
            yield made

    def require_families(self, workloads: Sequence[Workload], effort: Effort) -> None:
        """Check one operator of each family that there are trials left of.

        Raises:
            MeasureError: a family works at no schedule that was tried.
        """
        left = remaining_workloads(workloads, self.target, self.store, effort.num_trials)
        require_families(left, self.target, self.pool, self.scratch)

    def jobs(self, effort: Effort, **options: Any) -> TuningJobs:
        """Tuning with an effort; `options` are further fields of `TuningJobs`."""
        return TuningJobs(
            self.pool,
            self.target,
            self.store,
            effort,
            self.scratch,
            self.around.weight_bytes,
            self.around.num_blocks,
            self.canary,
            **options,
        )

    def time(
        self,
        schedules: Mapping[BlockConfig, Sequence[Schedules]],
        *,
        keep: Callable[[BlockConfig, BlockRecord], object] = lambda _block, _record: None,
        anew: bool = False,
        text: str = "timing blocks",
    ) -> dict[BlockConfig, BlockRecord]:
        """Time blocks as rows of a table are, each with the first of its schedules that works; at least one each.

        Args:
            keep: gets each block as it is done, with its record: that of the last schedules where none works.
            anew: rounds that the records know do not count, and none is stored.
            text: shown with the progress.
        """
        found: dict[BlockConfig, BlockRecord] = {}
        todo: list[BlockTask] = [(block, ranked[0], 0) for block, ranked in schedules.items()]
        num = len(todo)
        self.timed |= schedules.keys()
        self.pool.expect(num)
        store = None if anew else self.store
        timed = time_blocks(todo, self.pool, self.target, self.scratch, self.around, self.canary, store)
        with progress_bar(num, text, "block", self.progress and bool(num), keeps=True) as bar:
            for (block, tried, rank), outcome in timed:
                record = BlockRecord(tried, outcome.seconds, outcome.spread_s, outcome.error, drift=outcome.drift)
                self.store.add_block(block.key, record)
                if outcome.seconds is None and rank + 1 < len(schedules[block]):
                    todo.append((block, schedules[block][rank + 1], rank + 1))
                    continue
                found[block] = record
                keep(block, record)
                bar.update()
                bar.set_postfix_str(f"{block.key}: {(outcome.seconds or 0) * 1e6:.1f} us")
        return found

    def known_or_timed(
        self, schedules: Mapping[BlockConfig, Schedules], text: str = "timing blocks"
    ) -> dict[BlockConfig, BlockRecord]:
        """Records of blocks with their schedules: those that are known, failures too, and of the others new ones."""
        kept = {block: self.store.load_block(block.key, points) for block, points in schedules.items()}
        known = {block: record for block, record in kept.items() if record is not None}
        todo = {block: (points,) for block, points in schedules.items() if block not in known}
        return known | (self.time(todo, text=text) if todo else {})

    def note_work(self) -> Work:
        """Seconds that the session took so far; they are noted in the records if anything was timed."""
        work = Work(time.monotonic() - self._start_s, self.pool.timing_s, self.pool.building_s)
        if work.timing_s:
            self.store.note_work(self._started, work)
        return work


@contextlib.contextmanager
def open_session(
    store: RecordStore,
    target: HardwareTarget,
    around: Surroundings,
    progress: bool = True,
    open_pool: OpenPool | None = None,
) -> Iterator[Session]:
    """A session with workers of its own. `open_pool` is for devices that are not this machine."""
    with open_workers(target, open_pool) as (pool, scratch):
        yield Session(store, target, around, pool, scratch, progress)
