"""chanas/prescheduler/tables/lut_check.py: rows measured again as they were, and the verdict about the table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from chanas.core.latency import Calibration, LatencyLUT
from chanas.core.task import Task
from chanas.errors import ConfigError, LUTError
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import BlockAt, NetworkAt
from chanas.prescheduler.blocks import surroundings
from chanas.prescheduler.tables.lut_check import Remeasured, Sample, TableCheck, Tolerances, check_table

from ...compiler.workbench import HOST, NANO, NUM_CLASSES, SyntheticPool, random_lut

BLOCKS = NANO.all_blocks(NUM_CLASSES)
PLAIN_SUM = Calibration(0.0, 1.0, 0.0, 6, 0.01, 0.05, 1.0, 0.01)


@pytest.fixture
def lut() -> LatencyLUT:
    """A table of random schedules; every block takes 10 µs."""
    return random_lut(NANO, BLOCKS, HOST)


def check(lut: LatencyLUT, **options: Any) -> TableCheck:
    numbers = {key: options.pop(key) for key in ("num_rows", "num_networks") if key in options}
    return check_table(lut, Task(NANO, NUM_CLASSES), HOST, sample=Sample(**numbers), progress=False, **options)


def takes(block_s: float | str, factor: float = 1.0) -> Callable[[Any], float | str]:
    """A device on which every block takes `block_s`, and a network `factor` times the sum of the table's blocks."""
    return lambda asked: block_s if isinstance(asked.what, BlockAt) else factor * 1e-5 * len(asked.what.blocks)


def rows(*ratios: float | None) -> tuple[Remeasured, ...]:
    return tuple(Remeasured(f"block{i}", 2.0, None if r is None else 2.0 * r, "crash") for i, r in enumerate(ratios))


def judged(*ratios: float | None, networks: tuple[float | None, ...] = (), **tolerances: float) -> TableCheck:
    return TableCheck(rows(*ratios), rows(*networks), Tolerances(**tolerances), 0.1)


# ---- measuring ------------------------------------------------------------------------------------------------------
def test_rows_are_built_with_the_schedules_of_the_table(lut: LatencyLUT, synthetic_pool: SyntheticPool) -> None:
    synthetic_pool.seconds = takes(1e-5)
    found = check(lut, num_rows=4)
    assert found.holds
    assert len({row.key for row in found.rows}) == len(synthetic_pool.built) == 4
    for asked in synthetic_pool.built:
        assert asked.what.points == [point for _, point in lut.rows[asked.what.block.key].schedules]


def test_rows_are_timed_as_the_table_was_filled(lut: LatencyLUT, synthetic_pool: SyntheticPool) -> None:
    check(lut, num_rows=3)
    around = surroundings(NANO, NUM_CLASSES)
    how = {(r.settings.cold_bytes, r.settings.code_copies, r.settings.repeats) for r in synthetic_pool.requests}
    assert how == {(around.weight_bytes, around.num_blocks, 7)}


def test_a_block_is_really_built_and_timed(lut: LatencyLUT, shared_pool: WorkerPool) -> None:
    found = check(lut, num_rows=2, seed=1)
    assert [row.error for row in found.rows] == [None, None]
    assert all(row.new_s is not None and row.new_s > 0.0 for row in found.rows)


def test_the_seed_draws_the_rows_and_there_are_no_more_than_the_table_has(
    lut: LatencyLUT, synthetic_pool: SyntheticPool
) -> None:
    def keys(num: int, seed: int) -> list[str]:
        return [row.key for row in check(lut, num_rows=num, seed=seed).rows]

    assert keys(4, 0) == keys(4, 0) != keys(4, 1)
    assert sorted(keys(1000, 0)) == sorted(lut.rows)


def test_the_table_stays_as_it_is(lut: LatencyLUT, synthetic_pool: SyntheticPool) -> None:
    before = dict(lut.rows)
    synthetic_pool.seconds = takes(9e-5)
    assert not check(lut).holds
    assert lut.rows == before


def test_a_row_that_fails_now_is_one_that_does_not_hold(lut: LatencyLUT, synthetic_pool: SyntheticPool) -> None:
    synthetic_pool.seconds = takes("crash: the worker ended with signal 11")
    found = check(lut, num_rows=2)
    assert (found.holds, found.median_ratio, found.num_within) == (False, None, 0)
    assert "crash: the worker ended with signal 11" in found.rows[0].line()
    json.dumps(found.to_json(), allow_nan=False)


# ---- networks -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (1.3, False)])
def test_networks_are_set_beside_the_calibrated_prediction(
    lut: LatencyLUT, synthetic_pool: SyntheticPool, factor: float, holds: bool
) -> None:
    lut.calibration = PLAIN_SUM
    synthetic_pool.seconds = takes(1e-5, factor)
    found = check(lut, num_rows=2, num_networks=2)
    assert [n.ratio for n in found.networks] == [pytest.approx(factor)] * 2
    assert (found.rows_hold, found.networks_hold, found.holds) == (True, holds, holds)
    assert ("`chanas lut calibrate`" in found.verdict()) != holds


def test_networks_may_be_off_by_what_the_calibration_was_off_at_worst(
    lut: LatencyLUT, synthetic_pool: SyntheticPool
) -> None:
    lut.calibration = dataclasses.replace(PLAIN_SUM, worst=0.4)
    synthetic_pool.seconds = takes(1e-5, 1.3)
    assert check(lut, num_rows=2, num_networks=1).holds


