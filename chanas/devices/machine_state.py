"""The state of a machine that timings depend on: a container's limits, clock rates, other processes.

Limits and clock rates are read from files below `/sys`, whose place is an argument; what a machine or a container does
not tell is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

SYS = Path("/sys")


@dataclass(frozen=True)
class Frequency:
    """The choice of clock rates: the kernel's governor and driver, and whether cores may exceed their base rate."""

    governor: str | None
    driver: str | None
    boost: bool | None

    @property
    def stays_low(self) -> bool:
        """True if clock rates never rise: with drivers that choose themselves `powersave` means something else."""
        return self.governor == "powersave" and "pstate" not in (self.driver or "")


@dataclass(frozen=True)
class Busy:
    """A process and its share of one core: 1.0 keeps one busy, 2.0 two."""

    pid: int
    name: str
    share: float


@dataclass(frozen=True)
class Activity:
    """The processes that ran within a stretch of time.

    busy    processes by their share of a core, the busiest first
    stolen  share of all cores' time that the host of a virtual machine gave to others; None where it is not told
    """

    busy: tuple[Busy, ...]
    stolen: float | None


def memory_limit(sys: Path = SYS) -> int | None:
    """Bytes of memory that this process's container may use (cgroup v2); None without a limit."""
    limit = _text(sys / "fs/cgroup/memory.max")
    return int(limit) if limit is not None and limit.isdigit() else None


def read_frequency(sys: Path = SYS) -> Frequency:
    """Read the clock rates of the first core, as Linux's cpufreq or Intel's driver tells them."""
    cpu = sys / "devices/system/cpu"
    boost = _text(cpu / "cpufreq/boost")
    no_turbo = _text(cpu / "intel_pstate/no_turbo")
    is_on = boost == "1" if boost is not None else no_turbo == "0" if no_turbo is not None else None
    own = cpu / "cpu0/cpufreq"
    return Frequency(_text(own / "scaling_governor"), _text(own / "scaling_driver"), is_on)


def read_cpu_quota(sys: Path = SYS) -> float | None:
    """Cores' worth of time that this process's container may use (cgroup v2); None without a limit."""
    words = (_text(sys / "fs/cgroup/cpu.max") or "").split()
    try:
        return int(words[0]) / int(words[1])
    except (ValueError, IndexError, ZeroDivisionError):
        return None


def watch(seconds: float, sleep: Callable[[float], None] = time.sleep) -> Activity:
    """Observe which processes compute within the next `seconds`, except this one, which waits."""
    before, cores_before, start = _seconds_used(), psutil.cpu_times(), time.monotonic()
    sleep(seconds)
    after, cores, elapsed_s = _seconds_used(), psutil.cpu_times(), max(seconds, time.monotonic() - start)
    busy = [
        Busy(pid, name, (used_s - before[pid][1]) / elapsed_s)
        for pid, (name, used_s) in after.items()
        if pid in before and pid != os.getpid() and used_s > before[pid][1]
    ]
    spent = {name: now - then for name, now, then in zip(cores._fields, cores, cores_before, strict=True)}
    total_s = sum(s for name, s in spent.items() if not name.startswith("guest"))  # their time is in the users'
    stolen = spent["steal"] / total_s if "steal" in spent and total_s > 0 else None
    return Activity(tuple(sorted(busy, key=lambda b: -b.share)), stolen)


def _seconds_used() -> dict[int, tuple[str, float]]:
    """Name and seconds of processor time of every process that tells them."""
    told = ((p.pid, p.info) for p in psutil.process_iter(["name", "cpu_times"]))
    return {pid: (i["name"], i["cpu_times"].user + i["cpu_times"].system) for pid, i in told if i["cpu_times"]}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
