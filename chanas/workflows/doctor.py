"""`chanas doctor`: what this machine is, what works on it, and how well it times. A bug report begins with it.

Each section is found out by itself: what fails in one is a problem of that section, and the others are told.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import chanas
from chanas.compiler.backends import case_of
from chanas.compiler.cuda.nvrtc import why_no_nvrtc
from chanas.core.target import HardwareTarget, llvm_version
from chanas.core.units import format_bytes, format_latency
from chanas.core.usage import DTYPES
from chanas.devices import machine_state
from chanas.devices.cores import kept_off, split_cores, usable_cores
from chanas.devices.driver import find_gpu
from chanas.devices.host import load_target
from chanas.devices.lean_tvm import torch_hidden
from chanas.errors import MeasureError, TargetError, describe
from chanas.files.scratch import scratch_folder
from chanas.measuring.canary import LIMIT, NOISE, WORKLOAD, Canary
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import Ping, WorkerError
from chanas.measuring.worker.compiler import readable
from chanas.measuring.worker.process import START_TIMEOUT_S
from chanas.measuring.worker.serve import memory_limit
from chanas.prescheduler.tuning.give_up import describe_errors
from chanas.prescheduler.tuning.preflight import all_families, check_families

SCHEMA = 1
"""Version of the JSON document."""
_PACKAGES = {"chanas": "chanas", "tvm": "apache-tvm", "tvm-ffi": "apache-tvm-ffi", "torch": "torch", "numpy": "numpy"}
_FFI = "0.1.14."  # pyproject.toml says why
_CANARY_S, _WATCHED_S = 5.0, 1.0
# A run directory with its tables is some tens of MB, a checkpoint of the largest supernet some hundreds.
_LITTLE_DISK, _LITTLE_MEMORY = 1e9, 2e9
# Who takes less of a core than this disturbs timings by less than their noise.
_MIN_SHARE, _MAX_LISTED = 0.05, 5
_MIN_STOLEN = 0.01


@dataclass(frozen=True)
class Section:
    """One part of the diagnosis.

    name      its key in the JSON document
    facts     what the document has there
    lines     the same for people: label and value
    problems  what should be otherwise, each with what to do
    """

    name: str
    facts: dict[str, Any]
    lines: tuple[tuple[str, str], ...]
    problems: tuple[str, ...] = ()

    def text(self) -> Iterator[str]:
        for label, value in self.lines:
            yield f"{label:19s} {value}"
        for problem in self.problems:
            yield f"{'PROBLEM':19s} {problem}"


@dataclass
class Diagnosis:
    """All sections that were found out so far."""

    sections: list[Section] = field(default_factory=list)

    @property
    def works(self) -> bool:
        """True if every family of operators works in float32."""
        return any(s.name == "dtypes" and s.facts.get("f32", {}).get("works") is True for s in self.sections)

    def to_json(self) -> dict[str, Any]:
        problems = [problem for section in self.sections for problem in section.problems]
        return {
            "schema": SCHEMA,
            "works": self.works,
            "problems": problems,
            **{section.name: section.facts for section in self.sections},
        }


def diagnose(diagnosis: Diagnosis, seconds: float = _CANARY_S) -> Iterator[Section]:
    """Find out one section after the other, and keep each in `diagnosis`.

    Args:
        seconds: how long the machine is timed; the whole takes some ten seconds more.
    """
    at_rest: dict[str, Callable[[], Section]] = {
        "machine": machine,
        "software": software,
        "gpu": gpu,
        "resources": resources,
        "activity": activity,
    }
    with ExitStack() as opened:
        for name, find in at_rest.items():
            yield _kept(diagnosis, name, find)
        try:
            target = load_target("cpu")
            scratch = opened.enter_context(scratch_folder())
            pool = opened.enter_context(WorkerPool(target))
            _start(target, pool)
        except Exception as error:
            failed = _failed("dtypes", error)
            yield _kept(diagnosis, "dtypes", lambda: failed)
            return
        yield _kept(diagnosis, "dtypes", lambda: dtypes(target, pool, scratch))
        opened.enter_context(kept_off(split_cores(1)[0]))
        yield _kept(diagnosis, "timing", lambda: timing(target, pool, scratch, seconds))


def _start(target: HardwareTarget, pool: WorkerPool) -> None:
    """Start the workers; meanwhile the first reference case loads PyTorch."""
    greetings = [ask(Ping(), START_TIMEOUT_S) for ask in (pool.build, pool.measure)]
    case_of(WORKLOAD, target)
    for greeting in greetings:
        error = greeting.result().error
        if error is not None:
            raise MeasureError(f"a worker process does not answer ({error})")


def _kept(diagnosis: Diagnosis, name: str, find: Callable[[], Section]) -> Section:
    try:
        section = find()
    except Exception as error:  # whatever is broken here is what a doctor is for
        section = _failed(name, error)
    diagnosis.sections.append(section)
    return section


def _failed(name: str, error: Exception) -> Section:
    line = describe(error, 300)
    return Section(name, {"error": line}, ((name, "not found out"),), (f"{line}; report it",))


# ---- what is here ---------------------------------------------------------------------------------------------------
def machine(sys_: Path = machine_state.SYS) -> Section:
    """Processor, caches, what is compiled for, and how clock rates are chosen."""
    target = load_target("cpu")
    with torch_hidden():
        compiled = target.instruction_set
    cores, all_cores, quota = len(usable_cores()), os.cpu_count() or 1, machine_state.read_cpu_quota(sys_)
    frequency = machine_state.read_frequency(sys_)
    caches = {"l1_bytes": target.l1_bytes, "l2_bytes": target.l2_bytes, "l3_bytes": target.l3_bytes}
    facts = {"device": target.device, "fingerprint": target.fingerprint, "compiled_for": compiled, **caches}
    facts |= {"usable_cores": cores, "cores": all_cores, "cpu_quota": quota}
    facts |= {"governor": frequency.governor, "driver": frequency.driver, "boost": frequency.boost}
    problems = []
    if quota is not None and quota < cores:
        problems.append(
            f"this container may use {quota:g} cores' worth of time on {cores} cores, and is stopped in the middle of "
            "timings when that is used up; give it whole cores"
        )
    if frequency.stays_low:
        problems.append("the governor powersave keeps clock rates low; set another, such as performance, to time")
    sizes = ", ".join(f"L{i} {size / 1024:g} KiB" for i, size in enumerate(caches.values(), 1))
    lines = (
        ("device", target.device),
        ("fingerprint", target.fingerprint),
        ("compiled for", compiled),
        ("vector", f"{target.vector_lanes} float32, {target.num_vector_registers} registers"),
        ("caches", sizes),
        ("cores", f"{cores} usable of {all_cores}" + ("" if quota is None else f", {quota:g} cores' worth of time")),
        ("clock rate", _clock_rate(frequency)),
    )
    return Section("machine", facts, lines, tuple(problems))


def _clock_rate(frequency: machine_state.Frequency) -> str:
    if frequency.governor is None and frequency.boost is None:
        return "not told by this machine"
    boost = "" if frequency.boost is None else f", boost {'on' if frequency.boost else 'off'}"
    return f"governor {frequency.governor or 'not told'}{boost}"


def software() -> Section:
    """Versions of what takes part."""
    versions = {name: _version(package) for name, package in _PACKAGES.items()}
    with torch_hidden():
        llvm = llvm_version()
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    distribution = _distribution()
    facts: dict[str, Any] = {"python": platform.python_version(), "system": system, "distribution": distribution}
    facts |= {"versions": versions, "llvm": llvm}
    problems = [
        f"{_PACKAGES[name]} is not installed; `pip install chanas` brings it" for name, v in versions.items() if not v
    ]
    ffi = versions["tvm-ffi"]
    if ffi and not ffi.startswith(_FFI):
        problems.append(
            f"expected apache-tvm-ffi {_FFI}*, got {ffi}, which crashes with this TVM; "
            "`pip install 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'`"
        )
    lines = [("system", f"{system}{f', {distribution}' if distribution else ''}"), ("python", sys.version.split()[0])]
    lines += [(name, version or "not installed") for name, version in versions.items()]
    lines.append(("LLVM", str(llvm) if llvm else "not told"))
    return Section("software", facts, tuple(lines), tuple(problems))


def _version(package: str) -> str | None:
    try:
        return chanas.__version__ if package == "chanas" else metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def gpu() -> Section:
    """The GPU that CUDA shows first, and whether kernels can be compiled for it."""
    found = find_gpu()
    if found is None:
        return Section("gpu", {"found": False}, (("GPU", "no NVIDIA GPU was found"),))
    arch = found.features.arch
    missing = why_no_nvrtc(arch)
    facts = {"found": True, "device": found.name, "arch": arch, "compiles": missing is None}
    line = f"{found.name}, {arch}; `chanas target check cuda` tries it"
    return Section("gpu", facts, (("GPU", line),), () if missing is None else (missing,))


def resources(sys_: Path = machine_state.SYS) -> Section:
    """Free disk where runs and temporary files are written, free memory, and a worker's limit of it."""
    folders = {"working": Path.cwd(), "temporary": Path(tempfile.gettempdir())}
    free = {name: shutil.disk_usage(folder).free for name, folder in folders.items()}
    memory, of_container, limit = psutil.virtual_memory(), machine_state.memory_limit(sys_), memory_limit()
    facts: dict[str, Any] = {f"{name}_folder_free_bytes": size for name, size in free.items()}
    facts |= {"worker_limit_bytes": limit, "memory_bytes": memory.total, "available_bytes": memory.available}
    facts["container_limit_bytes"] = of_container
    its_limit = "" if of_container is None else f", {format_bytes(of_container)} for this container"
    lines = [(f"{name} folder", f"{format_bytes(free[name])} free in {folders[name]}") for name in folders]
    lines.append(
        (
            "memory",
            f"{format_bytes(memory.available)} free of {format_bytes(memory.total)}{its_limit}; "
            f"a worker may take {format_bytes(limit)}",
        )
    )
    problems = [
        f"little space is left in {folders[name]}; free some{', or set TMPDIR' if name == 'temporary' else ''}"
        for name in folders
        if free[name] < _LITTLE_DISK
    ]
    if min(memory.available, of_container or math.inf) < _LITTLE_MEMORY:
        problems.append(
            f"little memory is left; {format_bytes(_LITTLE_MEMORY)} are enough for tuning, end what else runs"
        )
    return Section("resources", facts, tuple(lines), tuple(problems))


