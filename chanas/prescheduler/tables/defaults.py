"""Latency tables of default schedules: what a search would look at that knew nothing of scheduling (CHaNAS-W/O; paper,
section 4.2 and figure 4). They are measured once, block by block, with weights as cold as in the tuned table.

A kind is a name in `KINDS`; what measures its blocks is a generator of (block, outcome). What tuning single blocks was
worth is seen beside their schedules of `ideas.default_points` (`time_default_blocks`).
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chanas.compiler.backends import backend_of
from chanas.compiler.cases import plain_block_case
from chanas.core.blocks import BlockConfig
from chanas.core.latency import LatencyLUT, LUTHeader, LUTRow
from chanas.core.progress import progress_bar
from chanas.core.target import HardwareTarget, tvm_version
from chanas.core.task import Task
from chanas.devices.timing import BLOCK
from chanas.errors import ChanasError, MeasureError, TargetError, unknown_name
from chanas.files.locks import one_writer
from chanas.measuring.candidates import Candidate, CandidatePipeline
from chanas.measuring.fleet import OpenPool, open_workers
from chanas.measuring.messages import Outcome, UntunedBlock
from chanas.operators.steps import device_workloads
from chanas.prescheduler.blocks import Surroundings, surroundings
from chanas.prescheduler.ideas import default_points
from chanas.prescheduler.records.store import BlockRecord, RecordStore
from chanas.prescheduler.session import open_session
from chanas.prescheduler.tables.lut import row_of

# A killed process loses no more blocks than this.
_SAVE_EVERY = 16
# Untuned loops are up to some fifty times as slow as tuned ones, and built by a compiler that unrolls them.
_TIMEOUT_S = 120.0

Measured = Generator[tuple[BlockConfig, Outcome], None, None]
MeasureBlocks = Callable[[Sequence[BlockConfig], HardwareTarget, Surroundings], Measured]


@dataclass(frozen=True)
class Kind:
    """One kind of default schedules: what people call it, who made the schedules, and how its blocks are measured."""

    text: str
    maker: Callable[[], str]
    measure: MeasureBlocks


def _untuned(blocks: Sequence[BlockConfig], target: HardwareTarget, around: Surroundings) -> Measured:
    """TVM's stock route, nothing scheduled."""
    waiting = list(blocks)
    with open_workers(target) as (pool, scratch):
        line: CandidatePipeline[BlockConfig] = CandidatePipeline(pool)
        while waiting or line.num_in_flight:
            while waiting and line.num_in_flight < 2 * pool.num_builders + 1:
                block = waiting.pop(0)
                case = scratch / f"{block.key}.npz"
                plain_block_case(block).save(case)
                candidate = Candidate(
                    token=block,
                    what=UntunedBlock(block),
                    target=target,
                    library=case.with_suffix(".so"),
                    case=case,
                    settings=BLOCK.cold(around.weight_bytes),
                    timeout_s=_TIMEOUT_S,
                )
                line.submit(candidate)
            for candidate, outcome in line.finished():
                candidate.case.unlink(missing_ok=True)
                yield candidate.token, outcome


def _eager(blocks: Sequence[BlockConfig], target: HardwareTarget, around: Surroundings) -> Measured:
    """PyTorch's eager mode."""
    from chanas.devices.cores import limited_to
    from chanas.prescheduler.tables.eager import time_block

    with limited_to(target.num_threads):
        for block in blocks:
            yield block, time_block(block, around.weight_bytes)


def _torch_version() -> str:
    from importlib.metadata import version

    return f"PyTorch {version('torch')}"


KINDS: dict[str, Kind] = {
    "untuned": Kind("untuned TVM", lambda: f"TVM {tvm_version()}, unscheduled", _untuned),
    "pytorch": Kind("PyTorch eager", _torch_version, _eager),
}


def default_table(
    path: Path,
    kind: str,
    task: Task,
    target: HardwareTarget,
    *,
    blocks: Sequence[BlockConfig] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> LatencyLUT:
    """The table of a kind of default schedules, from `path` where it is there, and measured where rows are missing.

    Rows are of `blocks`, by default those of the sub-spaces that are searched. They have no schedules, and
    `header.compiler` says whose they are. A table of another space, device or compiler is replaced. `path` is written
    every few blocks, so that a stopped run continues.

    Raises:
        ChanasError: there is no such kind.
        MeasureError: blocks could not be measured; the table has the others.
        RunBusyError: another process measures for the same folder.
    """
    if not backend_of(target).has_default_schedules:
        raise TargetError("default schedules are measured on processors alone; leave --target cuda out")
    if kind not in KINDS:
        raise ChanasError(unknown_name("kind of default schedules", kind, KINDS))
    chosen = KINDS[kind]
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    header = LUTHeader(target, chosen.maker(), task.space.name, task.space.digest, target.dtype, created=now, seed=seed)
    with one_writer(path):
        lut = LatencyLUT(header, _existing(path, header))
        todo = lut.missing(task.blocks(task.sub_spaces) if blocks is None else blocks)
        around = surroundings(task.space, task.num_classes, dtype=target.dtype)
        failed = _fill(lut, path, chosen, todo, around, progress) if todo else {}
    if failed:
        block, error = next(iter(failed.items()))
        raise MeasureError(
            f"{len(failed)} of {len(todo)} blocks could not be measured with default schedules ({chosen.text}), the "
            f"first: {block}: {error}; {path} holds the others; run the command again to retry"
        )
    return lut


def _existing(path: Path, header: LUTHeader) -> dict[str, LUTRow]:
    """Rows of an earlier table that holds for the same."""
    try:
        lut = LatencyLUT.load(path)
    except ChanasError:
        return {}
    mine = lut.header
    same = (mine.target, mine.compiler, mine.space_digest) == (header.target, header.compiler, header.space_digest)
    return lut.rows if same else {}


def _fill(
    lut: LatencyLUT, path: Path, kind: Kind, todo: Sequence[BlockConfig], around: Surroundings, progress: bool
) -> dict[str, str]:
    """Add rows, and save the table meanwhile; the errors of those that cannot be measured, by block."""
    failed: dict[str, str] = {}
    with (
        contextlib.closing(kind.measure(todo, lut.header.target, around)) as measured,
        progress_bar(len(todo), f"timing {kind.text}", "block", progress, keeps=True) as bar,
    ):
        try:
            for block, outcome in measured:
                row = row_of(BlockRecord((), outcome.seconds, outcome.spread_s), num_trials=0)
                if row is None:
                    failed[block.key] = outcome.error or "no reason given"
                else:
                    lut.rows[block.key] = row
                    bar.set_postfix_str(f"{block.key}: {row.median_s * 1e6:.1f} us")
                bar.update()
                if len(lut.rows) % _SAVE_EVERY == 0:
                    lut.save(path)
        finally:
            lut.save(path)
    return failed


# ---- our own schedules, where nothing was tuned ----------------------------------------------------------------------
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
