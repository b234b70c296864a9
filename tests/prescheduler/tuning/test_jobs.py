"""chanas/prescheduler/tuning/jobs.py: many operators side by side, and nothing that was measured is lost or measured
twice."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point
from chanas.core.effort import Effort, Search
from chanas.measuring.canary import Canary
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import OperatorsAt
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning.jobs import TuningJobs
from chanas.prescheduler.tuning.tuner import Trials

from ...compiler.workbench import Again, SyntheticPool, answered, device, landscape_seconds, timed

HERE = device()
WORKLOADS = [
    Workload("pointwise", 4, 16, 32, epilogue="relu"),
    Workload("pointwise", 6, 16, 24),
    Workload("pointwise", 1, 16, 8, epilogue="hsigmoid"),
    Workload("depthwise", 4, 16, 16, 3),
    Workload("depthwise", 5, 24, 24, 5, 2),
    Workload("conv", 8, 3, 8, 3, 2),
    Workload("pool", 2, 16, 16),
]
EFFORT, SEARCH = Effort(trials=9), Search(num_initial=3, batch_size=2)
Asked = tuple[str, Point]


def tuning(
    pool: Any, store: RecordStore, scratch: Path, effort: Effort = EFFORT, search: Search = SEARCH, **options: Any
) -> TuningJobs:
    return TuningJobs(pool, HERE, store, dataclasses.replace(effort, search=search), scratch, **options)


def num_trials(workload: Workload, effort: Effort = EFFORT) -> int:
    return min(effort.num_trials, len(schedule_space(workload, HERE).points))


def asked_of(pool: SyntheticPool) -> list[Asked]:
    return [(a.what.workload.key, a.what.point) for a in pool.built]


def kept_in(store: RecordStore) -> set[Asked]:
    return {(w.key, r.point) for w in WORKLOADS for r in store.load(w.key)}


TOTAL = sum(map(num_trials, WORKLOADS))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("model", ["gp", "random"])
def test_every_operator_gets_its_trials(store: RecordStore, scratch: Path, model: str, overlap: bool) -> None:
    pool = SyntheticPool(overlap=overlap)
    best = tuning(pool, store, scratch, dataclasses.replace(EFFORT, tuner=model)).run(WORKLOADS, progress=False)
    assert {w.key: len(records) for w, records in best.items()} == {w.key: num_trials(w) for w in WORKLOADS}
    assert len(set(asked_of(pool))) == len(pool.built) == len(pool.timed) == TOTAL
    assert pool.expected == [TOTAL]
    assert kept_in(store) == set(asked_of(pool))
    assert list(scratch.iterdir()) == []


# ---- the best ones again --------------------------------------------------------------------------------------------
LUCKY = Workload("pointwise", 4, 96, 192)
LUCKY_POINTS = schedule_space(LUCKY, HERE).points[:6]


def keep(store: RecordStore, *seconds: float) -> None:
    """First timings of `LUCKY_POINTS`, in order."""
    store.add(LUCKY.key, [TuningRecord(p, s) for p, s in zip(LUCKY_POINTS, seconds, strict=False)])


def in_turns(*again: float | str) -> SyntheticPool:
    """Seconds of `LUCKY_POINTS`, in order, for the second time."""
    by_point = dict(zip(LUCKY_POINTS, again, strict=False))
    return SyntheticPool(lambda asked: by_point[asked.what.point] if isinstance(asked.what, Again) else 1.0)


def settle(pool: Any, store: RecordStore, scratch: Path) -> list[TuningRecord]:
    return tuning(pool, store, scratch, Effort(trials=1), Search()).run([LUCKY], progress=False)[LUCKY]


@pytest.mark.parametrize(
    ("first", "again", "order", "turns"),
    [
        ((1.00e-6, 1.02e-6, 1.04e-6, 1.10e-6), (1.2e-6, 1.05e-6, 1.1e-6), [1, 2, 0, 3], ["abc"]),
        ((1.00e-6, 1.10e-6), (), [0, 1], []),
        ((1.00e-6, 1.02e-6, 1.04e-6, 1.10e-6), ("crash", 1.05e-6, 1.02e-6), [2, 1, 3, 0], ["abc", "a", "b", "c"]),
        ((1.00e-6, 1.02e-6), ("timeout", "timeout"), [0, 1], ["ab", "a", "b"]),
    ],
    ids=["noise does not choose", "a clear case", "one crashes and comes last", "all fail and nothing changes"],
)
def test_contenders_are_measured_in_turns(
    store: RecordStore,
    scratch: Path,
    first: tuple[float, ...],
    again: tuple[float | str, ...],
    order: list[int],
    turns: list[str],
) -> None:
    keep(store, *first)
    pool = in_turns(*again)
    assert [LUCKY_POINTS.index(r.point) for r in settle(pool, store, scratch)] == order
    assert ["".join("abcd"[LUCKY_POINTS.index(p)] for p in t.what.points) for t in pool.turns] == turns
    records = {LUCKY_POINTS.index(r.point): r for r in store.load(LUCKY.key)}
    assert [records[i].seconds for i in range(len(first))] == list(first)
    assert [records[i].again_s or records[i].again_error for i in range(len(again))] == list(again)
    assert not any(records[i].was_remeasured for i in range(len(again), len(first)))
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("before", "new", "num"), [((1e-6, 1e-6), (0.99e-6,), 3), (("timeout", "timeout"), (), 2)], ids=["new", "failed"]
)
def test_a_new_contender_and_turns_in_which_all_failed_make_new_turns(
    store: RecordStore, scratch: Path, before: tuple[float | str, ...], new: tuple[float, ...], num: int
) -> None:
    keep(store, 1.00e-6, 1.02e-6)
    settle(in_turns(*before), store, scratch)
    keep(store, 1.00e-6, 1.02e-6, *new)
    pool = in_turns(2e-6, 1e-6, 3e-6)
    assert settle(pool, store, scratch)[0].point == LUCKY_POINTS[1]
    assert [set(t.what.points) for t in pool.turns] == [set(LUCKY_POINTS[:num])]


@pytest.mark.parametrize("in_building", [True, False])
def test_a_run_that_is_cut_off_in_the_turns_of_an_operator_repeats_those_alone(
    store: RecordStore, scratch: Path, in_building: bool
) -> None:
    class Cut(SyntheticPool):
        num_left = 2

        def count(self, is_counted: bool) -> None:
            self.num_left -= is_counted
            if self.num_left == 0:
                raise KeyboardInterrupt

        def build(self, request: Any, *rest: Any) -> Any:
            self.count(in_building and isinstance(request.what, OperatorsAt))
            return super().build(request, *rest)

        def measure(self, request: Any, *rest: Any) -> Any:
            self.count(not in_building and request.num is not None)
            return super().measure(request, *rest)

    whole, alike = SyntheticPool(lambda _: 1e-6), WORKLOADS[:3]
    with pytest.raises(KeyboardInterrupt):
        tuning(Cut(lambda _: 1e-6), store, scratch).run(alike, progress=False)
    settled = {w for w in alike if any(r.was_remeasured for r in store.load(w.key))}
    num_kept = sum(len(store.load(w.key)) for w in alike)
    for left in scratch.iterdir():  # the folder of a run of its own
        left.rmdir() if left.is_dir() else left.unlink()
    tuning(whole, store, scratch).run(alike, progress=False)
    assert len(settled) <= 1
    assert {t.what.workload.input_size for t in whole.turns} == {w.input_size for w in alike if w not in settled}
    assert len(whole.built) == sum(map(num_trials, alike)) - num_kept


def test_planted_bad_candidates_end_as_records_and_the_others_have_their_turns(
    pool: WorkerPool, store: RecordStore, scratch: Path
) -> None:
    """Kept times that are lies, and one point that can't be built any more."""
    keep(store, 1e-12, 1.01e-12, 1.02e-12)
    broken = LUCKY_POINTS[1]

    class Planted:
        overlap, num_builders, num_devices = pool.overlap, pool.num_builders, pool.num_devices

        def build(self, request: Any, timeout_s: float) -> Any:
            if isinstance(request.what, OperatorsAt):
                points = [(7, 7) if p == broken else p for p in request.what.points]
                request = dataclasses.replace(request, what=dataclasses.replace(request.what, points=points))
            return pool.build(request, timeout_s)

        measure, expect, compute = pool.measure, pool.expect, pool.compute

    settle(Planted(), store, scratch)
    records = {r.point: r for r in store.load(LUCKY.key)}
    assert (records[broken].again_error or "").startswith("ScheduleError: expected a point of")
    assert all((records[p].again_s or 0.0) > 0.0 for p in LUCKY_POINTS[:3] if p != broken)
    assert list(scratch.iterdir()) == []


