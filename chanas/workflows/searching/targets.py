"""The targets of searches: from the names and budgets that were asked for to devices and their latency tables."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from chanas.core.arch import SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget, differences, in_dtype, in_several
from chanas.core.task import Task
from chanas.core.units import parse_latency_s
from chanas.core.usage import DTYPES, HERE, THIS_MACHINE, Place, TargetName, Usage
from chanas.devices.gpu_use import check_free
from chanas.devices.host import load_used
from chanas.errors import ConfigError, LUTError, MeasureError, TargetError
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.operators.precision import FLOAT32
from chanas.search.target import SearchTarget
from chanas.workflows.stages.stored import prescheduler_command, stored_table
from chanas.workflows.stages.tables import check_device, this_device

if TYPE_CHECKING:
    from chanas.measuring.fleet import OpenPool, Pool

_NAME = re.compile(r"\w[\w.@+-]*")  # a target's name is a file's and a folder's too

Latencies = float | Mapping[str, float]
"""Seconds on the target that a usage says, or seconds by the names of several targets."""


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


class HasTask(Protocol):
    """A source of accuracies, as far as targets are concerned."""

    @property
    def task(self) -> Task: ...


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
        from chanas.measuring.devices import timing_device

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
def hold_targets(
    run: RunDirectory, source: HasTask, latency_s: Latencies, usage: Usage = HERE, dtypes: Sequence[str] = ()
) -> Iterator[tuple[SearchTarget, ...]]:
    """The targets of a search in order, held until the end, each with the run's latency table of it, which is checked
    against the space of `source`; and those of its blocks in other `dtypes`, where they may be in several.

    A single latency is that of `usage`; with a tracker and a key as place its target is what a device of that key says
    it is, one alone, so that all finalists meet the same device. Several targets name their keys themselves
    (`cpu-2t@pi4`), and may be of this machine, too (`RemoteTargets`).

    Raises:
        ConfigError: there is no latency, two names mean the same target, or as `timing_device` and `check_remote` say.
        TargetError, MeasureError: a target, the tracker or the device is not there or doesn't fit.
        StageOrderError: there is no table of a target, or no supernet; the message names the command that makes it.
        LUTError: a table is of another space, device or compiler.
        RunBusyError: another search works in the run directory.
    """
    from chanas.measuring.devices import timing_device

    place = usage.place
    with contextlib.ExitStack() as stack:
        if isinstance(latency_s, Mapping):
            check_remote(latency_s, place)
            remote = None if place.rpc is None else stack.enter_context(contextlib.closing(RemoteTargets(place)))
            found = [_named(name, remote) for name in latency_s]
            check_distinct([hardware.name for hardware, _ in found])
            check_free([hardware for hardware, open_pool in found if open_pool is None], place.shared)
            budgets_s = list(latency_s.values())
        else:
            if place.rpc is not None:
                usage = dataclasses.replace(usage, place=dataclasses.replace(place, num_devices=1))
            found, budgets_s = [stack.enter_context(timing_device(usage))], [latency_s]
        task = source.task
        tables = [LatencyLUT.load(stored_table(run, hardware, task)) for hardware, _ in found]
        targets = tuple(
            SearchTarget(hardware, budget_s, lut, open_pool=open_pool)
            for (hardware, open_pool), budget_s, lut in zip(found, budgets_s, tables, strict=True)
        )
        if dtypes:
            targets = tuple(_in_dtypes(run, target, dtypes, task) for target in targets)
        check_tables(targets, task.space)
        stack.enter_context(one_writer(run.search))
        yield targets


def _in_dtypes(run: RunDirectory, target: SearchTarget, dtypes: Sequence[str], task: Task) -> SearchTarget:
    """A target with its tables in further dtypes, `bf16` and so on.

    Raises:
        ConfigError: it is no processor in float32.
        TargetError: this machine lacks a dtype.
        StageOrderError: there is no table of one.
        LUTError: one is of another space, device or compiler.
    """
    hardware, name = target.hardware, TargetName.parse(target.name)
    if hardware.gpu is not None or hardware.dtype != FLOAT32.dtype:
        raise ConfigError(f"--dtypes is for processors, whose target says no dtype, such as cpu; got {target.name}")
    others = {}
    for dtype in dtypes[1:]:
        own = dataclasses.replace(name, dtype=dtype)
        if target.open_pool is None:
            typed = load_used(Usage.of(own))
        else:
            typed = dataclasses.replace(in_dtype(hardware, DTYPES[dtype]), name=str(own))
        lut = LatencyLUT.load(stored_table(run, typed, task))
        check_tables([SearchTarget(typed, target.budget_s, lut)], task.space)
        others[DTYPES[dtype]] = lut
    hardware = in_several(hardware, (lut.header.target for lut in others.values()))
    return dataclasses.replace(target, hardware=hardware, lut=dataclasses.replace(target.lut, others=others))


def _named(name: str, remote: RemoteTargets | None) -> tuple[HardwareTarget, OpenPool | None]:
    """A target of this machine or elsewhere, by its name, and how to time on it in the latter case."""
    if remote is not None and key_of(name):
        return remote.take(name)
    return named_target(name), None


def check_tables(targets: Iterable[SearchTarget], space: SearchSpace) -> None:
    """Raises LUTError: a table is of another space, device or compiler, or its schedules are other programs now."""
    from chanas.prescheduler.tables.networks import check_schedules

    for target in targets:
        if target.elsewhere:
            target.lut.check_space(space)
        else:
            target.lut.check(space, target.hardware)
            check_schedules(target.lut)


def table_path(run: RunDirectory, name: str, task: Task | None = None) -> Path:
    """Path of the run's latency table of a target, which need not be here; `task` is what it is to be of, as in
    `stored_table`.

    Raises:
        StageOrderError: there is no table of it.
        TargetError: there is no table, and the target is unknown, not there, or a device elsewhere.
    """
    path = run.lut(name)
    return path if _NAME.fullmatch(name) and path.is_file() else stored_table(run, named_target(name), task)


def read_targets(
    run: RunDirectory,
    latency_s: Mapping[str, float],
    place: Place = THIS_MACHINE,
    remote: RemoteTargets | None = None,
) -> tuple[SearchTarget, ...]:
    """The targets of several searches in order, from the run's latency tables of them; `remote` has those with a key.

    Raises:
        ConfigError: there is none, or two names mean the same target.
        StageOrderError: there is no table of a target.
        TargetError: a target is unknown or in use by another process, or nothing can be measured on it from here and
            that is not allowed.
    """
    targets = tuple(_read_target(run, name, budget_s, remote) for name, budget_s in latency_s.items())
    check_distinct([target.name for target in targets])
    for target in targets:
        if target.elsewhere and not place.unproven:
            key = key_of(target.name)
            over_rpc = f"name a tracker that knows devices of key '{key}' (--rpc HOST:PORT); " if key else ""
            raise TargetError(
                f"nothing can be measured on target '{target.name}' from here: {target.elsewhere}. A search hands over "
                f"what was measured: run it on that device, with this run directory; {over_rpc}or add --unproven for "
                "the network that the table predicts, without a bundle"
            )
    check_free([t.hardware for t in targets if not t.elsewhere and t.open_pool is None], place.shared)
    return targets


def _read_target(run: RunDirectory, name: str, budget_s: float, remote: RemoteTargets | None) -> SearchTarget:
    path = table_path(run, name)
    lut = LatencyLUT.load(path)
    made_on = lut.header.target
    if made_on.name != path.stem:
        raise LUTError(f"{path} is a table of target '{made_on.name}'; a table has the name of its target")
    try:
        if remote is None or not key_of(name):
            return SearchTarget(this_device(lut), budget_s, lut)
        hardware, open_pool = remote.take(name)
        check_device(lut, hardware)
        return SearchTarget(dataclasses.replace(hardware, name=name), budget_s, lut, open_pool=open_pool)
    except LUTError:
        return SearchTarget(made_on, budget_s, lut, f"its table is of another device ({made_on.device})")
    except (TargetError, MeasureError) as error:
        return SearchTarget(made_on, budget_s, lut, str(error))
