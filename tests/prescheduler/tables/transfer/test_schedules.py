"""chanas/prescheduler/tables/transfer/schedules.py: what a tile becomes where vectors are shorter or longer."""

from __future__ import annotations

import dataclasses

import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point
from chanas.core.target import HardwareTarget
from chanas.operators.steps import device_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tables.transfer.schedules import (
    choose_untried,
    known_schedules,
)

from ....compiler.workbench import NEON, device, random_lut
from .devices import BLOCKS, SPACE

WIDE, NARROW = device(lanes=16), device(lanes=8)
LUT = random_lut(SPACE, BLOCKS[:6], WIDE)


def test_a_schedule_of_the_same_vectors_stays_what_it_is() -> None:
    same = known_schedules(BLOCKS[:8], LUT, dataclasses.replace(WIDE, name="other", fingerprint="other"))
    assert same.rows == {b.key: LUT.rows[b.key].schedules for b in BLOCKS[:6]}
    assert not same.are_mapped


def test_with_more_threads_a_schedule_is_the_first_that_says_the_same() -> None:
    two = dataclasses.replace(WIDE, name="cpu-2t", num_threads=2)
    known = known_schedules(BLOCKS[:8], LUT, two)
    assert (known.rows.keys(), known.are_mapped) == ({b.key for b in BLOCKS[:6]}, False)
    for block in BLOCKS[:6]:
        for workload, (_, there), (_, here) in zip(
            device_workloads(block, two), LUT.rows[block.key].schedules, known.rows[block.key], strict=True
        ):
            space, named = schedule_space(workload, two), schedule_space(workload, WIDE).groups(there)
            assert here == next(p for p in space.points if named.items() <= space.groups(p).items())


def test_where_spaces_agree_in_another_dtype_each_schedule_stands_for_one() -> None:
    bf16 = dataclasses.replace(WIDE, name="cpu-2t-bf16", num_threads=2, dtype="bfloat16")
    known = known_schedules(BLOCKS[:6], LUT, bf16)
    found: dict[Workload, set[Point]] = {}
    for block in BLOCKS[:6]:
        for workload, (_, point) in zip(device_workloads(block, bf16), LUT.rows[block.key].schedules, strict=True):
            found.setdefault(workload, set()).add(point)
    depthwise = [w for w in found if w.op == "depthwise"]
    assert depthwise
    assert all(len(known.suggestions[w]) <= len(found[w]) + 1 for w in depthwise)  # and the one that promises most


@pytest.mark.parametrize("target", [NARROW, NEON, dataclasses.replace(WIDE, dtype="bfloat16")])
def test_suggestions_begin_with_what_rows_have(target: HardwareTarget) -> None:
    known = known_schedules(BLOCKS[:8], LUT, target)
    assert known.are_mapped
    assert known.rows.keys() == {b.key for b in BLOCKS[:6]}
    of_key = {w.key: points for w, points in known.suggestions.items()}
    for schedules in known.rows.values():
        for key, point in schedules:
            assert point in of_key[key]
            assert len(of_key[key]) == len(set(of_key[key]))


def test_untried_blocks_get_what_was_found_for_them_then_for_others_then_what_is_known() -> None:
    known = known_schedules(BLOCKS[:6], LUT, NARROW)
    workloads = {w.key: w for w in known.suggestions}
    depthwise = [w for w in workloads.values() if w.op == "depthwise"]
    space = schedule_space(depthwise[0], NARROW)
    tuned = {depthwise[0]: [TuningRecord(space.points[-1], 1e-6)]}
    chosen = choose_untried(BLOCKS[:6], known, NARROW, tuned)
    found = {key: point for schedules in chosen.rows.values() for key, point in schedules}
    assert found[depthwise[0].key] == space.points[-1]
    assert chosen.taken_over == dict.fromkeys(depthwise[1:], depthwise[0])
    assert all(found[key] in known.suggestions[w] for key, w in workloads.items() if w.op != "depthwise")


def test_an_operator_that_nothing_is_known_of_has_one_schedule_in_all_blocks() -> None:
    lut = random_lut(SPACE, BLOCKS, WIDE)
    known = known_schedules(BLOCKS, lut, NARROW)
    rows = choose_untried(BLOCKS, known, NARROW, {}).rows
    for some, num in ((known.rows, 2), (rows, 1)):
        points: dict[str, set[Point]] = {}
        for schedules in some.values():
            for key, point in schedules:
                points.setdefault(key, set()).add(point)
        assert (max(map(len, points.values())) == 1) == (num == 1)
