"""chanas/prescheduler/tables/transfer/adapt.py: a table from a few timings, ended in the middle, and refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.core.latency import LatencyLUT, LUTRow
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.errors import LUTError, MeasureError
from chanas.files.run import RunDirectory
from chanas.operators.steps import device_workloads
from chanas.prescheduler.kernels.backends import schedule_space
from chanas.prescheduler.measuring.requests import BuildBlock, BuildRequest
from chanas.prescheduler.tables.transfer.adapt import AdaptedTable, adapt, order_by_doubt

from ...cases import HOST, SyntheticPool, block_of, device, random_lut
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
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def pool() -> SyntheticPool:
    """The new device."""
    return SyntheticPool(seconds)


def seconds(asked: BuildRequest) -> float:
    """Of a block; whatever else is asked for tells of drift, of which there is none."""
    block = block_of(asked)
    return 1e-6 if block is None else NEW.block_s(block)


def adapted(
    run: RunDirectory,
    pool: SyntheticPool,
    sources: Sequence[LatencyLUT],
    num: int = 12,
    target: HardwareTarget = HOST,
    **options: Any,
) -> AdaptedTable:
    return adapt(run, TASK, target, sources, BLOCKS, num, progress=False, open_pool=lambda _: pool, **options)


def measured(lut: LatencyLUT) -> set[str]:
    return {key for key, row in lut.rows.items() if row.predicted_error is None}


def built(pool: SyntheticPool) -> set[str]:
    return {asked.block.key for asked in pool.built if isinstance(asked, BuildBlock)}


# ---- what comes of it -----------------------------------------------------------------------------------------------
def test_every_block_gets_a_row_that_says_whether_it_was_measured(
    run: RunDirectory, pool: SyntheticPool, source: LatencyLUT
) -> None:
    made = adapted(run, pool, [source])
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
    made = adapted(run, pool, [source], num=20)
    assert stem.key in built(pool)
    assert made.holes == (stem,)


def test_blocks_without_a_known_schedule_are_holes(run: RunDirectory, pool: SyntheticPool, source: LatencyLUT) -> None:
    rows = {b.key: source.rows[b.key] for b in BLOCKS[1:]}
    odd = dataclasses.replace(rows[BLOCKS[5].key], schedules=(("another operator", (1, 2)),))
    lacking = LatencyLUT(source.header, {**rows, BLOCKS[5].key: odd})
    assert adapted(run, pool, [lacking]).holes == (BLOCKS[0], BLOCKS[5])


def test_two_threads_begin_with_the_schedules_of_one(
    run: RunDirectory, pool: SyntheticPool, source: LatencyLUT
) -> None:
    target = dataclasses.replace(HOST, name="cpu-2t", num_threads=2)
    made = adapted(run, pool, [source], target=target)
    assert made.holes == ()
    for block in BLOCKS:
        row = made.lut.rows[block.key]
        for workload, (key, point) in zip(device_workloads(block, target), row.schedules, strict=True):
            assert key == workload.key
            assert schedule_space(workload, target).contains(point)


# ---- more than once -------------------------------------------------------------------------------------------------
def test_whoever_ends_it_in_the_middle_loses_nothing(
    run: RunDirectory, pool: SyntheticPool, source: LatencyLUT, tmp_path: Path
) -> None:
    def ended(asked: BuildRequest) -> float:
        if len(pool.timed) > 20:
            raise KeyboardInterrupt
        return seconds(asked)

    pool.seconds = ended
    with pytest.raises(KeyboardInterrupt):
        adapted(run, pool, [source])
    assert not run.lut("cpu").exists()
    num_timed = len(pool.timed)

    pool.seconds = seconds
    resumed = adapted(run, pool, [source])
    whole = SyntheticPool(pool.seconds)
    at_once = adapted(RunDirectory(tmp_path / "other"), whole, [source])
    assert measured(resumed.lut) == measured(at_once.lut)
    assert {k: r.median_s for k, r in resumed.lut.rows.items()} == pytest.approx(
        {k: r.median_s for k, r in at_once.lut.rows.items()}
    )
    assert len(pool.timed) - num_timed < len(whole.timed)


def test_the_second_time_nothing_is_timed_and_more_are_added_to_those_measured(
    run: RunDirectory, pool: SyntheticPool, source: LatencyLUT
) -> None:
    first = adapted(run, pool, [source])
    pool.built.clear()
    assert adapted(run, pool, [source]).num_new == 0
    more = adapted(run, pool, [source], num=16)
    assert not pool.built or built(pool).isdisjoint(measured(first.lut))
    assert len(measured(more.lut)) == 16
    assert more.num_new == 4


def test_rows_of_other_sub_spaces_stay(run: RunDirectory, pool: SyntheticPool, source: LatencyLUT) -> None:
    first = adapted(run, pool, [source])
    half = BLOCKS[: len(BLOCKS) // 2]
    again = adapt(run, TASK, HOST, [source], half, 16, progress=False, open_pool=lambda _: pool)
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
    ("target", "word"),
    [(device(lanes=8), "vector"), (dataclasses.replace(HOST, dtype="bfloat16"), "dtype f32 instead of bf16")],
)
def test_schedules_of_another_kind_of_device_are_refused(
    run: RunDirectory, pool: SyntheticPool, source: LatencyLUT, target: HardwareTarget, word: str
) -> None:
    wide = LatencyLUT(dataclasses.replace(source.header, target=device(lanes=16)), source.rows)
    with pytest.raises(LUTError, match=word):
        adapted(run, pool, [wide], target=target)
    assert not pool.built


def test_nothing_is_predicted_from_too_few(run: RunDirectory, pool: SyntheticPool, source: LatencyLUT) -> None:
    pool.seconds = lambda asked: "worker: gone" if block_of(asked) else 1e-6
    with pytest.raises(MeasureError, match="at least 5"):
        adapted(run, pool, [source])
    assert not run.lut("cpu").exists()
