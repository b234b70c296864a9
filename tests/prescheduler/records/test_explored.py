"""prescheduler/records/explored.py: knobs and candidates of a space, and what records say of each."""

from __future__ import annotations

import dataclasses

import pytest

from chanas.compiler.backends import schedule_space
from chanas.operators.workload import Workload
from chanas.prescheduler.records.explored import ExploredSpace, explored
from chanas.prescheduler.records.store import TuningRecord
from chanas.testing.spaces import LARGE, TARGET, failure, smooth

FAST, SLOW, FAILED = LARGE.points[3], LARGE.points[-4], LARGE.points[10]


def of(*records: TuningRecord) -> ExploredSpace:
    return explored(LARGE, TARGET, records)


def tried(space: ExploredSpace, name: str) -> dict[tuple[int, ...], tuple[int, float | None, bool]]:
    """Tries, least seconds, and whether the best point has it, of the candidates of a knob that were tried."""
    (knob,) = (k for k in space.knobs if k.name == name)
    return {c.values: (c.num_tried, c.best_s, c.is_best) for c in knob.candidates if c.num_tried}


def test_knobs_are_the_coordinates_with_all_their_options() -> None:
    knobs = {knob.name: [c.values for c in knob.candidates] for knob in of().knobs}
    assert knobs == {c.name: list(c.options) for c in LARGE.coordinates}
    assert of().num_points == len(LARGE.points)
    assert (of().num_tried, of().num_failed, of().best, of().best_gflops) == (0, 0, None, None)


def test_a_candidate_has_the_least_seconds_of_the_points_that_have_it() -> None:
    space = of(TuningRecord(FAST, 1e-6), TuningRecord(SLOW, 3e-6), failure(FAILED))
    assert (space.num_tried, space.num_failed) == (3, 1)
    for name, values in LARGE.groups(FAST).items():
        num = sum(LARGE.groups(p)[name] == values for p in (FAST, SLOW, FAILED))
        assert tried(space, name)[values] == (num, 1e-6, True)
    name = next(n for n, values in LARGE.groups(SLOW).items() if values != LARGE.groups(FAST)[n])
    assert tried(space, name)[LARGE.groups(SLOW)[name]][1:] == (3e-6, False)


def test_points_that_were_measured_again_count_by_that() -> None:
    again = dataclasses.replace(TuningRecord(FAST, 1e-6), again_s=2e-6)
    other = dataclasses.replace(TuningRecord(SLOW, 1.01e-6), again_s=1e-6)
    best = of(again, other).best
    assert best is not None
    assert best.point == SLOW
    assert of(again, other).best_gflops == pytest.approx(LARGE.workload.num_flops / 1e-6 / 1e9)


def test_points_that_work_have_the_numbers_of_their_candidates_and_gflops() -> None:
    space = of(TuningRecord(FAST, 1e-6), failure(FAILED))
    ((candidates, speed),) = space.points
    groups = [knob.candidates[number].values for knob, number in zip(space.knobs, candidates, strict=True)]
    assert groups == list(LARGE.groups(FAST).values())
    assert speed == pytest.approx(LARGE.workload.num_flops / 1e-6 / 1e9)


def test_points_of_another_space_are_left_aside() -> None:
    assert of(smooth((1, 2, 3))).num_tried == 0


def test_lines_mark_the_candidates_of_the_best_point() -> None:
    text = "\n".join(of(TuningRecord(FAST, 1e-6), TuningRecord(SLOW, 3e-6)).lines())
    speed = f"{LARGE.workload.num_flops / 1e-6 / 1e9:.1f}"
    assert f"best       {speed} GFLOP/s (1 us), point {list(FAST)}" in text
    assert text.count(f"({speed})*") == len(LARGE.coordinates)


def test_a_space_that_is_too_large_has_no_number_of_points() -> None:
    from ...compiler.cuda_cases import GPU

    large = schedule_space(Workload("pointwise", 14, 96, 192), GPU)
    space = explored(large, GPU)
    assert space.num_points is None
    assert space.to_json()["num_points"] is None
    assert f"< {large.num_combinations:,}" in space.line()
