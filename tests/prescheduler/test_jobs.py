"""chanas/prescheduler/jobs.py: many operators side by side, and nothing that was measured is lost or measured twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chanas.prescheduler import jobs as module
from chanas.prescheduler.jobs import TuningJobs
from chanas.prescheduler.pool import WorkerPool
from chanas.prescheduler.records import RecordStore, TuningRecord
from chanas.prescheduler.space import Point, schedule_space
from chanas.prescheduler.tune import TuneConfig
from chanas.prescheduler.workload import Workload

from .cases import HOST, SyntheticPool, interrupted_bar

WORKLOADS = [
    Workload("pointwise", 4, 16, 32, epilogue="relu"),
    Workload("pointwise", 6, 16, 24),
    Workload("pointwise", 1, 16, 8, epilogue="hsigmoid"),
    Workload("depthwise", 4, 16, 16, 3),
    Workload("depthwise", 5, 24, 24, 5, 2),
    Workload("conv", 8, 3, 8, 3, 2),
    Workload("pool", 2, 16, 16),
]
CONFIG = TuneConfig(num_trials=9, num_initial=3, batch_size=2)
Asked = tuple[str, Point]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    opened = RecordStore(tmp_path / "records.sqlite", HOST)
    yield opened
    opened.close()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def tuning(pool: Any, store: RecordStore, scratch: Path, config: TuneConfig = CONFIG, **options: Any) -> TuningJobs:
    return TuningJobs(pool, HOST, store, config, scratch, **options)


def num_trials(workload: Workload, config: TuneConfig = CONFIG) -> int:
    return min(config.num_trials, len(schedule_space(workload, HOST).points))


def asked_of(pool: SyntheticPool) -> list[Asked]:
    return [(Workload.from_json(a["workload"]).key, a["point"]) for a in pool.built]


def kept_in(store: RecordStore) -> set[Asked]:
    return {(w.key, r.point) for w in WORKLOADS for r in store.load(w.key)}


TOTAL = sum(map(num_trials, WORKLOADS))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("model", ["gp", "random"])
def test_every_operator_gets_its_trials(store: RecordStore, scratch: Path, model: str, overlap: bool) -> None:
    pool = SyntheticPool(overlap=overlap)
    best = tuning(pool, store, scratch, model=model).run(WORKLOADS, progress=False)
    assert {w.key: len(records) for w, records in best.items()} == {w.key: num_trials(w) for w in WORKLOADS}
    assert len(set(asked_of(pool))) == len(pool.built) == len(pool.timed) == TOTAL
    assert kept_in(store) == set(asked_of(pool))
    assert list(scratch.iterdir()) == []


def test_records_come_fastest_first(store: RecordStore, scratch: Path) -> None:
    best = tuning(SyntheticPool(), store, scratch).run(WORKLOADS, progress=False)
    for records in best.values():
        seconds = [r.seconds or 0.0 for r in records]
        assert seconds == sorted(seconds)


def test_an_operator_that_many_blocks_have_is_tuned_once(store: RecordStore, scratch: Path) -> None:
    pool = SyntheticPool()
    best = tuning(pool, store, scratch).run([WORKLOADS[0]] * 3, progress=False)
    assert list(best) == [WORKLOADS[0]]
    assert len(pool.built) == num_trials(WORKLOADS[0])


def test_nothing_to_tune_is_nothing(store: RecordStore, scratch: Path) -> None:
    assert tuning(SyntheticPool(), store, scratch).run([], progress=False) == {}


def test_a_second_run_measures_nothing_and_returns_the_same(store: RecordStore, scratch: Path) -> None:
    first = tuning(SyntheticPool(), store, scratch).run(WORKLOADS, progress=False)
    pool = SyntheticPool()
    assert tuning(pool, store, scratch).run(WORKLOADS, progress=False) == first
    assert pool.built == []


def test_more_trials_add_to_those_that_are_there(store: RecordStore, scratch: Path) -> None:
    tuning(SyntheticPool(), store, scratch).run(WORKLOADS, progress=False)
    before = kept_in(store)
    pool, more = SyntheticPool(), TuneConfig(num_trials=12)
    tuning(pool, store, scratch, more).run(WORKLOADS, progress=False)
    assert before.isdisjoint(asked_of(pool))
    assert len(pool.built) == sum(num_trials(w, more) - num_trials(w) for w in WORKLOADS) > 0


@pytest.mark.parametrize("num_measured", [1, 2, 7, TOTAL - 1, TOTAL])
def test_ctrl_c_keeps_what_was_measured_and_the_next_run_makes_the_rest(
    store: RecordStore, scratch: Path, monkeypatch: pytest.MonkeyPatch, num_measured: int
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "tqdm", interrupted_bar(num_measured))
        tuning(SyntheticPool(), store, scratch).run(WORKLOADS, progress=False)
    kept = kept_in(store)
    assert len(kept) == num_measured
    pool = SyntheticPool()
    tuning(pool, store, scratch).run(WORKLOADS, progress=False)
    assert kept.isdisjoint(asked_of(pool))
    assert len(pool.built) == TOTAL - num_measured


def test_failures_are_kept_with_their_error_and_not_tried_again(store: RecordStore, scratch: Path) -> None:
    def fails(asked: dict[str, Any]) -> float | str:
        return "timeout: measure took more than 40 s" if asked["workload"]["op"] == "depthwise" else 1e-6

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


def test_records_of_points_that_are_no_more_are_left_out(store: RecordStore, scratch: Path) -> None:
    store.add(WORKLOADS[0].key, [TuningRecord((1, 2, 3), 1e-12)])
    best = tuning(SyntheticPool(), store, scratch).run(WORKLOADS[:1], progress=False)
    assert len(best[WORKLOADS[0]]) == num_trials(WORKLOADS[0])
    assert (1, 2, 3) not in {r.point for r in best[WORKLOADS[0]]}


def test_a_candidate_is_hopeless_beside_the_best_so_far(store: RecordStore, scratch: Path) -> None:
    limits: list[float | None] = []

    class Noting(SyntheticPool):
        def measure(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Any:
            limits.append(arguments["hopeless_s"])
            return super().measure(name, arguments, timeout_s)

    tuning(Noting(lambda _: 2e-6), store, scratch).run(WORKLOADS[:1], progress=False)
    assert limits[: CONFIG.num_initial] == [None] * CONFIG.num_initial
    assert set(limits[CONFIG.num_initial :]) == {6e-6}


def test_real_operators_are_tuned(pool: WorkerPool, store: RecordStore, scratch: Path) -> None:
    workloads = [WORKLOADS[0], WORKLOADS[3]]
    config = TuneConfig(num_trials=4, num_initial=2, batch_size=2)
    best = tuning(pool, store, scratch, config, cold_bytes=20_000, code_copies=3).run(workloads, progress=False)
    assert store.count() == (8, 0)
    for workload in workloads:
        assert len(best[workload]) == 4
        assert all(r.seconds is not None and r.seconds > 0.0 for r in best[workload])
        assert all(r.spread_s is not None and r.spread_s >= 0.0 for r in best[workload])
    assert list(scratch.iterdir()) == []
