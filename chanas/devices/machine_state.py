"""The state of a machine that timings depend on, as Linux tells it: memory, clock rates, load, other processes.

Everything is read from files below `/proc` and `/sys`, whose places are arguments; what a machine or a container does
not tell is None.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROC, SYS = Path("/proc"), Path("/sys")


@dataclass(frozen=True)
class Memory:
    """Bytes of memory: what there is, what is free for programs, and a container's limit."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None


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


def read_memory(proc: Path = PROC, sys: Path = SYS) -> Memory | None:
    """Memory of the machine and the limit of this process's container (cgroup v2)."""
    lines = dict(line.split(":", 1) for line in (_text(proc / "meminfo") or "").splitlines() if ":" in line)
    try:
        total, available = (int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError, IndexError):
        return None
    limit = _text(sys / "fs/cgroup/memory.max")
    return Memory(total, available, int(limit) if limit is not None and limit.isdigit() else None)


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


def read_load(proc: Path = PROC) -> float | None:
    """Processes that ran or waited for a core, on average over the last minute."""
    try:
        return float((_text(proc / "loadavg") or "").split()[0])
    except (ValueError, IndexError):
        return None


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def watch(seconds: float, proc: Path = PROC, sleep: Callable[[float], None] = time.sleep) -> Activity:
    """Observe which processes compute within the next `seconds`, except this one, which waits."""
    before, cores_before, start = _ticks(proc), _core_ticks(proc), time.monotonic()
    sleep(seconds)
    elapsed_s = max(seconds, time.monotonic() - start)
    after, cores_after = _ticks(proc), _core_ticks(proc)
    per_s = os.sysconf("SC_CLK_TCK") * elapsed_s
    busy = [
        Busy(pid, name, (ticks - before[pid][1]) / per_s)
        for pid, (name, ticks) in after.items()
        if pid in before and pid != os.getpid() and ticks > before[pid][1]
    ]
    stolen = None
    if cores_before is not None and cores_after is not None:
        total = cores_after[0] - cores_before[0]
        stolen = (cores_after[1] - cores_before[1]) / total if total > 0 else 0.0
    return Activity(tuple(sorted(busy, key=lambda b: -b.share)), stolen)


def _ticks(proc: Path) -> dict[int, tuple[str, int]]:
    """Name and processor time of every process, in the kernel's ticks (proc(5): fields 14 and 15 of `stat`)."""
    found = {}
    for folder in proc.glob("[0-9]*"):
        name, _, rest = (_text(folder / "stat") or "").partition(" (")[2].rpartition(") ")
        fields = rest.split()
        with contextlib.suppress(ValueError, IndexError):  # it has ended
            found[int(folder.name)] = (name, int(fields[11]) + int(fields[12]))
    return found


def _core_ticks(proc: Path) -> tuple[int, int] | None:
    """Ticks of all cores since the start, and those that the host of a virtual machine stole (proc(5): `cpu`)."""
    first = (_text(proc / "stat") or "").partition("\n")[0].split()
    if len(first) < 9 or first[0] != "cpu":
        return None
    ticks = [int(field) for field in first[1:9]]  # user, nice, system, idle, iowait, irq, softirq, steal
    return sum(ticks), ticks[7]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