def activity(watch: Callable[[float], machine_state.Activity] = machine_state.watch) -> Section:
    """List what else computes on the machine while it is left alone."""
    load, seen = os.getloadavg()[0], watch(_WATCHED_S)
    busy = [b for b in seen.busy if b.share >= _MIN_SHARE][:_MAX_LISTED]
    facts = {
        "load": load,
        "stolen": seen.stolen,
        "busy": [{"pid": b.pid, "name": b.name, "share": round(b.share, 3)} for b in busy],
    }
    names = ", ".join(f"{b.name} ({b.pid}) {b.share:.0%}" for b in busy)
    lines = (
        ("load", f"{load:g} over the last minute"),
        ("other processes", names or "none that would disturb timings"),
    )
    problems = []
    if busy:
        problems.append(
            "other processes compute, which slows down what is timed; end them, or wait until they are over"
        )
    if seen.stolen is not None and seen.stolen > _MIN_STOLEN:
        problems.append(
            f"the host of this virtual machine gives {seen.stolen:.0%} of its cores' time to others; time on another"
        )
    return Section("activity", facts, lines, tuple(problems))


# ---- what works -----------------------------------------------------------------------------------------------------
def dtypes(target: HardwareTarget, pool: WorkerPool, scratch: Path) -> Section:
    """Each dtype: one small operator of each family compiled, run, and compared."""
    facts: dict[str, Any] = {}
    lines: list[tuple[str, str]] = []
    problems: list[str] = []
    for name in DTYPES:
        try:
            device = load_target(target.name, 1, name)
        except TargetError as missing:
            facts[name] = {"works": False, "reason": str(missing), "families": {}}
            lines.append((name, f"not here: {str(missing).partition(';')[0]}"))
            continue
        errors = check_families(all_families(device), device, pool, scratch)
        failing = {family: error for family, error in errors.items() if error is not None}
        working = [family for family in errors if family not in failing]
        facts[name] = {"works": bool(errors) and not failing, "reason": None, "families": errors}
        parts = [f"works: {', '.join(working)}"] * bool(working) + [f"FAILS: {', '.join(failing)}"] * bool(failing)
        lines.append((name, "; ".join(parts)))
        if failing:
            said = describe_errors({family: readable(WorkerError.read(error)) for family, error in failing.items()})
            remedy = "report this with all that is above" if name == "f32" else "use --dtype f32"
            problems.append(f"operators in {name} do not work: {said}; {remedy}")
    return Section("dtypes", facts, tuple(lines), tuple(problems))


