"""Seconds of single blocks with the schedules that they have where nothing was tuned (`ideas.default_points`): what
tuning them was worth."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from chanas.compiler.backends import backend_of
from chanas.core.arch import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.measuring.fleet import OpenPool
from chanas.operators.steps import device_workloads
from chanas.prescheduler.blocks import surroundings
from chanas.prescheduler.ideas import default_points
from chanas.prescheduler.records.store import RecordStore
from chanas.prescheduler.session import open_session


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
    schedules = {
        block: tuple(zip((w.key for w in device_workloads(block, target)), default_points(block, target), strict=True))
        for block in blocks
    }
    with contextlib.closing(RecordStore(records, target)) as store:
        found = {block: store.load_block(block.key, points) for block, points in schedules.items()}
        if None in found.values():
            around = surroundings(task.space, task.num_classes, dtype=target.dtype)
            with open_session(store, target, around, progress, open_pool) as session:
                found |= session.known_or_timed(schedules, text="timing default schedules")
    return {block.key: record.seconds for block, record in found.items() if record and record.seconds is not None}
