"""chanas/prescheduler/tuning/proposals.py: what is proposed is promising and new, and searches that are played see no
more than what they tried."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from chanas.core.arrays import FloatArray
from chanas.errors import ConfigError, DataError
from chanas.prescheduler.tuning.configurations import ConfigurationTable, read_configurations
from chanas.prescheduler.tuning.proposals import (
    gaps,
    play,
    propose,
    simulate,
    trials_until,
)

GRID = [(a, b, c) for a in (1, 2, 4, 8) for b in (1, 2, 4, 8) for c in range(6)]


@pytest.fixture
def latencies(rng: np.random.Generator) -> FloatArray:
    """float64[96] of milliseconds with one clear best."""
    a, b, c = np.array(GRID, dtype=np.float64).T
    out: FloatArray = 1.0 + np.abs(np.log2(a) - 2.0) + np.abs(np.log2(b) - 1.0) + 0.3 * c + 0.2 * rng.random(96)
    return out


def write(path: Path, **columns: FloatArray) -> Path:
    """A file of `GRID` with a column for each device; NaN is an empty cell, infinity a word."""
    lines = [",".join(["a", "b", "c", *(f"{name}_ms" for name in columns)])]
    for configuration, times in zip(GRID, np.column_stack(list(columns.values())).tolist(), strict=True):
        cells = ["" if math.isnan(ms) else "failed" if math.isinf(ms) else str(ms) for ms in times]
        lines.append(",".join([*map(str, configuration), *cells]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def known(values: FloatArray, rows: list[int]) -> FloatArray:
    """A device on which only some rows were measured."""
    out = np.full_like(values, np.nan)
    out[rows] = values[rows]
    return out


def measured_on_new(table: ConfigurationTable, truth: dict[str, float]) -> Path:
    """The file of a table with its empty proposed cells filled in."""
    columns = {name: list(cells) for name, cells in table.columns.items()}
    for row, place in enumerate(columns["new_proposed"]):
        if place:
            assert columns["new_ms"][row] == ""
            columns["new_ms"][row] = str(truth[table.told(row)])
    lines = [",".join(columns), *(",".join(cells) for cells in zip(*columns.values(), strict=True))]
    table.path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return table.path


# ---- what to measure next -------------------------------------------------------------------------------------------
def test_the_first_proposal_is_the_best_of_the_other_devices(tmp_path: Path, latencies: FloatArray) -> None:
    nothing = np.full(96, np.nan)
    table = read_configurations(write(tmp_path / "a.csv", old=latencies, older=2.0 * latencies, new=nothing))
    found = propose(table, "new", 1)
    assert found.rows == (int(latencies.argmin()),)
    assert (found.best, found.predicted_ms) == (None, None)


def test_where_devices_are_alike_the_best_that_is_left_comes_first(tmp_path: Path, latencies: FloatArray) -> None:
    order = np.argsort(latencies).tolist()
    slow = order[10::17]
    table = read_configurations(write(tmp_path / "a.csv", old=latencies, new=known(3.0 * latencies, slow)))
    found = propose(table, "new", 4)
    assert found.rows == tuple(order[:4])
    assert found.predicted_ms == pytest.approx((3.0 * latencies[order[:4]]).tolist(), rel=0.15)
    assert found.best == slow[0]
    assert found.weights["old"] > 0.9


def test_what_was_measured_is_never_proposed_again(tmp_path: Path, latencies: FloatArray) -> None:
    new = known(latencies, list(range(0, 96, 2)))
    new[[0, 10, 20]] = np.inf
    table = read_configurations(write(tmp_path / "a.csv", old=latencies, new=new))
    found = propose(table, "new", 96)
    assert sorted(found.rows) == list(range(1, 96, 2))
    assert found.best not in (0, 10, 20)


def test_where_all_was_measured_nothing_is_proposed(tmp_path: Path, latencies: FloatArray) -> None:
    failing = np.where(np.arange(96) % 3 == 0, np.inf, latencies)
    table = read_configurations(write(tmp_path / "a.csv", old=failing, new=failing, none=np.full(96, np.inf)))
    assert [propose(table, device).rows for device in ("new", "none")] == [(), ()]
    assert propose(table, "none").best is None


def test_a_device_that_is_not_named_says_nothing(tmp_path: Path, latencies: FloatArray) -> None:
    new = known(latencies, [1, 50, 70])
    both = read_configurations(write(tmp_path / "a.csv", old=latencies, odd=latencies[::-1], new=new))
    alone = read_configurations(write(tmp_path / "b.csv", old=latencies, new=new))
    assert propose(both, "new", 5, ["old"]).rows == propose(alone, "new", 5).rows


def test_without_any_other_device_there_is_a_proposal_too(tmp_path: Path, latencies: FloatArray) -> None:
    table = read_configurations(write(tmp_path / "a.csv", new=known(latencies, [1, 50, 70])))
    found = propose(table, "new", 5)
    assert len(set(found.rows) - {1, 50, 70}) == 5
    assert (found.weights, found.weight_none) == ({}, pytest.approx(1.0))


def test_a_file_that_is_filled_in_goes_round_until_nothing_is_left(tmp_path: Path, latencies: FloatArray) -> None:
    first = read_configurations(write(tmp_path / "a.csv", old=latencies, new=np.full(96, np.nan)))
    truth = dict(zip(map(first.told, range(96)), (2.0 * latencies).tolist(), strict=True))
    path, numbers = first.path, []
    for _ in range(4):
        found = propose(read_configurations(path), "new", 32)
        numbers.append(found.to_json()["num_measured"])
        found.save(tmp_path / "next.csv")
        path = measured_on_new(read_configurations(tmp_path / "next.csv"), truth)
    assert numbers == [0, 32, 64, 96]
    *_, last = found.lines()
    assert last == "next       none: all configurations were measured on new"
    assert np.exp(found.table.of("new")[found.best]) == pytest.approx(2.0 * latencies.min())


def test_people_and_programs_are_told_the_same(tmp_path: Path, latencies: FloatArray) -> None:
    new = known(latencies, [1, 50])
    new[2] = np.inf
    found = propose(read_configurations(write(tmp_path / "a.csv", old=latencies, new=new)), "new", 2)
    data, (space, measured, _, best, *proposed) = found.to_json(), list(found.lines())
    assert space == "space      96 configurations of 3 parameters"
    assert measured == "measured   3 on new, 1 of them failed"
    assert best.endswith(found.table.told(50 if latencies[50] < latencies[1] else 1))
    assert len(proposed) == len(data["next"]) == 2
    assert (data["num_measured"], data["num_failed"]) == (3, 1)
    assert data["best"]["ms"] == pytest.approx(min(latencies[[1, 50]]))
    assert [each["configuration"] for each in data["next"]] == [found.table.configuration(row) for row in found.rows]


def test_more_than_a_search_goes_by_is_refused(tmp_path: Path) -> None:
    lines = ["x,new_ms", *(f"{i},{i + 1}" for i in range(1001)), "2000,"]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"at most 1000 .*, got 1001"):
        propose(read_configurations(tmp_path / "a.csv"), "new")


# ---- searches that are played ---------------------------------------------------------------------------------------
def test_no_search_sees_what_it_did_not_try(latencies: FloatArray) -> None:
    x, truth = np.log2(1.0 + np.array(GRID, dtype=np.float64)), np.log(latencies)
    source = truth[:, None] + np.random.default_rng(1).normal(0.0, 0.3, (96, 1))
    tried = play(x, source, truth, np.random.default_rng(0), 12)
    spoilt = np.full_like(truth, 9.0)
    spoilt[tried] = truth[tried]
    assert play(x, source, spoilt, np.random.default_rng(0), 12) == tried


def test_a_device_that_is_alike_saves_trials(tmp_path: Path, latencies: FloatArray) -> None:
    table = read_configurations(write(tmp_path / "a.csv", old=2.0 * latencies, new=latencies))
    played = simulate(table, "new", num_trials=60, num_seeds=3)
    assert played.rank_correlations == {"old": pytest.approx(1.0)}
    assert played.helped[1] == 1.0
    assert played.alone[1] > 3.0
    data, lines = played.to_json(), list(played.lines())
    assert data["within_1_percent"]["share"] == pytest.approx(1.0 / played.alone[1])
    assert lines[-1].startswith("within 1 % 1.0 trials with other devices, ")


def test_what_was_not_measured_is_not_in_the_space_that_is_played(tmp_path: Path, latencies: FloatArray) -> None:
    new = np.where(np.arange(96) < 90, latencies, np.nan)
    new[:5] = np.inf
    played = simulate(read_configurations(write(tmp_path / "a.csv", old=latencies, new=new)), "new", num_seeds=1)
    assert (played.num, played.to_json()["num_configurations"]) == (90, 90)
    assert next(played.lines()).endswith("6 not measured on new left out")
    assert played.alone[1] <= 90


def test_the_same_seed_plays_the_same(tmp_path: Path, latencies: FloatArray) -> None:
    table = read_configurations(write(tmp_path / "a.csv", old=latencies[::-1], new=latencies))
    first, again, other = (simulate(table, "new", num_trials=30, num_seeds=2, seed=seed) for seed in (0, 0, 1))
    assert dataclasses.replace(again, table=first.table) == first
    assert (other.helped, other.alone) != (first.helped, first.alone)


@pytest.mark.parametrize(
    ("device", "options", "error", "message"),
    [
        ("newest", {}, ConfigError, "unknown device"),
        ("new", {"num_trials": 0}, ConfigError, "--trials of at least 1"),
        ("new", {"num_seeds": 0}, ConfigError, "--seeds of at least 1"),
        ("failing", {}, DataError, "at least 2 configurations that work on failing .*, got 1"),
    ],
)
def test_what_cannot_be_played_is_refused(
    tmp_path: Path,
    latencies: FloatArray,
    device: str,
    options: dict[str, int],
    error: type[Exception],
    message: str,
) -> None:
    failing = np.where(np.arange(96) == 5, latencies, np.inf)
    table = read_configurations(write(tmp_path / "a.csv", new=latencies, failing=failing))
    with pytest.raises(error, match=message):
        simulate(table, device, **options)


def test_a_search_needs_another_device_to_be_compared_with(tmp_path: Path, latencies: FloatArray) -> None:
    with pytest.raises(DataError, match="other devices than new"):
        simulate(read_configurations(write(tmp_path / "a.csv", new=latencies)), "new")


def test_curves_by_hand() -> None:
    truth = np.log([4.0, 1.0, 2.0, np.inf])
    assert gaps([3, 0, 2, 1], truth) == pytest.approx([np.inf, 4.0, 2.0, 1.0])
    assert trials_until([2.0, 1.04, 1.0], 1.05) == 2
    assert trials_until([2.0, 1.5], 1.05) == 3
