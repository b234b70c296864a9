"""chanas/files/csv_files.py: tables as spreadsheets write them, or one line that says what is wrong;
what is written is read again."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from chanas.errors import DataError
from chanas.files.csv_files import as_numbers, read_csv, write_csv

TEXT = "op,ms\r\na, 1\r\n,\r\nb,2\r\n"


def written(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_cells_are_read_and_empty_rows_are_left_out(tmp_path: Path, name: str, separator: str) -> None:
    header, rows = read_csv(written(tmp_path / name, "\ufeff" + TEXT.replace(",", separator)), "table")
    assert header == ["op", "ms"]
    assert [row.cells for row in rows] == [["a", "1"], ["b", "2"]]
    assert [row.line for row in rows] == [2, 4]


def test_a_quoted_cell_may_hold_separators_and_ends_of_lines(tmp_path: Path) -> None:
    _, rows = read_csv(written(tmp_path / "a.csv", 'op,ms\n"a,\u2028\nb",1\nc,2\n'), "table")
    assert [(row.line, row.cells[0]) for row in rows] == [(3, "a,\u2028\nb"), (4, "c")]


def test_an_empty_file_has_neither_columns_nor_rows(tmp_path: Path) -> None:
    assert read_csv(written(tmp_path / "a.csv", ""), "table") == ([], [])


def test_a_row_of_another_length_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a.csv, line 3: expected 2 cells, .* got 3"):
        read_csv(written(tmp_path / "a.csv", "op,ms\na,1\nb,1,2\n"), "table")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00a", gzip.compress(b"op,ms\na,1\n", mtime=0)[:-9], b'op\n"a'])
def test_what_cannot_be_read_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ("a.csv.gz" if content[:2] == b"\x1f\x8b" else "a.csv")
    path.write_bytes(content)
    for each in (path, tmp_path / "none.csv", tmp_path):
        with pytest.raises(DataError, match=r"^cannot read the table ") as refused:
            read_csv(each, "table")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    columns = {"op": ["a,b", 'c "d"', ""], "ms": ["1", "", "2"]}
    write_csv(tmp_path / name, columns)
    header, rows = read_csv(tmp_path / name, "table")
    assert header == list(columns)
    assert [row.cells for row in rows] == [list(cells) for cells in zip(*columns.values(), strict=True)]


def test_numbers_are_read() -> None:
    np.testing.assert_array_equal(as_numbers(["1", "2.5", "-3e2"]), [1.0, 2.5, -300.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("cells", [["1", ""], ["1", "nan"], ["1", "inf"], ["1", "x"], ["True", "False"]])
def test_words_and_what_is_not_finite_are_no_numbers(cells: list[str]) -> None:
    assert as_numbers(cells) is None