def test_when_it_is_late_nothing_more_is_tried(store: RecordStore, scratch: Path) -> None:
    best = tuning(SyntheticPool(), store, scratch, deadline_s=-1.0).run(WORKLOADS, progress=False)
    assert not any(best.values())
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("counts", [None, np.ones((1, len(WORKLOADS)))], ids=["each", "shared"])
def test_operators_that_wait_when_it_gets_late_are_left_as_they_are(
    store: RecordStore, scratch: Path, counts: Any
) -> None:
    pool = SyntheticPool()
    jobs = tuning(pool, store, scratch, deadline_s=4.0, clock=lambda: float(len(pool.built)))
    jobs.run(WORKLOADS, progress=False, counts=counts)
    assert 0 < len(kept_in(store)) < TOTAL


def test_the_best_points_are_not_measured_again_after_the_end(store: RecordStore, scratch: Path) -> None:
    keep(store, 1.00e-6, 1.01e-6)
    pool = SyntheticPool()
    jobs = tuning(pool, store, scratch, deadline_s=1.0, end_s=1.0, clock=lambda: 2.0)
    assert [r.point for r in jobs.run([LUCKY], progress=False)[LUCKY]] == list(LUCKY_POINTS[:2])
    assert pool.built == []


def test_the_best_so_far_is_kept_each_minute_while_nothing_is_under_way(store: RecordStore, scratch: Path) -> None:
    pool, kept = SyntheticPool(), []

    def keep_best() -> None:
        assert len(pool.built) == len(pool.timed)
        assert kept_in(store) == set(asked_of(pool))
        kept.append(len(pool.built))

    tuning(pool, store, scratch, clock=lambda: 10.0 * len(pool.built), keep_best=keep_best).run(WORKLOADS, False)
    assert kept == sorted(set(kept))
    assert len(kept) > 2
    assert len(pool.built) == TOTAL


