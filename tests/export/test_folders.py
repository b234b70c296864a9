"""chanas/export/folders.py: the example is run and its outputs are compared; each way to fail is one line."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from chanas.errors import ConfigError, MeasureError
from chanas.export.folders import Check, checked_name, largest_error, run_example


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_what_the_example_prints_comes_back() -> None:
    assert run_example(python("print(3)"), "an image") == b"3\n"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise SystemExit(3)", r"ended with code 3 \(no message\); nothing was written"),
        ("import sys; sys.exit('one\\ntwo')", r"ended with code 1 \(two\); nothing was written"),
    ],
)
def test_an_example_that_fails_is_an_error(code: str, says: str) -> None:
    with pytest.raises(MeasureError, match=says) as raised:
        run_example(python(code), "an image")
    assert "\n" not in str(raised.value)


def test_an_example_that_does_not_end_is_an_error() -> None:
    with pytest.raises(MeasureError, match="took over 0 s for 4 images; nothing was written"):
        run_example(python("while True: pass"), "4 images", timeout_s=0.2)


ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        (ONES, ONES, 0.0),
        (ONES * 1.5, ONES, 0.5),
        (ONES * 110, ONES * 100, 0.1),
        (ONES * 0.25, ONES * 0.5, 0.25),  # relative to 1 at least
        (ONES * np.nan, ONES, math.inf),
        (ONES, ONES * np.inf, math.inf),
        (ONES * -np.inf, ONES * np.inf, math.inf),
        (ONES * np.inf, ONES * np.inf, 0.0),
        (ONES * np.nan, ONES * np.nan, 0.0),
        (np.array([0, 7]), np.array([0, 8]), 1 / 8),
        (np.array([True, False]), np.array([True, True]), 1.0),
    ],
)
def test_an_error_is_relative_to_the_largest_number(found: np.ndarray, expected: np.ndarray, error: float) -> None:  # type: ignore[type-arg]
    np.testing.assert_allclose(largest_error(found, expected), error)


@pytest.mark.parametrize(("under", "where"), [("", "on this machine"), ("qemu", "under qemu")])
def test_a_check_tells_where_it_was_made(under: str, where: str) -> None:
    assert Check("2 images", ("logits", "PyTorch's"), under, 1.25e-7).describe() == (
        f"2 images {where}: logits within 1e-07 of PyTorch's"
    )


@pytest.mark.parametrize(("folder", "name", "result"), [("My-net", None, "my_net"), ("My-net", "other", "other")])
def test_a_network_is_called_after_its_folder(folder: str, name: str | None, result: str, tmp_path: Path) -> None:
    assert checked_name(tmp_path / folder, name) == result


def test_only_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("A neural network for C programs, made by `chanas export`.\n\nmore")
    assert checked_name(tmp_path, "net") == "net"
    (tmp_path / "README").write_text("My own.\nfor C programs, made by `chanas export`.")
    with pytest.raises(ConfigError, match="was not made by `chanas export`"):
        checked_name(tmp_path, "net")
