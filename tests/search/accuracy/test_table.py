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


def keyed(folder: Path, top1: list[str], header: str = "architecture,top1", separator: str = ",") -> Path:
    """A table of keys whose accuracies are written as given."""
    rows = [f"{a.key}{separator}{text}" for a, text in zip(drawn(len(top1)), top1, strict=True)]
    (folder / "t.csv").write_text("\n".join([header.replace(",", separator), *rows]) + "\n", encoding="utf-8")
    return folder / "t.csv"


def spread(folder: Path, first: int, change: dict[str, str | None] | None = None) -> tuple[Path, list[Architecture]]:
    """A table with a column for each number, counted from `first`; `change` renames columns, or leaves them out."""
    num = SPACE.num_stages * SPACE.max_depth
    rows = []
    for architecture in drawn(9):
        row: dict[str, Any] = {"r": architecture.resolution, "w": architecture.width_multiplier, "acc": 0.7}
        row |= {f"d{first + s}": depth for s, depth in enumerate(architecture.depths)}
        listed = lists(architecture)
        for name in ("ks", "e"):
            numbers = listed[name].strip("[]").split(", ")
            row |= {f"{name}{first + i}": numbers[i] for i in range(num)}
        rows.append({(change or {}).get(k, k): v for k, v in row.items() if (change or {}).get(k, k) is not None})
    return write(folder / "t.csv", rows), drawn(9)


@pytest.mark.parametrize("first", [0, 1])
def test_columns_are_counted_from_zero_as_well_as_from_one(first: int, tmp_path: Path) -> None:
    path, architectures = spread(tmp_path, first)
    assert load_accuracy_table(path, SPACE).architectures == tuple(architectures)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ks20": None}, "ks1 to ks20"),
        ({"ks1": "ks21"}, "ks21"),
        ({"d5": "d6"}, "d1 to d5"),
        ({"e2": "e01"}, "e01 twice"),
        ({"r": "r1"}, "missing: resolution"),
        ({"e3": "kernel1"}, "e1 to e20"),
    ],
)
def test_columns_that_are_not_counted_in_order_are_refused(
    change: dict[str, str | None], named: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=named):
        load_accuracy_table(spread(tmp_path, 1, change)[0], SPACE)


@pytest.mark.parametrize(
    "header", ["architecture,acc1", "Key,Top-1", "ARCHITECTURE,Accuracy", "key,acc@1", "key,TOP_1"]
)
def test_names_of_columns_as_logs_and_spreadsheets_write_them(header: str, tmp_path: Path) -> None:
    table = load_accuracy_table(keyed(tmp_path, [f"0.6{i}" for i in range(9)], header), SPACE)
    assert table.top1.tolist() == pytest.approx([0.6 + i / 100 for i in range(9)])


@pytest.mark.parametrize(
    ("header", "more", "named"),
    [
        ("architecture,acc1,acc5", ",0.9", "'acc5'"),
        ("architecture,accuracy,acc1", ",0.9", "accuracy, acc1"),
        ("architecture,top1,top1", ",0.9", "top1 twice"),
        ("architecture,top1,r", ",224", "architecture and r"),
        ("key1,top1,more", ",1", "missing: resolution"),
        ("architecture,top1,", ",0.9", "''"),
    ],
)
def test_columns_that_are_doubled_or_not_read_are_refused(header: str, more: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=named):
        load_accuracy_table(keyed(tmp_path, ["0.7" + more] * 9, header), SPACE)


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "index"])
def test_the_numbers_of_rows_are_no_column(name: str, tmp_path: Path) -> None:
    path = keyed(tmp_path, ["0.7"] * 9)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{name},{lines[0]}", *(f"{7 * i},{line}" for i, line in enumerate(lines[1:]))]))
    assert len(load_accuracy_table(path, SPACE).architectures) == 9


