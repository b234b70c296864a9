"""Accuracies from a file: every way to write an architecture, what is averaged, left out or refused."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import decode, encode, sample
from chanas.errors import DataError
from chanas.search.accuracy.table import load_accuracy_table

SPACE = SearchSpace.load("mbv3")


def drawn(num: int, seed: int = 0) -> list[Architecture]:
    return decode(SPACE, sample(SPACE, num, np.random.default_rng(seed)))


def lists(architecture: Architecture) -> dict[str, Any]:
    """As once-for-all's users keep them: 20 kernels, 20 expand ratios, 5 depths; unused slots are filled."""
    ks, e = [], []
    for stage in architecture.stages:
        filled = [*stage, *[(7, 4)] * (SPACE.max_depth - len(stage))]
        ks += [k for k, _ in filled]
        e += [x for _, x in filled]
    return {
        "ks": str(ks),
        "e": str(e),
        "d": str(list(architecture.depths)),
        "r": architecture.resolution,
        "w": architecture.width_multiplier,
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@given(seed=st.integers(0, 10_000))
def test_keys_lists_and_columns_say_the_same(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tables")
    architectures = drawn(9, seed)
    top1 = np.linspace(0.6, 0.8, 9)
    keyed = write(
        folder / "keys.csv", [{"architecture": a.key, "top1": t} for a, t in zip(architectures, top1, strict=True)]
    )
    listed = write(
        folder / "lists.csv", [{**lists(a), "acc": 100 * t} for a, t in zip(architectures, top1, strict=True)]
    )
    spread = []
    for a, t in zip(architectures, top1, strict=True):
        row: dict[str, Any] = {"resolution": a.resolution, "width": a.width_multiplier, "top1": t}
        for s in range(SPACE.num_stages):
            row[f"depth{s + 1}"] = len(a.stages[s])
            for p in range(SPACE.max_depth):
                k, e = a.stages[s][p] if p < len(a.stages[s]) else ("", "")
                row[f"kernel{s * SPACE.max_depth + p + 1}"], row[f"expand{s * SPACE.max_depth + p + 1}"] = k, e
        spread.append(row)
    columns = write(folder / "columns.csv", spread)
    for path in (keyed, listed, columns):
        table = load_accuracy_table(path, SPACE)
        assert list(table.architectures) == list(dict.fromkeys(architectures))
        assert np.array_equal(table.genomes, encode(SPACE, table.architectures))
        assert np.allclose(table.top1, top1[: len(table.top1)]) or table.num_repeated
        assert not table.outside


def test_repeated_rows_are_averaged(tmp_path: Path) -> None:
    rows = [{"architecture": a.key, "top1": 0.7} for a in drawn(8)]
    path = write(tmp_path / "t.csv", [*rows, {**rows[0], "top1": 0.8}])
    table = load_accuracy_table(path, SPACE)
    assert table.top1[0] == pytest.approx(0.75)
    assert table.num_repeated == 1
    assert "1 repeated rows averaged" in table.describe()


def test_rows_outside_the_space_are_named_and_left_out(tmp_path: Path) -> None:
    rows = [{**lists(a), "top1": 70.0} for a in drawn(8)]
    odd = [{**rows[0], "r": 225}, {**rows[1], "ks": "3 5"}, {**rows[2], "d": "[9, 2, 2, 2, 2]"}]
    table = load_accuracy_table(write(tmp_path / "t.csv", [*rows, *odd]), SPACE)
    assert len(table.architectures) == 8
    assert [text.split(":")[0] for text in table.outside] == ["line 10", "line 11", "line 12"]
    assert "resolution 225" in table.outside[0]
    assert "expected 20 numbers for kernel, got 2" in table.outside[1]
    assert "3 rows outside the space left out (line 10" in table.describe()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"architecture": "x", "speed": 1}], "has no column top1; its columns: architecture, speed"),
        ([{"r": 224, "ks": "3", "e": "3", "d": "2", "top1": 70}], r"missing: width \(width is the width multiplier"),
        ([{"architecture": "x", "top1": "good"}], "line 2: expected a top-1, got 'good'"),
        ([{"architecture": "x", "top1": -1}], "line 2: expected a top-1, got '-1'"),
        ([{"architecture": "x", "top1": 140}], "at most 100 percent, in .*, got 140"),
        (
            [{"architecture": "x", "top1": 0.7}],
            "at least 8 architectures .*, got 0; the first .* line 2: expected",
        ),
    ],
)
def test_a_table_that_cannot_be_used_is_one_line(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_accuracy_table(write(tmp_path / "t.csv", rows), SPACE)


def test_a_missing_or_binary_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the accuracy table"):
        load_accuracy_table(tmp_path / "none.csv", SPACE)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(DataError, match="cannot read the accuracy table"):
        load_accuracy_table(tmp_path / "binary.csv", SPACE)


def test_sub_spaces_without_any_accuracy_are_told(tmp_path: Path, demo_space: SearchSpace) -> None:
    every = decode(demo_space, sample(demo_space, 200, np.random.default_rng(0)))
    home = every[0].sub_space
    path = tmp_path / "some.csv"
    path.write_text("architecture,top1\n" + "".join(f"{a.key},0.5\n" for a in every if a.sub_space == home))
    found = load_accuracy_table(path, demo_space)
    assert set(found.unknown) == {*demo_space.sub_spaces} - {home}
    left_out = f"none of {len(found.unknown)} sub-spaces, which are left out (the first: {found.unknown[0].key})"
    assert left_out in found.describe()
