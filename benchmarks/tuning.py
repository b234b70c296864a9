"""What the benchmark scripts tune: operators by themselves, and the blocks of a few architectures.

Records go to a store in the caller's scratch folder, so that every run begins with nothing and pays for every trial.
"""

from __future__ import annotations

import dataclasses
import importlib
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chanas.compiler.backends import case_of
from chanas.compiler.space import Point
from chanas.core.arch import SearchSpace
from chanas.core.blocks import BlockConfig
from chanas.core.effort import Effort
from chanas.core.latency import LatencyLUT, LUTHeader, LUTRow
from chanas.core.target import HardwareTarget, tvm_version
from chanas.devices.timing import TimingSettings
from chanas.measuring.candidates import Candidate, CandidatePipeline
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import BlockAt, OperatorAt, Outcome, Ping
from chanas.measuring.worker.process import START_TIMEOUT_S
from chanas.operators.steps import device_workloads, tuned_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.blocks import Surroundings
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning.jobs import TuningJobs

WARM = Surroundings(weight_bytes=0, num_blocks=1)
"""An operator in a loop of its own: its weights and its code stay in the nearest cache that holds them."""
_SETTINGS = TimingSettings(15, 0.004, 0.02)


@dataclass(frozen=True)
class Tuned:
    """What tuning found, and what it cost.

    points    the best schedule point of each workload that has one
    errors    how many candidates failed for which reason (the first words of their errors)
    """

    points: dict[Workload, Point]
    num_trials: int
    errors: dict[str, int]
    wall_s: float

    @property
    def candidate_ms(self) -> float:
        """Milliseconds per candidate, built and measured, all in."""
        return 1e3 * self.wall_s / max(1, self.num_trials)

    def to_json(self) -> dict[str, Any]:
        failed = sum(self.errors.values())
        shown = {"num_trials": self.num_trials, "num_failed": failed, "errors": self.errors}
        return {**shown, "wall_s": self.wall_s, "candidate_ms": self.candidate_ms}


def tune_operators(
    pool: WorkerPool,
    target: HardwareTarget,
    workloads: Sequence[Workload],
    num_trials: int,
    around: Surroundings,
    scratch: Path,
    seed: int,
) -> Tuned:
    """Tune workloads from nothing, as the prescheduler does, with weights and code as cold as `around` says.

    The workers are started and torch (of the reference cases) is imported before the clock; everything else is on it.
    """
    importlib.import_module("torch")
    starting = [pool.build(Ping(), START_TIMEOUT_S) for _ in range(pool.num_builders + 1)]  # one is the stand-in's
    for started in [*starting, pool.measure(Ping(), START_TIMEOUT_S)]:
        started.result()
    scratch.mkdir(parents=True, exist_ok=True)
    store = RecordStore(scratch / "records.sqlite", target)
    try:
        effort = Effort(trials=num_trials, seed=seed)
        start = time.perf_counter()
        jobs = TuningJobs(pool, target, store, effort, scratch, around.weight_bytes, around.num_blocks)
        records = jobs.run(workloads)
        wall_s = time.perf_counter() - start
        failures = [r.error or "" for w in records for r in store.load(w.key) if r.seconds is None]
        errors = Counter(" ".join(error.split()[:4]) for error in failures)
        points = {w: best[0].point for w, best in records.items() if best}
        return Tuned(points, sum(store.count()), dict(errors), wall_s)
    finally:
        store.close()


def measure_points(
    workloads: Sequence[Workload], target: HardwareTarget, around: Surroundings, effort: Effort, records: Path
) -> dict[Workload, list[TuningRecord]]:
    """Records of the points that an effort asks for, failed ones among them; those in the file `records` count, and new
    ones are kept there."""
    records.parent.mkdir(parents=True, exist_ok=True)
    store = RecordStore(records, target)
    try:
        with WorkerPool(target) as pool, tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
            TuningJobs(pool, target, store, effort, Path(scratch), around.weight_bytes, around.num_blocks).run(
                workloads
            )
        return {w: store.load(w.key) for w in workloads}
    finally:
        store.close()


def time_operators(
    pool: WorkerPool,
    target: HardwareTarget,
    points: Mapping[Workload, Point],
    around: Surroundings,
    folder: Path,
) -> dict[Workload, Outcome]:
    """Build chosen points once more and time them for longer than tuning does.

    The best of many short timings is partly the luckiest; a timing of its own is not. Libraries and reference cases
    stay in `folder`, where `operator_files` says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    line: CandidatePipeline[Workload] = CandidatePipeline(pool)
    for workload, point in points.items():
        library, case = operator_files(folder, workload)
        case_of(workload, target).save(case)
        line.submit(
            Candidate(
                token=workload,
                what=OperatorAt(workload, point),
                target=target,
                library=library,
                case=case,
                settings=_SETTINGS.cold(around.weight_bytes, around.num_blocks),
                keep_library=True,
            )
        )
    outcomes: dict[Workload, Outcome] = {}
    while line.num_in_flight:
        outcomes.update((candidate.token, outcome) for candidate, outcome in line.finished())
    return outcomes


def operator_files(folder: Path, workload: Workload) -> tuple[Path, Path]:
    """Library and reference case of a workload that `time_operators` left in `folder`."""
    return folder / f"{workload.key}.so", folder / f"{workload.key}.npz"


def tune_blocks(
    space: SearchSpace,
    target: HardwareTarget,
    blocks: Sequence[BlockConfig],
    num_trials: int,
    around: Surroundings,
    scratch: Path,
    seed: int,
) -> tuple[LatencyLUT, Tuned]:
    """A latency table of the given blocks alone: their operators tuned, then each block timed compiled and fused.

    A block that fails is left out of the table.
    """
    blocks = list(dict.fromkeys(blocks))
    workloads = tuned_workloads(blocks, target)
    lut = LatencyLUT(LUTHeader(target, tvm_version(), space.name, space.digest, target.dtype, target.batch, seed=seed))
    with WorkerPool(target) as pool:
        tuned = tune_operators(pool, target, workloads, num_trials, around, scratch, seed)
        line: CandidatePipeline[tuple[BlockConfig, list[tuple[str, Point]]]] = CandidatePipeline(pool)
        for i, block in enumerate(blocks):
            operators = device_workloads(block, target)
            if not all(w in tuned.points for w in operators):
                continue
            schedules = [(w.key, tuned.points[w]) for w in operators]
            case, library = scratch / f"block{i}.npz", scratch / f"block{i}.so"
            case_of(block, target).save(case)
            line.submit(
                Candidate(
                    token=(block, schedules),
                    what=BlockAt(block, [p for _, p in schedules]),
                    target=target,
                    library=library,
                    case=case,
                    settings=_SETTINGS.cold(around.weight_bytes, around.num_blocks),
                    timeout_s=60.0,
                )
            )
        while line.num_in_flight:
            for candidate, outcome in line.finished():
                block, schedules = candidate.token
                if outcome.seconds is None:
                    tuned = dataclasses.replace(
                        tuned, errors={**tuned.errors, f"block {block.key}: {outcome.error}": 1}
                    )
                    continue
                spread_s = outcome.spread_s or 0.0
                lut.rows[block.key] = LUTRow(outcome.seconds, spread_s, num_trials, tuple(schedules))
    return lut, tuned
