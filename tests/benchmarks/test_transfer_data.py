"""benchmarks/transfer_data.py: what is compared of a table with latencies of several devices."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from chanas.errors import DataError
from tests.benchmarks.networks import DEVICES, write_mbv3


@pytest.fixture
def script(load: Any) -> ModuleType:
    module: ModuleType = load("transfer_data")
    return module


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_of_once_for_alls_file_the_copied_device_is_left_out(
    script: ModuleType, tmp_path: Path, rng: np.random.Generator
) -> None:
    data = script.read_measured(write_mbv3(tmp_path / "measured.csv", rng))
    assert data.devices == DEVICES[:4]
    assert data.gpus == ("fast", "fast", "slow", "slow")
    assert data.top1(0).shape == (40,)
    assert data.sizes.shape == (40, 2)


def test_of_another_space_nothing_is_left_out(script: ModuleType, tmp_path: Path, rng: np.random.Generator) -> None:
    data = script.read_measured(write_mbv3(tmp_path / "measured.csv", rng, "depths kernels expands pixels"))
    assert data.devices == DEVICES
    assert data.top1 is None


def test_some_of_the_networks_are_the_same_ones_everywhere(
    script: ModuleType, tmp_path: Path, rng: np.random.Generator
) -> None:
    path = write_mbv3(tmp_path / "measured.csv", rng)
    whole, some = script.read_measured(path), script.read_measured(path, 10)
    assert some.rows.tolist() == list(range(0, 40, 4))
    for name in ("log_latencies", "features", "blocks", "sizes", "trees"):
        np.testing.assert_array_equal(getattr(some, name), getattr(whole, name)[::4])
    np.testing.assert_array_equal(some.top1(3), whole.top1(3)[::4])


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


def test_words_and_numbers_are_codes_of_trees(script: ModuleType) -> None:
    found = script.codes({"op": ["b", "a", "b"], "pixels": ["128", "160", "96"]})
    assert found.tolist() == [[1.0, 128.0], [0.0, 160.0], [1.0, 96.0]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["x,a_ms", "1,2"], "at least two devices"),
        (["x,a_ms,b_ms", "1,2,3", "1,3,4"], "describe networks"),
        (["a_ms,b_ms", "2,3", "3,4"], "describe networks"),
        (["x,accuracy,a_ms,b_ms", "1,good,2,3", "2,bad,3,4"], "expected accuracies"),
        (["x,a_ms,b_ms", "1,2,", "2,,3"], "networks with a latency on each device"),
    ],
)
def test_a_file_with_which_nothing_can_be_compared_is_refused(
    script: ModuleType, tmp_path: Path, lines: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        script.read_measured(write(tmp_path / "a.csv", *lines))