@pytest.mark.parametrize("reason", ["not calibrated", "none asked for", "no sub-space covered"])
def test_no_network_is_compiled(lut: LatencyLUT, synthetic_pool: SyntheticPool, reason: str) -> None:
    lut.calibration = None if reason == "not calibrated" else PLAIN_SUM
    if reason == "no sub-space covered":
        lut.rows = {key: row for key, row in lut.rows.items() if not key.startswith("stem")}
    found = check(lut, num_networks=0 if reason == "none asked for" else 3)
    assert found.networks == ()
    assert not any(isinstance(asked.what, NetworkAt) for asked in synthetic_pool.built)


# ---- the verdict ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ratios", "options", "holds"),
    [
        ((1.0,), {}, True),
        ((1.09, 1.09, 1.09), {}, True),
        ((1.11, 1.11, 1.11), {}, False),
        ((0.89, 0.89), {}, False),
        ((1.05, 1.05, 1.05), {"median": 0.01}, False),
        ((*[1.0] * 9, 5.0), {}, True),
        ((*[1.0] * 9, None), {}, True),
        ((*[1.0] * 8, None, None), {}, False),
        ((*[1.0] * 8, 0.79, 1.21), {}, False),
        ((*[1.0] * 8, 0.79, 1.21), {"share": 0.8}, True),
        ((*[1.0] * 8, 0.79, 1.21), {"row": 0.22}, True),
        ((1.0,), {"networks": (1.0, 1.0)}, True),
        ((1.0,), {"networks": (1.0, None)}, False),
    ],
)
def test_a_table_holds_by_its_median_by_most_of_its_rows_and_by_all_networks(
    ratios: tuple[float | None, ...], options: dict[str, Any], holds: bool
) -> None:
    assert judged(*ratios, **options).holds == holds


def test_the_worst_row_is_furthest_by_its_ratio_and_a_failed_one_first_of_all() -> None:
    assert judged(1.9, 0.5).worst == rows(1.9, 0.5)[1]
    assert judged(1.9, None, 0.1).worst == rows(1.9, None)[1]


def test_a_check_says_what_to_do_in_its_last_line() -> None:
    *_, last = judged(1.0).lines()
    assert last == "verdict    the table holds"
    *_, last = judged(2.0).lines()
    assert "the table does not hold; end what else runs" in last
    assert "\n" not in last
    text = "\n".join(judged(1.0, 2.0, None, networks=(1.0,)).lines())
    assert "blocks     median ratio 1.500 (1 ± 0.1), worst -" in text
    assert "rows       1 of 3 within 20%, 3 needed" in text
    assert "networks   median ratio 1.000 (1 ± 0.1)" in text


def test_rows_that_were_predicted_are_marked_and_to_be_filled(lut: LatencyLUT, synthetic_pool: SyntheticPool) -> None:
    first, *_ = lut.rows
    lut.rows[first] = dataclasses.replace(lut.rows[first], predicted_error=0.05, median_s=1.0)
    done = check(lut, num_rows=100, num_networks=0)
    assert [row.key for row in done.rows if row.is_predicted] == [first]
    assert any(line.startswith("predicted  1 of") for line in done.lines())
    assert "chanas lut fill" in done.verdict()


def test_json_has_ratios_and_the_verdict() -> None:
    data = json.loads(json.dumps(judged(1.0, 2.0).to_json(), allow_nan=False))
    assert (data["holds"], data["median_ratio"], data["worst"]) == (False, 1.5, "block1")
    assert [row["ratio"] for row in data["rows"]] == [1.0, 2.0]


# ---- bad input ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Sample, {"num_rows": 0}),
        (Sample, {"num_networks": -1}),
        (Tolerances, {"median": 0.0}),
        (Tolerances, {"row": -0.1}),
        (Tolerances, {"row": float("nan")}),
        (Tolerances, {"share": 1.1}),
    ],
)
def test_numbers_that_make_no_sense_are_refused(kind: type, options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"^expected "):
        kind(**options)


def test_rows_of_another_version_of_the_spaces_are_not_built(lut: LatencyLUT, synthetic_pool: SyntheticPool) -> None:
    old = dataclasses.replace(lut, header=dataclasses.replace(lut.header, space_version=99))
    with pytest.raises(LUTError, match="version 99 of the schedule spaces"):
        check(old, num_rows=1)
    assert synthetic_pool.built == []


def test_a_table_of_something_else_is_refused(lut: LatencyLUT, synthetic_pool: SyntheticPool) -> None:
    with pytest.raises(LUTError, match="expected a LUT of space"):
        check_table(lut, Task(dataclasses.replace(NANO, head_width=24), NUM_CLASSES), HOST, sample=Sample())
    with pytest.raises(LUTError, match="another device fingerprint: expected 0123456789ab"):
        check_table(
            lut, Task(NANO, NUM_CLASSES), dataclasses.replace(HOST, fingerprint="0123456789ab"), sample=Sample()
        )
    with pytest.raises(LUTError, match="got a table without any; run `chanas lut fill`"):
        check(LatencyLUT(lut.header))
    assert synthetic_pool.built == []
