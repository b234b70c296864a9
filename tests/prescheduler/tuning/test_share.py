"""chanas/prescheduler/tuning/share.py: few operators are tuned, and what they found serves the others."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chanas.compiler.backends import backend_of, schedule_space
from chanas.core.effort import Effort
from chanas.operators.workload import Workload
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning.jobs import TuningJobs
from chanas.prescheduler.tuning.share import TunedShare, significant, tune_share
from chanas.prescheduler.tuning.warm_start import WarmStart

from ...compiler.workbench import SyntheticPool, device

HERE = device()
HEAVY = Workload("pointwise", 14, 96, 96)
LIGHT, LIGHTER = Workload("pointwise", 14, 96, 48), Workload("pointwise", 7, 32, 16)
DEPTHWISE = Workload("depthwise", 7, 16, 16, 3)
WORKLOADS = [LIGHT, HEAVY, DEPTHWISE, LIGHTER]
COUNTS = np.array([[1.0, 2.0, 1.0, 1.0]])
EFFORT = Effort(trials=4)


def share_tuned(pool: SyntheticPool, store: RecordStore, tmp_path: Path, share: float, groups: Any = ()) -> TunedShare:
    jobs = TuningJobs(pool, HERE, store, EFFORT, tmp_path)  # type: ignore[arg-type]
    return tune_share(jobs, WORKLOADS, COUNTS, share, groups, progress=False)


# ---- which are tuned ------------------------------------------------------------------------------------------------
@given(
    weights=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=8).filter(lambda w: sum(w) > 0.0),
    share=st.floats(0.05, 1.0),
)
def test_no_fewer_operators_of_a_family_cover_the_share(weights: list[float], share: float) -> None:
    workloads = [dataclasses.replace(HEAVY, out_channels=8 * (i + 1)) for i in range(len(weights))]
    chosen = significant(workloads, np.array(weights), share)
    kept = sorted((w for v, w in zip(workloads, weights, strict=True) if v in chosen), reverse=True)
    left = [w for v, w in zip(workloads, weights, strict=True) if v not in chosen]
    assert sum(kept) >= share * sum(weights) * (1.0 - 1e-6)
    assert len(kept) == 1 or sum(kept[:-1]) < share * sum(weights)
    assert min(kept) >= max(left, default=0.0)


def test_every_family_has_one_and_those_that_compute_the_same_stay_together() -> None:
    weights = np.array([3.0, 10.0, 1.0, 2.0])
    assert significant(WORKLOADS, weights, 0.5) == [HEAVY, DEPTHWISE]
    assert significant(WORKLOADS, weights, 0.5, [(HEAVY, LIGHTER)]) == [HEAVY, DEPTHWISE, LIGHTER]
    assert significant(WORKLOADS, weights, 1.0) == WORKLOADS


# ---- what they give -------------------------------------------------------------------------------------------------
def test_the_light_ones_are_checked_and_never_tried(store: RecordStore, tmp_path: Path) -> None:
    pool = SyntheticPool()
    tuned = share_tuned(pool, store, tmp_path, 0.5)
    assert {w.key for w in tuned.taken} == {LIGHT.key, LIGHTER.key}
    assert {t.source for t in tuned.taken.values()} == {HEAVY}
    assert {a.what.workload for a in pool.built} == {HEAVY, DEPTHWISE}
    assert [(a.what.workload, a.what.point) for a in pool.checked] == [(w, t.point) for w, t in tuned.taken.items()]
    assert store.load(LIGHT.key) == []


def test_what_was_best_on_another_device_comes_before_similar_operators(store: RecordStore, tmp_path: Path) -> None:
    there, space = device(num_threads=2), schedule_space(LIGHT, device(num_threads=2))
    slow, fast = space.points[0], space.points[-1]
    source = Source("f00d/2t/tvm-0.27", there, "0.27", backend_of(HERE).space_version)
    records = {LIGHT.key: (TuningRecord(slow, 3e-6), TuningRecord(fast, 1e-6))}
    start = WarmStart(source, tmp_path, HERE, records)
    (idea,) = start.ideas(LIGHT)
    assert schedule_space(LIGHT, HERE).groups(idea.point).items() <= space.groups(fast).items()
    assert (idea.seconds, idea.origin) == (1e-6, f"{LIGHT.key} on f00d/2t/tvm-0.27")
    assert idea.to_json() == {"source": LIGHT.key, "device": "f00d/2t/tvm-0.27"}

    jobs = TuningJobs(SyntheticPool(), HERE, store, EFFORT, tmp_path, warm_start=start)  # type: ignore[arg-type]
    taken = tune_share(jobs, WORKLOADS, COUNTS, 0.5, progress=False).taken
    assert taken[LIGHT] == idea
    assert taken[LIGHTER].to_json() == {"source": HEAVY.key}  # that other device knows nothing of it


def test_an_operator_that_is_unknown_elsewhere_has_no_such_schedule(tmp_path: Path) -> None:
    source = Source("f00d/2t/tvm-0.27", device(num_threads=2), "0.27", backend_of(HERE).space_version)
    assert WarmStart(source, tmp_path, HERE, {}).ideas(LIGHT) == []


def test_kept_records_are_used_instead(store: RecordStore, tmp_path: Path) -> None:
    mine = TuningRecord(schedule_space(LIGHT, HERE).middle, 2e-6)
    store.add(LIGHT.key, [mine])
    tuned = share_tuned(SyntheticPool(), store, tmp_path, 0.5)
    assert set(tuned.taken) == {LIGHTER}
    assert [r.point for r in tuned.records[LIGHT]] == [mine.point]


def test_the_whole_share_is_as_without_one(store: RecordStore, tmp_path: Path) -> None:
    tuned = share_tuned(SyntheticPool(), store, tmp_path, 1.0)
    assert tuned.taken == {}
    assert set(tuned.records) == set(WORKLOADS)


def test_where_nothing_that_is_taken_over_works_the_operator_is_tuned(store: RecordStore, tmp_path: Path) -> None:
    pool = SyntheticPool()
    pool.check_error = lambda asked: "wrong result" if asked.what.workload == LIGHTER else None
    tuned = share_tuned(pool, store, tmp_path, 0.5)
    assert set(tuned.taken) == {LIGHT}
    assert tuned.records[LIGHTER]
