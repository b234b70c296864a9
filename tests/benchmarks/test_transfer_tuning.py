"""benchmarks/transfer_tuning.py: searches see of the new device what they measured, and the figures are what they are
called."""

from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

DEVICES = ("first", "alike", "other")


@pytest.fixture
def script(load: Any) -> ModuleType:
    module: ModuleType = load("transfer_tuning")
    return module


@pytest.fixture
def data_file(tmp_path: Path, rng: np.random.Generator) -> Path:
    """60 configurations; one does not work on the other device."""
    path = tmp_path / "measured.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["width", "height", "fixed", *(f"{name}_ms" for name in DEVICES)])
        for width in range(1, 13):
            for height in range(1, 6):
                first = 1.0 + abs(math.log2(width) - 2.0) + abs(height - 3) + 0.1 * rng.random()
                other: float | str = "" if (width, height) == (1, 1) else 1.0 + width / height
                writer.writerow([width, height, 15, first, 2.0 * first, other])
    return path


def test_a_file_is_read_with_what_does_not_work(script: ModuleType, data_file: Path) -> None:
    space = script.read_space(data_file)
    assert space.devices == DEVICES
    assert space.x.shape == (60, 2)  # `fixed` says nothing
    assert np.isinf(space.log_latencies).sum(axis=0).tolist() == [0, 0, 1]
    assert space.log_latencies[0, 1] - space.log_latencies[0, 0] == pytest.approx(math.log(2.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a_ms,b_ms\n1,2\n", "parameters"),
        ("x,a_ms,b_ms\n1,,2\n2,,3\n", "none of a"),
        ("x,a_ms\n1,2\n2,3\n", "at least two devices"),
    ],
)
def test_a_file_without_parameters_devices_or_latencies_is_one_line(
    script: ModuleType, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match=f"transfer_tuning: error: .*{message}"):
        script.main(["--quick", "--data", str(path)])


def test_large_spaces_are_searched_less_often_by_default(script: ModuleType) -> None:
    assert [script.draws_for(50, num) for num in (200, 5000, 10_000, 120_000, 10**7)] == [50, 50, 25, 2, 1]


def test_the_nearest_device_is_found_by_what_was_measured_alone(script: ModuleType, data_file: Path) -> None:
    space = script.read_space(data_file)
    truth, sources = space.log_latencies[:, 0], space.log_latencies[:, [1, 2]]
    found = [index for index, _ in itertools.islice(script.nearest(sources, truth), 6)]
    spoilt = np.full_like(truth, 9.0)
    spoilt[found] = truth[found]
    assert [index for index, _ in itertools.islice(script.nearest(sources, spoilt), 6)] == found


def test_scores_by_hand(script: ModuleType) -> None:
    truth = np.log([4.0, 1.0, 2.0, np.inf])
    assert script.top(np.array([0.0, 2.0, 1.0, 3.0]), truth, 1) == pytest.approx(0.25)
    assert script.top(np.array([1.0, 2.0, 0.0, 3.0]), truth, 2) == pytest.approx(0.5)
    assert script.top(np.array([1.0, 2.0, 3.0, 0.0]), truth, 1) == 0.0
    assert script.pairwise(truth, truth) == pytest.approx(1.0)
    assert script.pairwise(np.array([2.0, 0.0, 3.0, 9.0]), truth) == pytest.approx(2 / 3)
    assert script.reached_in([2.0, 1.04, 1.0]) == (2, 3)
    assert script.reached_in([2.0, 1.5]) == (3, 3)


def test_asking_costs_what_it_takes_longer(script: ModuleType) -> None:
    reached = [
        script.Reached("a", "", script.GP, 0, (10, 10)),
        script.Reached("a", "b", "shuffled", 0, (12, 10)),
        script.Reached("a", "c", "shuffled", 0, (10, 10)),
    ]
    assert script.overhead_percent(reached, "shuffled")["mean"] == pytest.approx(10.0)
    assert script.overhead_percent(reached, "shuffled", 1)["mean"] == 0.0


def test_a_quick_run_ends_in_figures(script: ModuleType, data_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.main(["--quick", "--data", str(data_file)])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["chanas_found_10"]["value"] > 0.8
    assert {"overhead_shuffled_percent", "overhead_reversed_percent", "pair_share_alike"} <= set(figures)
