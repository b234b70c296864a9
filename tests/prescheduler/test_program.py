"""chanas/prescheduler/program.py: every operator of a network has a schedule, measured or likely."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.backends import backend_of, schedule_space
from chanas.compiler.program import Program, TunedOperation, Value
from chanas.compiler.space import Point
from chanas.errors import MeasureError
from chanas.operators.steps import Step
from chanas.operators.workload import Workload
from chanas.prescheduler.ideas import ranked_points
from chanas.prescheduler.program import DEFAULT, Choices, first_choices, with_defaults, working_choices
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning.warm_start import WarmStart

from ..compiler.workbench import SyntheticPool, device

HERE = device()
KNOWN, OTHER = Workload("pointwise", 4, 16, 32), Workload("pointwise", 4, 32, 64)
SLOW, FAST = Workload("blockconv", 8, 32, 32, 3), Workload("winograd", 8, 32, 32, 3)
KEYS = [(choices, HERE.vector_lanes) for choices in ((KNOWN,), (OTHER,), (SLOW, FAST))]


def program() -> Program:
    """Operators that are only looked at, one after the other."""
    made = Program((Value((1, 16, 4, 4)),), HERE.vector_lanes)
    for choices, _ in KEYS:
        weight = np.zeros((1, 1, 1, 1), np.float32)
        value = Value((1, 64, 4, 4), "float32", HERE.vector_lanes)
        made.add(TunedOperation(Step(choices[0], (0,)), value, choices, weight, weight[0, 0, 0]))
    return made


@pytest.fixture
def choices(tmp_path: Path) -> Choices:
    """Those of a store that has records of one operator."""
    store = RecordStore(tmp_path / "records.sqlite", HERE)
    slow, fast = ranked_points(KNOWN, HERE, 2)
    store.add(KNOWN.key, [TuningRecord(slow, 2e-6), TuningRecord(fast, 1e-6)])
    try:
        return first_choices(program(), HERE, store)
    finally:
        store.close()


def test_what_was_measured_is_taken_and_else_the_likeliest_schedule_of_the_first_that_computes_it(
    choices: Choices,
) -> None:
    known, other, conv = (choices[key] for key in KEYS)
    assert (known.point, known.seconds, known.taken_from) == (ranked_points(KNOWN, HERE, 2)[1], 1e-6, "")
    assert (other.point, other.taken_from) == (ranked_points(OTHER, HERE, 1)[0], DEFAULT)
    assert (conv.workload, conv.taken_from) == (SLOW, DEFAULT)
    assert other.seconds == pytest.approx(1e-6 * OTHER.num_flops / KNOWN.num_flops)


def test_without_anything_measured_every_operator_has_a_schedule_and_a_time() -> None:
    found = with_defaults(program(), HERE, {})
    assert list(found) == KEYS
    assert all(c.seconds > 0.0 for c in found.values())


def known_elsewhere(*workloads: Workload) -> WarmStart:
    """A file of schedules that has the middle points of operators, the later the faster."""
    source = Source("file.json", HERE, "0.27", backend_of(HERE).space_version)
    records = {w.key: (TuningRecord(schedule_space(w, HERE).middle, 1e-6 / (i + 1)),) for i, w in enumerate(workloads)}
    return WarmStart(source, Path(), HERE, records, best_only=True)


def test_records_come_before_what_is_known_elsewhere_and_that_before_similar_and_likely_ones(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records.sqlite", HERE)
    store.add(KNOWN.key, [TuningRecord(ranked_points(KNOWN, HERE, 1)[0], 1e-6)])
    try:
        found = first_choices(program(), HERE, store, known_elsewhere(KNOWN, SLOW, FAST))
    finally:
        store.close()
    known, other, conv = (found[key] for key in KEYS)
    assert (known.point, known.taken_from) == (ranked_points(KNOWN, HERE, 1)[0], "")
    assert (conv.workload, conv.point) == (FAST, schedule_space(FAST, HERE).middle)
    assert conv.taken_from == f"{FAST.key} on file.json"
    assert other.taken_from == f"{KNOWN.key} on file.json"
    assert schedule_space(OTHER, HERE).contains(other.point)


def test_an_operator_that_is_unknown_everywhere_has_its_likeliest_schedule() -> None:
    found = with_defaults(program(), HERE, {}, known_elsewhere(FAST))
    assert [c.taken_from for c in found.values()] == [f"{FAST.key} on file.json", DEFAULT, DEFAULT]
    assert [key for key, c in found.items() if c.taken_from == DEFAULT] == KEYS[:2]


def test_schedules_for_other_vectors_are_not_taken_without_a_trial() -> None:
    known = known_elsewhere(KNOWN, FAST)
    other = dataclasses.replace(known.source.target, vector_lanes=8, num_vector_registers=16)
    elsewhere = dataclasses.replace(known, source=dataclasses.replace(known.source, target=other))
    assert {c.taken_from for c in with_defaults(program(), HERE, {}, elsewhere).values()} == {DEFAULT}


def test_a_schedule_from_elsewhere_that_does_not_work_gives_way_to_a_likely_one(tmp_path: Path) -> None:
    first = with_defaults(program(), HERE, {}, known_elsewhere(KNOWN))
    bad = KNOWN, first[KEYS[0]].point
    found = working_choices(HERE, first, rejecting(bad), tmp_path)  # type: ignore[arg-type]
    known, *others = KEYS
    assert (found[known].point, found[known].taken_from) == (ranked_points(KNOWN, HERE, 1)[0], DEFAULT)
    assert [found[key] for key in others] == [first[key] for key in others]


def rejecting(*rejected: tuple[Workload, Point]) -> SyntheticPool:
    """A device on which these do not work."""
    pool = SyntheticPool()
    pool.check_error = lambda asked: "wrong result" if (asked.what.workload, asked.what.point) in rejected else None
    return pool


def test_a_likely_schedule_that_does_not_work_gives_way_to_the_next(choices: Choices, tmp_path: Path) -> None:
    first, second, *_ = ranked_points(OTHER, HERE, 3)
    found = working_choices(HERE, choices, rejecting((OTHER, first)), tmp_path)  # type: ignore[arg-type]
    assert found[KEYS[1]].point == second
    assert {key: c for key, c in found.items() if key != KEYS[1]} == {k: c for k, c in choices.items() if k != KEYS[1]}


def test_an_operator_without_a_schedule_that_works_is_named(choices: Choices, tmp_path: Path) -> None:
    pool = rejecting(*((OTHER, point) for point in ranked_points(OTHER, HERE, 3)))
    with pytest.raises(MeasureError, match=rf"no schedule of operator {OTHER.key} works \(wrong result"):
        working_choices(HERE, choices, pool, tmp_path)  # type: ignore[arg-type]
