"""chanas/prescheduler/tuning/offline/exchange/t4.py and kernels.py: results of Kernel Tuner and the like."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from chanas.errors import ChanasError
from chanas.prescheduler.tuning.offline.exchange.kernels import (
    Own,
    describe_problem,
    describe_results,
    measured_results,
)
from chanas.prescheduler.tuning.offline.exchange.t1 import read_problem
from chanas.prescheduler.tuning.offline.exchange.t4 import read_results

from ..records import ONE, WORKLOADS
from .others import padded, problem, result, results, sequence

AT = {"block": 64, "tile": 2}
VALUES = {"block": "[32, 64]", "tile": "[1, 2]"}


@pytest.mark.parametrize(
    ("found", "seconds"),
    [
        (result(AT), 5e-4),
        (result(AT, 0.5, unit=""), 5e-4),
        (result(AT, [1.0, 2.0]), 1.5e-3),
        (result(AT, 7, unit="us"), 7e-6),
        (result(AT, 7, unit="seconds"), 7.0),
        (result(AT, 7, name="duration", unit="ns"), 7e-9),
        (result(AT, 0.5, objectives=["GFLOP/s"]), 5e-4),
        (result(AT, 0.5, objectives=[]), 5e-4),
    ],
)
def test_seconds_are_those_of_the_objective_or_of_the_time(found: Any, seconds: float) -> None:
    [read] = read_results(results(found), Counter())
    assert read.seconds == pytest.approx(seconds)


def test_times_without_a_unit_are_in_that_of_the_file() -> None:
    [read] = read_results(results(result(AT, 3, unit=""), metadata={"timeunit": "microseconds"}), Counter())
    assert read.seconds == pytest.approx(3e-6)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        *((result(AT, invalidity=word), f"that failed ({word})") for word in ("timeout", "compile", "constraints")),
        (result(AT, "InvalidConfig"), "without a time among their measurements"),
        (result(AT, 12, name="GFLOP/s", unit="GFLOP/s"), "without a time among their measurements"),
        (result(AT, measurements=[]), "without a time among their measurements"),
        (result(AT, 0.0), "without seconds that something can have taken"),
    ],
)
def test_results_of_no_use_are_counted(found: Any, reason: str) -> None:
    skipped: Counter[str] = Counter()
    assert len(read_results(results(result(AT), found), skipped)) == 1
    assert skipped == {reason: 1}


def test_results_of_another_schema_are_counted() -> None:
    skipped: Counter[str] = Counter()
    assert read_results(results(result(AT), schema_version="2.0.0"), skipped) == []
    assert skipped == {"of another version of the schema than 1.0.0 (2.0.0)": 1}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([], "an object for results of a tuning"),
        ({"schema_version": "one", "results": []}, "schema_version"),
        ({"results": 3}, "a list for results"),
        (results(3), r"results\[0\]: expected an object for a result"),
        (results(result(AT), result([])), r"results\[1\]: expected an object for configuration"),
        (results(result({"a": [1]})), "a number, a truth or a text for a"),
        (results(result(AT, times=None)), "an object for times"),
        (results(result(AT, times={"runtimes": 3})), "a list for runtimes"),
        (results(result(AT, invalidity="perhaps")), "one of timeout, compile, .* for invalidity, got perhaps"),
        (results(result(AT, correctness="yes")), "a number for correctness"),
        (results(result(AT, measurements=[{"value": 3}])), "a measurement's name"),
        (results(result(AT, {"fast": True})), "a number for a time"),
        (results(result(AT, objectives=[3])), "an objective"),
        (results(metadata=[]), "an object for metadata"),
    ],
)
def test_what_the_schema_does_not_allow_is_refused(data: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        read_results(data, Counter())


def measured(found: list[Any], of: Any = None, name: str = "add") -> tuple[list[Any], Counter[str]]:
    skipped: Counter[str] = Counter()
    read = read_results(results(*found), skipped)
    return list(measured_results(read, of and read_problem(of), name, skipped)), skipped


def test_a_configuration_is_a_point_of_places_and_a_row_of_numbers() -> None:
    [record], skipped = measured([result(AT)], problem(**VALUES))
    assert (record.workload, record.op, record.point) == ("add", "kernel", (1, 1))
    assert (record.source.target.device, record.source.target.name) == ("RTX A4000", "cuda")
    assert sequence(record.rows)[1:] == [("AN other", pytest.approx(padded(math.log2(65), math.log2(3))))]
    assert not skipped


def test_without_a_problem_the_values_are_those_that_occur() -> None:
    found, _ = measured([result({"mode": m, "n": n}) for m, n in (("b", -3), ("a", 0), ("b", 0))], name="file")
    assert [record.point for record in found] == [(1, 0), (0, 1), (1, 1)]
    assert found[0].workload == "file"
    assert sequence(found[0].rows)[1] == ("AN other", padded(1, -2))


def test_more_parameters_than_a_row_has_room_for_go_on_in_the_next() -> None:
    [record], _ = measured([result({f"p{i}": 1 for i in range(10)})])
    assert [row for _, row in sequence(record.rows)[1:]] == [padded(*[1] * 8), padded(1, 1)]


def test_values_that_the_problem_computes_in_a_way_unknown_here_are_those_that_occur() -> None:
    [record], _ = measured([result(AT)], problem(block="[f(1)]", tile="[1, 2]"))
    assert record.point == (0, 1)


def test_configurations_outside_the_space_are_counted() -> None:
    outside = [result({**AT, "block": 48}), result({"block": 64}), result({**AT, "third": 1})]
    found, skipped = measured([result(AT), *outside], problem(**VALUES))
    assert len(found) == 1
    assert skipped == {
        "of values that their space does not have": 1,
        "of other parameters than their space has": 2,
    }


def own(**changes: Any) -> dict[str, Any]:
    target = ONE.to_json()
    facts = {"workload": WORKLOADS[0].key, "device": "d", "compiler": "1", "spaces": 1, "target": target}
    return facts | changes


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({}, "workload is missing"),
        (own(spaces="1"), "spaces"),
        (own(target=3), "target"),
        (own(target=ONE.to_json() | {"vector_lanes": 1 << 40}), "usual sizes"),
        (own(target=ONE.to_json() | {"num_threads": 0}), "usual sizes"),
        (own(target=ONE.to_json() | {"device": "\x1b[2J"}), "can be printed"),
    ],
)
def test_facts_of_ours_that_are_none_are_refused(facts: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Own.read(facts)


@pytest.mark.parametrize(
    "key", ["no key", "pointwise-9999999px-32x96-k1s1-relu-float32", "squeeze-7px-32x32-k1s1-relu-float32"]
)
def test_an_operator_that_is_not_there_is_refused(key: str) -> None:
    with pytest.raises((ValueError, ChanasError), match="chanas: "):
        _ = Own.read(own(workload=key)).space


def test_a_space_and_its_results_are_told_in_lines() -> None:
    read = read_results(results(*(result({**AT, "tile": t}, t) for t in (1, 2))), Counter())
    known = read_problem(problem(**VALUES))
    assert describe_results("f", read, known) == [
        "space      add: 2 parameters, 4 combinations",
        "results    2: best 1 ms, median 1.5 ms, 1 no more than a tenth above the best",
    ]
    assert describe_results("f", [], None) == ["space      f: 0 parameters; no T1 file says which values they may have"]
    data = problem(block="[f(1)]")
    data["ConfigurationSpace"]["Conditions"] = [{"Parameters": ["block"], "Expression": "block > 1"}]
    assert describe_problem(read_problem(data)) == (
        "space      add: 1 parameters, combinations not known, 1 condition(s), which are not evaluated"
    )
