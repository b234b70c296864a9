"""benchmarks/layouts.py: its figures from rows of its table."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from chanas.compiler.program import Form


@pytest.fixture
def layouts(load: Any) -> ModuleType:
    module: ModuleType = load("layouts")
    return module


def row(network: str, gain: float, saved: float, ratio: float) -> dict[str, Any]:
    families = {"pointwise": {"16": {"ratio": 1.0}, "8": {"ratio": ratio}}}
    facts = {"families": families, "copies": {"saved_without_copies": saved}, "gain_at_equal_trials": gain / 1.1}
    return {"network": network, "gain": gain, "gain_of_sums": 1.0 + saved / 2, "solve_s": 0.1, **facts}


def test_gains_are_of_all_networks_and_the_longest_proof_counts(layouts: ModuleType) -> None:
    rows = [row("a", 1.21, 0.1, 1.0), row("b", 1.0, 0.3, 4.0)]
    figures = layouts.figures_of(rows, [{"solve_s": 1.5}])
    assert figures["a_joint_gain"].value == 1.21
    assert figures["joint_gain"].value == pytest.approx(1.1)
    assert figures["gain_at_equal_trials"].value == pytest.approx(1.0)
    assert figures["least_joint_gain"].value == 1.0
    assert figures["least_joint_gain"].met
    assert figures["saved_without_copies"].value == pytest.approx(0.2)
    assert figures["pointwise_8_over_own"].value == pytest.approx(2.0)
    assert not figures["most_solve_s"].met
    assert layouts.figures_of(rows, [])["most_solve_s"].met


def test_a_choice_that_is_slower_beyond_the_noise_misses_the_goal(layouts: ModuleType) -> None:
    assert not layouts.figures_of([row("a", 0.9, 0.0, 1.0)], [])["least_joint_gain"].met


def test_families_say_where_their_operators_are_fastest(layouts: ModuleType) -> None:
    def operator(op: str) -> Any:
        return SimpleNamespace(step=SimpleNamespace(workload=SimpleNamespace(op=op)))

    tuned = {1: operator("pointwise"), 2: operator("pointwise"), 3: operator("depthwise")}
    own = SimpleNamespace(program=SimpleNamespace(tuned_numbers=lambda: tuned))
    own_form, eight = Form(16), Form(8)
    seconds = {1: {own_form: 1.0, eight: 2.0}, 2: {own_form: 2.0, eight: 1.0}, 3: {own_form: 1.0}}
    found = layouts.families_of(SimpleNamespace(own=own_form, singles={own_form: own}, operators=seconds))
    assert found["pointwise"]["8"] == {"operators": 2, "ratio": pytest.approx(1.0), "fastest": 0.5}
    assert found["depthwise"] == {"16": {"operators": 1, "ratio": 1.0, "fastest": 1.0}}
