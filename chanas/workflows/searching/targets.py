"""The targets of one search: from the names and budgets that were asked for to devices and their latency tables, and
finalists measured on all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.core.arch import Architecture
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget, differences
from chanas.core.units import parse_latency_s
from chanas.core.usage import HERE, Place, TargetName, Usage
from chanas.devices.gpu_use import check_free
from chanas.devices.host import load_used
from chanas.errors import ConfigError, TargetError
from chanas.workflows.searching.hand_over import proof_record
from chanas.workflows.stages.stored import prescheduler_command

if TYPE_CHECKING:
    from chanas.prescheduler.measuring.local.pool import OpenPool, Pool
    from chanas.prescheduler.tables.networks import NetworkJob
    from chanas.search.cosearch import LatencyBudget
    from chanas.search.proof import ProofRecord

Latencies = float | Mapping[str, float]
"""Seconds on the target that is named beside it, or seconds by the names of several targets."""


def named_target(name: str) -> HardwareTarget:
    """The target that a latency table is called after: `cpu`, `cpu-2t` for two threads, `cpu-2t-bf16`, `cuda-f16-b32`.

    Raises:
        TargetError: the device is unknown or not there, or it cannot be used like that.
    """
    parsed = TargetName.parse(name)
    if parsed.key:
        raise TargetError(
            f"target '{name}' is a device elsewhere: `{prescheduler_command(parsed)}` makes its table, and "
            f"`chanas search --latency {name}:BUDGET --rpc HOST:PORT` takes it"
        )
    return load_used(Usage.of(parsed))


def key_of(name: str) -> str:
    """The key of a target elsewhere, `pi4` of `cpu-2t@pi4`; empty for one of this machine."""
    return TargetName.parse(name).key


class RemoteTargets:
    """Targets on the devices of a tracker, by names such as `cpu-2t@pi4`.

    A device serves one client at a time, who uses it in one way. So one of each key is held, from when a target of the
    key is first asked for until another one of that key is, or until the end.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._held: dict[str, tuple[str, HardwareTarget, OpenPool, contextlib.ExitStack]] = {}

    def take(self, name: str) -> tuple[HardwareTarget, OpenPool]:
        """The target as a device of its key says that it is, and how to time on it.

        Raises:
            ConfigError, TargetError, MeasureError: as `timing_device` says.
        """
        return self._hold(name)[0], functools.partial(self._pool, name)

    @contextlib.contextmanager
    def _pool(self, name: str, target: HardwareTarget) -> Iterator[Pool]:
        there, open_pool = self._hold(name)
        if there.fingerprint != target.fingerprint:
            raise TargetError(
                f"the devices of key '{key_of(name)}' are of different kinds: expected fingerprint "
                f"{target.fingerprint}, got {there.fingerprint} ({differences(target, there, 'now')}); give each kind "
                "a key of its own"
            )
        with open_pool(target) as pool:
            yield pool

    def _hold(self, name: str) -> tuple[HardwareTarget, OpenPool]:
        from chanas.prescheduler.measuring.devices import timing_device

        key = key_of(name)
        if key not in self._held or self._held[key][0] != name:
            self._let_go(key)
            with contextlib.ExitStack() as stack:
                place = dataclasses.replace(self._place, key=key, num_devices=1)
                usage = dataclasses.replace(Usage.of(TargetName.parse(name)), place=place)
                hardware, open_pool = stack.enter_context(timing_device(usage))
                assert open_pool is not None
                self._held[key] = name, hardware, open_pool, stack.pop_all()
        return self._held[key][1:3]

    def _let_go(self, key: str) -> None:
        if key in self._held:
            self._held.pop(key)[3].close()

    def close(self) -> None:
        """Let go of all devices."""
        for key in list(self._held):
            self._let_go(key)


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
    """At most `budget_s` seconds on a device."""

    hardware: HardwareTarget
    budget_s: float


def target_budgets(latency_s: Latencies, usage: Usage = HERE) -> tuple[TargetBudget, ...]:
    """The targets of a search with their budgets, the first one first; a single latency is that of `usage`.

    Raises:
        ConfigError: there is no latency, or two names mean the same target.
        TargetError: a target is unknown or not there.
    """
    if not isinstance(latency_s, Mapping):
        return (TargetBudget(load_used(usage), latency_s),)
    budgets = tuple(TargetBudget(named_target(name), seconds) for name, seconds in latency_s.items())
    check_distinct([b.hardware.name for b in budgets])
    return budgets


