"""compiler/knobs.py: files that add candidates and knobs to schedule spaces, and points that are in no space."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from chanas.compiler.backends import schedule_operator, schedule_space
from chanas.compiler.knobs import changed_spaces, extended, read_knobs
from chanas.compiler.space import ScheduleSpace
from chanas.errors import ConfigError, ScheduleError
from chanas.operators.workload import Workload
from chanas.testing.families import OperatorBench, covering_points

from .cuda_cases import GPU
from .workbench import HOST

CONV = Workload("blockconv", 8, 16, 32, 3, 1, "relu")
OWN = schedule_space(CONV, HOST)


def changed(folder: Path, workload: Workload = CONV, **families: Any) -> ScheduleSpace:
    """The space of an operator with a file's changes."""
    file = folder / "knobs.yaml"
    file.write_text(yaml.safe_dump(families))
    return read_knobs(file).apply(schedule_space(workload, HOST))


def options(space: ScheduleSpace, name: str) -> set[tuple[int, ...]]:
    (coordinate,) = (c for c in space.coordinates if c.name == name)
    return set(coordinate.options)


def test_candidates_of_a_loop_are_its_innermost_factors(tmp_path: Path) -> None:
    space = changed(tmp_path, blockconv={"split_w": [8, 2], "split_h": [1]})
    assert options(space, "split_w") == {(1, 8), (4, 2)}
    assert options(space, "split_h") == {(8, 1, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1)}
    assert options(space, "split_n") == options(OWN, "split_n")
    assert set(space.points) <= set(OWN.points)


def test_candidates_of_a_choice_are_its_values(tmp_path: Path) -> None:
    assert options(changed(tmp_path, blockconv={"order": [1]}), "order") == {(1,)}


def test_without_rules_all_factors_are_candidates_and_all_points_legal(tmp_path: Path) -> None:
    space = changed(tmp_path, blockconv={"rules": False})
    assert options(space, "split_k") == {(16, 1), (8, 2), (4, 4), (2, 8), (1, 16)}
    assert space.num_points == space.num_combinations
    assert set(OWN.points) < set(space.points)


def test_candidates_of_which_no_combination_is_legal_are_refused(tmp_path: Path) -> None:
    odd = Workload("pointwise", 55, 64, 16, 1, 1, "relu")  # 3,025 pixels: of 1, 2 and 4 only 1 is a factor
    with pytest.raises(ConfigError, match=re.escape(f"is legal for {odd.key}, got none")):
        changed(tmp_path, odd, pointwise={"split_m": [1, 2, 4]})
    assert changed(tmp_path, odd, pointwise={"split_m": [1, 2, 4], "rules": False}).num_points > 0


def test_further_knobs_follow_in_points_and_stand_at_nothing_in_those_without(tmp_path: Path) -> None:
    space = changed(tmp_path, blockconv={"unroll_explicit": [0, 1]})
    assert space.length == OWN.length + 2
    assert [c.name for c in space.coordinates[-2:]] == ["auto_unroll", "unroll_explicit"]
    point = extended(OWN.middle, space)
    assert point == (*OWN.middle, 0, 0)
    assert space.contains(point)
    assert not space.contains(OWN.middle)
    assert OWN.means(point)
    assert not OWN.contains(point)


def test_a_family_without_a_change_and_knobs_that_it_lacks_stay_as_they_are(tmp_path: Path) -> None:
    assert changed(tmp_path, conv={"order": [1]}) == OWN
    assert changed(tmp_path, all={"split_m": [3]}) == OWN
    assert options(changed(tmp_path, all={"order": [0]}), "order") == {(0,)}


def test_a_space_that_is_too_large_to_be_listed_is_drawn_from(tmp_path: Path) -> None:
    wide = Workload("blockconv", 96, 512, 512, 3, 1, "relu")
    space = changed(tmp_path, wide, blockconv={"rules": False, "auto_unroll": [0, 16, 64]})
    assert not space.is_listed
    points = space.sample(50, np.random.default_rng(0))
    assert len(set(points)) == 50
    assert all(space.contains(point) for point in points)
    assert points == space.sample(50, np.random.default_rng(0))
    assert space.contains(space.middle)


def test_whatever_divides_the_loops_is_a_program_that_computes_the_same(tmp_path: Path) -> None:
    space = changed(tmp_path, blockconv={"rules": False, "auto_unroll": [0, 512], "unroll_explicit": [0, 1]})
    points = covering_points(space, np.random.default_rng(3))[:12]
    assert any(not OWN.contains(point[: OWN.length]) for point in points)
    with OperatorBench(tmp_path) as bench:
        assert bench.wrong((CONV, HOST), points) == {}


def test_a_further_knob_changes_the_program() -> None:
    plain, unrolled = ((*OWN.middle, steps, 0) for steps in (0, 64))
    assert schedule_operator(CONV, plain, HOST).script() == schedule_operator(CONV, OWN.middle, HOST).script()
    assert "pragma_auto_unroll_max_step" in schedule_operator(CONV, unrolled, HOST).script()


@pytest.mark.parametrize("point", [(*OWN.middle, -1), (*OWN.middle, 0, 0, 0), OWN.middle[:-1], (0, *OWN.middle[1:])])
def test_what_is_no_schedule_is_refused(point: tuple[int, ...]) -> None:
    assert not OWN.means(point)
    with pytest.raises(ScheduleError, match=CONV.key):
        schedule_operator(CONV, point, HOST)


def test_of_a_gpu_only_points_within_its_limits_are_schedules() -> None:
    space = schedule_space(Workload("pointwise", 14, 96, 192), GPU)
    assert space.means(space.middle)
    assert not space.means((*space.middle, 0))


@pytest.mark.parametrize(
    ("families", "says"),
    [
        ({"blockcon": {"order": [1]}}, "unknown family 'blockcon'; known: all, blockconv, "),
        ({"blockconv": {"split_z": [1]}}, "blockconv: unknown knob 'split_z'; known: auto_unroll, "),
        ({"blockconv": [1]}, "expected knobs with their candidates for blockconv, got [1]"),
        ({"blockconv": {"order": 1}}, "blockconv: expected candidates of order as whole numbers, got 1"),
        ({"blockconv": {"order": []}}, "blockconv: expected candidates of order as whole numbers, got []"),
        ({"blockconv": {"order": [1.5]}}, "blockconv: expected candidates of order as whole numbers, got [1.5]"),
        ({"blockconv": {"order": [True]}}, "blockconv: expected candidates of order as whole numbers, got [True]"),
        ({"blockconv": {"rules": "no"}}, "blockconv: expected rules true or false, got 'no'"),
        ({"blockconv": {"split_h": [3]}}, f"none of the candidates [3] for split_h is one of {CONV.key}; its own: [1"),
    ],
)
def test_a_file_that_says_something_else_is_refused_by_name(
    families: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        changed(tmp_path, **families)


def test_spaces_of_gpus_do_not_change(tmp_path: Path) -> None:
    workload = Workload("pointwise", 14, 96, 192)
    file = tmp_path / "knobs.yaml"
    file.write_text("all: {auto_unroll: [0, 16]}")
    with pytest.raises(ConfigError, match="--knobs changes spaces of processors"):
        changed_spaces([workload], GPU, file)
