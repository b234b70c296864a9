"""Operators of a tuned network, each timed where it stands: where its time goes, what it makes of the processor, and
what was tried of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.core.units import format_latency
from chanas.devices.cores import limited_to
from chanas.devices.peak import peak_gflops, shares_of_peak
from chanas.errors import CheckpointError
from chanas.operators.precision import FLOAT32
from chanas.operators.workload import Workload

if TYPE_CHECKING:
    from chanas.bundle.tuned import TunedNetwork

NUM_SHOWN = 8
"""The most expensive operators that are shown."""
_TUNED = re.compile(r"^(tuned\d+)(_\d+)?$")
"""Functions of an operator: one more for each place in joined maps that it reads or writes."""
_FORMS = ("reshape", "pack", "unpack")
"""Parts of fused functions that only change the form of a value."""
_UNSCHEDULED = "no schedule"


@dataclass(frozen=True)
class OperatorRow:
    """An operator of a tuned network, or one place of it.

    what           its family, or `no schedule`
    name           its key, or the name of what has no schedule, such as `softmax`
    count          places in the network
    seconds        of one call, where it stands; the mean of its places
    gflops         None where its operations are not known: without a schedule, and in older folders. Of Winograd's
                   algorithms those of the convolution
    share_of_peak  of the operations that are done
    trials         points that were tried of it, failed ones included; None without a schedule, and in older folders
    mean_gflops, best_gflops  of these trials, the operator alone with cold weights
    """

    what: str
    name: str
    count: int
    seconds: float
    gflops: float | None = None
    share_of_peak: float | None = None
    trials: int | None = None
    mean_gflops: float | None = None
    best_gflops: float | None = None

    @property
    def total_s(self) -> float:
        return self.count * self.seconds

    @property
    def is_unscheduled(self) -> bool:
        return self.what == _UNSCHEDULED

    def describe(self) -> str:
        """`winograd2: winograd2-14px-…`, `no schedule: softmax`"""
        return f"{self.what}: {self.name}"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "total_s": self.total_s}


@dataclass(frozen=True)
class _Kernel:
    what: str
    name: str
    workload: Workload | None = None
    trials: Mapping[str, Any] = field(default_factory=dict)


def operator_places(network: TunedNetwork) -> list[OperatorRow]:
    """A row for each place of an operator in the network, in order.

    Raises:
        CheckpointError: the folder is of an older version, or its files say different things.
        TargetError: it was compiled for another device.
    """
    import chanas.compiler.cpu.intrinsics  # noqa: F401 -- which the module's source calls

    kernels = _scheduled(network)
    num_threads = network.target.num_threads
    with limited_to(num_threads):
        timed = [(_TUNED.sub(r"\1", name), seconds) for name, seconds in network.time_kernels()]
        peak = peak_gflops(num_threads)
    _check_counts(network, [name for name, _ in timed])
    found = [(kernels.get(name) or _unscheduled(name), seconds) for name, seconds in timed]
    rates = {  # the peak is that of float32
        i: k.workload.num_flops_done / seconds / 1e9
        for i, (k, seconds) in enumerate(found)
        if k.workload is not None and k.workload.dtype == FLOAT32.dtype
    }
    shares = dict(zip(rates, shares_of_peak(list(rates.values()), peak), strict=True))
    return [
        OperatorRow(k.what, k.name, 1, seconds)
        if k.workload is None
        else OperatorRow(k.what, k.name, 1, seconds, k.workload.gflops(seconds), shares.get(i), **k.trials)
        for i, (k, seconds) in enumerate(found)
    ]


def stored_rows(network: TunedNetwork) -> list[OperatorRow]:
    """A row for each operator with a schedule by its time in `tuned.json`, alone with cold weights, the most expensive
    first: of networks that cannot be timed here."""
    rows = []
    for kernel, entry in zip(_kernels(network), network.document["operators"], strict=True):
        seconds, rate = entry["seconds"], None
        if kernel.workload is not None:
            rate = kernel.workload.gflops(seconds)
        share = entry.get("share_of_peak")
        rows.append(OperatorRow(kernel.what, kernel.name, entry["count"], seconds, rate, share, **kernel.trials))
    return sorted(rows, key=lambda row: -row.total_s)


def share_unscheduled(places: Sequence[OperatorRow]) -> float:
    """The share of a network's time in operators without a schedule of their own."""
    return sum(p.total_s for p in places if p.is_unscheduled) / sum(p.total_s for p in places)


