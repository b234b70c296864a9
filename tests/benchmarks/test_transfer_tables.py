"""benchmarks/transfer_tables.py: what is measured is not judged, and the figures are what they are called."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from chanas.core.arch import SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.prescheduler.tables.transfer.ratios import prior_of

SPACE = SearchSpace.load("mbv3")


@pytest.fixture(scope="module")
def table() -> LatencyLUT:
    from importlib import resources
    from pathlib import Path

    whole = LatencyLUT.load(Path(str(resources.files("chanas") / "luts" / "mbv3-amd-zen4-cpu.json")))
    blocks = SPACE.all_blocks(1000, SPACE.sub_spaces[:1])
    return LatencyLUT(whole.header, {b.key: whole.rows[b.key] for b in blocks})


@pytest.fixture
def script(load: Any) -> ModuleType:
    module: ModuleType = load("transfer_tables")
    return module


def test_a_table_that_is_right_has_no_error_and_one_that_is_not_has(script: ModuleType, table: LatencyLUT) -> None:
    judge = script.judge_of(SPACE, table, 60, 0)
    blocks = [b for b in SPACE.all_blocks(1000) if b.key in table.rows]
    truth = np.log([table.rows[b.key].median_s for b in blocks])
    right = script.judged(judge, blocks, truth, truth, [0, 1])
    assert right == {
        "row_error_percent": pytest.approx(0.0),
        "network_error_percent": pytest.approx(0.0, abs=1e-9),
        "kendall_tau": pytest.approx(1.0),
        "regret_points": pytest.approx(0.0),
    }
    twice = script.judged(judge, blocks, truth, truth + np.log(2.0), [])
    assert twice["row_error_percent"] == pytest.approx(100.0)
    assert twice["network_error_percent"] == pytest.approx(100.0)
    assert twice["kendall_tau"] == pytest.approx(1.0)


def test_measured_rows_count_in_networks_and_not_among_rows(script: ModuleType, table: LatencyLUT) -> None:
    judge = script.judge_of(SPACE, table, 60, 0)
    blocks = [b for b in SPACE.all_blocks(1000) if b.key in table.rows]
    truth = np.log([table.rows[b.key].median_s for b in blocks])
    wrong = truth.copy()
    wrong[[3, 4]] += 1.0
    scores = script.judged(judge, blocks, truth, wrong, [3, 4])
    assert scores["row_error_percent"] == pytest.approx(0.0)
    assert scores["network_error_percent"] == pytest.approx(0.0, abs=1e-9)


def test_a_device_that_is_slower_by_a_factor_is_predicted_by_every_contender(
    script: ModuleType, table: LatencyLUT
) -> None:
    slower = {k: dataclasses.replace(r, median_s=1.5 * r.median_s) for k, r in table.rows.items()}
    tables = {"old": table, "new": LatencyLUT(table.header, slower)}
    rows = list(script.rows_of(tables, "new", (10,), 1, 60, 0))
    assert {r.kind for r in rows} == {"chosen", "random", "factor"}
    assert max(r.row_error_percent for r in rows) < 1e-3
    assert prior_of(SPACE.all_blocks(1000, SPACE.sub_spaces[:1]), [table]).known.all()


def test_figures_are_of_all_other_tables_at_the_number_that_the_goals_are_for(script: ModuleType) -> None:
    def row(sources: str, num: int, kind: str, error: float) -> dict[str, Any]:
        others = dict.fromkeys(("network_error_percent", "kendall_tau", "regret_points"), 0.5)
        return {"target": "new", "sources": sources, "num": num, "kind": kind, "row_error_percent": error, **others}

    numbers = {("a", 60): 9.0, ("a+b", 10): 8.0, ("a+b", 60): 3.0}
    table = [row(*key, kind, error + more) for key, error in numbers.items() for kind, more in _LATER.items()]
    figures = script.figures_of(table)
    assert figures["row_error_percent"].value == pytest.approx(3.0)
    assert figures["row_error_percent"].met
    assert figures["row_error_percent_lead_over_random"].value == pytest.approx(1.0)
    assert figures["row_error_percent_lead_over_factor"].value == pytest.approx(2.0)


_LATER = {"chosen": 0.0, "random": 1.0, "factor": 2.0}