def timing(target: HardwareTarget, pool: WorkerPool, scratch: Path, seconds: float = _CANARY_S) -> Section:
    """Measure how much one operator's time varies within a few seconds: the canary that watches over every tuning."""
    canary, start = Canary(target, scratch), time.monotonic()
    while not canary.readings or time.monotonic() - start < seconds:
        futures = canary.read(pool)
        for future in futures:
            canary.observe(future.result())
        if not canary.readings:
            return _failed("timing", RuntimeError("an operator that is timed throughout each tuning can't be timed"))
    readings = [reading.seconds for reading in canary.readings]
    median, varies = statistics.median(readings), spread(readings)
    verdict = "quiet" if varies <= NOISE else "noisy"
    facts = {"median_s": median, "spread": varies, "num_readings": len(readings), "verdict": verdict}
    line = f"{verdict}: {format_latency(median)}, nine of ten readings within {varies:.1%} of it"
    problem = (
        f"timings vary by more than {NOISE:.0%}; end what else runs, fix clock rates, or time on another machine (what "
        f"is off by more than {LIMIT:.0%} is timed again)"
    )
    return Section("timing", facts, (("timing", line),), (problem,) if verdict == "noisy" else ())


def spread(readings: list[float]) -> float:
    """Within which share of their median nine of ten readings are."""
    median = statistics.median(readings)
    away = sorted(abs(reading / median - 1.0) for reading in readings)
    return away[math.ceil(0.9 * len(away)) - 1]
