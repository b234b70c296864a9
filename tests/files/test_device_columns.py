"""chanas/files/device_columns.py: devices are columns `DEVICE_ms`, and what is none is refused in one line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from chanas.errors import DataError
from chanas.files.device_columns import milliseconds, read_device_columns


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_devices_are_the_columns_with_milliseconds(tmp_path: Path) -> None:
    read = read_device_columns(write(tmp_path / "a.csv", "op,a100_ms,_ms,b_ms", "x,1,2,", "y,failed,2,3"), "network")
    assert read.devices == ("a100", "b")
    assert read.latencies("a100") == ["1", "failed"]
    assert list(read.columns) == ["op", "a100_ms", "_ms", "b_ms"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["x,a_ms,b_ms"], "a row for each kernel in .*, got 2 such columns and 0 rows"),
        (["x,a,b", "1,2,3"], "0 such columns and 1 rows"),
        (["x,a_ms,a_ms", "1,2,3"], "column 'a_ms' twice"),
    ],
)
def test_a_file_without_devices_or_rows_is_one_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_device_columns(write(tmp_path / "a.csv", *lines), "kernel")


@pytest.mark.parametrize("cell", ["", "failed", "nan", "inf", "0", "-1"])
def test_what_is_no_positive_number_is_no_latency(cell: str) -> None:
    assert math.isnan(milliseconds(cell))


def test_a_latency_is_read_as_it_is_written() -> None:
    assert milliseconds("2.5e-1") == 0.25
