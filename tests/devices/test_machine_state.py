"""chanas/devices/machine_state.py: what a machine tells, and that what it does not tell is None."""

from __future__ import annotations

import os
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from chanas.devices.machine_state import (
    Activity,
    Busy,
    Frequency,
    memory_limit,
    read_cpu_quota,
    read_frequency,
    watch,
)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# ---- clock rates and cores ------------------------------------------------------------------------------------------
CPU0, CPU = "devices/system/cpu/cpu0/cpufreq", "devices/system/cpu"


def test_a_virtual_machine_tells_nothing_of_clock_rates(tmp_path: Path) -> None:
    assert read_frequency(tmp_path) == Frequency(None, None, None)


@pytest.mark.parametrize(
    ("file", "text", "boost"),
    [
        ("cpufreq/boost", "1", True),
        ("cpufreq/boost", "0", False),
        ("intel_pstate/no_turbo", "0", True),
        ("intel_pstate/no_turbo", "1", False),
    ],
)
def test_boost_is_told_by_either_driver(tmp_path: Path, file: str, text: str, boost: bool) -> None:
    files = {f"{CPU0}/scaling_governor": "performance\n", f"{CPU0}/scaling_driver": "x\n", f"{CPU}/{file}": text}
    assert read_frequency(write(tmp_path, files)) == Frequency("performance", "x", boost)


@pytest.mark.parametrize(
    ("governor", "driver", "stays_low"),
    [
        ("powersave", "acpi-cpufreq", True),
        ("powersave", "intel_pstate", False),
        ("powersave", "amd-pstate-epp", False),
        ("performance", "acpi-cpufreq", False),
        (None, None, False),
    ],
)
def test_powersave_means_slow_where_the_driver_does_as_it_is_told(
    governor: str | None, driver: str | None, stays_low: bool
) -> None:
    assert Frequency(governor, driver, None).stays_low is stays_low


@pytest.mark.parametrize(
    ("text", "cores"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None), ("1 0", None)]
)
def test_a_quota_is_in_cores(tmp_path: Path, text: str, cores: float | None) -> None:
    assert read_cpu_quota(write(tmp_path, {"fs/cgroup/cpu.max": text})) == cores


@pytest.mark.parametrize(("text", "limit"), [("1048576\n", 1048576), ("max\n", None), ("", None)])
def test_a_containers_limit_of_memory_is_in_bytes(tmp_path: Path, text: str, limit: int | None) -> None:
    assert memory_limit(write(tmp_path, {"fs/cgroup/memory.max": text})) == limit


def test_files_that_are_not_there_tell_no_limits(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
    assert read_cpu_quota(tmp_path) is None


# ---- who computes ---------------------------------------------------------------------------------------------------
CORES = namedtuple("CORES", "user system idle steal guest")
NO_TIME = CORES(0, 0, 0, 0, 0)
Process = tuple[str, float | None]
"""Name of a process and the seconds that it has used; None: it does not tell."""


def activity(
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    *told: dict[int, Process],
    cores: Any = (NO_TIME, NO_TIME),
) -> Activity:
    """What is seen in that time of processes that tell this, before and after it."""
    listed, shown = iter(told), iter(cores)

    def process_iter(_attributes: object) -> list[Any]:
        found = []
        for pid, (name, used_s) in next(listed).items():
            times = None if used_s is None else SimpleNamespace(user=used_s - 1.0, system=1.0)
            found.append(SimpleNamespace(pid=pid, info={"name": name, "cpu_times": times}))
        return found

    monkeypatch.setattr(psutil, "process_iter", process_iter)
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(shown))
    return watch(seconds, lambda _seconds: None)


def test_the_busiest_process_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    before: dict[int, Process] = {7: ("idle", 5.0), 8: ("one", 10.0), 9: ("two", 3.0)}
    after: dict[int, Process] = {7: ("idle", 5.0), 8: ("one", 11.0), 9: ("two", 5.0), 10: ("began meanwhile", 99.0)}
    assert activity(monkeypatch, 2.0, before, after).busy == (Busy(9, "two", 1.0), Busy(8, "one", 0.5))


def test_this_process_and_those_that_ended_or_tell_nothing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    before: dict[int, Process] = {os.getpid(): ("me", 1.0), 7: ("ends", 1.0), 8: ("silent", None)}
    assert activity(monkeypatch, 1.0, before, {os.getpid(): ("me", 2.0), 8: ("silent", 5.0)}).busy == ()


def test_time_that_the_host_took_is_a_share_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = CORES(100, 0, 100, 0, 40), CORES(150, 0, 130, 20, 80)
    assert activity(monkeypatch, 1.0, {}, {}, cores=cores).stolen == pytest.approx(0.2)


def test_this_machine_tells_what_runs() -> None:
    start = time.monotonic()
    activity = watch(0.05)
    assert time.monotonic() - start >= 0.05
    assert os.getpid() not in {busy.pid for busy in activity.busy}
    assert all(busy.share > 0.0 for busy in activity.busy)
