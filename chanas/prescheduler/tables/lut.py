"""Filling the latency table: tune the operators of every block, then time each block compiled and fused, with weights
as cold as they are inside a network (paper, sections 3.5 and 3.6, equation 4)."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.backends import backend_of, case_of
from chanas.compiler.cases import mean_network_weight_bytes
from chanas.compiler.space import Point
from chanas.core import genome
from chanas.core.arch import BlockConfig, SearchSpace, SubSpace
from chanas.core.effort import TableEffort
from chanas.core.latency import LatencyLUT, LUTHeader, LUTRow
from chanas.core.progress import progress_bar
from chanas.core.target import HardwareTarget, tvm_version
from chanas.core.task import Task
from chanas.devices.timing import BLOCK
from chanas.errors import ChanasError, MeasureError
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.measuring.canary import Canary
from chanas.measuring.candidates import Candidate, CandidatePipeline
from chanas.measuring.local.pool import OpenPool, Pool, open_workers
from chanas.measuring.outcomes import Outcome, median_outcome
from chanas.measuring.requests import BuildBlock, Measure
from chanas.operators.steps import device_workloads, tuned_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import BlockRecord, RecordStore, TuningRecord, Work
from chanas.prescheduler.tables.calibrate import calibrate
from chanas.prescheduler.tables.networks import check_schedules
from chanas.prescheduler.tuning.budget import occurrences
from chanas.prescheduler.tuning.dtype_speed import tell_if_slower
from chanas.prescheduler.tuning.give_up import describe_errors
from chanas.prescheduler.tuning.jobs import TuningJobs
from chanas.prescheduler.tuning.preflight import remaining_workloads, require_families
from chanas.prescheduler.tuning.take_over import TunedShare, tune_share
from chanas.prescheduler.tuning.warm_start import WarmStart

_NETWORKS_FOR_MEAN = 64
# Rounds of a block, seconds that they lie apart where others are timed meanwhile, and libraries that are kept for them.
_ROUNDS, _APART_S, _GROUP = 3, 4.0, 64
# When a block built from the best schedules fails, the next best of each operator are tried this many times.
_FALLBACKS = 2

Schedules = tuple[tuple[str, Point], ...]
# A block to time, its schedules, and how many better ones were tried before.
BlockTask = tuple[BlockConfig, Schedules, int]


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


@dataclass(frozen=True)
class Surroundings:
    """The rest of a network that runs between two uses of a block: how cold its weights and its code are by then."""

    weight_bytes: int
    num_blocks: int


def surroundings(space: SearchSpace, num_classes: int, seed: int = 0, dtype: str = "float32") -> Surroundings:
    """Mean bytes of weights in `dtype` and mean number of blocks of the space's networks."""
    drawn = genome.sample(space, _NETWORKS_FOR_MEAN, np.random.default_rng(seed))
    networks = [a.blocks(space, num_classes) for a in genome.decode(space, drawn)]
    return Surroundings(mean_network_weight_bytes(networks, dtype), round(np.mean([len(n) for n in networks])))


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
        warm_start: the opened records that the effort names.
        open_pool: is for devices that are not this machine.

    Raises:
        ConfigError: there is no such sub-space.
        RunBusyError: another process writes to the run directory.
        MeasureError: a family of operators works at no schedule that was tried, and nothing is tuned (`preflight`); or
            blocks remain for which no combination of schedules works: the LUT holds all others.
    """
    sub_spaces = task.space.named_sub_spaces(effort.sub_spaces)
    blocks = task.blocks(sub_spaces) if only is None else tuple(only)
    build = _Build(run, task, target, effort, warm_start, sub_spaces, blocks, progress, open_pool)
    with one_writer(run.records):
        _remove_leftovers(run.luts)
        store = RecordStore(run.records, target)
        try:
            made, failure = build.tune_and_time(store)
        finally:
            store.close()
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
    target: HardwareTarget
    effort: TableEffort
    warm_start: WarmStart | None
    sub_spaces: tuple[SubSpace, ...]
    blocks: tuple[BlockConfig, ...]
    progress: bool
    open_pool: OpenPool | None

    def tune_and_time(self, store: RecordStore) -> tuple[PrescheduleSummary, str]:
        """The table as it is stored, and why blocks may be missing."""
        target, warm_start = self.target, self.warm_start
        before, started, start = store.count(), time.time(), time.monotonic()
        workloads = tuned_workloads(self.blocks, target)
        around = surroundings(self.task.space, self.task.num_classes, dtype=target.dtype)
        with open_workers(target, self.open_pool) as (pool, scratch):
            canary = Canary(target, scratch, store.add_canary)
            bench = _Bench(store, pool, scratch, around, canary)
            jobs = self._jobs(bench)
            self._check(bench, workloads)
            try:
                lut, num_new = self._fill(bench, self._tune(jobs, workloads))
            finally:
                work = Work(time.monotonic() - start, pool.timing_s, pool.building_s)
                if work.timing_s:
                    store.note_work(started, work)
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
            num_new,
            canary.describe(),
            work,
            "" if warm_start is None else warm_start.describe(lut.header.warm_starts),
        )
        return summary, f"given up: {given_up}" if given_up else f"what failed most often: {frequent}"

    def _jobs(self, bench: _Bench) -> TuningJobs:
        around = bench.around
        return TuningJobs(
            bench.pool,
            self.target,
            bench.store,
            self.effort,
            bench.scratch,
            around.weight_bytes,
            around.num_blocks,
            bench.canary,
            self.warm_start,
        )

    def _check(self, bench: _Bench, workloads: Sequence[Workload]) -> None:
        """Say before anything is tuned what can't work, and what is slower than it need be."""
        is_first = bool(workloads) and not any(bench.store.load(w.key) for w in workloads)  # in this dtype
        left = remaining_workloads(workloads, self.target, bench.store, self.effort.num_trials)
        require_families(left, self.target, bench.pool, bench.scratch)
        tell_if_slower(self.target, bench.pool, bench.scratch, is_first=is_first)

    def _tune(self, jobs: TuningJobs, workloads: Sequence[Workload]) -> TunedShare:
        """Valid records of each operator, best first; of one that took a schedule over, that without seconds."""
        counts = occurrences(self.task, self.target, workloads, self.sub_spaces, seed=self.effort.seed)
        tuned = tune_share(jobs, workloads, counts, self.effort.tune_share, progress=self.progress)
        taken = {w: [TuningRecord(t.point, None)] for w, t in tuned.taken.items()}
        return TunedShare(tuned.records | taken, tuned.taken)

    def _fill(self, bench: _Bench, tuned: TunedShare) -> tuple[LatencyLUT, int]:
        """The table with a row for each block that could be timed, saved; and how many blocks were timed now."""
        target, store, path, records = self.target, bench.store, self.run.lut(self.target.name), tuned.records
        existing = existing_table(self.run, self.task.space, target)
        lut = LatencyLUT(self._header(store, tuned, existing), {} if existing is None else dict(existing.rows))
        trials = {w.key: len(store.load(w.key)) for w in records}
        todo: list[BlockTask] = []
        for block in self.blocks:
            schedules = _schedules(block, target, records, 0)
            if schedules is None:
                lut.rows.pop(block.key, None)
                continue
            known = _known(store, block, target, records)
            if known is None:
                todo.append((block, schedules, 0))
            else:
                _keep(lut, block, known, trials)
        num_new = len(todo)
        if existing is not None and not num_new and lut.rows.keys() == existing.rows.keys():
            lut.calibration = existing.calibration
        bench.pool.expect(num_new)
        timed = time_blocks(todo, bench.pool, target, bench.scratch, bench.around, bench.canary, StoredRounds(store))
        with progress_bar(num_new, "timing blocks", "block", self.progress and bool(todo), keeps=True) as bar:
            try:
                for (block, schedules, rank), outcome in timed:
                    record = BlockRecord(
                        schedules, outcome.seconds, outcome.spread_s, outcome.error, drift=outcome.drift
                    )
                    store.add_block(block.key, record)
                    following = _schedules(block, target, records, rank + 1)
                    if outcome.seconds is None and rank < _FALLBACKS and following not in (None, schedules):
                        assert following is not None
                        todo.append((block, following, rank + 1))
                        continue
                    _keep(lut, block, record, trials)
                    bar.update()
                    bar.set_postfix_str(f"{block.key}: {(outcome.seconds or 0) * 1e6:.1f} us")
            finally:
                lut.save(path)
        return lut, num_new

    def _header(self, store: RecordStore, made: TunedShare, existing: LatencyLUT | None) -> LUTHeader:
        kept = () if existing is None else existing.rows.values()
        now_tuned = {w.key for w in made.records}
        tuned = now_tuned | {key for row in kept for key, _ in row.schedules}
        adapted_from = () if existing is None else existing.header.adapted_from
        before = () if existing is None else existing.header.taken_over
        taken_over = [note for note in before if note["operator"] not in now_tuned]
        taken_over += [{"operator": w.key, **t.to_json()} for w, t in made.taken.items()]
        return new_header(
            self.target,
            self.task.space,
            seed=self.effort.seed,
            warm_starts=store.warm_starts(tuned),
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


@dataclass(frozen=True)
class _Bench:
    """Records, devices and surroundings that blocks are timed with while a table is made."""

    store: RecordStore
    pool: Pool
    scratch: Path
    around: Surroundings
    canary: Canary


def _keep(lut: LatencyLUT, block: BlockConfig, record: BlockRecord, trials: dict[str, int]) -> None:
    """Put a block into the table, or take one out that works no more; `trials` by workload."""
    if record.seconds is None:
        lut.rows.pop(block.key, None)
        return
    num_trials = sum(trials[key] for key, _ in record.schedules)
    measured_at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="seconds")
    lut.rows[block.key] = LUTRow(record.seconds, record.spread_s or 0.0, num_trials, record.schedules, measured_at)


