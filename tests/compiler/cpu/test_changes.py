"""chanas/compiler/cpu/changes.py: maps copied to blocks of other lanes or in another type have the nearest numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tvm

from chanas.compiler.cases import change_case
from chanas.compiler.cpu.build import build_function
from chanas.compiler.cpu.changes import changing
from chanas.compiler.program import Form, FormChange
from chanas.core.target import LAYOUTS, HardwareTarget
from chanas.devices.timing import TimingSettings
from chanas.errors import ScheduleError
from chanas.measuring.candidates import Candidate
from chanas.operators.layout import Blocks

from ..workbench import HOST, Workbench, device, needs_bfloat16, needs_int8

PAIRS = [(Form(a), Form(b)) for a in LAYOUTS for b in LAYOUTS if a != b]
HALVES = Form(16, "bfloat16")
NUMBERS = [Form(lanes, "int8") for lanes in (4, 8, 16)]
CHANNELS = (3, 8, 24, 40, 64, 100)
QUICK = TimingSettings(repeats=1, min_repeat_s=1e-6)


def test_every_change_gives_what_numpy_packs(workbench: Workbench) -> None:
    """Each is compiled and compared in a worker, as before it is timed."""
    assert_right(workbench, [FormChange(channels, 7, 2, *pair) for pair in PAIRS for channels in CHANNELS])


@needs_bfloat16
def test_every_change_of_type_gives_the_nearest_numbers(workbench: Workbench) -> None:
    pairs = ((Form(16), HALVES), (HALVES, Form(16)))
    assert_right(workbench, [FormChange(channels, 7, 2, *pair) for pair in pairs for channels in CHANNELS])


@needs_int8
@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
def test_whole_numbers_are_the_nearest_on_their_grid(numbers: Form, workbench: Workbench) -> None:
    pairs = ((Form(numbers.lanes), numbers), (numbers, Form(numbers.lanes)))
    changes = [FormChange(channels, 7, 2, *pair) for pair in pairs for channels in CHANNELS]
    assert_right(workbench, changes, device(numbers.lanes))


LARGE = 64, 400
"""Channels and pixels of a map that is shared out among threads."""


@pytest.mark.parametrize(
    "number",
    [pytest.param(HALVES, marks=needs_bfloat16), *(pytest.param(n, marks=needs_int8) for n in NUMBERS)],
    ids=str,
)
def test_large_maps_change_type_on_several_threads(number: Form, workbench: Workbench) -> None:
    pairs = ((Form(number.lanes), number), (number, Form(number.lanes)))
    changes = [FormChange(*LARGE, 2, *pair) for pair in pairs]
    assert_right(workbench, changes, device(number.lanes, num_threads=2))


@needs_bfloat16
def test_between_bfloat16_and_whole_numbers_stands_no_other_type(workbench: Workbench) -> None:
    pairs = ((HALVES, Form(16, "int8")), (Form(16, "int8"), HALVES))
    changes = [FormChange(channels, 7, 2, *pair) for pair in pairs for channels in CHANNELS]
    assert_right(workbench, changes, device(16))


def test_lanes_and_type_are_not_changed_at_once() -> None:
    with pytest.raises(ScheduleError, match="a change of lanes or of type, got 8 to 16-bfloat16"):
        changing(FormChange(32, 7, 1, Form(8), HALVES), HOST)


def assert_right(workbench: Workbench, changes: list[FormChange], target: HardwareTarget = HOST) -> None:
    candidates = [
        Candidate(
            token=number,
            what=change,
            target=target,
            library=workbench.path(".so"),
            case=workbench.save(change_case(change)),
            settings=QUICK,
        )
        for number, change in enumerate(changes)
    ]
    assert [o.error for o in workbench.run(candidates)] == [None] * len(changes)


def test_a_wrong_copy_is_an_error(workbench: Workbench) -> None:
    change = FormChange(24, 7, 1, Form(16), Form(8))
    case = change_case(change)
    other = dataclasses.replace(case, expected=case.expected + np.float32(1e-6))
    candidate = Candidate(
        token=0, what=change, target=HOST, library=workbench.path(".so"), case=workbench.save(other), settings=QUICK
    )
    [outcome] = workbench.run([candidate])
    assert (outcome.error or "").startswith("wrong result")


@pytest.mark.parametrize(("before", "after"), [(16, 8), (8, 32)])
@pytest.mark.parametrize("parallel", [False, True])
def test_there_and_back_is_the_same_map(before: int, after: int, parallel: bool, tmp_path: Path) -> None:
    there = FormChange(200, 90, 1, Form(before), Form(after))
    back = dataclasses.replace(there, before=there.after, after=there.before)
    values = np.random.default_rng(0).standard_normal((1, 200, 90), dtype=np.float32)
    found = Blocks(before).pack(values)
    for number, change in enumerate((there, back)):
        target = dataclasses.replace(HOST, num_threads=2 if parallel else 1)
        build_function(changing(change, target), HOST, tmp_path / f"{number}.so")
        out = tvm.runtime.tensor(np.full(Blocks(change.after.lanes).shape(200, 90), np.nan, np.float32))
        tvm.runtime.load_module(str(tmp_path / f"{number}.so"))["main"](tvm.runtime.tensor(found), out)
        found = out.numpy()
    np.testing.assert_array_equal(found, Blocks(before).pack(values))


def test_keys_of_changes_differ() -> None:
    changes = [FormChange(c, m, i, *pair) for c in (8, 16) for m in (1, 49) for i in (1, 2) for pair in PAIRS]
    assert len({change.key for change in changes}) == len(changes)
