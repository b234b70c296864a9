"""chanas/prescheduler/tuning/offline/exchange/t1.py: tuning problems of others, and our spaces as such."""

from __future__ import annotations

import ast
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.compiler.backends import schedule_space
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Workload
from chanas.prescheduler.tuning.offline.exchange.t1 import (
    Value,
    configuration_of,
    lists_points,
    point_of,
    problem_of,
    read_problem,
    values_of,
)

from .....compiler.cuda_cases import GPU
from .....compiler.workbench import DEVICES, workloads
from ..records import ONE, TWO, WORKLOADS
from .others import problem


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[1, 2, 4]", (1, 2, 4)),
        (" (1, 2.5) ", (1, 2.5)),
        ("['a', \"b\"]", ("a", "b")),
        ("[True, False]", (True, False)),
        ("[-1, 1]", (-1, 1)),
        ("[i for i in range(3, 9, 2)]", (3, 5, 7)),
        ("[16*i for i in range(1, 4)]", (16, 32, 48)),
        ("[2**i for i in range(4)]", (1, 2, 4, 8)),
        ("[128+64*i for i in range(2)]", (128, 192)),
        ("[64//x for x in [1, 2]]", (64, 32)),
        ("list(range(3))", (0, 1, 2)),
        ("[1, 1, 2]", (1, 2)),
        ("[f(i) for i in range(3)]", None),
        ("__import__('os').system('true')", None),
        ("[i for i in range(3) if i]", None),
        ("[9**9**9]", None),
        ("[2**i for i in [-1]]", None),
        ("[1/0]", None),
        ("range(10**9)", None),
        ("['a'*10]", None),
        ("[i for i in range(2) for j in range(2)]", None),
    ],
)
def test_values_are_computed_without_being_run(text: str, values: tuple[Value, ...] | None) -> None:
    assert values_of(text) == values


@pytest.mark.parametrize("text", ["", "[]", "[1,", "x = 3", "\0", "[1]" + " " * (1 << 20)])
def test_what_lists_no_values_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Values"):
        values_of(text)


def test_expressions_inside_each_other_end_nothing() -> None:
    assert values_of("[" + "-" * 5000 + "1]") is None


def test_a_problem_is_read() -> None:
    data = problem(block="[32, 64]", tile="[1, 2, 4]")
    data["ConfigurationSpace"]["Conditions"] = [{"Parameters": ["block"], "Expression": "block > 1"}]
    found = read_problem(data)
    assert (found.kernel, found.language, found.device) == ("add", "CUDA", "RTX A4000")
    assert (found.names, found.num_combinations, found.conditions) == ({"block", "tile"}, 6, ("block > 1",))
    assert read_problem(problem(block="[f(1)]")).num_combinations is None


def without(data: dict[str, Any], *path: str) -> dict[str, Any]:
    inner = data
    for part in path[:-1]:
        inner = inner[part]
    del inner[path[-1]]
    return data


def with_parameter(**changes: Any) -> dict[str, Any]:
    data = problem(block="[1]")
    data["ConfigurationSpace"]["TuningParameters"][0] |= changes
    return data


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([], "an object for a tuning problem"),
        (without(problem(), "ConfigurationSpace"), "an object for ConfigurationSpace"),
        (without(problem(), "ConfigurationSpace", "TuningParameters"), "a list for TuningParameters"),
        (without(problem(), "KernelSpecification"), "an object for KernelSpecification"),
        *(
            (without(problem(), "KernelSpecification", name), name)
            for name in ("Language", "KernelName", "KernelFile", "GlobalSize", "LocalSize")
        ),
        (without(problem(), "KernelSpecification", "LocalSize", "X"), "LocalSize.X"),
        (with_parameter(Name=3), "a parameter's Name"),
        (with_parameter(Type="tensor"), "one of int, uint, float, bool, string for Type of block, got tensor"),
        (with_parameter(Values=[1, 2]), "a text for Values of block"),
        (problem() | {"KernelSpecification": problem()["KernelSpecification"] | {"Language": "C"}}, "got C"),
        (problem() | {"chanas": 3}, "an object for chanas"),
        ({**problem(a="[1]"), "ConfigurationSpace": {"TuningParameters": [], "Conditions": [3]}}, "a condition"),
    ],
)
def test_what_the_schema_does_not_allow_is_refused(data: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        read_problem(data)


def test_two_parameters_of_one_name_are_refused() -> None:
    data = problem(block="[1]")
    data["ConfigurationSpace"]["TuningParameters"] *= 2
    with pytest.raises(ValueError, match="different names"):
        read_problem(data)


def listed_points(condition: str) -> list[tuple[Value, ...]]:
    """The tuples of a condition `(a, b,) in [...]`."""
    return list(ast.literal_eval(condition.partition(" in ")[2]))


@given(workload=workloads, target=st.sampled_from(list(DEVICES.values())))
def test_a_point_is_a_configuration_and_back(workload: Workload, target: HardwareTarget) -> None:
    space = schedule_space(workload, target)
    for point in space.points[:20]:
        assert point_of(space, configuration_of(space, point)) == point


@pytest.mark.parametrize("target", [ONE, TWO], ids=["one thread", "two"])
def test_our_space_is_a_problem_of_the_same_points(target: HardwareTarget) -> None:
    space = schedule_space(WORKLOADS[0], target)
    found = read_problem(problem_of(space, False, "a CPU", {"workload": "w"}))
    assert (found.kernel, found.device, found.own) == (WORKLOADS[0].key, "a CPU", {"workload": "w"})
    assert [p.name for p in found.parameters] == [c.name for c in space.coordinates]
    assert found.num_combinations == space.num_combinations
    [condition] = found.conditions
    combinations = itertools.product(*(p.values or () for p in found.parameters))
    names = [p.name for p in found.parameters]
    legal = {c for c in combinations if point_of(space, dict(zip(names, c, strict=True))) is not None}
    assert legal == set(listed_points(condition))
    assert len(legal) == space.num_points


def test_a_space_that_cannot_be_listed_has_no_condition() -> None:
    space = schedule_space(Workload("pointwise", 14, 96, 192, epilogue="relu"), GPU)
    assert not lists_points(space)
    assert read_problem(problem_of(space, True, "a GPU", {})).conditions == ()


@pytest.mark.parametrize(
    "change",
    [
        {"split_m": "14x15"},
        {"split_m": "14"},
        {"split_m": "-14x-14"},
        {"split_m": "014x14"},
        {"split_m": 196},
        {"split_m": None},
        {"order": True},
        {"order": "1"},
        {"order": 7},
    ],
)
def test_other_values_are_no_point(change: dict[str, Any]) -> None:
    space = schedule_space(WORKLOADS[0], ONE)
    at = configuration_of(space, space.middle)
    assert point_of(space, {**at, **change}) is None
