"""benchmarks/trials_of_one_operator.py: what curves say after so many trials, and of one device and two."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def script(load: Any) -> ModuleType:
    module: ModuleType = load("trials_of_one_operator")
    return module


def row(*curve: tuple[int, float], seconds: float = 1.0) -> dict[str, Any]:
    return {"curve": list(curve), "seconds": seconds, "failed": 0}


def test_the_best_is_that_of_the_trials_so_far(script: ModuleType) -> None:
    found = row((1, 10.0), (600, 20.0))
    assert [script.best_after(found, num) for num in (0, 500, 1000)] == [0.0, 10.0, 20.0]


def test_shares_are_of_what_the_longest_tuning_reached(script: ModuleType) -> None:
    figures = script.budget_figures([row((1, 10.0), (600, 20.0)), row((1, 40.0))], (500, 1000))
    assert figures["gflops_500"].value == pytest.approx(25.0)
    assert figures["gflops_1000"].value == pytest.approx(30.0)
    assert figures["share_500"].value == pytest.approx(0.5**0.5)
    assert figures["share_1000"].value == pytest.approx(1.0)


def test_two_devices_are_compared_in_seconds_and_in_what_they_find(script: ModuleType) -> None:
    pairs = [(row((1, 10.0), seconds=8.0), row((1, 11.0), seconds=4.0)), (row((1, 10.0)), row((1, 10.0), seconds=0.5))]
    figures = script.device_figures(pairs, 4)
    assert figures["two_devices_speedup"].value == pytest.approx(2.0)
    assert figures["two_devices_best_ratio"].value == pytest.approx(1.1**0.5)


@pytest.mark.slow
def test_an_operator_is_tuned_in_a_space_without_rules(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    script.main(["--quick", "--operator", "pointwise-4px-16x32-k1s1-relu-float32", "--tuner", "random"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["gflops_8"]["value"] >= figures["gflops_4"]["value"] > 0.0
