"""Whole networks: compiled from their blocks' best schedules, compared with PyTorch's answer, timed on the target."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import chanas
from chanas.compiler.backends import backend_of, schedule_space
from chanas.compiler.cases import ReferenceCase, network_case
from chanas.compiler.space import Point
from chanas.core.arrays import Float32Array
from chanas.core.blocks import BlockConfig
from chanas.core.latency import LatencyLUT
from chanas.core.progress import ProgressBar, progress_bar
from chanas.core.target import HardwareTarget, tvm_version
from chanas.devices.timing import NETWORK
from chanas.errors import LUTError, MeasureError
from chanas.measuring.candidates import NETWORK_TIMEOUT_S, Candidate, CandidatePipeline, time_in_rounds
from chanas.measuring.fleet import OpenPool, Pool, open_workers
from chanas.measuring.messages import NetworkAt, Outcome
from chanas.operators.steps import device_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.ideas import ranked_points
from chanas.prescheduler.tuning.preflight import try_points

_ROUNDS_PER_PROCESS = 3
# Where the pages of its weights compete for a cache, a network's time differs from process to process.
_PROCESSES, _MOST_PROCESSES, _AGREEMENT = 3, 5, 0.05
# Schedules that are tried in place of one that nobody ran and that does not work.
_NUM_OTHERS = 4


@dataclass(frozen=True)
class NetworkJob:
    """A network to compile into `library`.

    parameters  one dict of PyTorch parameters by name for each block
    images      float32[B, 3, R, R], at least as many as the target's batch
    logits      float32[B, classes], PyTorch's answer on `images`
    is_built    `library` is there already, compiled from the same blocks and schedules
    """

    blocks: tuple[BlockConfig, ...]
    parameters: tuple[dict[str, Float32Array], ...]
    images: Float32Array
    logits: Float32Array
    library: Path
    is_built: bool = False


def check_schedules(lut: LatencyLUT) -> None:
    """Raises LUTError: the points of the table's rows are of another version of the schedule spaces, where they are
    other programs; its latencies hold all the same."""
    made_with, now = lut.header.space_version, backend_of(lut.header.target).space_version
    if made_with not in (None, now):
        raise LUTError(
            f"the schedules of the LUT of target '{lut.header.target.name}' are of version {made_with} of the schedule "
            f"spaces, and of version {now} they would be other programs; run `chanas prescheduler` to tune them again, "
            "or use the chanas that made the table"
        )


def block_points(lut: LatencyLUT, blocks: Sequence[BlockConfig]) -> list[list[Point]]:
    """The schedule points of every operator of every block, from the table.

    Raises:
        LUTError: the table lacks a block, or has points of another version of the schedule spaces.
    """
    for table in (lut, *lut.others.values()):
        check_schedules(table)
    missing = lut.missing(blocks)
    if missing:
        raise LUTError(f"the LUT has no row for block {missing[0].key}; run `chanas prescheduler` to fill it")
    return [[point for _, point in lut.row(block).schedules] for block in blocks]


def module_digest(lut: LatencyLUT, target: HardwareTarget, blocks: Sequence[BlockConfig]) -> str:
    """Hash of all that a compiled network depends on: its blocks, their schedules, the device and the compiler. Weights
    are arguments of it.

    Raises:
        LUTError: as `block_points` says.
    """
    operators = [[b.key, b.dtype, points] for b, points in zip(blocks, block_points(lut, blocks), strict=True)]
    versions = [chanas.__version__, tvm_version(), backend_of(target).space_version]
    text = json.dumps([target.to_json(), versions, operators], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _case(job: NetworkJob, target: HardwareTarget) -> ReferenceCase:
    if len(job.images) < target.batch:
        raise MeasureError(
            f"expected at least {target.batch} images of a network for {target.name}, got {len(job.images)}"
        )
    images, logits = job.images[: target.batch], job.logits[: target.batch]
    return network_case(job.blocks, job.parameters, images, logits, target)


def compile_networks(
    lut: LatencyLUT,
    target: HardwareTarget,
    jobs: Sequence[NetworkJob],
    progress: bool = True,
    open_pool: OpenPool | None = None,
) -> list[Outcome]:
    """Compile, check and time networks; one outcome per job, in order. A failed one is an outcome with its error.

    All are timed in nine short rounds, and the median counts: a slow moment of the machine lasts seconds. On a
    processor each third of the rounds is in a process of its own; where these disagree by over 5 %, up to two more.

    Rows that were predicted may have schedules that nobody ever ran. Where a network with such blocks fails, those that
    do not work are replaced, in the table's rows, by some that do, and it is compiled again.

    Raises:
        LUTError: the table lacks a block, or has points of another version of the schedule spaces.
    """
    with open_workers(target, open_pool) as (pool, scratch):

        def build(some: Sequence[NetworkJob], numbers: Sequence[int]) -> list[tuple[Candidate[int], list[Outcome]]]:
            with progress_bar(len(some), "compiling networks", "network", progress) as bar:
                return list(_build(zip(numbers, some, strict=True), lut, target, pool, scratch, bar))

        through = build(jobs, range(len(jobs)))
        failed = [c.token for c, (outcome,) in through if outcome.error and lut.predicted(jobs[c.token].blocks)]
        blocks = [block for i in failed for block in jobs[i].blocks]
        if blocks and _replace_failing(lut, blocks, target, pool, scratch):
            again = build([dataclasses.replace(jobs[i], is_built=False) for i in failed], failed)
            through = [(c, known) for c, known in through if c.token not in failed] + again
        num_rounds = _PROCESSES * _ROUNDS_PER_PROCESS
        num_timings = (num_rounds - 1) * sum(outcome.error is None for _, (outcome,) in through)
        with progress_bar(num_timings, "timing networks", "timing", progress and num_timings > 0) as bar:
            if backend_of(target).differs_by_process:
                outcomes = _time_in_processes(through, pool, bar)
            else:
                found = time_in_rounds(through, pool, num_rounds, keep=lambda _token, _outcome: bar.update())
                outcomes = dict(_by_token(found))
    return [outcomes[i] for i in range(len(jobs))]


def _replace_failing(
    lut: LatencyLUT, blocks: Sequence[BlockConfig], target: HardwareTarget, pool: Pool, scratch: Path
) -> bool:
    """Run every operator of those of the blocks that were predicted once, and compare it with PyTorch; where one does
    not work, rows of the table that were predicted get a schedule that does. True if any did.

    What the table says of seconds stays.

    Raises:
        ChanasError: the disk is full.
    """
    points: dict[Workload, dict[Point, None]] = {}
    for block in dict.fromkeys(lut.predicted(blocks)):
        for workload, (_, point) in zip(device_workloads(block, target), lut.row(block).schedules, strict=False):
            points.setdefault(workload, {})[point] = None
    tried = {}
    for workload, known in points.items():
        space = schedule_space(workload, target)
        others = dict.fromkeys([*known, *ranked_points(workload, target, _NUM_OTHERS)])
        tried[workload] = [point for point in others if space.contains(point)]
    working, _ = try_points(tried, target, pool, scratch)
    replaced = {w.key: point for w, point in working.items() if point != next(iter(points[w]))}
    for rows in (table.rows for table in (lut, *lut.others.values())):
        for key, row in rows.items():
            if row.predicted_error is not None and not replaced.keys().isdisjoint(key for key, _ in row.schedules):
                schedules = tuple((key, replaced.get(key, point)) for key, point in row.schedules)
                rows[key] = dataclasses.replace(row, schedules=schedules)
    return bool(replaced)


def _build(
    jobs: Iterable[tuple[int, NetworkJob]],
    lut: LatencyLUT,
    target: HardwareTarget,
    pool: Pool,
    scratch: Path,
    bar: ProgressBar,
) -> Iterator[tuple[Candidate[int], list[Outcome]]]:
    """Compile networks that are not built, and time each for the first time. One that is built and fails is compiled
    anew."""
    line: CandidatePipeline[int] = CandidatePipeline(pool)
    waiting = list(jobs)
    built: dict[int, NetworkJob] = {}
    while waiting or line.num_in_flight:
        while waiting and line.num_in_flight < pool.num_builders + pool.num_devices:
            index, job = waiting.pop(0)
            candidate = _candidate(index, job, lut, target, scratch)
            if job.is_built:
                built[index] = dataclasses.replace(job, is_built=False)
                line.time_again(candidate)
            else:
                line.submit(candidate)
        for candidate, outcome in line.finished():
            anew = built.pop(candidate.token, None)
            if anew is not None and outcome.error is not None:
                waiting.append((candidate.token, anew))
                continue
            yield candidate, [outcome]
            bar.update()
            if outcome.seconds is not None:
                bar.set_postfix_str(f"{outcome.seconds * 1e3:.3f} ms")


def _by_token(found: Iterable[tuple[Candidate[int], Outcome]]) -> Iterator[tuple[int, Outcome]]:
    return ((candidate.token, outcome) for candidate, outcome in found)


def _time_in_processes(
    through: Sequence[tuple[Candidate[int], list[Outcome]]], pool: Pool, bar: ProgressBar
) -> dict[int, Outcome]:
    """The median of each network over all its rounds, with how far the medians of its processes are apart."""
    rounds = {candidate.token: list(outcomes) for candidate, outcomes in through}
    medians: dict[int, list[float]] = {token: [] for token in rounds}
    found: dict[int, Outcome] = {}

    def keep(token: int, outcome: Outcome) -> None:
        rounds[token].append(outcome)
        bar.update()

    for process in range(_MOST_PROCESSES):
        if process:
            pool.renew_timers()
        group = [
            (candidate, tuple(rounds[candidate.token]))
            for candidate, _ in through
            if process < _PROCESSES or _disagreement(medians[candidate.token]) > _AGREEMENT
        ]
        if not group:
            break
        begin = {candidate.token: len(known) if process else 0 for candidate, known in group}
        num_rounds = (process + 1) * _ROUNDS_PER_PROCESS
        found |= _by_token(time_in_rounds(group, pool, num_rounds, keep=keep))
        for token, first in begin.items():
            seconds = [o.seconds for o in rounds[token][first:] if o.seconds is not None]
            medians[token] += [statistics.median(seconds)] if seconds else []
    return {
        token: dataclasses.replace(outcome, disagreement=_disagreement(medians[token]))
        for token, outcome in found.items()
    }


def _disagreement(medians: Sequence[float]) -> float:
    """The range of medians, as a share of the largest; 0 for fewer than two."""
    return (max(medians) - min(medians)) / max(medians) if len(medians) > 1 and max(medians) else 0.0


def _candidate(index: int, job: NetworkJob, lut: LatencyLUT, target: HardwareTarget, scratch: Path) -> Candidate[int]:
    case = scratch / f"{index}.npz"
    _case(job, target).save(case)
    return Candidate(
        token=index,
        what=NetworkAt(job.blocks, block_points(lut, job.blocks)),
        target=target,
        library=job.library,
        case=case,
        settings=NETWORK,
        timeout_s=NETWORK_TIMEOUT_S,
        keep_library=True,
    )
