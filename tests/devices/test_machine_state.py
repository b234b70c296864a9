"""chanas/devices/machine_state.py: what Linux tells in files, and that what it does not tell is None."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from chanas.devices.machine_state import (
    Activity,
    Busy,
    Frequency,
    Memory,
    read_cpu_quota,
    read_frequency,
    read_load,
    read_memory,
    usable_cores,
    watch,
)

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def stat(name: str, user_ticks: int, system_ticks: int) -> str:
    """As proc(5) has it: number, (name), state, ten fields, user time, system time, and more."""
    return f"7 ({name}) S {' '.join(['1'] * 10)} {user_ticks} {system_ticks} 0 0 20 0\n"


# ---- memory ---------------------------------------------------------------------------------------------------------
def test_memory_is_in_bytes(tmp_path: Path) -> None:
    proc = write(tmp_path, {"meminfo": "MemTotal:  2000 kB\nMemFree:  10 kB\nMemAvailable:  500 kB\nHugePages: 0\n"})
    assert read_memory(proc, tmp_path) == Memory(2_048_000, 512_000, None)


@pytest.mark.parametrize(("text", "limit"), [("1048576\n", 1048576), ("max\n", None), ("", None)])
def test_a_containers_limit_is_told(tmp_path: Path, text: str, limit: int | None) -> None:
    files = {"meminfo": "MemTotal: 8 kB\nMemAvailable: 4 kB\n", "fs/cgroup/memory.max": text}
    memory = read_memory(write(tmp_path, files), tmp_path)
    assert memory is not None
    assert memory.limit_bytes == limit


@pytest.mark.parametrize(
    "text", ["", "MemTotal: 8 kB\n", "MemTotal: much\nMemAvailable: 4 kB\n", "MemTotal:\nMemAvailable:"]
)
def test_memory_that_is_not_told_is_none(tmp_path: Path, text: str) -> None:
    assert read_memory(write(tmp_path, {"meminfo": text}), tmp_path) is None


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


@pytest.mark.parametrize(("text", "load"), [("1.25 0.9 0.8 2/300 4242\n", 1.25), ("", None), ("high", None)])
def test_the_load_is_that_of_the_last_minute(tmp_path: Path, text: str, load: float | None) -> None:
    assert read_load(write(tmp_path, {"loadavg": text})) == load


def test_files_that_are_not_there_tell_nothing(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert read_memory(nowhere, nowhere) is None
    assert read_load(nowhere) is None
    assert read_cpu_quota(nowhere) is None
    assert watch(0.0, nowhere) == Activity((), None)


def test_there_is_a_core_to_run_on() -> None:
    assert usable_cores() >= 1


# ---- who computes ---------------------------------------------------------------------------------------------------
def test_the_busiest_process_comes_first(tmp_path: Path) -> None:
    proc = write(
        tmp_path, {"7/stat": stat("idle", 5, 5), "8/stat": stat("a (b) c", 10, 0), "9/stat": stat("two", 0, 3)}
    )

    def pass_time(seconds: float) -> None:
        later = {"8/stat": stat("a (b) c", 10 + TICKS_PER_S, 0), "9/stat": stat("two", TICKS_PER_S, 3 + TICKS_PER_S)}
        write(proc, {**later, "10/stat": stat("began meanwhile", 99, 99)})

    activity = watch(2.0, proc, pass_time)
    assert activity == Activity((Busy(9, "two", 1.0), Busy(8, "a (b) c", 0.5)), None)


def test_this_process_and_those_that_ended_are_left_out(tmp_path: Path) -> None:
    own = f"{os.getpid()}/stat"
    proc = write(tmp_path, {own: stat("me", 0, 0), "7/stat": stat("ends", 0, 0), "8/stat": "cut off"})

    def pass_time(seconds: float) -> None:
        write(proc, {own: stat("me", 100, 0)})
        (proc / "7/stat").unlink()

    assert watch(1.0, proc, pass_time).busy == ()


def test_time_that_the_host_took_is_a_share_of_all(tmp_path: Path) -> None:
    proc = write(tmp_path, {"stat": "cpu  100 0 0 100 0 0 0 0 0 0\ncpu0 1 1 1\n"})

    def pass_time(seconds: float) -> None:
        write(proc, {"stat": "cpu  150 0 0 130 0 0 0 20 0 0\n"})

    assert watch(1.0, proc, pass_time).stolen == pytest.approx(0.2)


def test_this_machine_tells_what_runs() -> None:
    start = time.monotonic()
    activity = watch(0.05)
    assert time.monotonic() - start >= 0.05
    assert os.getpid() not in {busy.pid for busy in activity.busy}
    assert all(busy.share > 0.0 for busy in activity.busy)
