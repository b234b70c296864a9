"""chanas/prescheduler/tuning/warm_start.py: a tuning begins with the schedules that come with chanas."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.backends import backend_of, schedule_space
from chanas.compiler.space import Point
from chanas.core.effort import NOTHING, Effort, NetworkEffort
from chanas.core.target import HardwareTarget, tvm_version
from chanas.errors import TargetError
from chanas.files.run import RunDirectory
from chanas.operators.workload import Workload
from chanas.prescheduler.ideas import nearest_points, ranked_points
from chanas.prescheduler.records.schedules import write_schedules
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning import warm_start
from chanas.prescheduler.tuning.jobs import TuningJobs
from chanas.prescheduler.tuning.warm_start import WarmStart, open_prior, open_shipped, open_warm_start

from ...compiler.workbench import NEON, SyntheticPool, device

WIDE, NARROW = (dataclasses.replace(device(lanes), fingerprint="0123456789ab") for lanes in (16, 8))
HERE = device()
SPACES = backend_of(HERE).space_version
KNOWN, POOL = Workload("pointwise", 14, 96, 192, epilogue="relu"), Workload("pool", 7, 96, 96)
SIMILAR, UNKNOWN = Workload("pointwise", 14, 96, 160, epilogue="relu"), Workload("depthwise", 28, 64, 64, 3, 1, "relu")


def points_of(workload: Workload, target: HardwareTarget) -> list[Point]:
    """Three points of an operator."""
    return schedule_space(workload, target).sample(3, np.random.default_rng(1))


def shipped(folder: Path, *targets: HardwareTarget, spaces: int = SPACES) -> Path:
    """A folder with a file of two operators for each target."""
    for target in targets:
        records = {
            w.key: [TuningRecord(p, 1e-6 * (i + 1)) for i, p in enumerate(points_of(w, target))] for w in (KNOWN, POOL)
        }
        source = Source("", target, tvm_version(), spaces)
        write_schedules(folder / f"{target.vector_lanes}.json", source, records)
    return folder


@pytest.fixture
def prior(tmp_path: Path) -> WarmStart:
    found = open_shipped(HERE, shipped(tmp_path, WIDE))
    assert found is not None
    return found


# ---- which file -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("target", "name"), [(device(16), "16.json"), (device(8), "8.json"), (device(16, 2), "16.json")]
)
def test_the_file_of_the_same_vectors_is_taken(target: HardwareTarget, name: str, tmp_path: Path) -> None:
    found = open_shipped(target, shipped(tmp_path, WIDE, NARROW))
    assert found is not None
    assert (found.source.device, found.best_only) == (name, True)
    prior = found.prior(schedule_space(KNOWN, target))
    assert prior is not None
    assert len(prior.points) == 3


@pytest.mark.parametrize(
    ("dtype", "has_matrices", "name"),
    [
        ("bfloat16", True, "matrices"),
        ("bfloat16", False, "float32"),
        ("float32", True, "float32"),
        ("float32", False, "float32"),
    ],
)
def test_points_of_matrix_registers_are_for_such_alone(
    dtype: str, has_matrices: bool, name: str, tmp_path: Path
) -> None:
    files = (("float32", WIDE), ("matrices", dataclasses.replace(WIDE, dtype="bfloat16", has_matrices=True)))
    for file, made_on in files:
        write_schedules(tmp_path / f"{file}.json", Source("", made_on, tvm_version(), SPACES), {})
    found = open_shipped(dataclasses.replace(HERE, dtype=dtype, has_matrices=has_matrices), tmp_path)
    assert found is not None
    assert found.source.device == f"{name}.json"


def test_other_vectors_have_the_points_that_are_most_like_them(tmp_path: Path) -> None:
    found = open_shipped(NEON, shipped(tmp_path, WIDE))
    assert found is not None
    (idea,) = found.ideas(KNOWN)
    assert schedule_space(KNOWN, NEON).contains(idea.point)
    assert idea.origin == f"{KNOWN.key} on 16.json"
    assert found.similar_ideas(SIMILAR) == []


def test_mapped_points_are_tried_after_the_one_that_promises_most(
    tmp_path: Path, store: RecordStore, scratch: Path
) -> None:
    narrow = open_shipped(HERE, shipped(tmp_path, NARROW))
    assert narrow is not None
    prior = narrow.prior(schedule_space(KNOWN, HERE))
    assert prior is not None
    expected = dict.fromkeys([*ranked_points(KNOWN, HERE, 1), *(points[0] for points in prior.points)])
    asked = tuned(narrow, store, scratch, [KNOWN], Effort(trials=8))
    assert asked[KNOWN][: len(expected)] == list(expected)


def test_a_gpu_begins_with_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert open_shipped(dataclasses.replace(HERE, kind="cuda"), shipped(tmp_path, WIDE)) is None
    assert caplog.records == []


def test_a_file_of_another_version_of_the_spaces_is_not_used_and_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_shipped(HERE, shipped(tmp_path, WIDE, spaces=SPACES + 1)) is None
    (line,) = caplog.messages
    assert line == (
        "the schedules that come with chanas (16.json) are not used: version of the schedule spaces: "
        f"{SPACES + 1} instead of {SPACES}"
    )


def test_what_is_named_comes_first_and_no_is_nothing(
    tmp_path: Path, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = shipped(tmp_path / "files", WIDE)
    monkeypatch.setattr(warm_start, "open_shipped", lambda target: open_shipped(target, files))
    named = shipped(tmp_path / "mine", NARROW) / "8.json"
    sources = [open_prior(text, run, HERE) for text in (None, str(named), NOTHING)]
    assert [None if s is None else s.source.device for s in sources] == ["16.json", "8.json", None]


def test_a_named_file_of_another_version_is_refused(tmp_path: Path, run: RunDirectory) -> None:
    file = shipped(tmp_path, WIDE, spaces=SPACES + 1) / "16.json"
    with pytest.raises(TargetError, match="version of the schedule spaces"):
        open_warm_start(str(file), run, HERE)


# ---- a tuning that begins with it -----------------------------------------------------------------------------------
def tuned(
    prior: WarmStart | None,
    store: RecordStore,
    scratch: Path,
    workloads: Sequence[Workload],
    effort: Effort,
    counts: bool = True,
) -> dict[Workload, list[Point]]:
    """The points that were tried of each operator, in order."""
    pool = SyntheticPool()
    common = np.ones((1, len(workloads))) if counts else None
    TuningJobs(pool, HERE, store, effort, scratch, warm_start=prior).run(workloads, False, common)
    return {w: [a.what.point for a in pool.built if a.what.workload == w] for w in workloads}


@pytest.mark.parametrize("tuner", ["gp", "random"])
def test_its_points_are_tried_first_by_any_tuner(
    prior: WarmStart, store: RecordStore, scratch: Path, tuner: str
) -> None:
    asked = tuned(prior, store, scratch, [KNOWN, POOL], Effort(trials=6, tuner=tuner, early_stopping="no"))
    assert [asked[w][:3] for w in (KNOWN, POOL)] == [points_of(w, HERE) for w in (KNOWN, POOL)]
    (note,) = store.warm_starts({KNOWN.key, POOL.key})
    assert (note["source"], note["num_operators"], note["num_dropped"]) == ("16.json", 2, 0)
    assert prior.describe([note]) == (
        f"16.json ({HERE.device}, TVM {tvm_version()}): 2 operators began with its schedules"
    )
    assert prior.describe([]) == ""


def test_the_best_of_each_operator_is_tried_before_anything_else(
    prior: WarmStart, store: RecordStore, scratch: Path
) -> None:
    workloads, pool = [UNKNOWN, KNOWN, POOL], SyntheticPool()
    jobs = TuningJobs(pool, HERE, store, Effort(trials=8), scratch, warm_start=prior)
    jobs.run(workloads, False, np.ones((1, 3)))
    first = {(a.what.workload, a.what.point) for a in pool.built[:2]}
    assert first == {(w, points_of(w, HERE)[0]) for w in (KNOWN, POOL)}


def test_an_operator_that_is_not_there_begins_with_the_most_similar_one(
    prior: WarmStart, store: RecordStore, scratch: Path
) -> None:
    named = schedule_space(KNOWN, HERE).groups(points_of(KNOWN, HERE)[0])
    expected = nearest_points([named], schedule_space(SIMILAR, HERE))[0]
    asked = tuned(prior, store, scratch, [SIMILAR, UNKNOWN], Effort(trials=4))
    assert asked[SIMILAR][0] == expected
    assert store.warm_starts({SIMILAR.key, UNKNOWN.key}) == ()


@pytest.mark.parametrize("counts", [True, False])
def test_operators_of_other_families_begin_as_without_it(
    prior: WarmStart, run: RunDirectory, store: RecordStore, scratch: Path, counts: bool
) -> None:
    effort = Effort(trials=4)
    with contextlib.closing(RecordStore(run.root / "other.sqlite", HERE)) as other:
        expected = tuned(None, other, scratch, [UNKNOWN], effort, counts)
    assert tuned(prior, store, scratch, [UNKNOWN], effort, counts) == expected


def test_own_records_count_as_its_trials(prior: WarmStart, store: RecordStore, scratch: Path) -> None:
    mine = [p for p in schedule_space(SIMILAR, HERE).points if p not in points_of(SIMILAR, HERE)][:2]
    store.add(SIMILAR.key, [TuningRecord(p, 1e-6) for p in mine])
    assert tuned(prior, store, scratch, [SIMILAR], Effort(trials=2)) == {SIMILAR: []}


@pytest.mark.parametrize("num_trials", [0, 1, 2])
def test_no_more_of_its_points_are_tried_than_there_are_trials(
    prior: WarmStart, store: RecordStore, scratch: Path, num_trials: int
) -> None:
    asked = tuned(prior, store, scratch, [KNOWN, POOL], NetworkEffort(trials=num_trials, early_stopping="no"))
    assert list(asked.values()) == [points_of(w, HERE)[:num_trials] for w in (KNOWN, POOL)]