def by_cost(places: Sequence[OperatorRow]) -> list[OperatorRow]:
    """A row for each operator, all its places together, the most expensive first."""
    groups: dict[tuple[str, str], list[OperatorRow]] = {}
    for place in places:
        groups.setdefault((place.what, place.name), []).append(place)
    rows = []
    for (what, name), group in groups.items():
        seconds = sum(p.seconds for p in group) / len(group)
        rate, share = (
            None if None in values else len(values) / sum(1.0 / value for value in values if value)
            for values in ([p.gflops for p in group], [p.share_of_peak for p in group])
        )
        first = group[0]
        trials = first.trials, first.mean_gflops, first.best_gflops
        rows.append(OperatorRow(what, name, len(group), seconds, rate, share, *trials))
    return sorted(rows, key=lambda row: -row.total_s)


def expensive_lines(rows: Sequence[OperatorRow], folder: Path) -> Iterator[str]:
    """A table of the most expensive of a network's operators, for people.

    Args:
        rows: all of them, the most expensive first.
        folder: of the network.
    """
    whole_s, num_calls = sum(row.total_s for row in rows), sum(row.count for row in rows)
    yield f"{format_latency(whole_s)} in {num_calls} calls of {len(rows)} operators; the most expensive:"
    yield from _table(rows[:NUM_SHOWN], whole_s)
    if len(rows) > NUM_SHOWN:
        yield f"{len(rows) - NUM_SHOWN} more: `chanas report {shlex.quote(str(folder))}` shows all of them"


def profile_lines(places: Sequence[OperatorRow]) -> Iterator[str]:
    """A table of all places in order, for people."""
    yield from _table(places, sum(place.seconds for place in places))


def _table(rows: Sequence[OperatorRow], whole_s: float) -> Iterator[str]:
    trial_heads = f"{'trials':>8}{'mean':>8}{'best':>8}"
    yield f"{'time':>9}{'share':>7}{'count':>7}{'GFLOP/s':>9}{'of peak':>9}{trial_heads}  operator"
    for row in rows:
        rate, mean, best = ("-" if v is None else f"{v:.1f}" for v in (row.gflops, row.mean_gflops, row.best_gflops))
        share = "-" if row.share_of_peak is None else f"{row.share_of_peak:.0%}"
        trials = "-" if row.trials is None else str(row.trials)
        yield (
            f"{format_latency(row.total_s):>9}{row.total_s / whole_s:>7.0%}{row.count:>7}{rate:>9}{share:>9}"
            f"{trials:>8}{mean:>8}{best:>8}  {row.describe()}"
        )


def _scheduled(network: TunedNetwork) -> dict[str, _Kernel]:
    """Operators by the functions of the module that compute them, which are numbered as they are met first."""
    entries = network.document["operators"]
    kernels = {_place(e): k for k, e in zip(_kernels(network), entries, strict=True)}
    return {f"tuned{number}": kernel for number, kernel in enumerate(kernels.values())}


def _kernels(network: TunedNetwork) -> Iterator[_Kernel]:
    """The operators of `tuned.json`, in its order."""
    for entry in network.document["operators"]:
        workload = None if entry.get("workload") is None else Workload.from_json(entry["workload"])
        trials = {name: entry.get(name) for name in ("trials", "mean_gflops", "best_gflops")}
        yield _Kernel(entry["key"].split("-")[0], entry["key"], workload, trials)


def _place(entry: Mapping[str, Any]) -> tuple[str, tuple[int, ...], int | None]:
    """An operator's key, schedule and layout: what has a function of its own."""
    return entry["key"], tuple(entry["point"]), entry.get("lanes")


def _check_counts(network: TunedNetwork, called: Sequence[str]) -> None:
    """
    Raises:
        CheckpointError: operators are called more or less often than the document says.
    """
    counts: dict[tuple[str, tuple[int, ...], int | None], int] = {}
    for entry in network.document["operators"]:
        place = _place(entry)
        counts[place] = counts.get(place, 0) + entry["count"]
    found = {name: called.count(name) for name in called if _TUNED.match(name)}
    if found != {f"tuned{number}": count for number, count in enumerate(counts.values())}:
        raise CheckpointError(
            f"the program in {network.folder} calls other operators than its document says; tune the network again"
        )


def _unscheduled(function: str) -> _Kernel:
    """The operation of a function of TVM's passes, by its name: `fused_unpack1_resize2d_pack` is `resize2d`."""
    parts = [re.sub(r"\d+$", "", part) for part in function.removeprefix("fused_").split("_")]
    computes = [part for part in parts if part not in _FORMS]
    return _Kernel(_UNSCHEDULED, "_".join(computes or parts))
