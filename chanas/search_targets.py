"""The targets of one search: from the names and budgets that were asked for to devices and their latency tables, and
finalists measured on all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.arch import Architecture
from chanas.emit import proof_record
from chanas.errors import ConfigError, StageOrderError, TargetError
from chanas.gpu_use import GPU_TARGET, check_free
from chanas.latency import LatencyLUT
from chanas.run import RunDirectory
from chanas.target import DTYPES, GPU_DTYPES, HardwareTarget, load_target
from chanas.units import parse_latency_s

if TYPE_CHECKING:
    from chanas.prescheduler.networks import NetworkJob
    from chanas.prescheduler.pool import OpenPool
    from chanas.search.cosearch import LatencyBudget
    from chanas.search.proof import ProofRecord

Latencies = float | Mapping[str, float]
"""Seconds on the target that is named beside it, or seconds by the names of several targets."""

_DTYPE = "|".join(DTYPES | GPU_DTYPES)
_NAME = re.compile(rf"(?P<device>.+?)(-(?P<threads>\d+)t)?(-(?P<dtype>{_DTYPE}))?(-b(?P<batch>\d+))?")


def named_target(name: str) -> HardwareTarget:
    """The target that a latency table is called after: `cpu`, `cpu-2t` for two threads, `cpu-2t-bf16`, `cuda-f16-b32`.

    Raises:
        TargetError: the device is unknown or not there, or it cannot be used like that.
    """
    _, at, key = name.partition("@")
    if at and key:
        raise TargetError(
            f"target '{name}' is a device elsewhere: `chanas prescheduler --rpc HOST:PORT --key {key}` makes its "
            f"table, and `chanas search --rpc HOST:PORT --key {key}` takes one --latency without a target's name"
        )
    match = _NAME.fullmatch(name)
    if match is None:
        return load_target(name)
    return load_target(match["device"], int(match["threads"] or 1), match["dtype"] or "f32", int(match["batch"] or 1))


def parse_latencies(texts: Sequence[str]) -> Latencies:
    """Seconds from `20ms`, or seconds by target from texts such as `cpu:5ms` and `cpu-2t:4ms`.

    Raises:
        ConfigError: a target is named twice, or one of several is not named.
        UnitError: a latency is not written as expected.
    """
    parts = [text.rpartition(":") for text in texts]
    if len(parts) == 1 and not parts[0][1]:
        return parse_latency_s(texts[0])
    by_target: dict[str, float] = {}
    for (name, _, latency), text in zip(parts, texts, strict=True):
        if not name:
            raise ConfigError(
                f"expected a target before each of several latencies, such as cpu-2t:{latency.strip()}, got '{text}'"
            )
        if name in by_target:
            raise ConfigError(f"target '{name}' has two latency budgets; give it one")
        by_target[name] = parse_latency_s(latency)
    return by_target


@dataclass(frozen=True)
class TargetBudget:
    """At most `budget_s` seconds on a device of this machine."""

    hardware: HardwareTarget
    budget_s: float


def target_budgets(
    latency_s: Latencies, target: str, num_threads: int, dtype: str, batch: int = 1
) -> tuple[TargetBudget, ...]:
    """The targets of a search with their budgets, the first one first; a single latency is that of `target`.

    Raises:
        ConfigError: there is no latency, or two names mean the same target.
        TargetError: a target is unknown or not there.
    """
    if not isinstance(latency_s, Mapping):
        return (TargetBudget(load_target(target, num_threads, dtype, batch), latency_s),)
    budgets = tuple(TargetBudget(named_target(name), seconds) for name, seconds in latency_s.items())
    names = [b.hardware.name for b in budgets]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"expected one latency for each of some targets, got {', '.join(names) or 'none'}")
    return budgets


@contextlib.contextmanager
def held_budgets(
    latency_s: Latencies,
    target: str,
    num_threads: int,
    dtype: str,
    rpc: str | None,
    key: str | None,
    *,
    batch: int = 1,
    shared: bool = False,
) -> Iterator[tuple[tuple[TargetBudget, ...], dict[str, OpenPool]]]:
    """The targets of a search with their budgets, and how to time on those that are not this machine, by their names.

    With `rpc` (a tracker's HOST:PORT) and `key` there is one target: what a device of that key says it is. It is held
    until the end, and one alone, so that all finalists meet the same device. A GPU that another process uses is taken
    when `shared`.

    Raises:
        ConfigError: as `target_budgets` and `timing_device` say, or several targets are named besides a device.
        TargetError, MeasureError: a target, the tracker or the device is not there or doesn't fit.
    """
    from chanas.prescheduler.devices import timing_device

    if rpc is None and key is None:
        budgets = target_budgets(latency_s, target, num_threads, dtype, batch)
        check_free([b.hardware for b in budgets], shared)
        yield budgets, {}
        return
    if isinstance(latency_s, Mapping):
        raise ConfigError("expected one --latency without a target's name with --rpc: the device is the target")
    held = timing_device(target, num_threads, dtype, rpc, key, num_devices=1, batch=batch, shared=shared)
    with held as (hardware, open_pool):
        assert open_pool is not None
        yield (TargetBudget(hardware, latency_s),), {hardware.name: open_pool}


def no_table(run: RunDirectory, target: HardwareTarget) -> StageOrderError:
    """What to say of a table that isn't there: which ones are, and the command that makes it."""
    there = sorted(p.stem for p in run.luts.glob("*.json"))
    found = f"; there are tables of: {', '.join(there)}" if there else ""
    if any("@" in name for name in there):
        found += " (what follows an @ is a device's key: name it with --rpc HOST:PORT --key KEY)"
    kind, _, key = target.name.partition("@")
    is_gpu = target.gpu is not None or kind.partition("-")[0] == GPU_TARGET
    usage = f"--target {GPU_TARGET}" if is_gpu else "" if key else "--target cpu"
    usage += f"{' ' if is_gpu else ''}--rpc HOST:PORT --key {key}" if key else ""
    usage += f" --threads {target.num_threads}" if target.num_threads > 1 else ""
    usage += f" --dtype {target.dtype_name}" if target.dtype != "float32" else ""
    usage += f" --batch {target.batch}" if target.batch > 1 else ""
    return StageOrderError(
        f"there is no latency table of target '{target.name}' in {run.root}{found}; run "
        f"`chanas prescheduler {usage} --run {run.root}` first"
    )


@dataclass(frozen=True)
class TargetTable:
    """A target with its budget, and its latency table from `path`; `elsewhere` says why nothing can be measured on it
    from here, empty where it can."""

    hardware: HardwareTarget
    budget_s: float
    lut: LatencyLUT
    path: Path
    elsewhere: str = ""

    def budget(self) -> LatencyBudget:
        """As the search takes it."""
        from chanas.search.cosearch import LatencyBudget

        return LatencyBudget(self.lut, self.budget_s)


def largest_batch(first: HardwareTarget, further: Sequence[TargetTable]) -> int:
    """Images that a finalist is compared with PyTorch on, so that there are enough for each of the targets."""
    return max(target.batch for target in (first, *(t.hardware for t in further)))


def library_path(scratch: Path, architecture: Architecture, target: HardwareTarget) -> Path:
    """Where the compiled module of a finalist lies."""
    return scratch / f"{architecture.key}.{target.name}.so"


def measured_on(
    tables: Sequence[tuple[LatencyLUT, HardwareTarget]],
    architectures: Sequence[Architecture],
    jobs: Sequence[NetworkJob],
    top1: Sequence[float],
    scratch: Path,
    progress: bool,
    open_pools: Mapping[str, OpenPool],
) -> list[ProofRecord]:
    """Compile, check and measure each finalist on every target, with the schedules of the target's table.

    `open_pools` says how to time on targets that are not this machine, by their names.
    """
    from chanas.prescheduler.networks import compile_networks

    columns: list[list[Any]] = []
    for lut, target in tables:
        here = [
            dataclasses.replace(job, library=library_path(scratch, architecture, target))
            for architecture, job in zip(architectures, jobs, strict=True)
        ]
        columns.append(compile_networks(lut, target, here, progress, open_pools.get(target.name)))
    names = [target.name for _, target in tables]
    rows = zip(architectures, zip(*columns, strict=True), top1, strict=True)
    return [proof_record(a, dict(zip(names, outcomes, strict=True)), share) for a, outcomes, share in rows]
