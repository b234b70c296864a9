"""benchmarks/transfer_networks.py: trials and wall time are counted as its first lines say."""

from __future__ import annotations

import argparse
import json
import math
import sqlite3
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GROUPS = [("direct", "winograd"), ("direct", "winograd"), ("dense",)]
A, B, C = (1, 1), (2, 1), (3, 1)
TRIALS = [
    ("direct", A, 4.0, 100.0),
    ("dense", A, None, 101.0),
    ("dense", B, 1.0, 103.0),
    ("winograd", A, 3.0, 1000.0),  # a pause
    ("direct", B, 5.0, 1001.0),
    ("direct", C, 2.0, 1002.0),
]
JUDGED = {("direct", A): 4.0, ("direct", C): 3.5, ("dense", B): 1.5, ("winograd", A): 3.0}


@pytest.fixture
def script(load: Any) -> ModuleType:
    module: ModuleType = load("transfer_networks")
    return module


def test_a_network_takes_the_sum_of_the_best_of_its_operators(script: ModuleType) -> None:
    curve = script.curve_of(TRIALS, GROUPS, JUDGED)
    assert curve == [(0.0, math.inf), (1.0, math.inf), (3.0, 9.5), (63.0, 7.5), (64.0, 7.5), (65.0, 7.5)]
    assert script.reached(curve, 9.5) == {"trials": 3.0, "wall_s": 3.0}
    assert script.reached(curve, 6.0) == {"trials": None, "wall_s": None}


def test_a_point_counts_with_the_seconds_of_its_turns(script: ModuleType) -> None:
    assert script.curve_of(TRIALS, [("direct",)], JUDGED)[-1] == (65.0, 3.5)
    assert script.curve_of(TRIALS, [("direct",)], {("direct", A): 4.0})[-1] == (65.0, math.inf)


def test_the_first_schedules_are_those_that_worked_first(script: ModuleType) -> None:
    assert script.first_s(TRIALS, GROUPS, JUDGED) == 3.0 + 3.0 + 1.5
    assert script.first_s(TRIALS[:1], GROUPS, JUDGED) == math.inf


def test_only_what_was_the_best_when_it_came_is_timed_again(script: ModuleType) -> None:
    assert script.incumbents(TRIALS) == set(JUDGED)


def test_trials_are_read_in_the_order_they_were_made(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE records (workload TEXT, point TEXT, seconds REAL, created REAL)")
        rows = [(key, json.dumps(point), seconds, created) for key, point, seconds, created in reversed(TRIALS)]
        database.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows)
    database.close()
    assert script.read_trials(path) == TRIALS


def test_figures_have_every_way(script: ModuleType) -> None:
    row = {
        "network": "net",
        "cold": {"trials": 40.0, "wall_s": 20.0, "median_s": 2e-3},
        "warm": {"trials": None, "wall_s": None, "median_s": 1e-3},
    }
    figures = {name: figure.value for name, figure in script.figures_of([row]).items()}
    assert figures == {
        "net_cold_trials": 40.0,
        "net_cold_wall_s": 20.0,
        "net_warm_trials": None,
        "net_warm_wall_s": None,
        "net_warm_over_cold_latency": 0.5,
    }


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("cold", (None, "no", 1.0, 2.0)),
        ("warm", (None, "records", 1.0, 2.0)),
        ("like", (None, "records", 1.0, 2.0)),
        ("share", (None, "records", 0.5, 1.0)),
        ("taught", ("m.safetensors", "no", 1.0, 2.0)),
    ],
)
def test_ways_differ_by_what_they_begin_with(script: ModuleType, way: str, expected: tuple[Any, ...]) -> None:
    options = argparse.Namespace(minutes=2.0, share=0.5, model="m.safetensors", seed=3)
    effort = script.effort_of(way, "records", options)
    assert (effort.pretrained, effort.warm_start, effort.tune_share, effort.minutes, effort.seed) == (*expected, 3)


def test_a_taught_model_has_to_be_named(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(["--quick", "--ways", "taught"])
    assert "--ways taught needs --model FILE" in capsys.readouterr().err