@pytest.mark.parametrize(
    ("texts", "header", "expected"),
    [
        (["0.61", "67.1%", *["0.6"] * 7], "key,acc", [0.61, 0.671]),
        (["61", "67.1", *["60.0"] * 7], "key,acc", [0.61, 0.671]),
        (["67.1 %", "0.1%", *["61%"] * 7], "key,acc", [0.671, 0.001]),
        (["67.1", "0.1", *["61"] * 7], "key,top1 (%)", [0.671, 0.001]),
        (["67.1", "0", *["61"] * 7], "key,acc", [0.671, 0.0]),
        (["1.0", "0.61", *["0.6"] * 7], "key,acc", [1.0, 0.61]),
        (["61", "67.1%", *["60.0"] * 7], "key,acc", [0.61, 0.671]),
    ],
)
def test_a_row_means_what_it_says(texts: list[str], header: str, expected: list[float], tmp_path: Path) -> None:
    table = load_accuracy_table(keyed(tmp_path, texts, header), SPACE)
    assert table.top1[:2].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (["0.61"] * 8 + ["67.1"], "lines 10 and 2"),
        (["61"] * 8 + ["1"], "lines 2 and 10"),
        (["0.61"] * 8 + ["0.671%"], "line 10"),
        (["0.671%"] * 9, "line 2"),
        (["61"] * 8 + ["140"], "line 10"),
        (["0.61"] * 8 + ["101%"], "line 10"),
        (["0.61"] * 8 + ["nan"], "line 10"),
        (["0.61"] * 8 + [""], "line 10: .*an empty cell"),
        (["0.61"] * 8 + ["-1"], "line 10"),
        (["0.61"] * 8 + ["good"], "line 10"),
        (["0.61"] * 8 + ["inf"], "line 10"),
        (["0.61"] * 8 + ["0,61"], "line 10: expected 2 cells"),
    ],
)
def test_an_accuracy_that_is_none_or_of_another_unit_is_refused_by_its_line(
    texts: list[str], line: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=line):
        load_accuracy_table(keyed(tmp_path, texts), SPACE)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_tables_of_spreadsheets(separator: str, tmp_path: Path) -> None:
    path = keyed(
        tmp_path,
        [
            "0,61",
            '"67,1 %"',
            *["0,6"] * 7,
        ],
        separator=separator,
    )
    path.write_text(f"\ufeff{path.read_text()}{separator}\n\n{separator}\n", encoding="utf-8")
    assert load_accuracy_table(path, SPACE).top1[:2].tolist() == pytest.approx([0.61, 0.671])


def test_a_repeated_row_counts_once_and_another_accuracy_of_it_is_refused(tmp_path: Path) -> None:
    rows = [{"architecture": a.key, "top1": 0.7} for a in drawn(8)]
    table = load_accuracy_table(write(tmp_path / "t.csv", [*rows, rows[0]]), SPACE)
    assert (len(table.architectures), table.num_repeated) == (8, 1)
    assert "1 repeated rows" in table.describe()
    with pytest.raises(DataError, match=r"lines 2 and 10: .* 0\.7 and 0\.8"):
        load_accuracy_table(write(tmp_path / "t.csv", [*rows, {**rows[0], "top1": 0.8}]), SPACE)


def test_rows_outside_the_space_are_named_and_left_out(tmp_path: Path) -> None:
    rows = [{**lists(a), "top1": 70.0} for a in drawn(8)]
    odd = [{**rows[0], "r": 225}, {**rows[1], "w": 1.5}, {**rows[2], "d": "[9, 2, 2, 2, 2]"}]
    table = load_accuracy_table(write(tmp_path / "t.csv", [*rows, *odd]), SPACE)
    assert len(table.architectures) == 8
    assert [text.split(":")[0] for text in table.outside] == ["line 10", "line 11", "line 12"]
    assert "resolution 225" in table.outside[0]
    assert "3 rows outside the space left out (line 10" in table.describe()


@pytest.mark.parametrize(
    "change",
    [
        {"ks": "3 5"},
        {"ks": "[np.int64(3), " + ", ".join(["np.int64(5)"] * 19) + "]"},
        {"d": "[2, 2.5, 2, 2, 2]"},
        {"d": "[2, nan, 2, 2, 2]"},
        {"r": "224.4"},
        {"r": ""},
        {"e": str([3.5] * 20)},
        {"w": "1 2"},
    ],
)
def test_a_row_that_is_no_architecture_is_refused_by_its_line(change: dict[str, str], tmp_path: Path) -> None:
    rows = [{**lists(a), "top1": 70.0} for a in drawn(9)]
    with pytest.raises(DataError, match="line 6: expected"):
        load_accuracy_table(write(tmp_path / "t.csv", [*rows[:4], {**rows[4], **change}, *rows[5:]]), SPACE)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"architecture": "x", "speed": 1}], "has no column top1; its columns: architecture, speed"),
        ([{"r": 224, "ks": "3", "e": "3", "d": "2", "top1": 70}], r"missing: width \(width is the width multiplier"),
        ([{"architecture": "x", "top1": 0.7}], "line 2: expected an architecture key"),
        ([{"architecture": "r" + "9" * 5000 + "-w1-k3e3", "top1": 0.7}], "line 2: "),
        ([{"architecture": a.key, "top1": 0.7} for a in drawn(7)], "at least 8 architectures .*, got 7"),
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
