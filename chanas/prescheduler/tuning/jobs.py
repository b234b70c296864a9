"""Many operators on shared cores: while one job's candidates are timed, others' are built and their models learn (the
load-aware scheduling of Stiller, 2019: interleave the stages of independent tuning jobs)."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.backends import case_of, schedule_space
from chanas.compiler.knobs import check_changeable, extended, read_knobs
from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.arrays import FloatArray
from chanas.core.effort import Effort
from chanas.core.progress import ProgressBar, progress_bar
from chanas.core.target import HardwareTarget
from chanas.devices.timing import TRIAL, TURNS
from chanas.errors import MeasureError
from chanas.files.run import RunDirectory
from chanas.measuring.canary import Canary
from chanas.measuring.candidates import Candidate, CandidatePipeline
from chanas.measuring.fleet import Pool
from chanas.measuring.messages import OperatorAt, OperatorsAt, Outcome
from chanas.operators.workload import Workload
from chanas.prescheduler.ideas import ranked_points
from chanas.prescheduler.records.knobs import keep_knobs
from chanas.prescheduler.records.remeasure import contenders, is_settled, leaders, rank_records
from chanas.prescheduler.records.store import RecordStore, TuningRecord, WarmStartNote
from chanas.prescheduler.tuning.budget import claims, hand_out, latency_shares
from chanas.prescheduler.tuning.cost_model.history import Prior
from chanas.prescheduler.tuning.give_up import NUM_ALIKE, FamilyWatch, describe_errors, remedy
from chanas.prescheduler.tuning.tuner import Trials
from chanas.prescheduler.tuning.tuners import Tuners
from chanas.prescheduler.tuning.warm_start import WarmStart

# Jobs under way at a time, for each device: enough that it always has something to time while others learn.
_ACTIVE_JOBS = 3
# A candidate this much slower than the best so far is not timed to the end.
_HOPELESS_FACTOR = 3.0
# What an operator with points left claims at least where tuning is not to stop early, on log seconds.
_LEAST_IMPROVEMENT = 1e-4
# Operators whose first points tell whether another device's records are worth asking for the others.
_NUM_SCOUTS = 4
# The best so far is kept so often, or less where keeping it would take more than this share of the time.
_KEEP_EVERY_S, _KEEPING_SHARE = 60.0, 0.1


@dataclass(frozen=True)
class _Ask:
    """The question of a queued candidate: one point for the first time, or the best ones again, in turns."""

    workload: Workload
    points: tuple[Point, ...]
    again: bool = False


@dataclass
class _Job:
    """An operator in progress: `finished` is its batch so far, `again` the result of its turns so far."""

    workload: Workload
    trials: Trials
    case: Path
    outstanding: int = 0
    finished: list[TuningRecord] = field(default_factory=list)
    again: list[TuningRecord] = field(default_factory=list)


@dataclass
class TuningJobs:
    """Tunes workloads on one target; every record goes to the store as its batch completes."""

    pool: Pool
    target: HardwareTarget
    store: RecordStore
    effort: Effort
    scratch: Path
    cold_bytes: int = 0
    code_copies: int = 1
    canary: Canary | None = None
    warm_start: WarmStart | None = None
    deadline_s: float = math.inf
    """Reading of the clock after which nothing more is tried."""
    end_s: float = math.inf
    """Reading of the clock after which the best points are not measured again either."""
    clock: Callable[[], float] = time.monotonic
    keep_best: Callable[[], object] | None = None
    """Keeps what was found so far. It is called about once a minute, while nothing is under way."""
    suggested: Mapping[Workload, Sequence[Point]] = field(default_factory=dict)
    """Points that are tried first, by workload."""
    _libraries: dict[Workload, dict[Point, Path]] = field(default_factory=dict)
    """Compiled libraries that may have to be timed again: they are not compiled twice."""
    _improvements: dict[Workload, tuple[int, float, float]] = field(default_factory=dict)
    """The improvement expected of a workload after so many trials, with such a rival."""
    _rivals: dict[Workload, set[Workload]] = field(default_factory=dict)
    """Workloads that compute the same as another, of which the fastest will be taken."""
    _watch: FamilyWatch = field(default_factory=FamilyWatch)
    _suggested_from_elsewhere: dict[str, int] = field(default_factory=dict)
    """Points of another device's records that are tried before a tuner is asked, by workload key; 0: not of the
    operator itself, but of one that is like it."""
    _keep_at_s: float = math.inf

    def __post_init__(self) -> None:
        self._change = None if self.effort.knobs is None else read_knobs(Path(self.effort.knobs))
        if self._change is not None:
            check_changeable(self.target)
        self._tuners = Tuners(self.effort.tuner, self.effort.pretrained, self.effort.seed, self.effort.search)

    @property
    def failed_families(self) -> dict[str, str]:
        """The families that are not tried any more, with the error that their candidates end in (`give_up`)."""
        return self._watch.given_up

    def run(
        self,
        workloads: Sequence[Workload],
        progress: bool = True,
        counts: FloatArray | None = None,
        alternatives: Iterable[Sequence[Workload]] = (),
    ) -> dict[Workload, list[TuningRecord]]:
        """Explore every workload; returns its valid records, best first. Kept records count as trials.

        When an operator's trials are over, its best few points are measured again, in turns. An exception (Ctrl-C, say)
        leaves what was measured in the store; turns are kept whole or not at all. Of a family (`Workload.op`) of which
        only failures of one kind come, and came before, no more is tried: see `failed_families`.

        Args:
            workloads: without duplicates where there are counts.
            progress: show a progress bar.
            counts: float64[A, W], how often networks have each workload (`budget.occurrences`). With them the trials
                are a common budget: as many in all, but only half of them are the same for every workload.
            alternatives: workloads that compute the same, of which networks take the fastest: the others have a part in
                the common budget as far as they are expected to become faster than it.

        Raises:
            MeasureError: families were given up, and of no other a schedule works.
        """
        trials = {w: self._trials(w) for w in dict.fromkeys(workloads)}
        self._keep_at_s = self.clock() + _KEEP_EVERY_S
        self._rivals = _rivals_of(alternatives)
        num_alike = max(
            NUM_ALIKE, self._num_active * max(self.effort.search.num_initial, self.effort.search.batch_size)
        )
        self._watch = FamilyWatch({w.op for w, t in trials.items() if t.best is not None}, num_alike)
        self._note_warm_start(list(trials.values()))
        line: CandidatePipeline[_Ask] = CandidatePipeline(self.pool, self.canary)
        total = self._num_left(trials) if counts is not None else sum(t.num_left for t in trials.values())
        if total and self.effort.knobs is not None:
            keep_knobs(Path(self.effort.knobs), RunDirectory(self.store.path.parent))
        self.pool.expect(total)
        with progress_bar(total, "tuning operators", "trial", progress and bool(total), keeps=True) as bar:
            for _ in () if counts is None else self._rounds(trials, counts):
                self._explore(line, trials, bar, settle=False)
            self._explore(line, trials, bar, settle=True)
        for workload, own in trials.items():
            self._drop_libraries(workload)
            if own.is_stopped:
                self.store.stop(workload.key, own.num_tried, 0.0, own.noise)
        best = {w: self.best_records(w) for w in trials}
        if self.failed_families and not any(best.values()):
            raise MeasureError(
                f"no schedule of any operator works on {self.target.device}; given up after the first failures: "
                f"{describe_errors(self.failed_families)}; {remedy(self.target)}"
            )
        return best

    def is_stopped(self, workload: Workload) -> bool:
        """True if points of a workload were left untried because none better was expected (`early_stopping`)."""
        num = self.store.num_trials_at_stop(workload.key)
        return num is not None and len(self.store.load(workload.key)) <= num

    @property
    def _is_late(self) -> bool:
        return self.clock() > self.deadline_s

    @property
    def _num_active(self) -> int:
        return _ACTIVE_JOBS * self.pool.num_devices

    def _num_left(self, trials: dict[Workload, Trials]) -> int:
        """Trials of the common budget that were not made yet; families that were given up have no part in it."""
        open_ = [t for w, t in trials.items() if w.op not in self.failed_families]
        total = sum(min(self.effort.num_trials, t.num_tried + t.room) for t in open_)
        return max(0, total - sum(t.num_tried for t in open_))

    def _rounds(self, trials: dict[Workload, Trials], counts: FloatArray) -> Iterator[None]:
        """Raise the limits of all trials, once for each time that they are to be explored.

        What another device has records of is tried in small steps: as many points of a few operators as tell whether
        its order holds here, then the best of each other operator there, then its other first points; where the order
        holds, all further trials are of the common budget. Where only points that were best there are suggested, one of
        each operator comes first.
        """
        num_trials = self.effort.num_trials
        num_initial = min(num_trials, self.effort.search.num_initial)
        known = [t for t in self._ordered(trials) if t.prior is not None]
        begun = [t for t in self._ordered(trials) if t.space.workload.key in self._suggested_from_elsewhere]
        for some, limit in ((known[:_NUM_SCOUTS], num_initial), ([*begun, *known], 1), (known, num_initial)):
            for own in trials.values():
                own.limit = own.num_tried
            for own in (t for t in some if t.trusts_prior or t.prior is None):
                own.limit = max(own.num_tried, min(num_trials, limit))
            if any(own.num_left for own in trials.values()):
                yield
        first = min(num_trials, max(num_initial, self.effort.first_trials))
        bases = [num_initial if t.trusts_prior else first for t in trials.values()]
        granted = np.array([base - t.num_tried for base, t in zip(bases, trials.values(), strict=True)])
        while True:
            for own, num in zip(trials.values(), granted, strict=True):
                own.limit = own.num_tried + max(0, int(num))
            yield
            left = 0 if self._is_late else self._num_left(trials)
            if not left:
                return
            num = min(left, max(self._num_active * self.effort.search.batch_size, left // 2))
            room = np.array([0 if w.op in self.failed_families else t.room for w, t in trials.items()], dtype=np.int64)
            granted = hand_out(num, self._claims(trials, counts), room)
            if not granted.any():
                return

    def _ordered(self, trials: dict[Workload, Trials]) -> list[Trials]:
        """Trials in the order in which they are explored."""
        return [trials[workload] for workload in self._in_order(trials)]

    def _claims(self, trials: dict[Workload, Trials], counts: FloatArray) -> FloatArray:
        """float64[W]; a workload that expects no improvement above the noise is noted and not asked again.

        Where nothing stops by its gain each that has points left claims something.
        """
        improvements, rivals_s = [], self._rivals_s(trials)
        for workload, own in trials.items():
            given_up = self.store.num_trials_at_stop(workload.key)
            if self.effort.stops_by_gain and given_up is not None and own.num_tried <= given_up:
                improvements.append(0.0)
                continue
            rival_s = rivals_s[workload]
            num_tried, before_s, improvement = self._improvements.get(workload, (-1, math.inf, 0.0))
            if (num_tried, before_s) != (own.num_tried, rival_s):  # what others have taught the model is not asked
                improvement = own.tuner.promise(rival_s)
                self._improvements[workload] = own.num_tried, rival_s, improvement
            improvements.append(improvement)
            if self.effort.stops_by_gain and own.room and improvement < own.noise and (own.best_s or 0.0) <= rival_s:
                self.store.stop(workload.key, own.num_tried, improvement, own.noise)
        seconds = [min(own.best_s or 0.0, rivals_s[workload]) for workload, own in trials.items()]
        shares = latency_shares(np.array(seconds), counts)
        if not self.effort.stops_by_gain:
            return claims(shares, np.maximum(improvements, _LEAST_IMPROVEMENT), np.zeros(len(trials)))
        return claims(shares, np.array(improvements), np.array([t.noise for t in trials.values()]))

    def _rivals_s(self, trials: dict[Workload, Trials]) -> dict[Workload, float]:
        """Seconds of the fastest that computes the same as each workload; infinite where there is none."""
        best = {w: t.best_s or math.inf for w, t in trials.items()}
        return {w: min((best[r] for r in self._rivals.get(w, ())), default=math.inf) for w in trials}

    def _explore(
        self, line: CandidatePipeline[_Ask], trials: dict[Workload, Trials], bar: ProgressBar, settle: bool
    ) -> None:
        """Bring all trials to their limits, and with `settle` measure the best points of each operator again."""

        def is_open(workload: Workload) -> bool:
            if workload.op in self.failed_families:
                return False
            unsettled = settle and self.clock() <= self.end_s and not is_settled(self._legal_records(workload))
            return (trials[workload].num_left > 0 and not self._is_late) or unsettled

        waiting = [w for w in self._in_order(trials) if is_open(w)]
        started = list(waiting)
        jobs: dict[Workload, _Job] = {}
        try:
            while waiting or jobs:
                if self._is_late:
                    self._take_back(line, jobs, lambda ask: not ask.again)
                    waiting = [w for w in waiting if is_open(w)]
                if self._is_keeping and not line.num_in_flight:
                    self._keep(jobs.values(), bar)
                while waiting and len(jobs) < self._num_active and not self._is_keeping:
                    workload = waiting.pop(0)
                    jobs[workload] = self._start(line, workload, trials[workload])
                    self._submit_next(line, jobs[workload], settle)
                self._go_on(line, jobs, settle)  # of those that it is too late for, nothing was submitted
                for candidate, outcome in line.finished():
                    job = jobs[candidate.token.workload]
                    job.outstanding -= 1
                    if candidate.token.again:
                        self._take_turns(line, job, candidate.token, outcome)
                    else:
                        record = _record(candidate.token.points[0], outcome)
                        job.finished.append(record)
                        self._libraries.setdefault(job.workload, {})[record.point] = candidate.library
                        bar.update()
                        if self._watch.note(job.workload.op, record):
                            waiting = [w for w in waiting if w.op != job.workload.op]
                            self._give_up(line, job.workload.op, jobs, bar)
                    for ended in self._go_on(line, jobs, settle):
                        _show(bar, ended, len(waiting) + len(jobs))
        finally:
            for job in jobs.values():
                self._complete_batch(job)
            self._note_warm_start([trials[w] for w in started])

    def _go_on(self, line: CandidatePipeline[_Ask], jobs: dict[Workload, _Job], settle: bool) -> list[_Job]:
        """Submit the next candidates of jobs that wait for nothing; those that have nothing left end. None while the
        best so far is about to be kept."""
        ended = []
        for job in [job for job in jobs.values() if job.outstanding == 0 and not self._is_keeping]:
            self._complete(job)
            self._submit_next(line, job, settle)
            if job.outstanding == 0:
                del jobs[job.workload]
                job.case.unlink(missing_ok=True)
                ended.append(job)
        return ended

    def _give_up(
        self, line: CandidatePipeline[_Ask], family: str, jobs: dict[Workload, _Job], bar: ProgressBar
    ) -> None:
        """Take back what is submitted of a family, and say so."""
        self._take_back(line, jobs, lambda ask: ask.workload.op == family)
        if not bar.disable:
            bar.write(
                f"{family} operators are given up, all fail alike: {self.failed_families[family]}", file=sys.stderr
            )

    def _take_back(
        self, line: CandidatePipeline[_Ask], jobs: dict[Workload, _Job], is_unwanted: Callable[[_Ask], bool]
    ) -> None:
        """Take back candidates whose build has not begun."""
        for ask in line.withdraw(is_unwanted):
            jobs[ask.workload].outstanding -= 1

    @property
    def _is_keeping(self) -> bool:
        """True if nothing new is to begin, as the best so far is to be kept."""
        return self.keep_best is not None and self.clock() >= self._keep_at_s and not self._is_late

    def _keep(self, jobs: Iterable[_Job], bar: ProgressBar) -> None:
        """Have the best so far kept, with the finished parts of batches."""
        for job in jobs:
            self._complete_batch(job)
        bar.set_postfix_str("keeping the best so far")
        start_s = self.clock()
        assert self.keep_best is not None
        self.keep_best()
        now_s = self.clock()
        self._keep_at_s = now_s + max(_KEEP_EVERY_S, (now_s - start_s) / _KEEPING_SHARE)

    def best_records(self, workload: Workload) -> list[TuningRecord]:
        """Valid records of a workload, best first."""
        return best_records(workload, self.target, self.store)

    def _legal_records(self, workload: Workload) -> list[TuningRecord]:
        return legal_records(workload, self.target, self.store)

    def _trials(self, workload: Workload) -> Trials:
        space = schedule_space(workload, self.target)
        if self._change is not None:
            space = self._change.apply(space)
        kept = [replace(r, point=extended(r.point, space)) for r in self.store.load(workload.key)]
        prior = None if self.warm_start is None else self.warm_start.prior(space)
        suggested = [extended(point, space) for point in self.suggested.get(workload, ())]
        if self.warm_start is not None and (self.warm_start.best_only or not self._tuners.has_model):
            suggested += self._best_elsewhere(self.warm_start, space, prior, bool(kept))
            prior = None
        tuner = self._tuners.make(space, kept, self.target, prior, self.pool.compute)
        effort = self.effort
        return Trials(space, tuner, effort.num_trials, kept, suggested, effort.search.num_initial, effort.patience)

    def _best_elsewhere(
        self, warm_start: WarmStart, space: ScheduleSpace[Any], prior: Prior | None, is_begun: bool
    ) -> list[Point]:
        """Points that were best on the other device, which are tried before a tuner is asked. If the best are all that
        is known there: of an operator that is unknown there and was not begun here the point of a similar one, and
        where points are mapped, which some don't survive, first the one that promises most."""
        workload = space.workload
        best = [] if prior is None else prior.best(self.effort.search.num_initial)
        likely = best
        if warm_start.best_only and best and not warm_start.source.has_points_of(self.target):
            likely = [*(extended(p, space) for p in ranked_points(workload, self.target, 1)), *best]
        elif warm_start.best_only and not best and not is_begun:
            likely = [extended(idea.point, space) for idea in warm_start.similar_ideas(workload)]
        if likely:
            self._suggested_from_elsewhere[workload.key] = len(best)
        return likely

    def _note_warm_start(self, trials: Collection[Trials]) -> None:
        """Keep what another device's records are to these operators, and what became of it."""
        if self.warm_start is None:
            return
        source, digest = self.warm_start.source.device, self.warm_start.digest
        notes = {
            t.space.workload.key: WarmStartNote(source, digest, use.num_records, use.tau, use.is_dropped)
            for t in trials
            if (use := t.prior) is not None and t.has_begun
        } | {
            key: WarmStartNote(source, digest, num, None, False)
            for t in trials
            if (num := self._suggested_from_elsewhere.get(key := t.space.workload.key)) and t.has_begun
        }
        self.store.note_warm_starts(notes)

    @staticmethod
    def _in_order(trials: dict[Workload, Trials]) -> list[Workload]:
        """Families side by side, so that one model learns while another's candidates are built."""
        families: dict[str, list[Workload]] = {}
        for workload in trials:
            families.setdefault(workload.op, []).append(workload)
        ranked = [(i / len(group), w) for group in families.values() for i, w in enumerate(group)]
        return [w for _, w in sorted(ranked, key=lambda pair: pair[0])]

    def _start(self, line: CandidatePipeline[_Ask], workload: Workload, trials: Trials) -> _Job:
        for r in self._legal_records(workload):
            if r.same_as is None:
                known = Outcome(r.seconds, r.spread_s, r.error, drift=r.drift, code=r.code)
                line.know(workload.key, _Ask(workload, (r.point,)), known)
        case = self.scratch / f"{workload.key}.npz"
        case_of(workload, self.target).save(case)
        return _Job(workload, trials, case)

    def _submit_next(self, line: CandidatePipeline[_Ask], job: _Job, settle: bool) -> None:
        """The next batch; after the last one, with `settle`, the contenders, once; then nothing. Of a family that was
        given up, nothing."""
        if job.workload.op in self.failed_families:
            return
        best_s = job.trials.best_s
        hopeless_s = None if best_s is None else _HOPELESS_FACTOR * best_s
        for point in () if self._is_late else job.trials.ask(self.effort.search.batch_size):
            self._submit(line, job, _Ask(job.workload, (point,)), hopeless_s)
        if job.outstanding or job.again or not settle:
            return
        records = self._legal_records(job.workload)
        if self.clock() <= self.end_s and not is_settled(records):
            self._submit(line, job, _Ask(job.workload, tuple(r.point for r in contenders(records)), again=True))

    def _submit(self, line: CandidatePipeline[_Ask], job: _Job, ask: _Ask, hopeless_s: float | None = None) -> None:
        line.submit(self._turns(job, ask) if ask.again else self._candidate(job, ask, hopeless_s))
        job.outstanding += 1

    def _candidate(self, job: _Job, ask: _Ask, hopeless_s: float | None) -> Candidate[_Ask]:
        (point,) = ask.points
        library = self.scratch / f"{job.workload.key}-{'_'.join(map(str, point))}.so"
        settings = TRIAL.cold(self.cold_bytes, self.code_copies)
        return Candidate(
            token=ask,
            what=OperatorAt(job.workload, point),
            target=self.target,
            library=library,
            case=job.case,
            settings=settings,
            timeout_s=self.effort.search.timeout_s,
            hopeless_s=hopeless_s,
            keep_library=True,
            family=job.workload.key,
        )

    def _turns(self, job: _Job, ask: _Ask) -> Candidate[_Ask]:
        """The best points of a workload again, in turns; what is compiled already is not compiled again."""
        num, kept = len(ask.points), self._libraries.get(job.workload, {})
        library = self.scratch / f"{job.workload.key}-again-{num}-{'_'.join(map(str, ask.points[0]))}"
        settings = TURNS.cold(self.cold_bytes, self.code_copies)
        return Candidate(
            token=ask,
            what=OperatorsAt(job.workload, ask.points, [kept.get(point) for point in ask.points]),
            target=self.target,
            library=library,
            case=job.case,
            settings=settings,
            timeout_s=num * self.effort.search.timeout_s,
            family=job.workload.key,
        )

    def _take_turns(self, line: CandidatePipeline[_Ask], job: _Job, ask: _Ask, outcome: Outcome) -> None:
        """Keep what the turns gave. When all ended in one error, each has a turn alone, to find the culprit."""
        if outcome.error is not None and len(ask.points) > 1:
            for point in ask.points:
                self._submit(line, job, _Ask(job.workload, (point,), again=True))
            return
        members = outcome.members or (outcome,)
        for point, member in zip(ask.points, members, strict=True):
            record = TuningRecord(point, None)
            job.again.append(
                replace(record, again_s=member.seconds, again_spread_s=member.spread_s, again_error=member.error)
            )

    def _complete(self, job: _Job) -> None:
        self._complete_batch(job)
        if job.again:
            self.store.add_remeasured(job.workload.key, job.again)

    def _complete_batch(self, job: _Job) -> None:
        if job.finished:
            self.store.add(job.workload.key, job.finished)
            job.trials.tell(job.finished)
            job.finished = []
            self._drop_libraries(job.workload, keep={r.point for r in leaders(self._legal_records(job.workload))})

    def _drop_libraries(self, workload: Workload, keep: Collection[Point] = ()) -> None:
        kept = self._libraries.get(workload, {})
        for point in set(kept) - set(keep):
            kept.pop(point).unlink(missing_ok=True)