def test_failures_are_kept_with_their_error_and_not_tried_again(store: RecordStore, scratch: Path) -> None:
    def fails(asked: Any) -> float | str:
        return "timeout: measure took more than 40 s" if asked.what.workload.op == "depthwise" else 1e-6

    best = tuning(SyntheticPool(fails), store, scratch).run(WORKLOADS, progress=False)
    for workload in WORKLOADS:
        failed = workload.op == "depthwise"
        assert (best[workload] == []) == failed
        assert {r.error for r in store.load(workload.key)} == {
            "timeout: measure took more than 40 s" if failed else None
        }
    again = SyntheticPool(fails)
    tuning(again, store, scratch).run(WORKLOADS, progress=False)
    assert again.built == []


def test_a_candidate_is_hopeless_beside_the_best_so_far(store: RecordStore, scratch: Path) -> None:
    pool = SyntheticPool(lambda _: 2e-6)
    tuning(pool, store, scratch).run(WORKLOADS[:1], progress=False)
    limits = [request.hopeless_s for request in pool.requests if request.num is None]
    assert limits[: SEARCH.num_initial] == [None] * SEARCH.num_initial
    assert set(limits[SEARCH.num_initial :]) == {6e-6}


# ---- a common budget ------------------------------------------------------------------------------------------------
BUDGET = Effort(trials=12)
LARGE_ONES = [Workload("pointwise", 6, 48, 96), Workload("pointwise", 7, 96, 64), Workload("pointwise", 12, 96, 192)]
COUNTS = np.array([[0.0, 1.0, 40.0]])


