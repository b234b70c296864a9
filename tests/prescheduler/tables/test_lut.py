"""chanas/prescheduler/tables/lut.py: a table without holes, filled once, whatever happens on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fast_cases import fast

from chanas.compiler.backends import schedule_space
from chanas.core.blocks import BlockConfig
from chanas.core.latency import LatencyLUT
from chanas.core.task import Task
from chanas.errors import LUTError, MeasureError
from chanas.files.run import RunDirectory
from chanas.measuring import fleet as local
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import BlockAt
from chanas.operators.steps import block_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler import blocks
from chanas.prescheduler.blocks import surroundings
from chanas.prescheduler.records import store as records
from chanas.prescheduler.records.remeasure import rank_records
from chanas.prescheduler.records.store import BlockRecord, RecordStore
from chanas.prescheduler.tables.lut import PrescheduleSummary

from ...compiler.workbench import (
    HOST,
    NANO,
    NUM_CLASSES,
    SyntheticPool,
    assert_legal,
    block_of,
    device,
    family_of,
    fill_table,
    synthetic_seconds,
)

NARROW = NANO.sub_spaces[:1]
NUM_TRIALS = 3
# Timings that may be under way, or wait for the canary, when a process ends.
IN_FLIGHT = len(NANO.all_blocks(NUM_CLASSES))


def workloads_of(some: tuple[BlockConfig, ...]) -> list[Workload]:
    return list(dict.fromkeys(w for b in some for w in block_workloads(b)))


def num_trials(workloads: list[Workload], each: int = NUM_TRIALS) -> int:
    return sum(min(each, len(schedule_space(w, HOST).points)) for w in workloads)


ALL_BLOCKS, NARROW_BLOCKS = NANO.all_blocks(NUM_CLASSES), NANO.all_blocks(NUM_CLASSES, NARROW)
TASK = Task(NANO, NUM_CLASSES)
ALL_TRIALS, NARROW_TRIALS = (num_trials(workloads_of(some)) for some in (ALL_BLOCKS, NARROW_BLOCKS))


def fill(run: RunDirectory, trials: int = NUM_TRIALS, tuner: str = "random", **options: Any) -> PrescheduleSummary:
    return fill_table(run, NANO, HOST, NUM_CLASSES, trials=trials, tuner=tuner, **options)


def done(summary: PrescheduleSummary) -> tuple[int, int]:
    return summary.num_new_trials, summary.num_new_blocks


@pytest.fixture(scope="module")
def measured(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, PrescheduleSummary]]:
    """A run directory whose table has one sub-space, really measured."""
    run = RunDirectory(tmp_path_factory.mktemp("measured"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "WorkerPool", lambda _target: contextlib.nullcontext(pool))
        yield run.root, fill(run, tuner="gp", sub_spaces=NARROW)


@pytest.fixture
def copied(measured: tuple[Path, PrescheduleSummary], run: RunDirectory) -> PrescheduleSummary:
    """The summary of that run; `run` is a copy of its directory."""
    shutil.copytree(measured[0], run.root)
    return measured[1]


# ---- what a run leaves ----------------------------------------------------------------------------------------------
def test_a_run_fills_the_table_without_holes(measured: tuple[Path, PrescheduleSummary]) -> None:
    root, summary = measured
    assert summary.path == RunDirectory(root).lut(HOST.name)
    assert done(summary) == (NARROW_TRIALS, len(NARROW_BLOCKS))
    assert (summary.num_operators, summary.num_failed_trials) == (len(workloads_of(NARROW_BLOCKS)), 0)
    assert set(summary.lut.rows) == {b.key for b in NARROW_BLOCKS}
    assert LatencyLUT.load(summary.path) == summary.lut
    summary.lut.check(NANO, HOST)


def test_a_row_has_a_time_and_a_schedule_for_each_operator(measured: tuple[Path, PrescheduleSummary]) -> None:
    rows = measured[1].lut.rows
    assert_legal(measured[1].lut, NARROW_BLOCKS, HOST)
    assert all(row.median_s > 0.0 <= row.spread_s for row in rows.values())
    assert [rows[b.key].num_trials for b in NARROW_BLOCKS] == [num_trials([*block_workloads(b)]) for b in NARROW_BLOCKS]


def test_rows_have_the_best_record_of_each_operator(measured: tuple[Path, PrescheduleSummary]) -> None:
    root, summary = measured
    with contextlib.closing(RecordStore(RunDirectory(root).records, HOST)) as store:
        best = {w.key: rank_records(store.load(w.key))[0].point for w in workloads_of(NARROW_BLOCKS)}
    assert all(best[key] == point for row in summary.lut.rows.values() for key, point in row.schedules)


# ---- running again --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_second_run_measures_nothing_and_has_the_same_rows(
    copied: PrescheduleSummary, run: RunDirectory, synthetic_pool: SyntheticPool, is_deleted: bool
) -> None:
    if is_deleted:
        run.lut(HOST.name).unlink()
    again = fill(run, sub_spaces=NARROW)
    assert done(again) == (0, 0)
    assert synthetic_pool.built == []
    assert again.lut.rows == copied.lut.rows


def test_more_trials_only_add(copied: PrescheduleSummary, run: RunDirectory, synthetic_pool: SyntheticPool) -> None:
    synthetic_pool.seconds = lambda _: 1.0  # slower than anything real: the best schedules stay
    again = fill(run, 5, sub_spaces=NARROW, early_stopping="no")
    workloads = workloads_of(NARROW_BLOCKS)
    assert done(again) == (num_trials(workloads, 5) - num_trials(workloads), 0)
    for key, row in copied.lut.rows.items():
        assert dataclasses.replace(again.lut.rows[key], num_trials=row.num_trials) == row
        assert again.lut.rows[key].num_trials >= row.num_trials


def test_a_better_schedule_is_measured_in_its_blocks(
    copied: PrescheduleSummary, run: RunDirectory, synthetic_pool: SyntheticPool
) -> None:
    """Only blocks of which an operator has become faster are timed again."""
    faster = next(w for w in workloads_of(NARROW_BLOCKS) if w.op == "conv")
    synthetic_pool.seconds = lambda asked: 1e-12 if family_of(asked) == "conv" else 1.0
    again = fill(run, 4, sub_spaces=NARROW)
    changed = {key for key, row in again.lut.rows.items() if row.schedules != copied.lut.rows[key].schedules}
    assert changed == {b.key for b in NARROW_BLOCKS if faster in block_workloads(b)}
    assert again.num_new_blocks == len(changed) == 1


def test_the_rest_of_the_space_is_added_to_a_part_of_it(
    copied: PrescheduleSummary, run: RunDirectory, synthetic_pool: SyntheticPool
) -> None:
    whole = fill(run)
    assert done(whole) == (ALL_TRIALS - NARROW_TRIALS, len(ALL_BLOCKS) - len(NARROW_BLOCKS))
    assert set(whole.lut.rows) == {b.key for b in ALL_BLOCKS}
    assert copied.lut.rows.items() <= whole.lut.rows.items()
    part = fill(run, sub_spaces=NARROW)
    assert done(part) == (0, 0)
    assert part.lut.rows == whole.lut.rows


OTHERS = {
    "space": (dataclasses.replace(NANO, head_width=24), HOST),
    "compiler": (NANO, HOST),
    "threads": (NANO, dataclasses.replace(device(num_threads=2), name="cpu-2t")),
}


@pytest.mark.parametrize("change", OTHERS)
def test_a_table_of_something_else_is_refused_and_not_mixed_into(
    copied: PrescheduleSummary,
    run: RunDirectory,
    synthetic_pool: SyntheticPool,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    space, target = OTHERS[change]
    if change == "compiler":
        for module in ("chanas.core.latency", "chanas.prescheduler.tables.lut", "chanas.prescheduler.records.store"):
            monkeypatch.setattr(f"{module}.tvm_version", lambda: "0.99")
    with pytest.raises(LUTError):
        copied.lut.check(space, target)
    shutil.copyfile(run.lut("cpu"), run.lut("cpu-2t"))
    again = fill_table(run, space, target, NUM_CLASSES, trials=NUM_TRIALS, sub_spaces=NARROW)
    assert again.num_new_blocks == (2 if change == "space" else len(NARROW_BLOCKS))  # head and classifier differ
    assert set(again.lut.rows) == {b.key for b in space.all_blocks(NUM_CLASSES, NARROW)}
    again.lut.check(space, target)


# ---- interruptions --------------------------------------------------------------------------------------------------
STEM = ALL_BLOCKS[0]


def forget(run: RunDirectory, *conditions: str) -> None:
    """Delete from the records."""
    with contextlib.closing(sqlite3.connect(run.records)) as db, db:
        for condition in conditions:
            db.execute(f"DELETE FROM {condition}")


def block_timings(pool: SyntheticPool) -> list[str]:
    """Which blocks were timed, in order."""
    keys = {b.key for b in ALL_BLOCKS}
    timed = [library.stem.rpartition("-")[0] for library in pool.timed]
    return [key for key in timed if key in keys]


@pytest.mark.parametrize(
    "num_timings", fast([1, 3, len(ALL_BLOCKS), len(ALL_BLOCKS) + 2, 3 * len(ALL_BLOCKS) - 1], [1, 2, 4])
)
def test_a_process_that_ends_between_rounds_loses_no_timing(
    run: RunDirectory, synthetic_pool: SyntheticPool, monkeypatch: pytest.MonkeyPatch, num_timings: int
) -> None:
    """Each block is timed three times in all, however often the process ends."""
    measure = synthetic_pool.measure

    def dying(*request: Any) -> Any:
        if len(block_timings(synthetic_pool)) == num_timings:
            raise KeyboardInterrupt
        return measure(*request)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(synthetic_pool, "measure", dying)
        fill(run)
    with contextlib.closing(sqlite3.connect(run.records)) as db:
        num_done, num_kept = (db.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in ("blocks", "rounds"))
    assert num_timings - IN_FLIGHT <= num_kept <= num_timings
    synthetic_pool.timed.clear()
    summary = fill(run)
    assert done(summary) == (0, len(ALL_BLOCKS) - num_done)
    assert len(block_timings(synthetic_pool)) == 3 * len(ALL_BLOCKS) - num_kept
    assert done(fill(run)) == (0, 0)


def order_of_block_work(pool: SyntheticPool, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Fills with ("build" or "time", block) as a pool is asked for it."""
    keys = {b.key for b in ALL_BLOCKS}
    order: list[tuple[str, str]] = []

    def noting(what: str, call: Any) -> Any:
        def noted(request: Any, *rest: Any) -> Any:
            library = request.path if what == "build" else request.library
            key = library.name.rpartition("-")[0]
            if key in keys:
                order.append((what, key))
            return call(request, *rest)

        return noted

    monkeypatch.setattr(pool, "build", noting("build", pool.build))
    monkeypatch.setattr(pool, "measure", noting("time", pool.measure))
    return order