def legal_records(workload: Workload, target: HardwareTarget, store: RecordStore) -> list[TuningRecord]:
    """Records of a workload whose points are schedules of it today, in the space that is tuned in or not."""
    space = schedule_space(workload, target)
    return [r for r in store.load(workload.key) if space.means(r.point)]


def best_records(workload: Workload, target: HardwareTarget, store: RecordStore) -> list[TuningRecord]:
    """Valid ones of these, best first."""
    return rank_records(legal_records(workload, target, store))


def _rivals_of(alternatives: Iterable[Sequence[Workload]]) -> dict[Workload, set[Workload]]:
    """The others of each workload's alternatives."""
    rivals: dict[Workload, set[Workload]] = {}
    for group in alternatives:
        for workload in group:
            rivals.setdefault(workload, set()).update(set(group) - {workload})
    return rivals


def _record(point: Point, outcome: Outcome) -> TuningRecord:
    same_as = None if outcome.same_as is None else outcome.same_as.points[0]
    return TuningRecord(
        point, outcome.seconds, outcome.spread_s, outcome.error, drift=outcome.drift, code=outcome.code, same_as=same_as
    )


def _show(bar: ProgressBar, job: _Job, num_left: int) -> None:
    best_s = job.trials.best_s
    speed = f"{job.workload.gflops(best_s):.0f} GFLOP/s" if best_s else "no valid schedule"
    bar.set_postfix_str(f"{job.workload.op} {speed}, {num_left} operators left")
