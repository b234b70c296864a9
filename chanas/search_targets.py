"""The targets of one search: from the names and budgets that were asked for to devices and their latency tables, and
finalists measured on all of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.arch import Architecture
from chanas.emit import proof_record
from chanas.errors import ConfigError
from chanas.latency import LatencyLUT
from chanas.target import DTYPES, HardwareTarget, load_target
from chanas.units import parse_latency_s

if TYPE_CHECKING:
    from chanas.prescheduler.networks import NetworkJob
    from chanas.search.cosearch import LatencyBudget
    from chanas.search.proof import ProofRecord

Latencies = float | Mapping[str, float]
"""Seconds on the target that is named beside it, or seconds by the names of several targets."""

_NAME = re.compile(rf"(?P<device>.+?)(-(?P<threads>\d+)t)?(-(?P<dtype>{'|'.join(DTYPES)}))?")


def named_target(name: str) -> HardwareTarget:
    """The target that a latency table is called after: `cpu`, `cpu-2t` for two threads, `cpu-2t-bf16`.

    Raises:
        TargetError: the device is unknown or not there, or it cannot be used like that.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return load_target(name)
    return load_target(match["device"], int(match["threads"] or 1), match["dtype"] or "f32")


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


def target_budgets(latency_s: Latencies, target: str, num_threads: int, dtype: str) -> tuple[TargetBudget, ...]:
    """The targets of a search with their budgets, the first one first; a single latency is that of `target`.

    Raises:
        ConfigError: there is no latency, or two names mean the same target.
        TargetError: a target is unknown or not there.
    """
    if not isinstance(latency_s, Mapping):
        return (TargetBudget(load_target(target, num_threads, dtype), latency_s),)
    budgets = tuple(TargetBudget(named_target(name), seconds) for name, seconds in latency_s.items())
    names = [b.hardware.name for b in budgets]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"expected one latency for each of some targets, got {', '.join(names) or 'none'}")
    return budgets


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
) -> list[ProofRecord]:
    """Compile, check and measure each finalist on every target, with the schedules of the target's table."""
    from chanas.prescheduler.networks import compile_networks

    columns: list[list[Any]] = []
    for lut, target in tables:
        here = [
            dataclasses.replace(job, library=library_path(scratch, architecture, target))
            for architecture, job in zip(architectures, jobs, strict=True)
        ]
        columns.append(compile_networks(lut, target, here, progress))
    names = [target.name for _, target in tables]
    rows = zip(architectures, zip(*columns, strict=True), top1, strict=True)
    return [proof_record(a, dict(zip(names, outcomes, strict=True)), share) for a, outcomes, share in rows]
