"""chanas/prescheduler/tuning/configurations.py: any file with configurations is read, or refused in one line."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from chanas.errors import ConfigError, DataError
from chanas.prescheduler.tuning.configurations import read_configurations


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_latency_that_is_not_there_is_another_thing_than_one_that_cannot_be(tmp_path: Path) -> None:
    cells = ["2", "", "failed", "inf", "0"]
    table = read_configurations(write(tmp_path / "a.csv", "x,a_ms", *(f"{i},{cell}" for i, cell in enumerate(cells))))
    np.testing.assert_array_equal(table.of("a"), [np.log(2.0), np.nan, np.inf, np.inf, np.inf])


def test_parameters_are_what_differs_and_names_no_row(tmp_path: Path) -> None:
    rows = [f"kernel{i},15,{i % 60},{i // 60},{i + 1}" for i in range(120)]
    table = read_configurations(write(tmp_path / "a.csv", "name,filter,tile,unroll,a_ms", *rows))
    assert table.names == ("name",)
    assert list(table.parameters) == ["tile", "unroll"]
    assert table.x.shape == (120, 2)
    assert table.configuration(61) == {"tile": "1", "unroll": "1"}
    assert table.told(61) == "tile 1, unroll 1"


def test_words_are_parameters(tmp_path: Path) -> None:
    table = read_configurations(
        write(tmp_path / "a.csv", "layout,padded,a_ms", "NHWC,True,1", "NCHW,False,2", "NCHW,True,3")
    )
    assert table.x.shape == (3, 4)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a_ms,b_ms", "1,2"], "parameters that differ"),
        (["x,a_ms", "1,2", "1,3"], "parameters that differ"),
        (["x,y,a_ms", "1,1,2", "2,1,2", "1,1,2"], "the configuration x 1 in rows 1 and 3"),
        (["x,y,a_ms", "1,u,2", "2,u,2", "2.0,u,2"], "the configuration x 2.0 in rows 2 and 3"),
        (["x,a_ms", "1,2", "1.0,3"], "parameters that differ"),
        (["x,a", "1,2"], "a row for each configuration"),
    ],
)
def test_a_file_that_says_too_little_is_one_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_configurations(write(tmp_path / "a.csv", *lines))


def test_other_devices_are_those_that_are_named_or_all(tmp_path: Path) -> None:
    table = read_configurations(write(tmp_path / "a.csv", "x,a_ms,b_ms,c_ms", "1,2,3,4", "2,3,4,5"))
    assert table.others("b") == ("a", "c")
    assert table.others("b", ["c", "c"]) == ("c",)
    np.testing.assert_array_equal(table.sources(["c", "a"]), np.log([[4.0, 2.0], [5.0, 3.0]]))
    with pytest.raises(ConfigError, match="unknown device 'd'; known: a, b, c; a new one has a column d_ms"):
        table.of("d")
    with pytest.raises(ConfigError, match="unknown device 'd'"):
        table.others("a", ["d"])
    with pytest.raises(ConfigError, match="another device than a"):
        table.others("a", ["b", "a"])


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz"])
def test_some_rows_are_written_first_and_read_as_the_same_table(tmp_path: Path, name: str) -> None:
    before = read_configurations(write(tmp_path / "a.csv", "x,a_ms,b_ms", "1,2,", "2,,3", "4,failed,"))
    before.save(tmp_path / name, "b", [2, 0])
    after = read_configurations(tmp_path / name)
    assert after.columns["b_proposed"] == ["1", "2", ""]
    assert list(after.parameters) == ["x"]
    np.testing.assert_array_equal(after.log_latencies, before.log_latencies[[2, 0, 1]])
    after.save(tmp_path / "again.csv", "b", [])
    rows = list(csv.DictReader((tmp_path / "again.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["x"], row["b_proposed"]) for row in rows] == [("4", ""), ("1", ""), ("2", "")]