def test_blocks_are_timed_again_while_others_are_compiled(
    run: RunDirectory, synthetic_pool: SyntheticPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_APART_S", 0.0)
    order = order_of_block_work(synthetic_pool, monkeypatch)
    fill(run)
    first, last = (next(key for what, key in events if what == "build") for events in (order, order[::-1]))
    rounds = [i for i, event in enumerate(order) if event == ("time", first)]
    assert len(rounds) == 3
    assert rounds[-1] < order.index(("build", last))


def test_rounds_of_a_block_lie_apart_as_long_as_there_is_something_else_to_time(
    run: RunDirectory, synthetic_pool: SyntheticPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_APART_S", math.inf)
    order = order_of_block_work(synthetic_pool, monkeypatch)
    fill(run)
    timed = [key for what, key in order if what == "time"]
    assert len(timed) == 3 * len(ALL_BLOCKS)
    assert set(timed[: len(ALL_BLOCKS)]) == {b.key for b in ALL_BLOCKS}


def test_a_row_is_never_one_round_where_three_are_due(run: RunDirectory, synthetic_pool: SyntheticPool) -> None:
    first = fill(run)
    lucky = next(b for b in ALL_BLOCKS if b.kind == "head")
    forget(run, *(f"{table} WHERE block = '{lucky.key}'" for table in ("blocks", "rounds")))
    with contextlib.closing(RecordStore(run.records, HOST)) as store:
        store.add_round(lucky.key, BlockRecord(first.lut.rows[lucky.key].schedules, 1e-12, 0.0))
    synthetic_pool.timed.clear()
    again = fill(run)
    assert again.lut.rows[lucky.key].median_s == first.lut.rows[lucky.key].median_s
    assert block_timings(synthetic_pool) == [lucky.key] * 2


def test_a_block_whose_rounds_are_all_there_is_not_built(run: RunDirectory, synthetic_pool: SyntheticPool) -> None:
    first = fill(run)
    forget(run, "blocks")
    synthetic_pool.built.clear()
    again = fill(run)
    assert [asked for asked in synthetic_pool.built if isinstance(asked.what, BlockAt)] == []
    assert {k: r.median_s for k, r in again.lut.rows.items()} == {k: r.median_s for k, r in first.lut.rows.items()}


# ---- failures -------------------------------------------------------------------------------------------------------
def test_a_block_that_fails_is_a_hole_and_the_others_are_kept(run: RunDirectory, synthetic_pool: SyntheticPool) -> None:
    working = synthetic_pool.seconds
    synthetic_pool.seconds = lambda asked: "crash" if block_of(asked) == STEM else working(asked)
    message = rf"1 of {len(ALL_BLOCKS)} blocks could not be measured \(the first: {STEM.key}\); the LUT holds"
    with pytest.raises(MeasureError, match=message):
        fill(run)
    assert set(LatencyLUT.load(run.lut(HOST.name)).rows) == {b.key for b in ALL_BLOCKS} - {STEM.key}
    synthetic_pool.seconds = working
    assert done(fill(run)) == (0, 1)


def test_an_operator_that_never_works_makes_holes_of_its_blocks(
    run: RunDirectory, synthetic_pool: SyntheticPool
) -> None:
    synthetic_pool.seconds = lambda asked: "timeout" if family_of(asked) == "conv" else synthetic_seconds(asked)
    message = r"what failed most often: timeout; run .* with more trials where no schedule of an operator worked$"
    with pytest.raises(MeasureError, match=message):
        fill(run)
    missing = LatencyLUT.load(run.lut(HOST.name)).missing(ALL_BLOCKS)
    assert missing == [b for b in ALL_BLOCKS if b.kind == "stem"]


@pytest.mark.parametrize(
    ("fails", "gone"),
    [
        (lambda asked: block_of(asked) == STEM, [STEM]),
        (lambda asked: family_of(asked) == "conv", [b for b in ALL_BLOCKS if b.kind == "stem"]),
    ],
)
def test_a_row_of_what_works_no_more_is_taken_out(
    run: RunDirectory,
    synthetic_pool: SyntheticPool,
    monkeypatch: pytest.MonkeyPatch,
    fails: Callable[[Any], bool],
    gone: list[BlockConfig],
) -> None:
    before = fill(run).lut
    forget(run, "records WHERE workload LIKE 'conv-%'")
    monkeypatch.setattr(records, "BLOCK_VERSION", records.BLOCK_VERSION + 1)
    synthetic_pool.seconds = lambda asked: "crash" if fails(asked) else synthetic_seconds(asked)
    with pytest.raises(MeasureError, match=STEM.key):
        fill(run)
    assert LatencyLUT.load(run.lut(HOST.name)).rows.keys() == before.rows.keys() - {b.key for b in gone}


def test_a_block_that_fails_at_its_best_schedules_gets_the_next_best(
    run: RunDirectory, synthetic_pool: SyntheticPool
) -> None:
    first = fill(run)
    shutil.rmtree(run.luts)
    forget(run, "blocks", "rounds")
    best = [point for _, point in first.lut.rows[STEM.key].schedules]

    def fails_at_best(asked: Any) -> float | str:
        at_best = block_of(asked) == STEM and asked.what.points == best
        return "crash" if at_best else synthetic_seconds(asked)

    synthetic_pool.seconds = fails_at_best
    second = fill(run)
    assert second.lut.rows[STEM.key].schedules != first.lut.rows[STEM.key].schedules
    assert {k: r.schedules for k, r in second.lut.rows.items() if k != STEM.key} == {
        k: r.schedules for k, r in first.lut.rows.items() if k != STEM.key
    }
    third = fill(run)
    assert done(third) == (0, 0)
    assert third.lut.rows == second.lut.rows


def test_blocks_of_an_older_version_are_timed_again_and_operators_are_not(
    run: RunDirectory, synthetic_pool: SyntheticPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fill(run)
    monkeypatch.setattr(records, "BLOCK_VERSION", records.BLOCK_VERSION + 1)
    again = fill(run)
    assert done(again) == (0, len(ALL_BLOCKS))
    assert set(again.lut.rows) == set(first.lut.rows)


# ---- what surrounds a block -----------------------------------------------------------------------------------------
def test_blocks_are_timed_as_cold_as_in_the_mean_network(run: RunDirectory, synthetic_pool: SyntheticPool) -> None:
    fill(run)
    around = surroundings(NANO, NUM_CLASSES)
    seen = {(r.settings.cold_bytes, r.settings.code_copies) for r in synthetic_pool.requests}
    assert seen == {(around.weight_bytes, around.num_blocks)}


# ---- dtypes ---------------------------------------------------------------------------------------------------------
def test_each_dtype_has_a_table_and_records_of_its_own(run: RunDirectory, synthetic_pool: SyntheticPool) -> None:
    half = dataclasses.replace(HOST, name=f"{HOST.name}-bf16", dtype="bfloat16", vector_lanes=16)
    plain = fill(run, sub_spaces=NARROW)
    summary = fill_table(run, NANO, half, NUM_CLASSES, trials=NUM_TRIALS, tuner="random", sub_spaces=NARROW)
    assert (plain.lut.header.dtype, summary.lut.header.dtype) == ("float32", "bfloat16")
    assert summary.path == run.lut("cpu-bf16") != plain.path
    assert summary.num_new_blocks == len(TASK.table_blocks("bfloat16", NARROW)) > len(NARROW_BLOCKS)
    keys = {key for row in summary.lut.rows.values() for key, _ in row.schedules}
    assert keys
    assert all(key.endswith("-bfloat16") for key in keys)
    summary.lut.check(NANO, half)
    with pytest.raises(LUTError, match="another target: expected cpu, got cpu-bf16"):
        summary.lut.check(NANO, HOST)
    assert fill(run, sub_spaces=NARROW).num_new_trials == 0


def test_a_table_has_a_row_of_each_block_that_converts_to_or_from_its_dtype(
    run: RunDirectory, synthetic_pool: SyntheticPool
) -> None:
    """Two dtypes whose rows don't differ by operators have seconds of their own, in one file of records."""
    made = {}
    for dtype, name in (("bfloat16", "bf16"), ("int8", "int8")):
        target = dataclasses.replace(HOST, name=f"{HOST.name}-{name}", dtype=dtype, vector_lanes=16)
        first, again = (
            fill_table(run, NANO, target, NUM_CLASSES, trials=NUM_TRIALS, tuner="random", sub_spaces=NARROW)
            for _ in range(2)
        )
        conversions = NANO.all_conversions(dtype, NARROW)
        assert set(first.lut.rows) == {block.key for block in (*NARROW_BLOCKS, *conversions)}
        assert first.num_new_blocks == len(first.lut.rows)
        assert done(again) == (0, 0)
        assert again.lut.rows == first.lut.rows
        rows = [first.lut.row(block) for block in conversions]
        assert len({row.median_s for row in rows}) == len(rows) > 2
        assert all((row.schedules, row.num_trials) == ((), 0) for row in rows)
        made[dtype] = {row.median_s for row in rows}
    assert not made["bfloat16"] & made["int8"]


def test_a_table_in_float32_has_no_row_of_one_that_converts(run: RunDirectory, synthetic_pool: SyntheticPool) -> None:
    assert set(fill(run).lut.rows) == {block.key for block in ALL_BLOCKS}
