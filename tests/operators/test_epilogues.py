"""chanas/operators/epilogues.py: what names are epilogues."""

from __future__ import annotations

import pytest

from chanas.errors import ScheduleError
from chanas.operators.epilogues import PLAIN, check_epilogue, leaky_slope, value_at_zero
from chanas.operators.workload import Workload


@pytest.mark.parametrize("epilogue", [*PLAIN, "leaky0.1", "leaky0.01", "leaky1e-05"])
def test_epilogues_are_known_by_name(epilogue: str) -> None:
    check_epilogue(epilogue)
    assert f"-{epilogue}-" in Workload("pointwise", 7, 16, 16, epilogue=epilogue).key


def test_a_leaky_relu_has_its_slope_in_its_name() -> None:
    assert leaky_slope("leaky0.25") == 0.25
    assert leaky_slope("relu") is None


@pytest.mark.parametrize("epilogue", ["leaky", "leaky0.10", "leaky0", "leaky1", "leaky-0.1", "leakynan", "leakyrelu"])
def test_a_slope_is_a_number_between_0_and_1_in_its_shortest_form(epilogue: str) -> None:
    with pytest.raises(
        ScheduleError, match=f"expected a slope between 0 and 1 such as leaky0.1, got epilogue {epilogue}"
    ):
        Workload("pointwise", 7, 16, 16, epilogue=epilogue)


def test_an_unknown_epilogue_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ScheduleError, match=r"unknown epilogue mish; there are none, relu, .*gelu and leaky0\.1"):
        Workload("pointwise", 7, 16, 16, epilogue="mish")


def test_gates_are_half_open_where_nothing_comes_in() -> None:
    assert {epilogue for epilogue in PLAIN if value_at_zero(epilogue)} == {"sigmoid", "hsigmoid"}
