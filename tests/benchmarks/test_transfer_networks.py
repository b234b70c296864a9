"""benchmarks/transfer_networks.py: trials and wall time are counted as its first lines say."""

from __future__ import annotations

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


def test_figures_have_both_ways(script: ModuleType) -> None:
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


def test_a_share_is_compared_with_all(load: Any) -> None:
    module = load("tune_share")
    row = {
        "latency_s": {"all": 1.0, "share": 1.1},
        "trials": {"all": 100, "share": 50},
        "tuning_s": {"all": 10.0, "share": 4.0},
        "operators": 9,
        "taken_over": 3,
    }
    figures = module.figures_of([row])
    assert figures["latency_share_over_all"].value == pytest.approx(1.1)
    assert figures["latency_share_over_all"].met is False
    assert figures["trials_share_over_all"].value == pytest.approx(0.5)
