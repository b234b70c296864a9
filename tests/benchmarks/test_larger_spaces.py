"""benchmarks/larger_spaces.py: larger spaces hold the own ones, and a faster point in one of them misses the goal."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from chanas.compiler.backends import has_schedules, schedule_space
from chanas.compiler.knobs import extended, read_knobs
from chanas.devices.host import load_target


@pytest.fixture
def larger_spaces(load: Any) -> ModuleType:
    module: ModuleType = load("larger_spaces")
    return module


def test_own_points_are_points_of_the_larger_space(larger_spaces: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "larger.yaml"
    file.write_text(yaml.safe_dump(larger_spaces.LARGER))
    target = load_target("cpu")
    for workload in (w for w in larger_spaces.OPERATORS if has_schedules(w, target)):
        own = schedule_space(workload, target)
        larger = read_knobs(file).apply(own)
        assert own.num_points <= larger_spaces.NUM_OWN
        assert larger.num_points > 16 * own.num_points
        assert larger.contains(extended(own.middle, larger))


def test_a_row_without_a_point_that_works_has_no_figure(larger_spaces: ModuleType) -> None:
    rows = [
        {"family": "conv", "own_s": 1.03, "larger_s": 1.0},
        {"family": "upconv", "own_s": 1.0, "larger_s": 1.25},
        {"family": "winograd", "own_s": 1.0, "larger_s": None},
    ]
    found = larger_spaces.figures_of(rows)
    assert {name: (figure.value, figure.met) for name, figure in found.items()} == {
        "conv_own_over_larger": (pytest.approx(1.03), False),
        "upconv_own_over_larger": (pytest.approx(0.8), True),
    }
