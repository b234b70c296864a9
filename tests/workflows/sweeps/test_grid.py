"""chanas/workflows/sweeps/grid.py: the rows of a grid, and what a file may not say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chanas.errors import ConfigError
from chanas.workflows.sweeps.grid import MAX_ROWS, Grid, parse_grid, read_grid

VALUES = st.lists(st.integers(0, 99) | st.text("abc", max_size=2) | st.booleans(), min_size=1, max_size=4)
DIFFERENT = VALUES.map(lambda values: [json.loads(text) for text in dict.fromkeys(map(json.dumps, values))])
PARAMETERS = st.dictionaries(st.text("xyz", min_size=1, max_size=3), DIFFERENT, min_size=1, max_size=4)


def parsed(**options: Any) -> Grid:
    return parse_grid({"command": "tune", **options}, "grid.yaml")


def texts(grid: Grid) -> list[str]:
    return [json.dumps(row) for row in grid.rows()]


@settings(max_examples=30, deadline=None)
@given(PARAMETERS)
def test_a_product_has_each_combination_once(parameters: dict[str, list[Any]]) -> None:
    rows = parsed(parameters=parameters).rows()
    assert len({json.dumps(row) for row in rows}) == len(rows) == math.prod(len(v) for v in parameters.values())
    assert all(list(row) == list(parameters) for row in rows)
    assert all(any(value is known for known in parameters[name]) for row in rows for name, value in row.items())


@settings(max_examples=30, deadline=None)
@given(PARAMETERS, st.integers(1, 12), st.integers(0, 3))
def test_a_sample_is_part_of_the_product_and_the_same_for_the_same_seed(
    parameters: dict[str, list[Any]], num_rows: int, seed: int
) -> None:
    whole = texts(parsed(parameters=parameters))
    num_rows = min(num_rows, len(whole))
    sampled = texts(parsed(parameters=parameters, sample={"rows": num_rows, "seed": seed}))
    assert len(sampled) == num_rows
    assert sampled == [row for row in whole if row in set(sampled)]
    assert sampled == texts(parsed(parameters=parameters, sample={"rows": num_rows, "seed": seed}))


@settings(max_examples=30, deadline=None)
@given(DIFFERENT)
def test_zipped_lists_go_side_by_side(values: list[Any]) -> None:
    rows = parsed(parameters={"a": values, "b": values[::-1]}, combine="zip").rows()
    assert [(row["a"], row["b"]) for row in rows] == list(zip(values, reversed(values), strict=True))


def test_other_seeds_give_other_samples() -> None:
    parameters = {"a": list(range(50)), "b": list(range(50))}
    assert len({tuple(texts(parsed(parameters=parameters, sample={"rows": 5, "seed": s}))) for s in range(5)}) == 5


def test_the_last_parameter_varies_fastest() -> None:
    rows = parsed(parameters={"tune-share": ["gp", "random"], "seed": [0, 1]}).rows()
    assert [(row["tune_share"], row["seed"]) for row in rows] == [("gp", 0), ("gp", 1), ("random", 0), ("random", 1)]


def test_a_sweep_is_called_as_its_file(tmp_path: Path) -> None:
    path = tmp_path / "trials.yaml"
    path.write_text("command: tune\nparameters: {trials: [1, 2]}\nfixed: {no-tuning: false}\n")
    grid = read_grid(path)
    assert (grid.name, grid.common) == ("trials", {"no_tuning": False})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"parameters": {}}, "at least 1"),
        ({"parameters": {"a": []}}, "at least one value"),
        ({"parameters": {"a": [1, 1]}}, "one twice"),
        ({"parameters": {"a": 3}}, "parameters.a: expected a valid list"),
        ({"parameters": {"a": [{"b": 1}]}}, "parameters.a.0: expected a number"),
        ({"parameters": {"a": [math.nan]}}, "parameters.a.0: expected a number"),
        ({"parameters": {"a-b": [1]}, "fixed": {"a_b": 1}}, "a_b can't be both"),
        ({"parameters": {"a": [1, 2], "b": [1]}, "combine": "zip"}, "a 2, b 1"),
        ({"parameters": {"a": [1, 1], "b": [2, 2]}, "combine": "zip"}, "different rows"),
        ({"parameters": {"a": [1, 2]}, "combine": "sum"}, "combine"),
        ({"parameters": {"a": [1, 2]}, "sample": {"rows": 3}}, "at most the 2 rows"),
        ({"parameters": {"a": [1, 2]}, "sample": {"rows": 1, "num": 3}}, "known: rows, seed"),
        ({"parameters": {"a": [1]}, "parameter": {}}, "known: at_once"),
        ({"parameters": {"a": [1]}, "name": "a/b"}, "letters, digits"),
        ({"parameters": {n: list(range(200)) for n in "abc"}}, f"at most {MAX_ROWS} rows"),
    ],
)
def test_what_a_file_may_not_say(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parsed(**options)


def test_a_few_of_endless_rows_are_sampled_without_making_all() -> None:
    parameters = {name: list(range(1000)) for name in "abcdef"}
    assert len(parsed(parameters=parameters, sample={"rows": 4}).rows()) == 4
