"""benchmarks/transfer_data.py: any table with latencies of several devices is read, or refused in one line."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from chanas.core.genome import decode
from chanas.search.transfer.features import latency_features
from tests.benchmarks.networks import DEVICES, write_mbv3


@pytest.fixture
def script(load: Any) -> ModuleType:
    module: ModuleType = load("transfer_data")
    return module


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_once_for_alls_file_has_features_of_its_space(
    script: ModuleType, tmp_path: Path, rng: np.random.Generator
) -> None:
    path = write_mbv3(tmp_path / "measured.csv", rng)
    data = script.read_measured(path)
    assert data.devices == DEVICES[:4]  # without the copied one
    assert data.gpus == ("fast", "fast", "slow", "slow")
    space, genomes = script.read_mbv3(script.read_columns(path))
    np.testing.assert_array_equal(data.features, latency_features(space, genomes))
    first = next(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    (architecture,) = decode(space, genomes[:1])
    assert " ".join(map(str, architecture.depths)) == first["d"]
    assert str(architecture.resolution) == first["r"]
    assert np.exp(data.log_latencies[0, 0]) == pytest.approx(float(first["fast_1_ms"]))
    assert data.top1(0).shape == (40,)


@pytest.mark.parametrize("names", ["depths kernels expands pixels", "d e ks r"])
def test_the_same_file_under_other_names_is_any_space(
    script: ModuleType, tmp_path: Path, rng: np.random.Generator, names: str
) -> None:
    data = script.read_measured(write_mbv3(tmp_path / "measured.csv", rng, names))
    assert data.devices == DEVICES
    assert data.top1 is None
    assert len(data.features) == 40


def test_devices_are_grouped_by_a_number_at_the_end_alone(script: ModuleType, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "op,raspi4_ms,pixel_xl_ms,v100_1_ms,v100_32_ms", "a,1,1,1,1", "b,2,2,2,2")
    assert script.read_measured(path).gpus == ("raspi4", "pixel_xl", "v100", "v100")


def test_accuracies_are_read_as_shares_or_in_percent(script: ModuleType, tmp_path: Path) -> None:
    for name, cells in (("accuracy", (0.7, 0.8)), ("top1", (70, 80))):
        path = write(tmp_path / "a.csv", f"op,{name},a_ms,b_ms", f"x,{cells[0]},1,1", f"y,{cells[1]},2,2")
        data = script.read_measured(path)
        assert data.top1(0) == pytest.approx([0.7, 0.8])
        assert data.blocks.shape[1] == 3  # two words and a constant: no accuracy


def test_networks_without_a_latency_and_names_of_rows_are_left_out(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"network{i},op{i % 3},{i + 1},{'' if i == 5 else i + 2}" for i in range(120)]
    data = script.read_measured(write(tmp_path / "a.csv", "name,op,a_ms,b_ms", *rows))
    assert data.log_latencies.shape == (119, 2)
    assert data.blocks.shape[1] == 4
    assert "1 of 120 networks" in (out := capsys.readouterr().out)
    assert "column name" in out


@pytest.mark.parametrize("cell", ["", "failed", "nan", "inf", "0", "-1"])
def test_a_cell_that_is_no_positive_number_is_no_latency(script: ModuleType, cell: str) -> None:
    columns = {"x": ["1", "2"], "a_ms": ["1", cell], "b_ms": ["3", "4"]}
    devices, y = script.take_latencies(columns, "a.csv")
    assert devices == ("a", "b")
    assert np.isnan(y).tolist() == [[False, False], [True, False]]
    assert list(columns) == ["x"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["x,a_ms,b_ms"], "no row"),
        (["x,a_ms,b_ms", "1,2"], "expected 3 cells in row 2 of a.csv, got 2"),
        (["x,a,b", "1,2,3"], "at least two devices"),
        (["x,a_ms,b_ms", "1,2,", "2,3,error"], "got none of b"),
        (["x,a_ms,b_ms", "1,2,3", "1,3,4"], "describe networks"),
        (["a_ms,b_ms", "2,3", "3,4"], "describe networks"),
        (["x,accuracy,a_ms,b_ms", "1,good,2,3", "2,bad,3,4"], "expected accuracies"),
        (["x,a_ms,b_ms", "1,2,", "2,,3"], "networks with a latency on each device"),
    ],
)
def test_a_file_that_says_nothing_is_one_line(
    script: ModuleType, tmp_path: Path, lines: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=rf"transfer: error: .*{message}") as error:
        script.read_measured(write(tmp_path / "a.csv", *lines))
    assert "\n" not in str(error.value)


def test_gzipped_files_and_marks_of_their_encoding_are_read(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8-sig") as file:
        file.write("x,a_ms\n1,2\n")
    assert script.read_columns(path) == {"x": ["1"], "a_ms": ["2"]}