def landscape(asked: Any) -> float:
    return landscape_seconds(schedule_space(asked.what.workload, HERE), asked.what.point)


def spread_out(pool: Any, store: RecordStore, scratch: Path, effort: Effort = BUDGET) -> list[int]:
    """Records of each workload after a run with a common budget."""
    tuning(pool, store, scratch, effort).run(LARGE_ONES, progress=False, counts=COUNTS)
    return [len(store.load(w.key)) for w in LARGE_ONES]


def test_a_common_budget_is_spent_and_goes_where_networks_spend_their_time(store: RecordStore, scratch: Path) -> None:
    unused, rare, frequent = spread_out(SyntheticPool(landscape), store, scratch)
    assert unused + rare + frequent == 3 * 12
    assert unused == 6 <= rare < 12 < frequent


def test_a_workload_stops_where_improvement_is_under_the_noise(
    store: RecordStore, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trials, "noise", 10.0)
    assert spread_out(SyntheticPool(landscape), store, scratch) == [6, 6, 6]
    assert [store.num_trials_at_stop(w.key) for w in LARGE_ONES] == [6, 6, 6]
    monkeypatch.undo()
    pool = SyntheticPool(landscape)
    assert spread_out(pool, store, scratch) == [6, 6, 6]
    assert pool.built == []


def test_without_an_early_stop_a_common_budget_is_spent_whatever_is_expected(
    store: RecordStore, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trials, "noise", 10.0)
    assert sum(spread_out(SyntheticPool(landscape), store, scratch)) == 3 * 6  # and those that stopped go on, too
    assert (
        sum(spread_out(SyntheticPool(landscape), store, scratch, dataclasses.replace(BUDGET, early_stopping="no")))
        == 3 * 12
    )


