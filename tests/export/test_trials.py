"""chanas/export/trials.py: the example is run and its outputs are compared; each way to fail is one line."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from chanas.devices.host import load_target
from chanas.errors import MeasureError, TargetError
from chanas.export.trials import Check, find_runner, largest_error, run_example, try_example

HOST = load_target("cpu")


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


def test_small_numbers_count_as_the_least_ones() -> None:
    small = ONES * np.float32(1e-3)
    np.testing.assert_allclose(largest_error(small * 3, small * 2, 0.01), 0.1, rtol=1e-6)
    np.testing.assert_allclose(largest_error(small * 30, small * 20, 0.01), 0.5, rtol=1e-6)


@pytest.mark.parametrize(("under", "where"), [("", "on this machine"), ("qemu", "under qemu")])
def test_a_check_tells_where_it_was_made(under: str, where: str) -> None:
    assert Check("2 images", ("logits", "PyTorch's"), under, 1.25e-7).describe() == (
        f"2 images {where}: logits within 1e-07 of PyTorch's"
    )


# ---- an example is tried --------------------------------------------------------------------------------------------
PROGRAM = Path("network")


def tried(*errors: float, runner: Sequence[str] | str = ()) -> Check | str:
    return try_example(PROGRAM, runner, lambda _: errors, "2 images", ("logits", "PyTorch's"), 1e-3)


@pytest.mark.parametrize(("runner", "under"), [((), ""), (("/usr/bin/qemu-aarch64",), "qemu-aarch64")])
def test_the_largest_error_of_all_is_told(runner: Sequence[str], under: str) -> None:
    assert tried(0.0, 1e-4, 1e-5, runner=runner) == Check("2 images", ("logits", "PyTorch's"), under, 1e-4)


@pytest.mark.parametrize("error", [2e-3, math.inf])
def test_an_example_that_gives_something_else_is_an_error(error: float) -> None:
    with pytest.raises(MeasureError, match=r"logits are .* away from PyTorch's; nothing was written"):
        tried(0.0, error)


def test_an_example_that_nothing_runs_here_is_told() -> None:
    assert tried(math.inf, runner="no emulator") == "no emulator"


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (TargetError("compiled for 6502"), "there is nothing to compare with: compiled for 6502"),
        (PermissionError(13, "Permission denied"), "Permission denied: network"),
    ],
)
def test_an_example_that_cannot_be_compared_is_told(raised: Exception, says: str) -> None:
    def errors(_runner: Sequence[str]) -> Iterator[float]:
        yield 0.0
        raise raised

    assert try_example(PROGRAM, (), errors, "2 images", ("logits", "PyTorch's"), 1e-3) == says


def test_a_program_of_this_platform_is_run_as_it_is_unless_the_processor_lacks_something() -> None:
    assert find_runner(HOST) == []
    assert find_runner(HOST, "it lacks sve") == "it lacks sve"


def test_a_program_of_an_unknown_platform_is_not_run() -> None:
    assert "has no emulator" in find_runner(dataclasses.replace(HOST, mtriple="fictional-linux-gnu"))
