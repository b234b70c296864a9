"""Features of any space from a table of choices."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.core.arrays import FloatArray
from chanas.search.transfer.columns import (
    choice_columns,
    column_features,
    names_of_rows,
    quantities,
    slots_of,
)

OPS = ("none", "skip", "conv1", "conv3", "pool")


@pytest.fixture
def cells(rng: np.random.Generator) -> np.ndarray:
    """Operations of six edges in 3,000 cells."""
    return rng.integers(0, len(OPS), (3000, 6))


def as_columns(cells: np.ndarray) -> dict[str, list[str]]:
    return {f"edge{e}": [OPS[op] for op in column] for e, column in enumerate(cells.T)}


def explained(x: FloatArray, y: FloatArray) -> float:
    """Share of the variance of `y` that is linear in `x`, on rows that the regression did not see."""
    x = np.hstack([x, np.ones((len(x), 1))])
    taught = np.arange(len(x)) % 4 > 0
    gram = x[taught].T @ x[taught] + 1e-3 * np.eye(x.shape[1])
    found = x[~taught] @ np.linalg.solve(gram, x[taught].T @ y[taught])
    return 1.0 - float(np.var(y[~taught] - found) / np.var(y[~taught]))


def test_a_cell_may_be_a_list_that_ends_early() -> None:
    slots = slots_of({"ks": ["3 5 7", "3", "5 5"], "r": ["128", "160", "128"]})
    assert [slot.tolist() for slot in slots] == [["3", "3", "5"], ["5", "", "5"], ["7", "", ""], ["128", "160", "128"]]


def test_lists_and_single_columns_are_the_same_choices(cells: np.ndarray) -> None:
    columns = as_columns(cells)
    listed = {"arch": [" ".join(row) for row in zip(*columns.values(), strict=True)]}
    np.testing.assert_array_equal(choice_columns(listed), choice_columns(columns))
    np.testing.assert_array_equal(column_features(listed), column_features(columns))
    np.testing.assert_array_equal(choice_columns(columns).sum(axis=1), np.full(3000, 6.0))


def test_a_number_of_many_values_is_a_quantity_and_one_of_few_a_choice(rng: np.random.Generator) -> None:
    pixels, depths = rng.integers(100, 200, 200), rng.integers(2, 5, 200)
    columns = {"pixels": [str(n) for n in pixels], "depth": [str(n) for n in depths]}
    assert quantities(columns).shape == (200, 1)
    assert choice_columns(columns).shape == (200, 3)
    x = column_features(columns)
    size = quantities(columns)[:, 0]
    deep = np.array(columns["depth"]) == "4"
    assert explained(x, (1.0 + deep) * (1.0 + size + size**2) + size**3) > 0.999


def test_the_logarithm_of_a_sum_over_edges_is_nearly_linear(cells: np.ndarray, rng: np.random.Generator) -> None:
    seconds = rng.random((6, len(OPS))) ** 2
    y = np.log(0.2 + sum(seconds[e, column] for e, column in enumerate(cells.T)))
    columns = as_columns(cells)
    assert explained(column_features(columns), y) > 0.98
    assert explained(column_features(columns), y) > explained(choice_columns(columns), y)


def test_a_long_network_is_described_by_counts_and_not_by_all_pairs(rng: np.random.Generator) -> None:
    blocks = rng.integers(0, 9, (400, 22))
    x = column_features({"arch": [" ".join(f"b{block}" for block in row) for row in blocks]})
    assert x.shape == (400, 22 * 9 + 9 + 9 + 45)
    counts = np.array([[(row == block).sum() for block in range(9)] for row in blocks])
    np.testing.assert_array_equal(x[:, 198:207], counts)
    np.testing.assert_allclose(x[:, 207:216], np.log1p(counts))


def test_two_lists_of_the_same_length_describe_the_same_layers(rng: np.random.Generator) -> None:
    kernels, expands = rng.choice([3, 5, 7], (400, 12)), rng.choice([3, 4, 6], (400, 12))
    columns = {"ks": [" ".join(map(str, row)) for row in kernels], "e": [" ".join(map(str, row)) for row in expands]}
    assert explained(column_features(columns), (kernels**2 * expands).sum(axis=1).astype(float)) > 0.999


def test_names_of_rows_are_told_from_what_describes_them() -> None:
    rows = range(150)
    columns = {"name": [f"net{i}" for i in rows], "index": [str(i) for i in rows], "op": ["a", "b", "c"] * 50}
    assert names_of_rows(columns) == ["name"]
