"""chanas/prescheduler/tuning/give_up.py and jobs.py: a family of which nothing works costs a few candidates, not
all."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import save_space

from chanas.commands import process as cli
from chanas.compiler.backends import schedule_space
from chanas.core.effort import DEFAULT_SEARCH, Effort, Search
from chanas.core.latency import LatencyLUT
from chanas.errors import MeasureError
from chanas.files.run import RunDirectory
from chanas.measuring.fleet import Awaited
from chanas.measuring.messages import Answer
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning.give_up import NUM_ALIKE, FamilyWatch, describe_errors, way_of
from chanas.prescheduler.tuning.jobs import TuningJobs

from ...compiler.workbench import (
    HOST,
    NANO,
    NUM_CLASSES,
    SyntheticPool,
    failed,
    family_of,
    fill_table,
    plant_worker,
    synthetic_seconds,
)

POINTWISE = [Workload("pointwise", 4, 16, channels) for channels in range(32, 256, 16)]
DEPTHWISE = [Workload("depthwise", 7, channels, channels, 3) for channels in (16, 32)]
NUM_TRIALS = 8
CRASH = "crash: the worker ended with signal 6 (SIGABRT) in measure; it said: LLVM ERROR: planted"
Seconds = Callable[[dict[str, Any]], float | str]


def fails(family: str, error: str = CRASH) -> Seconds:
    return lambda asked: error if asked.what.workload.op == family else synthetic_seconds(asked)


def tuning(pool: Any, store: RecordStore, scratch: Path, search: Search = DEFAULT_SEARCH) -> TuningJobs:
    return TuningJobs(pool, HOST, store, Effort(trials=NUM_TRIALS, tuner="random", search=search), scratch)


def num_built(pool: SyntheticPool) -> dict[str, int]:
    return dict(Counter(a.what.workload.op for a in pool.built))


# ---- the watch ------------------------------------------------------------------------------------------------------
def noted(watch: FamilyWatch, *errors: str | None, family: str = "conv") -> list[bool]:
    """What a watch says to candidates that end in these errors; None: they work."""
    return [
        watch.note(family, TuningRecord((i,), 1e-6 if error is None else None, error=error))
        for i, error in enumerate(errors)
    ]


def test_a_family_whose_candidates_all_fail_alike_is_given_up_once() -> None:
    watch = FamilyWatch()
    expected = [False] * (NUM_ALIKE - 1) + [True, False]
    assert noted(watch, *[CRASH] * (NUM_ALIKE + 1)) == expected
    assert watch.given_up == {"conv": CRASH}


def test_each_family_is_watched_by_itself() -> None:
    watch = FamilyWatch()
    assert not any(noted(watch, *[CRASH] * (NUM_ALIKE - 1)))
    assert not any(noted(watch, *[CRASH] * (NUM_ALIKE - 1), family="pool"))
    assert noted(watch, CRASH, family="pool") == [True]
    assert list(watch.given_up) == ["pool"]


def test_one_good_candidate_ends_the_watch() -> None:
    watch = FamilyWatch()
    assert not any(noted(watch, CRASH, None, *[CRASH] * 100))
    assert not any(noted(FamilyWatch({"conv"}), *[CRASH] * 100))


def test_failures_of_several_kinds_are_counted_apart() -> None:
    kinds = [f"RuntimeError: {kind}" for kind in ("a", "b", "c")]
    watch = FamilyWatch()
    assert not any(noted(watch, *kinds * (NUM_ALIKE - 1)))
    assert noted(watch, kinds[1]) == [True]


def test_the_same_program_again_says_nothing_new() -> None:
    watch = FamilyWatch()
    twins = [TuningRecord((i,), None, error=CRASH, same_as=(0,)) for i in range(100)]
    assert not any(watch.note("conv", twin) for twin in twins)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("timeout: build_operator took more than 20 s", "timeout: build_operator took more than 22.5 s"),
        ("wrong result: relative error 0.31 against PyTorch", "wrong result: relative error 2e-05 against PyTorch"),
        ("wrong result: relative error inf against PyTorch", "wrong result: relative error nan against PyTorch"),
        ("OSError: /tmp/a/1_2.so: no such file", "OSError: /tmp/b/3.so: no such file"),
        (f"{CRASH} at 0x7f2a", f"{CRASH} at 0x80"),
    ],
)
def test_numbers_and_paths_make_no_kinds(one: str, other: str) -> None:
    assert way_of(one) == way_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("timeout: build_operator took more than 20 s", "timeout: measure took more than 20 s"),
        ("crash: signal 6 (SIGABRT)", "crash: signal 11 (SIGSEGV)"),
    ],
)
def test_calls_and_signals_do(one: str, other: str) -> None:
    assert way_of(one) != way_of(other)


def test_an_error_of_several_families_is_told_once() -> None:
    assert describe_errors({"conv": "a", "pool": "b", "pointwise": "a"}) == "conv, pointwise (a); pool (b)"
    assert describe_errors({}) == ""


# ---- tuning ---------------------------------------------------------------------------------------------------------
def test_a_family_that_only_fails_costs_a_few_candidates_and_the_others_all_theirs(
    store: RecordStore, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = SyntheticPool(fails("pointwise"))
    jobs = tuning(pool, store, scratch)
    best = jobs.run([*POINTWISE, *DEPTHWISE])
    total = sum(min(NUM_TRIALS, schedule_space(w, HOST).num_points) for w in DEPTHWISE)
    assert num_built(pool)["depthwise"] == total == sum(len(best[w]) for w in DEPTHWISE)
    assert NUM_ALIKE <= num_built(pool)["pointwise"] <= NUM_ALIKE + 3 * DEFAULT_SEARCH.batch_size
    assert jobs.failed_families == {"pointwise": CRASH}
    said = [line for line in capsys.readouterr().err.splitlines() if "given up" in line]
    assert [line.strip() for line in said] == [f"pointwise operators are given up, all fail alike: {CRASH}"]
    assert list(scratch.iterdir()) == []


def test_a_family_that_was_given_up_is_retried_with_a_few(store: RecordStore, scratch: Path) -> None:
    first = SyntheticPool(fails("pointwise"))
    tuning(first, store, scratch).run([*POINTWISE, *DEPTHWISE], progress=False)
    again = SyntheticPool(fails("pointwise"))
    tuning(again, store, scratch).run([*POINTWISE, *DEPTHWISE], progress=False)
    assert NUM_ALIKE <= num_built(again)["pointwise"] <= NUM_ALIKE + 3 * DEFAULT_SEARCH.batch_size
    assert "depthwise" not in num_built(again)
    cured = SyntheticPool()
    best = tuning(cured, store, scratch).run([*POINTWISE, *DEPTHWISE], progress=False)
    assert num_built(cured)["pointwise"] == sum(len(best[w]) for w in POINTWISE) > 0


def test_a_family_of_which_something_is_known_to_work_is_tried_to_the_end(store: RecordStore, scratch: Path) -> None:
    store.add(POINTWISE[0].key, [TuningRecord(schedule_space(POINTWISE[0], HOST).points[0], 1e-6)])
    pool = SyntheticPool(fails("pointwise"))
    jobs = tuning(pool, store, scratch)
    jobs.run(POINTWISE, progress=False)
    assert jobs.failed_families == {}
    assert num_built(pool)["pointwise"] == NUM_TRIALS * len(POINTWISE) - 1


def test_a_common_budget_goes_to_the_families_that_work(store: RecordStore, scratch: Path) -> None:
    search = Search(num_initial=2, batch_size=2)
    pool = SyntheticPool(fails("pointwise"))
    workloads = [*POINTWISE, *DEPTHWISE]
    jobs = tuning(pool, store, scratch, search)
    jobs.run(workloads, progress=False, counts=np.ones((4, len(workloads))))
    assert list(jobs.failed_families) == ["pointwise"]
    assert num_built(pool)["pointwise"] <= NUM_ALIKE + 3 * search.batch_size
    assert num_built(pool)["depthwise"] <= NUM_TRIALS * len(DEPTHWISE)


def test_where_every_family_is_given_up_the_run_ends(store: RecordStore, scratch: Path) -> None:
    pool = SyntheticPool(lambda asked: f"timeout: {asked.what.workload.op} took more than 20 s")
    with pytest.raises(MeasureError) as caught:
        tuning(pool, store, scratch).run([*POINTWISE, *DEPTHWISE], progress=False)
    assert str(caught.value).startswith(f"no schedule of any operator works on {HOST.device}; given up after the first")
    assert "pointwise (timeout: pointwise took more than 20 s)" in str(caught.value)
    assert str(caught.value).endswith("; run `chanas doctor` and report what it says")
    assert store.count() == (0, len(pool.built))


def test_many_devices_have_more_under_way_before_a_family_is_given_up(store: RecordStore, scratch: Path) -> None:
    pool = SyntheticPool(fails("pointwise"))
    pool.num_devices = 2
    jobs = tuning(pool, store, scratch)
    jobs.run([*POINTWISE, *DEPTHWISE], progress=False)
    assert jobs.failed_families == {"pointwise": CRASH}
    assert num_built(pool)["pointwise"] >= 2 * NUM_ALIKE


class Slow(SyntheticPool):
    """Builds end one at a time, when the tuner waits: others are still in the queue when a family is given up."""

    num_builders = 1

    def __init__(self, seconds: Seconds) -> None:
        super().__init__(seconds)
        self.queue: list[tuple[Future[Answer], Any]] = []

    def build(self, request: Any, timeout_s: float) -> Future[Answer]:
        future = Awaited(self.end_one)
        self.queue.append((future, request))
        return future

    def end_one(self, _futures: Sequence[Future[Any]]) -> None:
        """The first build that was not taken back fails."""
        while self.queue:
            future, request = self.queue.pop(0)
            if future.set_running_or_notify_cancel():
                self.built.append(request)
                future.set_result(failed(CRASH))
                return


def test_what_nobody_has_begun_to_build_is_taken_back(store: RecordStore, scratch: Path) -> None:
    pool = Slow(fails("pointwise"))
    with pytest.raises(MeasureError, match="no schedule of any operator works"):
        tuning(pool, store, scratch).run(POINTWISE, progress=False)
    assert len(pool.built) == NUM_ALIKE
    assert list(scratch.iterdir()) == []


# ---- a whole run ----------------------------------------------------------------------------------------------------
def test_a_table_without_a_family_says_why(tmp_path: Path, synthetic_pool: SyntheticPool) -> None:
    synthetic_pool.seconds = lambda asked: CRASH if family_of(asked) == "depthwise" else synthetic_seconds(asked)
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(MeasureError) as caught:
        fill_table(run, NANO, HOST, NUM_CLASSES, trials=NUM_TRIALS, tuner="random")
    assert "blocks could not be measured (the first: mbconv" in str(caught.value)
    assert f"; the LUT holds the others; given up: depthwise ({CRASH}); run the command again" in str(caught.value)
    kinds = {key.partition("-")[0] for key in LatencyLUT.load(run.lut("cpu")).rows}
    assert kinds == {"stem", "head", "classifier"}


def test_a_compiler_that_aborts_ends_the_command_after_the_first_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = Path(__file__).parents[2] / "measuring" / "planted_abort.py"
    plant_worker(monkeypatch, "llvm", (str(worker),))
    run = RunDirectory(tmp_path / "run")
    options = ["--run", str(run.root), "--space", str(save_space(NANO, tmp_path / "nano.yaml")), "--sub-space", "r8-w1"]
    start = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        cli.main(["prescheduler", *options, "--num-classes", str(NUM_CLASSES)])
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    assert ended.value.code == 1
    (error,) = [line for line in lines if line.startswith("chanas: error: ")]
    assert lines[-1] == error
    assert f"no schedule of any operator works on {HOST.device}; given up after the first failures: " in error
    assert "(SIGABRT) in build; it said: LLVM ERROR: planted" in error
    assert time.monotonic() - start < 60.0  # of a machine that does other things too
