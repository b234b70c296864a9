"""chanas/prescheduler/tables/transfer/adapt.py: a table from a few timings and trials, ended and refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.core.blocks import BlockConfig
from chanas.core.effort import AdaptEffort
from chanas.core.latency import LatencyLUT, LUTRow
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.errors import LUTError, MeasureError
from chanas.files.run import RunDirectory
from chanas.measuring.messages import BlockAt, Build, OperatorAt
from chanas.operators.steps import device_workloads
from chanas.prescheduler.tables.transfer.adapt import AdaptedTable, adapt, order_by_doubt

from ....compiler.cuda_cases import GPU
from ....compiler.workbench import HOST, SyntheticPool, assert_legal, block_of, device, hashed_seconds, random_lut
from .devices import KNOWN, NEW, SPACE

TASK = Task(SPACE, 10)
BLOCKS = TASK.blocks(SPACE.sub_spaces[:1])


@pytest.fixture(scope="module")
def source() -> LatencyLUT:
    """The table of a known device, with schedules."""
    lut = random_lut(SPACE, BLOCKS, HOST)
    rows = {b.key: dataclasses.replace(lut.rows[b.key], median_s=KNOWN.block_s(b)) for b in BLOCKS}
    return LatencyLUT(lut.header, rows)


@pytest.fixture
def pool() -> SyntheticPool:
    """The new device."""
    return SyntheticPool(seconds)


def seconds(asked: Build) -> float:
    """Of a block; whatever else is asked for tells of drift, of which there is none."""
    block = block_of(asked)
    return 1e-6 if block is None else NEW.block_s(block)


def adapted(
    run: RunDirectory,
    pool: SyntheticPool,
    source: LatencyLUT,
    num: int = 12,
    *,
    target: HardwareTarget = HOST,
    trials: int = 0,
    blocks: Sequence[BlockConfig] = BLOCKS,
) -> AdaptedTable:
    effort = AdaptEffort(measure=num, trials=trials)
    return adapt(run, TASK, target, [source], blocks, effort, progress=False, open_pool=lambda _: pool)


def measured(lut: LatencyLUT) -> set[str]:
    return {key for key, row in lut.rows.items() if row.predicted_error is None}


def built(pool: SyntheticPool) -> set[str]:
    return {asked.what.block.key for asked in pool.built if isinstance(asked.what, BlockAt)}


# ---- what comes of it -----------------------------------------------------------------------------------------------
def test_every_block_gets_a_row_that_says_whether_it_was_measured(
    run: RunDirectory, pool: SyntheticPool, source: LatencyLUT
) -> None:
    made = adapted(run, pool, source)
    assert LatencyLUT.load(run.lut("cpu")) == made.lut
    assert made.lut.rows.keys() == {b.key for b in BLOCKS}
    assert measured(made.lut) == built(pool)
    assert (len(measured(made.lut)), made.num_new, made.holes) == (12, 12, ())
    assert made.lut.header.adapted_from[0]["num_rows"] == len(BLOCKS)
    for key, row in made.lut.rows.items():
        assert row.schedules == source.rows[key].schedules
    error = [abs(made.lut.rows[b.key].median_s / NEW.block_s(b) - 1.0) for b in BLOCKS]
    assert np.mean(error) < 0.03


def test_what_could_not_be_timed_is_a_hole(run: RunDirectory, pool: SyntheticPool, source: LatencyLUT) -> None:
    stem = next(b for b in BLOCKS if b.kind == "stem")
    pool.seconds = lambda asked: "worker: gone" if block_of(asked) == stem else seconds(asked)
    made = adapted(run, pool, source, num=20)
    assert stem.key in built(pool)
    assert made.holes == (stem,)


def test_blocks_without_a_known_schedule_are_holes(run: RunDirectory, pool: SyntheticPool, source: LatencyLUT) -> None:
    rows = {b.key: source.rows[b.key] for b in BLOCKS[1:]}
    odd = dataclasses.replace(rows[BLOCKS[5].key], schedules=(("another operator", (1, 2)),))
    lacking = LatencyLUT(source.header, {**rows, BLOCKS[5].key: odd})
    assert adapted(run, pool, lacking).holes == (BLOCKS[0], BLOCKS[5])


def test_two_threads_begin_with_the_schedules_of_one(
    run: RunDirectory, pool: SyntheticPool, source: LatencyLUT
) -> None:
    target = dataclasses.replace(HOST, name="cpu-2t", num_threads=2)
    made = adapted(run, pool, source, target=target)
    assert made.holes == ()
    assert_legal(made.lut, BLOCKS, target)


# ---- schedules that have to be found --------------------------------------------------------------------------------
WIDE, NARROW = device(lanes=16), device(lanes=8)
FEW = BLOCKS[::4]


@pytest.fixture(scope="module")
def wide() -> LatencyLUT:
    """The table of a known device with vectors of 16 values, of a few blocks."""
    lut = random_lut(SPACE, FEW, WIDE)
    return LatencyLUT(lut.header, {b.key: dataclasses.replace(lut.rows[b.key], median_s=KNOWN.block_s(b)) for b in FEW})


def narrow_seconds(asked: Build) -> float:
    """Of a device on which schedules of operators differ by up to a factor of two."""
    if isinstance(asked.what, OperatorAt):
        return hashed_seconds(asked.what.workload.key, list(asked.what.point))
    return seconds(asked)


def to_narrow(
    run: RunDirectory, pool: SyntheticPool, wide: LatencyLUT, trials: int = 3, target: HardwareTarget = NARROW
) -> AdaptedTable:
    return adapted(run, pool, wide, 8, target=target, trials=trials, blocks=FEW)


def tried(pool: SyntheticPool) -> list[tuple[str, tuple[int, ...]]]:
    """Schedules of operators that were tried; the canary is none."""
    asked = [a for a in pool.built if isinstance(a.what, OperatorAt) and not a.path.name.startswith("canary")]
    return [(a.what.workload.key, tuple(a.what.point)) for a in asked]


def test_each_operator_has_three_trials_before_any_has_a_fourth(run: RunDirectory, wide: LatencyLUT) -> None:
    pool = SyntheticPool(narrow_seconds)
    to_narrow(run, pool, wide, trials=6)
    asked = [key for key, _ in tried(pool)]
    first = asked[: next(i for i, key in enumerate(asked) if asked[:i].count(key) == 3)]
    assert {first.count(key) for key in asked if asked.count(key) >= 3} == {3}


@pytest.mark.parametrize("target", [NARROW, dataclasses.replace(WIDE, name="cpu-bf16", dtype="bfloat16")])
def test_schedules_for_other_vectors_or_another_dtype_are_mapped_and_a_few_are_tried(
    run: RunDirectory, wide: LatencyLUT, target: HardwareTarget
) -> None:
    pool = SyntheticPool(narrow_seconds)
    made = to_narrow(run, pool, wide, target=target)
    trials = tried(pool)
    assert made.lut.rows.keys() == {b.key for b in FEW}
    assert len(measured(made.lut)) == 8
    assert (made.num_tuned, made.num_trials) == (len({key for key, _ in trials}), len(trials))
    assert_legal(made.lut, FEW, target)
    for key, point in (schedule for row in made.lut.rows.values() for schedule in row.schedules):
        best = min((hashed_seconds(*trial) for trial in trials if trial[0] == key), default=None)
        assert best is None or hashed_seconds(key, list(point)) <= best * 1.05
    assert all(made.lut.rows[key].num_trials > 0 for key in measured(made.lut))


def test_operators_that_nobody_tuned_take_over_what_was_found_for_one_alike(
    run: RunDirectory, wide: LatencyLUT
) -> None:
    pool = SyntheticPool(narrow_seconds)
    made = to_narrow(run, pool, wide)
    tuned = {key for key, _ in tried(pool)}
    others = {key for row in made.lut.rows.values() for key, _ in row.schedules} - tuned
    notes = {note["operator"]: note["source"] for note in made.lut.header.taken_over}
    assert others
    assert notes.keys() == others
    assert set(notes.values()) <= tuned


def test_without_trials_mapped_schedules_are_timed_as_they_are(run: RunDirectory, wide: LatencyLUT) -> None:
    pool = SyntheticPool(narrow_seconds)
    made = to_narrow(run, pool, wide, trials=0)
    assert not tried(pool)
    assert (made.num_tuned, made.num_trials, made.holes) == (0, 0, ())
    assert_legal(made.lut, FEW, NARROW)


# ---- schedules that turn out slow -----------------------------------------------------------------------------------
def slow_with_its_schedules(block: BlockConfig, source: LatencyLUT) -> SyntheticPool:
    """A device that takes five times as long for a block with the schedules of the source."""
    points = [point for _, point in source.rows[block.key].schedules]

    def seconds_of(asked: Build) -> float:
        if (
            isinstance(asked.what, BlockAt)
            and asked.what.block == block
            and [tuple(p) for p in asked.what.points] == points
        ):
            return 5.0 * seconds(asked)
        return narrow_seconds(asked)

    return SyntheticPool(seconds_of)


def doubtful_block(source: LatencyLUT, folder: Path) -> BlockConfig:
    """One of those that are measured first, with few operators."""
    made = adapted(RunDirectory(folder), SyntheticPool(seconds), source, num=30)
    return next(b for b in BLOCKS if b.key in measured(made.lut) and b.kind == "mbconv" and not b.use_se)


def test_a_block_that_is_slower_than_all_others_say_is_tuned_and_timed_anew(
    run: RunDirectory, source: LatencyLUT, tmp_path: Path
) -> None:
    block = doubtful_block(source, tmp_path / "calm")
    pool = slow_with_its_schedules(block, source)
    made = adapted(run, pool, source, num=30, trials=2)
    assert {key for key, _ in tried(pool)} >= {w.key for w in device_workloads(block, HOST)}
    assert made.num_tuned <= 3 * 6  # a tenth of thirty blocks at most
    assert made.lut.rows[block.key].median_s == pytest.approx(NEW.block_s(block))
    assert made.lut.rows[block.key].schedules != source.rows[block.key].schedules
    pool.built.clear()
    assert adapted(run, pool, source, num=30, trials=2).num_tuned == 0
    assert not pool.built


def test_without_trials_it_stays_as_it_was_measured(run: RunDirectory, source: LatencyLUT, tmp_path: Path) -> None:
    block = doubtful_block(source, tmp_path / "calm")
    pool = slow_with_its_schedules(block, source)
    made = adapted(run, pool, source, num=30)
    assert not tried(pool)
    assert made.lut.rows[block.key].median_s == pytest.approx(5.0 * NEW.block_s(block))


def test_a_moment_in_which_something_else_ran_is_not_kept(
    run: RunDirectory, source: LatencyLUT, tmp_path: Path
) -> None:
    """The tuning finds nothing better than the schedules that are known, and so they are timed anew."""
    block = doubtful_block(source, tmp_path / "calm")
    known = set(source.rows[block.key].schedules)
    pool = SyntheticPool()

    def seconds_of(asked: Build) -> float:
        if isinstance(asked.what, OperatorAt):
            return 1e-6 if (asked.what.workload.key, tuple(asked.what.point)) in known else 2e-6
        calm = any(
            asked.what.workload.key == key
            for key, _ in known
            for asked in pool.built
            if isinstance(asked.what, OperatorAt)
        )
        return seconds(asked) * (5.0 if block_of(asked) == block and not calm else 1.0)

    pool.seconds = seconds_of
    made = adapted(run, pool, source, num=30, trials=1)
    assert made.num_tuned
    assert made.lut.rows[block.key].median_s == pytest.approx(NEW.block_s(block))
    assert made.lut.rows[block.key].schedules == source.rows[block.key].schedules


def test_a_block_that_fails_with_its_schedules_is_tuned(run: RunDirectory, source: LatencyLUT, tmp_path: Path) -> None:
    block = doubtful_block(source, tmp_path / "calm")
    points = [point for _, point in source.rows[block.key].schedules]

    def seconds_of(asked: Build) -> float | str:
        is_block = isinstance(asked.what, BlockAt) and asked.what.block == block
        if is_block and [tuple(p) for p in asked.what.points] == points:
            return "worker: gone"
        return narrow_seconds(asked)

    made = adapted(run, SyntheticPool(seconds_of), source, num=30, trials=2)
    assert made.holes == ()
    assert block.key in measured(made.lut)


# ---- more than once -------------------------------------------------------------------------------------------------
def test_the_second_time_nothing_is_timed_and_more_are_added_to_those_measured(
    run: RunDirectory, pool: SyntheticPool, source: LatencyLUT
) -> None:
    first = adapted(run, pool, source)
    pool.built.clear()
    assert adapted(run, pool, source).num_new == 0
    more = adapted(run, pool, source, num=16)
    assert not pool.built or built(pool).isdisjoint(measured(first.lut))
    assert len(measured(more.lut)) == 16
    assert more.num_new == 4


def test_rows_of_other_sub_spaces_stay(run: RunDirectory, pool: SyntheticPool, source: LatencyLUT) -> None:
    first = adapted(run, pool, source)
    half = BLOCKS[: len(BLOCKS) // 2]
    again = adapted(run, pool, source, 16, blocks=half)
    assert again.lut.rows.keys() == first.lut.rows.keys()
    assert {b.key: again.lut.rows[b.key] for b in BLOCKS if b not in half} == {
        b.key: first.lut.rows[b.key] for b in BLOCKS if b not in half
    }
    assert len(again.lut.header.adapted_from) == 1


# ---- order of replacing ---------------------------------------------------------------------------------------------
def test_the_most_doubtful_of_the_most_used_blocks_are_first(source: LatencyLUT) -> None:
    stem, head = (next(b for b in BLOCKS if b.kind == kind) for kind in ("stem", "head"))
    mbconvs = [b for b in BLOCKS if b.kind == "mbconv"][:2]
    rows = {
        b.key: LUTRow(1e-5, 0.0, 0, (), predicted_error=error)
        for b, error in [(stem, 0.05), (head, 0.2), (mbconvs[0], 0.05), (mbconvs[1], 0.01)]
    }
    lut = LatencyLUT(source.header, {**rows, BLOCKS[-1].key: source.rows[BLOCKS[-1].key]})
    assert order_by_doubt(lut, TASK)[:2] == [head, stem]
    assert set(order_by_doubt(lut, TASK)) == {stem, head, *mbconvs}


# ---- refused --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("header", "word"),
    [({"target": GPU}, "kind cuda instead of llvm"), ({"space_version": 99}, "version of the schedule spaces: 99")],
)
def test_schedules_of_another_kind_of_device_are_refused(
    run: RunDirectory, pool: SyntheticPool, source: LatencyLUT, header: dict[str, Any], word: str
) -> None:
    other = LatencyLUT(dataclasses.replace(source.header, **header), source.rows)
    with pytest.raises(LUTError, match=word) as error:
        adapted(run, pool, other)
    assert "\n" not in str(error.value)
    assert not pool.built


def test_nothing_is_predicted_from_too_few(run: RunDirectory, pool: SyntheticPool, source: LatencyLUT) -> None:
    pool.seconds = lambda asked: "worker: gone" if block_of(asked) else 1e-6
    with pytest.raises(MeasureError, match="at least 5"):
        adapted(run, pool, source)
    assert not run.lut("cpu").exists()


def test_a_table_of_too_few_blocks_is_refused_before_anything_is_timed(
    run: RunDirectory, pool: SyntheticPool, source: LatencyLUT
) -> None:
    few = LatencyLUT(source.header, dict(list(source.rows.items())[:2]))
    with pytest.raises(LUTError, match="got one with 2; name another table"):
        adapted(run, pool, few)
    assert not pool.built