def test_without_an_early_stop_or_with_a_spent_budget_nothing_is_noted_as_stopped(
    store: RecordStore, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = dataclasses.replace(BUDGET, early_stopping="no")
    monkeypatch.setattr(Trials, "noise", 10.0)
    spread_out(SyntheticPool(landscape), store, scratch, endless)
    spent = dataclasses.replace(BUDGET, trials=sum(len(store.load(w.key)) for w in LARGE_ONES) // len(LARGE_ONES))
    spread_out(SyntheticPool(landscape), store, scratch, spent)
    assert [store.num_trials_at_stop(w.key) for w in LARGE_ONES] == [None, None, None]


def test_of_alternatives_the_slower_ones_have_no_part_in_the_rest_of_a_common_budget(
    store: RecordStore, scratch: Path
) -> None:
    _, slow, fast = LARGE_ONES

    def unequal(asked: Any) -> float:
        return landscape(asked) * (20.0 if asked.what.workload == slow else 1.0)

    jobs = tuning(SyntheticPool(unequal), store, scratch, BUDGET)
    found = jobs.run([slow, fast], progress=False, counts=np.array([[1.0, 1.0]]), alternatives=[(slow, fast)])
    assert (len(store.load(slow.key)), len(store.load(fast.key))) == (6, 18)
    assert found[slow][0].seconds > found[fast][0].seconds
    assert store.num_trials_at_stop(slow.key) is None  # elsewhere it may be without a rival


def test_an_alternative_that_never_works_is_not_tried_further(store: RecordStore, scratch: Path) -> None:
    _, failing, works = LARGE_ONES

    def fails(asked: Any) -> float | str:
        return "crash" if asked.what.workload == failing else landscape(asked)

    jobs = tuning(SyntheticPool(fails), store, scratch, BUDGET)
    jobs.run([failing, works], progress=False, counts=np.array([[1.0, 1.0]]), alternatives=[(failing, works)])
    assert (len(store.load(failing.key)), len(store.load(works.key))) == (6, 18)


def test_a_workload_of_failures_has_its_part_of_a_common_budget(store: RecordStore, scratch: Path) -> None:
    def fails(asked: Any) -> float | str:
        return "crash" if asked.what.workload == LARGE_ONES[0] else landscape(asked)

    failing, *others = spread_out(SyntheticPool(fails), store, scratch)
    assert failing > 6
    assert failing + sum(others) == 36


# ---- points that are the same program -------------------------------------------------------------------------------
def like_even(asked: Any) -> str:
    """Points that differ in the order of loops alone are the same program."""
    return str(asked.what.point[:6])


def test_the_same_program_is_timed_once_and_the_others_say_whose_time_it_is(store: RecordStore, scratch: Path) -> None:
    pool = SyntheticPool()
    pool.code = like_even
    tuning(pool, store, scratch, Effort(trials=50), Search(batch_size=3)).run([LUCKY], progress=False)
    records = {r.point: r for r in store.load(LUCKY.key)}
    assert len(records) == len(pool.built) == 50
    assert len(pool.timed) == len({p[:6] for p in records}) < 50
    for point, record in records.items():
        assert record.code == str(point[:6])
        if record.same_as is not None:
            original = records[record.same_as]
            assert (original.same_as, original.code, original.seconds) == (None, record.code, record.seconds)
    assert sum(r.same_as is not None for r in records.values()) == 50 - len(pool.timed)
    assert list(scratch.iterdir()) == []


def test_a_resumed_run_knows_the_programs_of_the_first(store: RecordStore, scratch: Path) -> None:
    timed = 0
    for num_trials in (10, 40, 80):
        pool = SyntheticPool()
        pool.code = like_even
        tuning(pool, store, scratch, Effort(trials=num_trials), Search()).run([LUCKY], progress=False)
        timed += len(pool.timed)
    assert timed == len({r.point[:6] for r in store.load(LUCKY.key)}) < 80


def test_the_same_program_as_a_failed_one_fails_alike(store: RecordStore, scratch: Path) -> None:
    pool = SyntheticPool(lambda _: "crash: signal 11")
    pool.code = lambda _: "all the same"
    tuning(pool, store, scratch).run([LUCKY], progress=False)
    assert len(pool.timed) == 1
    assert {r.error for r in store.load(LUCKY.key)} == {"crash: signal 11"}


def test_twins_are_no_contenders(store: RecordStore, scratch: Path) -> None:
    pool = SyntheticPool(lambda _: 1e-6)
    pool.code = lambda _: "all the same"
    tuning(pool, store, scratch).run([LUCKY], progress=False)
    assert pool.turns == []


def test_records_say_under_which_drift_they_were_measured(store: RecordStore, scratch: Path) -> None:
    class Slowing(SyntheticPool):
        def measure(self, request: Any, timeout_s: float, device: int | None = None) -> Any:
            slow = 1.0 if len(self.timed) < 10 else 1.2
            answer = super().measure(request, timeout_s, device)
            return answer if request.num is not None else answered(timed(1e-6 * slow))

    canary = Canary(HERE, scratch, store.add_canary)
    tuning(Slowing(), store, scratch, Effort(trials=30), Search(), canary=canary).run([LUCKY], progress=False)
    records = store.load(LUCKY.key)
    assert len(records) == 30
    assert {1.0, 1.2} <= {round(r.drift, 6) for r in records}
    assert [r.seconds for r in records] == pytest.approx([1e-6] * 30, rel=0.21)
    assert store.load_canary() == canary.readings
