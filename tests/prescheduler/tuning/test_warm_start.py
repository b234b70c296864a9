"""chanas/prescheduler/tuning/warm_start.py: which records of another device may be begun with, and what they become."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from chanas.compiler.backends import BACKENDS, schedule_space
from chanas.compiler.space import Coordinate, Point, ScheduleSpace
from chanas.core.effort import DEFAULT_SEARCH, Effort, Search
from chanas.core.latency import LatencyLUT, LUTHeader
from chanas.core.target import HardwareTarget, tvm_version
from chanas.errors import ChanasError, CheckpointError, StageOrderError, TargetError
from chanas.files.run import RunDirectory
from chanas.operators.workload import Workload
from chanas.prescheduler.ideas import agree
from chanas.prescheduler.records.sources import open_records
from chanas.prescheduler.records.store import UNVERSIONED_SPACES, RecordStore, TuningRecord, WarmStartNote
from chanas.prescheduler.tuning import jobs as jobs_module
from chanas.prescheduler.tuning.cost_model.history import Prior
from chanas.prescheduler.tuning.cost_model.models import cost_model
from chanas.prescheduler.tuning.evolution import Evolution
from chanas.prescheduler.tuning.jobs import TuningJobs
from chanas.prescheduler.tuning.tuner import PriorUse, Trials
from chanas.prescheduler.tuning.tuners import Tuners
from chanas.prescheduler.tuning.warm_start import open_warm_start, prior_from

from ...compiler.workbench import (
    DEVICES,
    NANO,
    NEON,
    NUM_CLASSES,
    SyntheticPool,
    device,
    fill_table,
    generators,
    hashed_seconds,
    landscape_seconds,
    random_workload,
    workloads,
)

ONE, TWO = device(), dataclasses.replace(device(num_threads=2), name="cpu-2t")
OTHER = dataclasses.replace(ONE, fingerprint="0123456789ab", device="Another processor")
NARROW, BFLOAT16 = device(lanes=8), dataclasses.replace(ONE, dtype="bfloat16")
SPACE_VERSION = BACKENDS["llvm"].space_version
WORKLOAD = Workload("pointwise", 14, 96, 192, epilogue="relu")
DEPTHWISE = Workload("depthwise", 28, 64, 64, 3, 1, "relu")


def seconds_of(space: ScheduleSpace, point: Point) -> float:
    """A landscape where there is one, some number that belongs to the point elsewhere."""
    if space.workload.op == "pointwise":
        return landscape_seconds(space, point)
    return hashed_seconds(None, None, json.dumps(point), None)


def records_of(workload: Workload, target: HardwareTarget, num: int = 24, seed: int = 1) -> list[TuningRecord]:
    space = schedule_space(workload, target)
    points = space.sample(num, np.random.default_rng(seed))
    return [TuningRecord(p, seconds_of(space, p), 1e-9) for p in points]


def stored(run: RunDirectory, target: HardwareTarget, *asked: Workload) -> RunDirectory:
    """A run with records of some workloads on a target."""
    with contextlib.closing(RecordStore(run.records, target)) as store:
        for workload in asked or (WORKLOAD,):
            store.add(workload.key, records_of(workload, target))
    return run


@pytest.fixture
def theirs(tmp_path: Path) -> RunDirectory:
    """A run with records of another processor of the same kind."""
    return stored(RunDirectory(tmp_path / "theirs"), OTHER)


def change(run: RunDirectory, *statements: str) -> None:
    """Change the records of a run by SQL."""
    with contextlib.closing(sqlite3.connect(run.records)) as database, database:
        for statement in statements:
            database.execute(statement)


# ---- records as points of another space -----------------------------------------------------------------------------
@given(workload=workloads)
def test_the_best_of_records_that_fall_together_counts(workload: Workload) -> None:
    one, two = schedule_space(workload, ONE), schedule_space(workload, TWO)
    records = [TuningRecord(p, 1e-6 * (i + 1)) for i, p in enumerate(two.points[:40])]
    prior = prior_from(records, two, one, (TWO, ONE))
    assert prior is not None
    assert len(set(prior.points)) == len(prior.points)
    assert list(prior.seconds) == sorted(prior.seconds)
    back = prior_from(
        [TuningRecord(p, s) for (p,), s in zip(prior.points, prior.seconds, strict=True)], one, two, (ONE, TWO)
    )
    assert back is not None
    best = dict(zip(back.points, back.seconds, strict=True))
    for points, seconds in best.items():
        assert seconds == min(r.seconds for r in records if r.seconds and r.point in points)


def test_equal_spaces_need_no_translation() -> None:
    space, records = schedule_space(WORKLOAD, ONE), records_of(WORKLOAD, ONE)
    prior = prior_from(records, space, schedule_space(WORKLOAD, OTHER), (ONE, OTHER))
    assert prior is not None
    assert prior.points == tuple((r.point,) for r in records)
    assert prior.target == ONE


def test_failures_and_points_that_are_no_more_are_left_out() -> None:
    space = schedule_space(WORKLOAD, ONE)
    records = [TuningRecord(space.points[0], None, None, "timeout"), TuningRecord((9, 9, 9), 1e-6)]
    assert prior_from(records, space, space, (ONE, ONE)) is None


# ---- which records --------------------------------------------------------------------------------------------------
def test_another_run_of_the_same_kind_of_processor(run: RunDirectory, theirs: RunDirectory) -> None:
    """The file itself says what the other device is, and is only read."""
    before = theirs.records.read_bytes()
    warm = open_warm_start(str(theirs.root), run, ONE)
    assert warm.source.target.device == "Another processor"
    prior = warm.prior(schedule_space(WORKLOAD, ONE))
    assert prior is not None
    assert len(prior.points) == 24
    assert list(prior.seconds) == sorted(prior.seconds)
    assert warm.prior(schedule_space(DEPTHWISE, ONE)) is None
    assert theirs.records.read_bytes() == before


def test_another_target_of_the_same_run(run: RunDirectory) -> None:
    warm = open_warm_start("cpu", stored(run, ONE), TWO)
    assert (warm.source.target.name, warm.source.target.num_threads) == ("cpu", 1)
    assert warm.prior(schedule_space(WORKLOAD, TWO)) is not None


def test_the_other_dtype_is_taken_as_it_is_where_spaces_agree(run: RunDirectory) -> None:
    bf16 = dataclasses.replace(ONE, name="cpu-bf16", dtype="bfloat16")
    warm = open_warm_start("cpu", stored(run, ONE, WORKLOAD, DEPTHWISE), bf16)
    for workload in (WORKLOAD, DEPTHWISE):
        space = schedule_space(dataclasses.replace(workload, dtype="bfloat16"), bf16)
        there = agree(schedule_space(workload, ONE), space)
        prior = warm.prior(space)
        assert prior is not None
        assert (prior.target.dtype == "float32") == there
    assert agree(schedule_space(DEPTHWISE, ONE), schedule_space(dataclasses.replace(DEPTHWISE, dtype="bfloat16"), bf16))


def test_a_use_in_another_dtype_has_the_units_that_take_it(theirs: RunDirectory) -> None:
    in_matrices = dataclasses.replace(OTHER, name="cpu-bf16", dtype="bfloat16", has_matrices=True)
    for target in (OTHER, in_matrices):
        with contextlib.closing(RecordStore(theirs.records, target)) as store:
            store.add(dataclasses.replace(WORKLOAD, dtype=target.dtype).key, [TuningRecord((1, 2), 1e-6)])
    with open_records(theirs.records) as file:
        found = {source.target.dtype: source.target.has_matrices for source in file.sources()}
    assert found == {"float32": False, "bfloat16": True}


def test_several_images_are_of_one_source_and_another_dtype_is_of_another(
    run: RunDirectory, theirs: RunDirectory
) -> None:
    several, half = dataclasses.replace(WORKLOAD, batch=4), dataclasses.replace(WORKLOAD, dtype="bfloat16")
    stored(theirs, OTHER, several)
    with contextlib.closing(RecordStore(theirs.records, OTHER)) as store:
        store.add(half.key, [TuningRecord((1, 2), 1e-6)])
    with open_records(theirs.records) as file:
        found = {source.target.dtype: set(file.load(source)) for source in file.sources()}
        assert OTHER in [source.target for source in file.sources()]
    assert found == {"float32": {WORKLOAD.key, several.key}, "bfloat16": {half.key}}
    assert open_warm_start(str(theirs.root), run, ONE).records.keys() == found["float32"]


def test_a_file_of_before_devices_were_noted_is_understood_by_the_table_beside_it(
    run: RunDirectory, theirs: RunDirectory
) -> None:
    change(theirs, "DROP TABLE devices", "DROP TABLE warm_starts", "PRAGMA user_version = 8")
    with pytest.raises(StageOrderError, match=r"nothing in .* to warm-start target 'cpu' from"):
        open_warm_start(str(theirs.records), run, ONE)
    LatencyLUT(LUTHeader(OTHER, tvm_version(), "nano", "0" * 16)).save(theirs.lut("cpu"))
    assert open_warm_start(str(theirs.records), run, ONE).source.target.device == OTHER.device


def test_the_nearest_of_several_is_taken(run: RunDirectory, theirs: RunDirectory) -> None:
    for target in (dataclasses.replace(OTHER, num_threads=2, name="cpu-2t"), TWO):
        stored(theirs, target)
    found = open_warm_start(str(theirs.root), run, ONE).source.target
    assert (found.fingerprint, found.num_threads) == (ONE.fingerprint, 2)


def test_the_digest_stands_for_the_records(run: RunDirectory, theirs: RunDirectory) -> None:
    first = open_warm_start(str(theirs.root), run, ONE).digest
    assert open_warm_start(str(theirs.records), run, TWO).digest == first
    stored(theirs, OTHER, DEPTHWISE)
    assert open_warm_start(str(theirs.root), run, ONE).digest != first


# ---- points of other vectors ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", [NARROW, NEON, BFLOAT16])
def test_points_of_other_vectors_become_those_most_like_them(
    run: RunDirectory, theirs: RunDirectory, target: HardwareTarget
) -> None:
    warm = open_warm_start(str(theirs.root), run, target)
    space = schedule_space(dataclasses.replace(WORKLOAD, dtype=target.dtype), target)
    prior, seconds = warm.prior(space), sorted(r.seconds or 0.0 for r in records_of(WORKLOAD, OTHER))
    assert prior is not None
    assert prior.target == target
    assert all(space.contains(p) for points in prior.points for p in points)
    assert len(set(prior.points)) == len(prior.points)
    assert set(prior.seconds) <= set(seconds)
    assert (prior.seconds[0], len(prior.seconds)) == (seconds[0], len(prior.points))
    assert ("schedules mapped" in warm.describe(())) == (target is not BFLOAT16)


def test_a_source_of_the_same_vectors_is_nearer_than_the_processor_itself(run: RunDirectory, tmp_path: Path) -> None:
    """AVX-512 records of this processor lie beside AVX2 records of another one, and AVX2 is asked for."""
    source = stored(RunDirectory(tmp_path / "theirs"), ONE)
    stored(source, dataclasses.replace(NARROW, fingerprint="0123456789ab"))
    assert open_warm_start(str(source.root), run, NARROW).source.target.vector_lanes == 8


@given(rng=generators)
def test_a_first_batch_of_mapped_points_has_no_point_twice(rng: np.random.Generator) -> None:
    there, here = schedule_space(WORKLOAD, ONE), schedule_space(WORKLOAD, NARROW)
    records = sorted(records_of(WORKLOAD, ONE, 40, int(rng.integers(1 << 30))), key=lambda r: r.seconds or 0.0)
    first = tuner_with(prior_from(records, there, here, (ONE, NARROW)), here).ask(4)
    assert len(first) == len(set(first)) == 4


def with_version(run: RunDirectory, text: str) -> None:
    """Replace the version of the spaces in the keys of devices."""
    for table in ("devices", "records"):
        change(run, f"UPDATE {table} SET device = replace(device, '/space-{SPACE_VERSION}', '{text}')")


def test_records_whose_key_lacks_the_version_are_of_the_version_of_then(
    run: RunDirectory, theirs: RunDirectory
) -> None:
    with_version(theirs, "")
    warm = open_warm_start(str(theirs.root), run, ONE)
    assert (warm.source.spaces, list(warm.records)) == (UNVERSIONED_SPACES["llvm"], [WORKLOAD.key])


def no_file(run: RunDirectory) -> str:
    return str(run.root / "nowhere")


def own_records(run: RunDirectory) -> str:
    return str(stored(run, ONE).records)


def no_database(run: RunDirectory) -> str:
    run.root.mkdir()
    (run.root / "text").write_text("these are no records, and long enough to be none\n" * 20)
    return str(run.root / "text")


def of_another(run: RunDirectory) -> RunDirectory:
    return stored(RunDirectory(run.root / "another"), OTHER)


def newer(run: RunDirectory) -> str:
    theirs = of_another(run)
    change(theirs, "PRAGMA user_version = 99")
    return str(theirs.records)


def of_a_gpu(run: RunDirectory) -> str:
    theirs = of_another(run)
    change(theirs, "UPDATE devices SET target = json_set(target, '$.kind', 'cuda')")
    return str(theirs.root)


def of_another_version(run: RunDirectory) -> str:
    theirs = of_another(run)
    with_version(theirs, f"/space-{SPACE_VERSION + 1}")
    return str(theirs.root)


@pytest.mark.parametrize(
    ("make", "kind", "expected"),
    [
        (no_file, StageOrderError, "expected a run directory, a file of records or a target of run"),
        (own_records, StageOrderError, "there are records of: no other known device"),
        (no_database, CheckpointError, "cannot be read"),
        (newer, CheckpointError, "got 99"),
        (of_a_gpu, TargetError, "only processors seed each other"),
        (of_another_version, TargetError, "version of the schedule spaces"),
    ],
)
def test_what_is_no_source_is_one_clear_line(
    run: RunDirectory, make: Callable[[RunDirectory], str], kind: type[ChanasError], expected: str
) -> None:
    with pytest.raises(kind, match=expected) as caught:
        open_warm_start(make(run), run, ONE)
    assert "\n" not in str(caught.value)


# ---- a search that begins with them ---------------------------------------------------------------------------------
def prior_of(space: ScheduleSpace, sign: float = 1.0, num: int = 40, seed: int = 5) -> Prior:
    """What a device says on which seconds are `sign` times as ordered as on this one."""
    points = space.sample(num, np.random.default_rng(seed))
    seconds = np.array([seconds_of(space, p) ** sign for p in points])
    seconds *= 3e-6 / seconds.mean()
    order = np.argsort(seconds)
    return Prior(tuple((points[i],) for i in order), seconds[order], OTHER)


def tuner_with(
    prior: Prior | None,
    space: ScheduleSpace,
    min_tau: float = 0.0,
    seed: int = 0,
    kept: Sequence[TuningRecord] = (),
) -> Trials:
    search = Search(min_tau=min_tau)
    return Trials(space, Evolution(space, cost_model("gp", ONE, seed), kept, seed, prior, search), 16, kept)


def use_of(trials: Trials) -> PriorUse:
    """What a tuner that has a prior makes of it."""
    assert trials.prior is not None
    return trials.prior


def explored(tuner: Trials) -> list[float]:
    """Seconds of what is asked for, in order."""
    made: list[float] = []
    while points := tuner.ask(4):
        batch = [TuningRecord(p, seconds_of(tuner.space, p), 1e-9) for p in points]
        tuner.tell(batch)
        made += [r.seconds or math.inf for r in batch]
    return made


SPACE = schedule_space(WORKLOAD, ONE)


def test_the_best_of_the_other_device_are_tried_first() -> None:
    prior = prior_of(SPACE)
    batch = tuner_with(prior, SPACE).ask(4)
    assert batch[0] == prior.points[0][0]
    assert len(set(batch)) == len(batch) == DEFAULT_SEARCH.num_initial
    assert all(SPACE.contains(p) for p in batch)


def test_in_a_space_too_large_to_be_listed_the_best_of_the_other_device_are_tried_first_too() -> None:
    large = dataclasses.replace(
        SPACE, coordinates=(*SPACE.coordinates, Coordinate.choice("auto_unroll", *range(1 << 18)))
    )
    assert not large.is_listed
    own = prior_of(SPACE)
    prior = dataclasses.replace(own, points=tuple(((*point, 7),) for (point,) in own.points))
    batch = tuner_with(prior, large).ask(4)
    assert batch[:2] == [prior.points[0][0], prior.points[1][0]]
    assert all(large.contains(point) for point in batch)


def test_the_first_set_is_the_same_in_steps_as_at_once() -> None:
    prior = prior_of(SPACE)
    at_once = tuner_with(prior, SPACE).ask(4)
    tuner = tuner_with(prior, SPACE)
    tuner.limit = 1
    (first,) = tuner.ask(4)
    tuner.tell([TuningRecord(first, seconds_of(SPACE, first), 1e-9)])
    assert tuner.ask(4) == []
    tuner.limit = DEFAULT_SEARCH.num_initial
    assert [first, *tuner.ask(4)] == at_once


def test_a_true_prior_is_kept_and_saves_trials() -> None:
    warm, cold = [], []
    for seed in range(4):
        tuner = tuner_with(prior_of(SPACE, seed=seed), SPACE, seed=seed)
        warm.append(min(explored(tuner)[:4]))
        cold.append(min(explored(tuner_with(None, SPACE, seed=seed))[:4]))
        use = use_of(tuner)
        assert not use.is_dropped
        assert use.tau is not None
        assert use.tau > 0.3
    assert np.mean(warm) < np.mean(cold)


def test_a_prior_that_misleads_is_dropped_after_the_first_batch_and_says_nothing_any_more() -> None:
    """The model is then the one that never heard of it."""
    tuner = tuner_with(prior_of(SPACE, sign=-1.0), SPACE)
    points = tuner.ask(4)
    tuner.tell([TuningRecord(p, seconds_of(SPACE, p), 1e-9) for p in points])
    use = use_of(tuner)
    assert use.is_dropped
    assert use.tau is not None
    assert use.tau < 0.0
    assert tuner.tuner._model.predict_from_prior(SPACE, points) is None  # type: ignore[attr-defined]


def test_dropping_it_is_worth_something() -> None:
    """The batch after the first one is better than what the misleading records would have asked for."""
    found = {
        min_tau: [explored(tuner_with(prior_of(SPACE, -1.0, seed=s), SPACE, min_tau, s))[4:8] for s in range(4)]
        for min_tau in (0.0, -1.0)
    }
    assert np.mean(found[0.0]) < 0.95 * np.mean(found[-1.0])


def test_kept_records_judge_it_at_once() -> None:
    """A run that was cut off comes to the same verdict when it goes on."""
    kept = [TuningRecord(p, seconds_of(SPACE, p), 1e-9) for p in SPACE.sample(8, np.random.default_rng(3))]
    for sign, dropped in ((1.0, False), (-1.0, True)):
        assert use_of(tuner_with(prior_of(SPACE, sign), SPACE, kept=kept)).is_dropped == dropped


@pytest.mark.parametrize("model", ["gp", "forest"])
def test_a_search_with_a_prior_asks_for_each_point_once_and_ends(model: str, rng: np.random.Generator) -> None:
    for name in ("16-lanes-1-threads", "16-lanes-2-threads"):
        for op in ("pointwise", "depthwise", "pool"):
            space = schedule_space(random_workload(op, rng), DEVICES[name])  # type: ignore[arg-type]
            tuner = Trials(space, Tuners(model).make(space, [], DEVICES[name], prior_of(space, num=10)), 12)
            asked: list[Point] = []
            while points := tuner.ask(4):
                asked += points
                tuner.tell([TuningRecord(p, None, None, "wrong result") for p in points[:1]])
                tuner.tell([TuningRecord(p, seconds_of(space, p), 1e-9) for p in points[1:]])
            assert len(set(asked)) == len(asked) == min(12, len(space.points))


# ---- what is kept of it ---------------------------------------------------------------------------------------------
def test_the_store_keeps_what_came_of_it(store: RecordStore) -> None:
    store.note_warm_starts(
        {"a": WarmStartNote("dev/1t", "d1", 6, 0.5, False), "b": WarmStartNote("dev/1t", "d1", 6, None, False)}
    )
    store.note_warm_starts(
        {"b": WarmStartNote("dev/1t", "d1", 6, -0.5, True), "c": WarmStartNote("dev/2t", "d2", 3, 0.1, False)}
    )
    assert store.warm_starts({"a", "b"}) == (
        {"source": "dev/1t", "digest": "d1", "num_operators": 2, "num_dropped": 1},
    )
    assert len(store.warm_starts({"a", "b", "c"})) == 2
    assert store.warm_starts(set()) == ()


WORKLOADS = [WORKLOAD, DEPTHWISE, Workload("pool", 7, 96, 96)]
EFFORT = Effort(trials=12)


def best_of(run: RunDirectory, scratch: Path, workloads: Sequence[Workload]) -> dict[Workload, Point]:
    """The best points that another processor finds, in whose run they are recorded."""
    with contextlib.closing(RecordStore(run.records, OTHER)) as store:
        found = TuningJobs(SyntheticPool(), OTHER, store, EFFORT, scratch).run(workloads, progress=False)
    return {w: records[0].point for w, records in found.items()}


@pytest.fixture
def empty(tmp_path: Path) -> RunDirectory:
    """A run of the other processor, without records yet."""
    return RunDirectory(tmp_path / "theirs")


def test_a_run_begins_where_the_other_ended_and_says_so(
    run: RunDirectory, empty: RunDirectory, store: RecordStore, scratch: Path
) -> None:
    """Both devices are invented, and alike."""
    best, pool = best_of(empty, scratch, WORKLOADS), SyntheticPool()
    warm = open_warm_start(str(empty.root), run, ONE)
    TuningJobs(pool, ONE, store, EFFORT, scratch, warm_start=warm).run(WORKLOADS, progress=False)
    firsts = {w: next(a.what.point for a in pool.built if a.what.workload == w) for w in WORKLOADS}
    assert firsts == best
    (note,) = store.warm_starts({w.key for w in WORKLOADS})
    assert (note["source"], note["digest"]) == (warm.source.device, warm.digest)
    assert (note["num_operators"], note["num_dropped"]) == (3, 0)
    assert f"records {warm.digest}: 3 operators, dropped for 0" in warm.describe([note])


def test_with_a_common_budget_the_best_of_the_other_device_is_tried_of_every_operator_first(
    run: RunDirectory, empty: RunDirectory, store: RecordStore, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "_NUM_SCOUTS", 1)
    best, pool = best_of(empty, scratch, WORKLOADS[:2]), SyntheticPool()
    warm = open_warm_start(str(empty.root), run, ONE)
    counts = np.ones((1, len(WORKLOADS)))
    TuningJobs(pool, ONE, store, EFFORT, scratch, warm_start=warm).run(WORKLOADS, False, counts)
    asked = [a.what.workload for a in pool.built]
    num_initial, num_base = DEFAULT_SEARCH.num_initial, EFFORT.first_trials
    assert [asked[: num_initial + 1].count(w) for w in WORKLOADS] == [num_initial, 1, 0]  # the first one is a scout
    assert {w: pool.built[asked.index(w)].what.point for w in best} == best
    assert [asked[: 2 * num_initial].count(w) for w in WORKLOADS] == [num_initial, num_initial, 0]
    assert asked[2 * num_initial :][:num_base].count(WORKLOADS[2]) == num_base


def test_a_source_that_was_wrong_about_the_first_operators_is_not_asked_about_the_others(
    run: RunDirectory, empty: RunDirectory, store: RecordStore, scratch: Path
) -> None:
    workloads = [dataclasses.replace(WORKLOAD, out_channels=32 * n) for n in range(1, 9)]
    with contextlib.closing(RecordStore(empty.records, OTHER)) as other:
        for workload in workloads:  # the slower a point is here, the faster it is said to be there
            space = schedule_space(workload, OTHER)
            points = space.sample(16, np.random.default_rng(0))
            other.add(workload.key, [TuningRecord(p, 1e-12 / landscape_seconds(space, p)) for p in points])
    warm = open_warm_start(str(empty.root), run, ONE)
    pool = SyntheticPool(lambda a: landscape_seconds(schedule_space(a.what.workload, ONE), a.what.point))
    TuningJobs(pool, ONE, store, Effort(trials=8), scratch, warm_start=warm).run(workloads, progress=False)
    assert warm.trust.is_lost
    asked = [next(a.what.point for a in pool.built if a.what.workload == w) for w in workloads]
    priors = [warm.prior(schedule_space(w, ONE)) for w in workloads]
    praised = [point in prior.points[0] for prior, point in zip(priors, asked, strict=True) if prior is not None]
    assert praised[:3] == [True] * 3
    assert not any(praised[5:])
    (note,) = store.warm_starts({w.key for w in workloads})
    assert note["num_dropped"] >= len(workloads) - 3


def test_a_table_says_it_of_all_rows_and_keeps_it_when_nothing_is_tuned_any_more(
    run: RunDirectory, empty: RunDirectory, synthetic_pool: SyntheticPool
) -> None:
    def filled(run: RunDirectory, target: HardwareTarget, num_trials: int = 3, **options: Any) -> LatencyLUT:
        return fill_table(run, NANO, target, NUM_CLASSES, trials=num_trials, tuner="random", **options).lut

    filled(empty, OTHER)
    warm = open_warm_start(str(empty.root), run, ONE)
    first = filled(run, ONE, warm_start=warm).header.warm_starts
    assert [(n["digest"], n["num_operators"]) for n in first] == [(warm.digest, len(warm.records))]
    assert filled(run, ONE, sub_spaces=NANO.sub_spaces[:1]).header.warm_starts == first
    filled(empty, OTHER, 5)
    grown = open_warm_start(str(empty.root), run, ONE)
    assert grown.digest != warm.digest
    assert filled(run, ONE, warm_start=grown).header.warm_starts == first


def test_a_table_says_where_its_schedules_began() -> None:
    notes = ({"source": "dev/1t", "digest": "d1", "num_operators": 2, "num_dropped": 1},)
    header = LUTHeader(ONE, tvm_version(), "nano", "0" * 16, warm_starts=notes)
    assert LUTHeader.from_json(json.loads(json.dumps(header.to_json()))) == header
    assert LUTHeader.from_json({k: v for k, v in header.to_json().items() if k != "warm_starts"}).warm_starts == ()


def test_a_version_stands_for_the_points_of_the_spaces() -> None:
    """When this fails, points came to mean something else or there are others: raise their version and its digest here
    if they mean something else; only the digest if points were merely added or taken away."""
    asked = [WORKLOAD, DEPTHWISE, Workload("conv", 32, 3, 16, 3, 2, "hswish"), Workload("pool", 7, 96, 96)]
    listed = json.dumps([[w.key, [(c.name, c.options) for c in schedule_space(w, TWO).coordinates]] for w in asked])
    assert (SPACE_VERSION, hashlib.sha256(listed.encode()).hexdigest()[:12]) == (1, "9467a4097f57")
