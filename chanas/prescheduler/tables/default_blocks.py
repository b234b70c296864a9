"""Seconds of single blocks with the schedules that they have where nothing was tuned (`ideas.default_points`): what
tuning them was worth."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from chanas.compiler.backends import backend_of
from chanas.core.arch import BlockConfig
from chanas.core.progress import progress_bar
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.measuring.canary import Canary
from chanas.measuring.fleet import OpenPool, open_workers
from chanas.operators.steps import device_workloads
from chanas.prescheduler.ideas import default_points
from chanas.prescheduler.records.store import BlockRecord, RecordStore
from chanas.prescheduler.tables.lut import BlockTask, StoredRounds, surroundings, time_blocks


def time_default_blocks(
    records: Path,
    task: Task,
    target: HardwareTarget,
    blocks: Iterable[BlockConfig],
    *,
    open_pool: OpenPool | None = None,
    progress: bool = True,
) -> dict[str, float]:
    """Seconds of blocks with default schedules, by the blocks' keys: from a run's records, or timed now as rows of a
    table are, and recorded. Blocks that fail with them are left out; on GPUs, all.

    Raises:
        MeasureError: the device cannot be used.
    """
    if not backend_of(target).has_default_schedules:
        return {}
    store = RecordStore(records, target)
    try:
        found: dict[str, float | None] = {}
        todo: list[BlockTask] = []
        for block in dict.fromkeys(blocks):
            keys = (workload.key for workload in device_workloads(block, target))
            schedules = tuple(zip(keys, default_points(block, target), strict=True))
            known = store.load_block(block.key, schedules)
            if known is None:
                todo.append((block, schedules, 0))
            else:
                found[block.key] = known.seconds
        if todo:
            found |= _timed(todo, store, task, target, open_pool, progress)
        return {key: seconds for key, seconds in found.items() if seconds is not None}
    finally:
        store.close()


def _timed(
    todo: list[BlockTask],
    store: RecordStore,
    task: Task,
    target: HardwareTarget,
    open_pool: OpenPool | None,
    progress: bool,
) -> dict[str, float | None]:
    found = {}
    around = surroundings(task.space, task.num_classes, dtype=target.dtype)
    with (
        open_workers(target, open_pool) as (pool, scratch),
        progress_bar(len(todo), "timing default schedules", "block", progress) as bar,
    ):
        pool.expect(len(todo))
        canary = Canary(target, scratch, store.add_canary)
        for (block, schedules, _), outcome in time_blocks(
            todo, pool, target, scratch, around, canary, StoredRounds(store)
        ):
            drift = outcome.drift
            store.add_block(
                block.key, BlockRecord(schedules, outcome.seconds, outcome.spread_s, outcome.error, drift=drift)
            )
            found[block.key] = outcome.seconds
            bar.update()
            bar.set_postfix_str(f"{block.key}: {(outcome.seconds or 0) * 1e6:.1f} us", refresh=False)
    return found
