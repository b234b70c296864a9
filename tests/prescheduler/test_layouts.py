"""chanas/prescheduler/layouts.py: copies between forms are timed once, and the graph has what programs say."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import pytest

from chanas.compiler.program import (
    Form,
    FormChange,
    MapView,
    OtherOperation,
    Part,
    PartOf,
    Program,
    TunedOperation,
    Value,
)
from chanas.operators.steps import Step
from chanas.operators.workload import Workload
from chanas.prescheduler.blocks import Surroundings
from chanas.prescheduler.layouts import LayoutGraph, measure_changes, possible_changes
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.session import Session, open_session

from ..compiler.workbench import SyntheticPool, device

HERE = device(16)
OWN, EIGHT, HALVES = Form(16), Form(8), Form(16, "bfloat16")
KEPT = FormChange(32, 16, 1, OWN, EIGHT)


def tuned(reads: tuple[int, ...], channels: int = 32) -> TunedOperation:
    workload = Workload("pointwise", 4, 32, channels)
    weight = np.zeros((1, 1, 1, 1), np.float32)
    value = Value((1, channels, 4, 4), "float32", 16)
    return TunedOperation(Step(workload, reads), value, (workload,), weight, weight[0, 0, 0])


def chain(num: int) -> Program:
    """Operators one after the other, between changes from and to the framework's form."""
    made = Program((Value((1, 32, 4, 4)),), 16)
    current = made.add(OtherOperation("to channel blocks", (0,), Value((1, 32, 4, 4), "float32", 16), lambda *_: None))
    for _ in range(num):
        current = made.add(tuned((current,)))
    made.outputs = (made.add(OtherOperation("end", (current,), Value((1, 32, 4, 4)), lambda *_: None)),)
    return made


def opened(store: RecordStore, pool: SyntheticPool) -> AbstractContextManager[Session]:
    return open_session(store, HERE, Surroundings(0, 1), progress=False, open_pool=lambda _: pool)  # type: ignore[arg-type, return-value]


def test_changes_are_timed_once_those_that_fail_too(store: RecordStore) -> None:
    failing = FormChange(32, 49, 1, OWN, EIGHT)
    pool = SyntheticPool(lambda asked: "timeout" if asked.what == failing else 2e-6)
    with opened(store, pool) as session:
        found = measure_changes([KEPT, failing], session, HERE)
        num = len(pool.built)
        again = measure_changes([KEPT, failing], session, HERE)
    assert found == again
    assert found[KEPT].seconds == pytest.approx(2e-6)
    assert found[failing].seconds is None
    assert found[failing].error == "timeout"
    assert len(pool.built) == num


def test_records_of_a_layout_are_its_own(store: RecordStore) -> None:
    workload = Workload("pointwise", 4, 32, 32)
    store_key = store.device
    with opened(store, SyntheticPool()) as session:
        with session.on(EIGHT.on(HERE)) as other:
            assert other.target.vector_lanes == 8
            assert other.store.device != store_key
            other.store.add(workload.key, [TuningRecord((1, 1), 1e-6)])
            assert [r.point for r in other.store.load(workload.key)] == [(1, 1)]
            assert other.canary is session.canary
            assert other.scratch != session.scratch
        assert store.load(workload.key) == []
        with session.on(EIGHT.on(HERE)) as again:
            assert len(again.store.load(workload.key)) == 1


def graph(program: Program, seconds: dict[int, dict[Form, float]], change_s: float) -> LayoutGraph:
    changes = dict.fromkeys(possible_changes(program, seconds), change_s)
    return LayoutGraph.of(program, seconds, changes)


def test_a_chain_changes_layout_where_that_gains_more_than_it_costs() -> None:
    program = chain(3)
    seconds = {n: {OWN: 5e-6, EIGHT: 2e-6} for n in program.tuned_numbers()}
    forms, proof = graph(program, seconds, 4e-6).chosen()
    assert set(forms.values()) == {EIGHT}
    assert proof.seconds == pytest.approx(3 * 2e-6 + 2 * 4e-6)
    forms, proof = graph(program, seconds, 5e-6).chosen()
    assert set(forms.values()) == {OWN}
    assert proof.seconds == pytest.approx(3 * 5e-6)


def test_singles_have_every_operator_that_can_be_there() -> None:
    program = chain(3)
    first, second, third = program.tuned_numbers()
    seconds = {first: {OWN: 5e-6, EIGHT: 2e-6}, second: {OWN: 5e-6}, third: {OWN: 5e-6, EIGHT: 3e-6}}
    made = graph(program, seconds, 1e-6)
    forms = made.single(EIGHT)
    assert forms == {first: EIGHT, second: OWN, third: EIGHT}
    assert made.seconds(forms) == pytest.approx(10e-6 + 4 * 1e-6)
    assert made.num_changes(forms) == 4
    assert made.num_changes(made.single(OWN)) == 0


def test_what_is_written_to_a_part_of_another_map_is_copied_there_too() -> None:
    program = chain(1)
    [number] = program.tuned_numbers()
    view = program.add(MapView((number,), Value((1, 64, 4, 4), "float32", 16), ()))
    program.parts |= {number: PartOf(view, Part(0, 4)), view: PartOf(view, Part(0, 4))}
    [into] = [m for m in graph(program, {number: {OWN: 5e-6, EIGHT: 2e-6}}, 1e-6).maps if m.producer == 0]
    assert into.changes[EIGHT, OWN] == pytest.approx(2e-6)


def test_each_distinct_change_is_wanted_once() -> None:
    program = chain(4)
    seconds = {n: {OWN: 5e-6, EIGHT: 2e-6} for n in program.tuned_numbers()}
    assert set(possible_changes(program, seconds)) == {KEPT, FormChange(32, 16, 1, EIGHT, OWN)}


def test_lanes_and_type_are_not_changed_at_once() -> None:
    program = chain(2)
    first, second = program.tuned_numbers()
    seconds = {first: {OWN: 5e-6, EIGHT: 1e-6}, second: {OWN: 5e-6, HALVES: 1e-6}}
    made = graph(program, seconds, 0.0)
    pairs = {pair for value in made.maps for pair in value.changes}
    assert {(OWN, EIGHT), (OWN, HALVES), (EIGHT, OWN), (HALVES, OWN)} == pairs
    forms, proof = made.chosen()
    assert sum(form != OWN for form in forms.values()) == 1
    assert proof.seconds == pytest.approx(6e-6)