def _remove_leftovers(folder: Path) -> None:
    """Remove the unfinished tables that killed processes left beside this one."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def existing_table(run: RunDirectory, space: SearchSpace, target: HardwareTarget) -> LatencyLUT | None:
    """An earlier table of these blocks and schedules on the same device; any other is replaced."""
    try:
        lut = LatencyLUT.load(run.lut(target.name))
        lut.check(space, target)
        check_schedules(lut)
    except ChanasError:
        return None
    return lut


def _schedules(
    block: BlockConfig, target: HardwareTarget, records: dict[Workload, list[TuningRecord]], rank: int
) -> Schedules | None:
    """The rank-th best point of every operator (the last one where there are fewer), or None when one has none."""
    chosen = []
    for workload in device_workloads(block, target):
        if not records[workload]:
            return None
        chosen.append((workload.key, records[workload][min(rank, len(records[workload]) - 1)].point))
    return tuple(chosen)


def _known(
    store: RecordStore, block: BlockConfig, target: HardwareTarget, records: dict[Workload, list[TuningRecord]]
) -> BlockRecord | None:
    """The kept measurement at the best schedules, or at the next best ones where the better ones are known to fail."""
    for rank in range(_FALLBACKS + 1):
        schedules = _schedules(block, target, records, rank)
        known = None if schedules is None else store.load_block(block.key, schedules)
        if known is None or known.seconds is not None:
            return known
    return None


@dataclass(frozen=True)
class StoredRounds:
    """Rounds of blocks in the records of a run, so that a process that ends loses none."""

    store: RecordStore

    def load(self, task: BlockTask) -> list[Outcome]:
        """Oldest first."""
        block, schedules, _ = task
        known = self.store.load_rounds(block.key, schedules)
        return [Outcome(r.seconds, r.spread_s, None, drift=r.drift) for r in known]

    def keep(self, task: BlockTask, outcome: Outcome) -> None:
        """Store a round that worked."""
        block, schedules, _ = task
        record = BlockRecord(schedules, outcome.seconds, outcome.spread_s, drift=outcome.drift)
        self.store.add_round(block.key, record)


@dataclass
class _Waiting:
    """A block between two rounds: what came of those so far, how many are left, and since when it waits."""

    candidate: Candidate[BlockTask]
    outcomes: list[Outcome]
    num_left: int
    since: float = 0.0


def time_blocks(
    todo: list[BlockTask],
    pool: Pool,
    target: HardwareTarget,
    scratch: Path,
    around: Surroundings,
    canary: Canary | None = None,
    rounds: StoredRounds | None = None,
) -> Iterator[tuple[BlockTask, Outcome]]:
    """Compile, check and time blocks, as rows of a table are, each in several rounds while others are compiled.

    A slow moment of the machine lasts seconds: the median over rounds that lie seconds apart is free of it. `todo` is
    emptied; who iterates may append to it. A block may be in it once at a time. `canary` tells of drift. `rounds` gets
    each round as it ends; those that it knows from before count, and are not timed again.
    """
    line: CandidatePipeline[BlockTask] = CandidatePipeline(pool, canary)
    blocks: dict[BlockTask, _Waiting] = {}
    between: deque[_Waiting] = deque()
    num_again = 0  # rounds after the first that are under way
    num_at_once, num_kept = 2 * pool.num_builders + pool.num_devices, _GROUP * pool.num_devices
    while todo or blocks:
        while todo and len(blocks) < num_kept and line.num_in_flight - num_again < num_at_once:
            task = todo.pop(0)
            stored = [] if rounds is None else rounds.load(task)
            if len(stored) >= _ROUNDS:
                yield task, median_outcome(stored[:_ROUNDS])
                continue
            candidate = _block_candidate(*task, target, scratch, around)
            blocks[task] = _Waiting(candidate, stored, _ROUNDS - len(stored))
            line.submit(candidate)
        # those that have waited long enough; the others only when a device has nothing else to do
        while between and (time.monotonic() - between[0].since >= _APART_S or line.num_in_flight < pool.num_devices):
            block = between.popleft()
            line.time_again(block.candidate, block.outcomes[-1].device)
            num_again += 1
        for candidate, outcome in line.finished():
            block = blocks[candidate.token]
            num_again -= block.since > 0.0
            if _ends(block, outcome, rounds):
                del blocks[candidate.token]
                block.candidate.library.unlink(missing_ok=True)
                (scratch / f"{candidate.token[0].key}.npz").unlink(missing_ok=True)
                last = block.outcomes[-1]
                yield candidate.token, last if last.seconds is None else median_outcome(block.outcomes)
            else:
                block.since = time.monotonic()
                between.append(block)


def _ends(block: _Waiting, outcome: Outcome, rounds: StoredRounds | None) -> bool:
    """Take in a round; whether it was the last. One that fails is left out, but the first of a block that nothing is
    known of, or that does not build."""
    block.num_left -= 1
    if outcome.seconds is not None:
        block.outcomes.append(outcome)
        if rounds is not None:
            rounds.keep(block.candidate.token, outcome)
        return block.num_left == 0
    if not block.outcomes or not block.candidate.library.exists():
        block.outcomes.append(outcome)
        return True
    return block.num_left == 0


def _block_candidate(
    block: BlockConfig, schedules: Schedules, rank: int, target: HardwareTarget, scratch: Path, around: Surroundings
) -> Candidate[BlockTask]:
    case = scratch / f"{block.key}.npz"
    case_of(block, target).save(case)
    library = scratch / f"{block.key}-{rank}.so"
    settings = BLOCK.cold(around.weight_bytes, around.num_blocks)
    return Candidate(
        token=(block, schedules, rank),
        build=BuildBlock(target=target, library=library, block=block, points=[point for _, point in schedules]),
        timing=Measure(library=library, case=case, settings=settings),
        timeout_s=60.0,
        keep_library=True,
    )
