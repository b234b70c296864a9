"""benchmarks/transfer_networks.py: trials and wall time are counted as its first lines say."""

from __future__ import annotations

import argparse
import math
import sqlite3
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GROUPS = [("direct", "winograd"), ("direct", "winograd"), ("dense",)]
TRIALS = [
    ("direct", 4.0, 100.0),
    ("dense", None, 101.0),
    ("dense", 1.0, 103.0),
    ("winograd", 3.0, 1000.0),  # a pause
    ("direct", 5.0, 1001.0),
]


@pytest.fixture
def script(load: Any) -> ModuleType:
    module: ModuleType = load("transfer_networks")
    return module


def test_a_network_takes_the_sum_of_the_best_of_its_operators(script: ModuleType) -> None:
    curve = script.curve_of(TRIALS, GROUPS)
    assert curve == [(0.0, math.inf), (1.0, math.inf), (3.0, 9.0), (63.0, 7.0), (64.0, 7.0)]
    assert script.reached(curve, 9.0) == {"trials": 3.0, "wall_s": 3.0}
    assert script.reached(curve, 6.0) == {"trials": None, "wall_s": None}


def test_trials_are_read_in_the_order_they_were_made(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE records (workload TEXT, seconds REAL, created REAL)")
        database.executemany("INSERT INTO records VALUES (?, ?, ?)", reversed(TRIALS))
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
        ("cold", ("gp", None, 1.0, 2.0)),
        ("warm", ("gp", "records", 1.0, 2.0)),
        ("share", ("gp", "records", 0.5, 1.0)),
        ("taught", ("lgbm:m.safetensors", None, 1.0, 2.0)),
    ],
)
def test_ways_differ_by_what_they_begin_with(script: ModuleType, way: str, expected: tuple[Any, ...]) -> None:
    options = argparse.Namespace(minutes=2.0, share=0.5, model="lgbm:m.safetensors")
    effort = script.effort_of(way, "records", options)
    assert (effort.cost_model, effort.warm_start, effort.tune_share, effort.minutes) == expected


def test_a_taught_model_has_to_be_named(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(["--quick", "--ways", "taught"])
    assert "--ways taught needs --model KIND:FILE" in capsys.readouterr().err
