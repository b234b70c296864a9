"""benchmarks/shipped_schedules.py: seconds of tuning become minutes of all steps, and rows become figures."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

STEPS = {"open": 4.0, "read": 1.0, "simplify": 0.5, "lower": 0.5, "answer": 1.0, "first build": 3.0, "tune": 9.0}


@pytest.fixture
def script(load: Any) -> ModuleType:
    module: ModuleType = load("shipped_schedules")
    return module


def test_a_tuning_has_its_seconds_besides_what_comes_before_and_after(script: ModuleType) -> None:
    assert script.minutes_of(15.0, STEPS) == pytest.approx((10.0 + 15.0 + 3.0) / 60.0)


def test_figures_have_every_way_and_the_goal_is_of_one(script: ModuleType) -> None:
    ways = {"shipped-0s": 1.2, "shipped-15s": 1.04, "cold-15s": 1.5, "long": 1.0}
    row = {"network": "mobilenet_v2", "operators": 40, "known": 30}
    figures = script.figures_of([row | {way: {"over_best": ratio} for way, ratio in ways.items()}])
    assert {name: (figure.value, figure.met) for name, figure in figures.items()} == {
        "mobilenet_v2_shipped-0s_over_best": (1.2, None),
        "mobilenet_v2_shipped-15s_over_best": (1.04, True),
        "mobilenet_v2_cold-15s_over_best": (1.5, None),
        "mobilenet_v2_known_operators": (0.75, None),
    }
