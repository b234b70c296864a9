"""chanas/prescheduler/session.py and blocks.py: blocks that are timed, known, or fail, and what the records have of
them. How they are timed in rounds: `tables/test_lut.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from chanas.core.arch import SearchSpace
from chanas.core.blocks import BlockConfig
from chanas.core.effort import Effort
from chanas.errors import MeasureError
from chanas.operators.steps import block_workloads, device_workloads, tuned_workloads
from chanas.prescheduler.blocks import Schedules, Surroundings, surroundings
from chanas.prescheduler.records.store import BlockRecord, RecordStore
from chanas.prescheduler.session import Session, open_session

from ..compiler.workbench import (
    HOST,
    NANO,
    NUM_CLASSES,
    SyntheticPool,
    block_of,
    random_points,
    synthetic_seconds,
)

BLOCKS = NANO.all_blocks(NUM_CLASSES)[:4]
AROUND = Surroundings(20_000, 7)


@pytest.fixture
def pool() -> SyntheticPool:
    return SyntheticPool()


@pytest.fixture
def session(store: RecordStore, pool: SyntheticPool) -> Iterator[Session]:
    with open_session(store, HOST, AROUND, progress=False, open_pool=lambda _: pool) as opened:  # type: ignore[arg-type, return-value]
        yield opened


def schedules_of(block: BlockConfig, seed: int = 0) -> Schedules:
    keys = (w.key for w in device_workloads(block, HOST))
    return tuple(zip(keys, random_points(block, HOST, np.random.default_rng(seed)), strict=True))


def timed(pool: SyntheticPool) -> list[str]:
    """Libraries of blocks, in order."""
    return [path.stem for path in pool.timed if path.stem.startswith(tuple(b.key for b in BLOCKS))]


def fails(*wanted: tuple[BlockConfig, Schedules]) -> Any:
    """Seconds of a device at which these do not work."""
    planted = [(block, [tuple(point) for _, point in schedules]) for block, schedules in wanted]

    def seconds(asked: Any) -> float | str:
        block = block_of(asked)
        gone = block is not None and (block, [tuple(p) for p in asked.what.points]) in planted
        return "worker: gone" if gone else synthetic_seconds(asked)

    return seconds


# ---- blocks ---------------------------------------------------------------------------------------------------------
def test_blocks_are_timed_in_rounds_and_go_to_the_records(session: Session, pool: SyntheticPool) -> None:
    kept: list[tuple[BlockConfig, BlockRecord]] = []
    found = session.time({b: [schedules_of(b)] for b in BLOCKS}, keep=lambda *done: kept.append(done))
    assert dict(kept) == found
    assert list(found) == [block for block, _ in kept]
    assert session.timed == set(BLOCKS)
    for block in BLOCKS:
        assert timed(pool).count(f"{block.key}-0") == 3
        assert len(session.store.load_rounds(block.key, schedules_of(block))) == 3
        stored = session.store.load_block(block.key, schedules_of(block))
        assert stored is not None
        assert (stored.seconds, stored.schedules) == (found[block].seconds, found[block].schedules)


def test_the_next_schedules_of_a_block_are_taken_where_the_first_fail(session: Session, pool: SyntheticPool) -> None:
    lucky, doomed, other = BLOCKS[:3]
    ranked = {block: [schedules_of(block, seed) for seed in range(3)] for block in (lucky, doomed, other)}
    pool.seconds = fails((lucky, ranked[lucky][0]), *((doomed, schedules) for schedules in ranked[doomed]))
    kept: list[BlockConfig] = []
    found = session.time(ranked, keep=lambda block, _record: kept.append(block))
    taken = {block: (ranked[block].index(record.schedules), record.seconds is None) for block, record in found.items()}
    assert taken == {lucky: (1, False), doomed: (2, True), other: (0, False)}
    assert sorted(kept, key=BLOCKS.index) == [lucky, doomed, other]  # once each
    failures = [session.store.load_block(doomed.key, schedules) for schedules in ranked[doomed]]
    assert [f is not None and f.seconds is None for f in failures] == [True] * 3


def test_what_the_records_know_is_not_timed_again_and_a_failure_is_known(
    session: Session, store: RecordStore, pool: SyntheticPool
) -> None:
    known, failing, new = BLOCKS[:3]
    store.add_block(known.key, BlockRecord(schedules_of(known), 1.0))
    store.add_block(failing.key, BlockRecord(schedules_of(failing), None, None, "worker: gone"))
    wanted = {block: schedules_of(block) for block in (new, failing, known)}
    found = session.known_or_timed(wanted)
    assert (found[known].seconds, found[failing].error) == (1.0, "worker: gone")
    assert set(timed(pool)) == {f"{new.key}-0"}
    assert session.timed == {new}
    pool.timed.clear()
    assert session.known_or_timed(wanted).keys() == found.keys()
    assert timed(pool) == []


def test_rounds_that_are_known_do_not_count_for_what_is_timed_anew(session: Session, pool: SyntheticPool) -> None:
    block, schedules = BLOCKS[0], schedules_of(BLOCKS[0])
    session.time({block: [schedules]})
    pool.seconds, before = lambda _: 0.5, len(timed(pool))
    assert session.time({block: [schedules]}, anew=True)[block].seconds == pytest.approx(0.5)
    assert len(timed(pool)) == before + 3
    assert len(session.store.load_rounds(block.key, schedules)) == 3  # those from before


# ---- operators ------------------------------------------------------------------------------------------------------
def test_operators_are_tuned_as_cold_as_the_surroundings_say(session: Session, pool: SyntheticPool) -> None:
    workloads = tuned_workloads(BLOCKS[:1], HOST)
    effort = Effort(trials=3, tuner="random")
    session.jobs(effort).run(workloads, progress=False)
    seen = {(r.settings.cold_bytes, r.settings.code_copies) for r in pool.requests}
    assert seen == {(AROUND.weight_bytes, AROUND.num_blocks)}
    assert [len(session.store.load(w.key)) for w in workloads] == [3] * len(workloads)
    assert "3 readings" in session.canary.describe()
    pool.checked.clear()
    session.require_families(workloads, effort)
    assert pool.checked == []  # nothing is left to try


def test_a_family_that_does_not_work_ends_it_before_anything_is_tuned(session: Session, pool: SyntheticPool) -> None:
    pool.check_error = lambda _asked: "crash: planted"
    with pytest.raises(MeasureError, match="crash: planted"):
        session.require_families(tuned_workloads(BLOCKS, HOST), Effort(trials=3))


# ---- work -----------------------------------------------------------------------------------------------------------
def test_work_is_noted_once_something_was_timed(session: Session, store: RecordStore) -> None:
    assert session.note_work().timing_s == 0.0
    assert store.total_work().wall_s == 0.0
    session.time({BLOCKS[0]: [schedules_of(BLOCKS[0])]})
    first = session.note_work()
    assert store.total_work() == first
    assert first.timing_s > 0.0 < first.wall_s
    session.time({BLOCKS[1]: [schedules_of(BLOCKS[1])]})
    assert store.total_work() != session.note_work() == store.total_work()  # that of one session is not added up


# ---- what surrounds a block ------------------------------------------------------------------------------------------
def test_surroundings_are_those_of_the_mean_network(tiny_space: SearchSpace) -> None:
    around = surroundings(tiny_space, 10)
    smallest, largest = (
        sum(w.weight_bytes for b in a.blocks(tiny_space, 10) for w in block_workloads(b))
        for a in (tiny_space.smallest, tiny_space.largest)
    )
    assert smallest < around.weight_bytes < largest
    assert 4 + tiny_space.num_stages <= around.num_blocks <= 4 + tiny_space.num_stages * tiny_space.max_depth
    assert surroundings(tiny_space, 10) == around


def test_surroundings_of_a_space_of_one_depth() -> None:
    one = dataclasses.replace(NANO, width_multipliers=(1.0,))
    some = one.smallest.blocks(one, NUM_CLASSES)
    weights = sum(w.weight_bytes for b in some for w in block_workloads(b))
    assert surroundings(one, NUM_CLASSES) == Surroundings(weights, len(some))
