"""Many operators on shared cores: while one job's candidates are timed, others' are built and their models learn (the
load-aware scheduling of Stiller, 2019: interleave the stages of independent tuning jobs)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from chanas.prescheduler.cost_model.base import CostModel, cost_model
from chanas.prescheduler.measure import Candidate, CandidatePipeline, Outcome
from chanas.prescheduler.pool import WorkerPool
from chanas.prescheduler.records import RecordStore, TuningRecord
from chanas.prescheduler.reference import case_seed, operator_case
from chanas.prescheduler.space import Point, schedule_space
from chanas.prescheduler.tune import OperatorTuner, TuneConfig
from chanas.prescheduler.workload import Workload
from chanas.target import HardwareTarget

# Jobs under way at a time: enough that the device always has something to time while others learn.
_ACTIVE_JOBS = 3
# A candidate this much slower than the best so far is not timed to the end.
_HOPELESS_FACTOR = 3.0
_REPEATS, _MIN_REPEAT_S, _MAX_SPREAD = 5, 0.001, 0.04


@dataclass
class _Job:
    workload: Workload
    tuner: OperatorTuner
    case: Path
    outstanding: int = 0
    finished: list[TuningRecord] = field(default_factory=list)


@dataclass
class TuningJobs:
    """Tunes workloads on one target; every record goes to the store as its batch completes."""

    pool: WorkerPool
    target: HardwareTarget
    store: RecordStore
    config: TuneConfig
    scratch: Path
    model: str = "gp"
    seed: int = 0
    cold_bytes: int = 0
    code_copies: int = 1
    _models: dict[str, CostModel] = field(default_factory=dict)

    def run(self, workloads: Sequence[Workload], progress: bool = True) -> dict[Workload, list[TuningRecord]]:
        """Explore every workload; returns its valid records, best first. Kept records count as trials.

        An exception (Ctrl-C, say) leaves what was measured in the store.
        """
        tuners = {w: self._tuner(w) for w in dict.fromkeys(workloads)}
        waiting = [w for w in self._in_order(tuners) if tuners[w].num_left]
        total = sum(t.num_left for t in tuners.values())
        jobs: dict[Workload, _Job] = {}
        line: CandidatePipeline[tuple[Workload, Point]] = CandidatePipeline(self.pool)
        with tqdm(total=total, desc="tuning operators", unit="trial", disable=not progress or not total) as bar:
            try:
                while waiting or jobs:
                    while waiting and len(jobs) < _ACTIVE_JOBS:
                        workload = waiting.pop(0)
                        jobs[workload] = self._start(workload, tuners[workload])
                        self._submit_batch(line, jobs[workload])
                    for candidate, outcome in line.finished():
                        job = jobs[candidate.token[0]]
                        job.finished.append(_record(candidate.token[1], outcome))
                        job.outstanding -= 1
                        bar.update()
                        if job.outstanding == 0:
                            self._complete_batch(job)
                            self._submit_batch(line, job)
                            if job.outstanding == 0:
                                del jobs[job.workload]
                                job.case.unlink(missing_ok=True)
                                _show(bar, job, len(waiting) + len(jobs))
            finally:
                for job in jobs.values():
                    self._complete_batch(job)
        return {w: self.best_records(w) for w in tuners}

    def best_records(self, workload: Workload) -> list[TuningRecord]:
        """Valid records of a workload, fastest first."""
        valid = [r for r in self.store.load(workload.key) if r.seconds is not None]
        space = schedule_space(workload, self.target)
        return sorted((r for r in valid if space.contains(r.point)), key=lambda r: r.seconds or 0.0)

    def _tuner(self, workload: Workload) -> OperatorTuner:
        if workload.op not in self._models:
            self._models[workload.op] = cost_model(self.model, self.target, self.seed)
        kept = self.store.load(workload.key)
        seed = (self.seed << 32) + case_seed(workload.key)
        return OperatorTuner(schedule_space(workload, self.target), self._models[workload.op], self.config, kept, seed)

    @staticmethod
    def _in_order(tuners: dict[Workload, OperatorTuner]) -> list[Workload]:
        """Families side by side, so that one model learns while another's candidates are built."""
        families: dict[str, list[Workload]] = {}
        for workload in tuners:
            families.setdefault(workload.op, []).append(workload)
        ranked = [(i / len(group), w) for group in families.values() for i, w in enumerate(group)]
        return [w for _, w in sorted(ranked, key=lambda pair: pair[0])]

    def _start(self, workload: Workload, tuner: OperatorTuner) -> _Job:
        case = self.scratch / f"{workload.key}.npz"
        operator_case(workload, self.target.vector_lanes).save(case)
        return _Job(workload, tuner, case)

    def _submit_batch(self, line: CandidatePipeline[tuple[Workload, Point]], job: _Job) -> None:
        best_s = job.tuner.best_s
        for point in job.tuner.propose():
            library = self.scratch / f"{job.workload.key}-{'_'.join(map(str, point))}.so"
            line.submit(
                Candidate(
                    token=(job.workload, point),
                    build="build_operator",
                    build_arguments={
                        "target": self.target.to_json(),
                        "workload": job.workload.to_json(),
                        "point": point,
                        "library": str(library),
                    },
                    library=library,
                    measure="measure",
                    measure_arguments={
                        "case": str(job.case),
                        "cold_bytes": self.cold_bytes,
                        "code_copies": self.code_copies,
                        "repeats": _REPEATS,
                        "min_repeat_s": _MIN_REPEAT_S,
                        "max_spread": _MAX_SPREAD,
                        "hopeless_s": None if best_s is None else _HOPELESS_FACTOR * best_s,
                    },
                )
            )
            job.outstanding += 1

    def _complete_batch(self, job: _Job) -> None:
        if job.finished:
            self.store.add(job.workload.key, job.finished)
            job.tuner.observe(job.finished)
            job.finished = []


def _record(point: Point, outcome: Outcome) -> TuningRecord:
    return TuningRecord(point, outcome.seconds, outcome.spread_s, outcome.error)


def _show(bar: tqdm[Any], job: _Job, num_left: int) -> None:
    best_s = job.tuner.best_s
    speed = f"{job.workload.num_flops / best_s / 1e9:.0f} GFLOP/s" if best_s else "no valid schedule"
    bar.set_postfix_str(f"{job.workload.op} {speed}, {num_left} operators left")