def check_distinct(names: Sequence[str]) -> None:
    """Raises ConfigError: no target is named, or one twice."""
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"expected one latency for each of some targets, got {', '.join(names) or 'none'}")


def check_remote(names: Iterable[str], place: Place) -> None:
    """Raises ConfigError: a key is named besides those of the targets, or a tracker without a target elsewhere."""
    if place.key is not None:
        raise ConfigError(
            f"--key goes with a latency alone; beside several, name it in the target: cpu@{place.key}:5ms"
        )
    if place.rpc is not None and not any(map(key_of, names)):
        raise ConfigError("expected a target elsewhere with --rpc, such as --latency cpu@KEY:5ms, or one latency alone")


@contextlib.contextmanager
def held_budgets(
    latency_s: Latencies, usage: Usage = HERE
) -> Iterator[tuple[tuple[TargetBudget, ...], dict[str, OpenPool]]]:
    """The targets of a search with their budgets, and how to time on those that are not this machine, by their names.

    With a tracker and a key there is one target: what a device of that key says it is. It is held until the end, and
    one alone, so that all finalists meet the same device. Several targets name their keys themselves (`cpu-2t@pi4`),
    and may be of this machine, too (`RemoteTargets`).

    Raises:
        ConfigError: as `target_budgets`, `timing_device` and `check_remote` say.
        TargetError, MeasureError: a target, the tracker or the device is not there or doesn't fit.
    """
    from chanas.prescheduler.measuring.devices import timing_device

    place = usage.place
    if place.rpc is None and place.key is None:
        budgets = target_budgets(latency_s, usage)
        check_free([b.hardware for b in budgets], place.shared)
        yield budgets, {}
        return
    if isinstance(latency_s, Mapping):
        check_remote(latency_s, place)
        with contextlib.closing(RemoteTargets(place)) as remote:
            yield _taken(latency_s, remote, place.shared)
        return
    one = dataclasses.replace(usage, place=dataclasses.replace(place, num_devices=1))
    with timing_device(one) as (hardware, open_pool):
        assert open_pool is not None
        yield (TargetBudget(hardware, latency_s),), {hardware.name: open_pool}


def _taken(
    latency_s: Mapping[str, float], remote: RemoteTargets, shared: bool
) -> tuple[tuple[TargetBudget, ...], dict[str, OpenPool]]:
    """Targets of this machine and elsewhere, by their names, and how to time on the latter."""
    budgets: list[TargetBudget] = []
    open_pools: dict[str, OpenPool] = {}
    for name, seconds in latency_s.items():
        if key_of(name):
            hardware, open_pool = remote.take(name)
            open_pools[hardware.name] = open_pool
        else:
            hardware = named_target(name)
        budgets.append(TargetBudget(hardware, seconds))
    check_distinct([b.hardware.name for b in budgets])
    check_free([b.hardware for b in budgets if b.hardware.name not in open_pools], shared)
    return tuple(budgets), open_pools


@dataclass(frozen=True)
class TargetTable:
    """A target with its budget, and its latency table from `path`; `elsewhere` says why nothing can be measured on it
    from here, empty where it can; `open_pool` how to time on it where it is not this machine."""

    hardware: HardwareTarget
    budget_s: float
    lut: LatencyLUT
    path: Path
    elsewhere: str = ""
    open_pool: OpenPool | None = None

    @property
    def open_pools(self) -> dict[str, OpenPool]:
        """The pools, as provers take them."""
        return {} if self.open_pool is None else {self.hardware.name: self.open_pool}

    def budget(self) -> LatencyBudget:
        """The budget, as the search takes it."""
        from chanas.search.cosearch import LatencyBudget

        return LatencyBudget(self.lut, self.budget_s)


def largest_batch(first: HardwareTarget, further: Sequence[TargetTable]) -> int:
    """Images that a finalist is compared with PyTorch on, so that there are enough for each of the targets."""
    return max(target.batch for target in (first, *(t.hardware for t in further)))


def library_path(scratch: Path, architecture: Architecture, target: HardwareTarget) -> Path:
    """Path of the compiled module of a finalist."""
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
    from chanas.prescheduler.tables.networks import compile_networks

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
