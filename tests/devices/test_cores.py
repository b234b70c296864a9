"""chanas/devices/cores.py: cores shared out between timing and everything else."""

from __future__ import annotations

import os

import pytest

from chanas.devices.cores import kept_off, split_cores


@pytest.mark.parametrize(
    ("cores", "num_threads", "expected"),
    [
        ({3}, 1, ([3], [])),
        ({5, 3}, 1, ([3], [5])),
        ({0, 1, 2, 3}, 2, ([0, 1], [2, 3])),
        ({0, 1}, 2, ([0, 1], [])),
        ({0}, 2, ([0], [])),
    ],
)
def test_cores_are_split_between_timing_and_compiling(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], num_threads: int, expected: tuple[list[int], list[int]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cores)
    assert split_cores(num_threads) == expected


def test_a_process_is_kept_off_some_cores_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    timing = min(before)
    with kept_off([timing]):
        assert os.sched_getaffinity(0) == (before - {timing} or before)
    assert os.sched_getaffinity(0) == before
