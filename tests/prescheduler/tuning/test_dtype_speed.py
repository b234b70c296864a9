"""chanas/prescheduler/tuning/dtype_speed.py: a dtype that is slower than float32 is told with both figures, once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chanas.core.target import HardwareTarget
from chanas.measuring.fleet import WorkerPool
from chanas.prescheduler.ideas import ranked_points
from chanas.prescheduler.tuning.dtype_speed import WORKLOAD, DtypeSpeed, dtype_speed, tell_if_slower

from ...compiler.workbench import HOST, SyntheticPool

HALF = dataclasses.replace(HOST, name="cpu-bf16", dtype="bfloat16", vector_lanes=16, num_vector_registers=32)
FAST, SLOW = 10e-6, 40e-6


def planted(seconds: dict[str, float | str]) -> SyntheticPool:
    """Every point takes the dtype's seconds, the third one three quarters of them."""
    best = {
        dtype: ranked_points(dataclasses.replace(WORKLOAD, dtype=dtype), HALF, 3)[-1]
        for dtype in ("float32", "bfloat16")
    }

    def invented(asked: Any) -> float | str:
        dtype = asked.what.workload.dtype
        found = seconds[dtype]
        return found if isinstance(found, str) else found * (0.75 if asked.what.point == best[dtype] else 1.0)

    return SyntheticPool(invented)


def test_both_dtypes_have_the_seconds_of_their_best_point(tmp_path: Path) -> None:
    pool = planted({"float32": FAST, "bfloat16": SLOW})
    assert dtype_speed(HALF, pool, tmp_path) == DtypeSpeed("bf16", 0.75 * SLOW, 0.75 * FAST)
    assert {asked.target.dtype for asked in pool.built} == {"float32", "bfloat16"}


@pytest.mark.parametrize("broken", ["float32", "bfloat16"])
def test_a_dtype_in_which_nothing_runs_has_no_speed(tmp_path: Path, broken: str) -> None:
    pool = planted({"float32": FAST, "bfloat16": SLOW, broken: "crash: the worker ended"})
    assert dtype_speed(HALF, pool, tmp_path) is None


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (41.2e-6, "bf16 is slower than f32 here: 41.2 us against 23.9 us of a 1×1 convolution"),
        (12.0e-6, "bf16 is faster than f32 here: 12 us against 23.9 us of a 1×1 convolution"),
        (24.1e-6, "bf16 is as fast as f32 here: 24.1 us against 23.9 us of a 1×1 convolution"),
    ],
)
def test_one_line_has_both_figures(seconds: float, expected: str) -> None:
    assert DtypeSpeed("bf16", seconds, 23.9e-6).describe() == expected


def test_a_slower_dtype_is_told_before_the_first_tuning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = planted({"float32": FAST, "bfloat16": SLOW})
    tell_if_slower(HALF, pool, tmp_path, is_first=True)
    told = capsys.readouterr()
    assert told.err == "bf16 is slower than f32 here: 30 us against 7.5 us of a 1×1 convolution; going on\n"
    assert told.out == ""


def test_a_faster_dtype_is_passed_over_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speed = tell_if_slower(HALF, planted({"float32": SLOW, "bfloat16": FAST}), tmp_path, is_first=True)
    assert speed is not None
    assert not speed.is_slower
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("target", "is_first"), [(HOST, True), (HALF, False)])
def test_nothing_is_timed_where_there_is_nothing_to_tell(
    tmp_path: Path, target: HardwareTarget, is_first: bool
) -> None:
    pool = planted({"float32": FAST, "bfloat16": SLOW})
    assert tell_if_slower(target, pool, tmp_path, is_first) is None
    assert pool.built == []


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(HOST) as workers:
        yield workers


def test_the_operator_is_built_and_timed_by_workers(pool: WorkerPool, tmp_path: Path) -> None:
    """On any processor, so in float32."""
    speed = dtype_speed(HOST, pool, tmp_path)
    assert speed is not None
    assert speed.dtype == "f32"
    assert 0.0 < speed.seconds < 1.0
