"""The latency on every target of networks that were searched for another one: by the tables, and measured where that
can be done."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chanas.core.arch import Architecture
from chanas.core.genome import encode
from chanas.errors import MeasureError, TargetError

if TYPE_CHECKING:
    from chanas.measuring.messages import Outcome
    from chanas.prescheduler.tables.networks import NetworkJob
    from chanas.workflows.searching.sources import Prover


@dataclass(frozen=True)
class CrossLatency:
    """The network searched for target `network` on `target`, in seconds.

    predicted_s           by the table of `target`; None where it lacks a block of the network
    measured_s, spread_s  on the device, all networks in turns; None where nothing can be measured, or nothing was there
                          to compare with
    error                 why the network could not be compiled and measured
    """

    network: str
    target: str
    predicted_s: float | None
    measured_s: float | None = None
    spread_s: float | None = None
    error: str | None = None

    @property
    def best_known_s(self) -> float | None:
        """Measured, or predicted where it was not."""
        return self.predicted_s if self.measured_s is None else self.measured_s


def cross_latencies(
    winners: Mapping[str, Architecture],
    prover: Prover,
    measured: Mapping[str, tuple[float | None, float | None]],
) -> tuple[CrossLatency, ...]:
    """Every winner on every target of `prover`, by target and then by network.

    Where a target is at hand and has other networks to compare with, all that its table covers are compiled with its
    schedules and timed in turns, its own among them, so that a slow moment falls on all alike. Where there are
    no others, `measured` has the seconds and spread of each target's own network.
    """
    networks = list(dict.fromkeys(winners.values()))
    jobs: dict[Architecture, NetworkJob] = {}
    task, out = prover.source.task, []
    for target in prover.targets:
        seconds = target.lut.table(task.space, task.num_classes, with_holes=True).of(encode(task.space, networks))
        predicted = {a: float(s) for a, s in zip(networks, seconds, strict=True) if math.isfinite(s)}
        own = winners.get(target.name)
        here = [] if target.elsewhere else [a for a in networks if a in predicted]
        outcomes: dict[Architecture, Outcome] = {}
        error = None
        if here and here != [own]:
            jobs = jobs or prover.jobs(networks)
            try:
                outcomes = prover.measure(target, {a: jobs[a] for a in here})
            except (MeasureError, TargetError) as lost:  # the device; what was handed over stands
                error = str(lost)
        for name, architecture in winners.items():
            cost = CrossLatency(name, target.name, predicted.get(architecture))
            if architecture in outcomes:
                found = outcomes[architecture]
                cost = replace(cost, measured_s=found.seconds, spread_s=found.spread_s, error=found.error)
            elif error is not None and architecture in here:
                cost = replace(cost, error=error)
            elif architecture == own:
                measured_s, spread_s = measured[target.name]
                cost = replace(cost, measured_s=measured_s, spread_s=spread_s)
            out.append(cost)
    return tuple(out)


def cross_lines(
    cross: Sequence[CrossLatency], budgets_s: Mapping[str, float], text: Callable[[float], str]
) -> list[str]:
    """A row for each network, a column for each target: `~` before what is only predicted, `!` behind what is over the
    target's budget."""
    targets = list(dict.fromkeys(c.target for c in cross))
    cells = {(c.network, c.target): _cell(c, budgets_s[c.target], text) for c in cross}
    names = list(dict.fromkeys(c.network for c in cross))
    first = max(len(n) for n in (*names, "network of"))
    widths = {t: max(len(t) + 3, *(len(cells[n, t]) for n in names)) for t in targets}
    head = " ".join(f"{'on ' + t:>{widths[t]}s}" for t in targets)
    rows = (f"{n:{first}s} " + " ".join(f"{cells[n, t]:>{widths[t]}s}" for t in targets) for n in names)
    return [f"{'network of':{first}s} {head}", *rows]


def _cell(cost: CrossLatency, budget_s: float, text: Callable[[float], str]) -> str:
    if cost.best_known_s is None:
        return "not covered "
    about = "" if cost.measured_s is not None else "~"
    return f"{about}{text(cost.best_known_s)}{'!' if cost.best_known_s > budget_s else ' '}"
