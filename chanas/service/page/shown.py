"""Texts and figures of jobs, devices and networks for the page; none of it is HTML."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chanas.core.units import format_latency
from chanas.service.store.use import MINUTE_S
from chanas.service.texts import about, demand, outcome

ACTIONS = {"queued": ("pause", "cancel"), "paused": ("resume", "cancel"), "running": ("pause", "cancel")}
"""Requests that a job takes, by the state that is told of it."""
SPANS = {60: ("hour", 1), 24 * 60: ("day", 15), 7 * 24 * 60: ("week", 120)}
"""Spans of use in minutes: name, and minutes of a bar."""
latency = format_latency


def duration(seconds: float) -> str:
    """A duration as people say it, of one unit."""
    for unit, unit_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def job_shown(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job of the API with its lines for people."""
    asked = job["wanted"]
    actions = () if asked == "cancel" else ACTIONS.get(job["state"], ())
    return {
        **job,
        "about": about(job["request"]),
        "demand": demand(job["request"]),
        "outcome": outcome(job),
        "actions": [action for action in actions if action != asked],
        "asked": asked if job["state"] == "running" else None,
        "json": json.dumps(job["request"], indent=1, sort_keys=True),
    }


@dataclass(frozen=True)
class Bar:
    """The use of a unit for some minutes: its place from the left, its height in [0, 1], and what it is."""

    x: int
    height: float
    title: str


@dataclass(frozen=True)
class Strip:
    """A unit's use over time, from the oldest bar to now; `busy` is the share of the whole span, and one that `is_lost`
    is out of service."""

    name: str
    num_bars: int
    bars: Sequence[Bar]
    busy: float
    is_lost: bool = False


def strips(
    resources: Mapping[str, int],
    use: Sequence[Mapping[str, Any]],
    minutes: int,
    now_s: float,
    lost: Collection[tuple[str, int]] = (),
) -> list[Strip]:
    """The use of every unit, in bars of `SPANS[minutes]` minutes each.

    Args:
        resources: number of units by name.
        use: busy seconds by resource, unit and the first minute of a bar, of `read_use`.
        lost: resource and number of the units that are out of service.
    """
    step = SPANS[minutes][1]
    last = int(now_s // MINUTE_S) // step
    num_bars = minutes // step
    found: dict[tuple[str, int], list[Bar]] = {(name, i): [] for name, num in resources.items() for i in range(num)}
    busy_s = dict.fromkeys(found, 0.0)
    for row in use:
        unit, x = (row["resource"], row["unit"]), row["minute"] // step - last + num_bars - 1
        if unit in found and 0 <= x < num_bars:
            share = min(1.0, row["busy"] / (step * MINUTE_S))
            title = f"{duration((num_bars - 1 - x) * step * MINUTE_S)} ago: {share:.0%}"
            found[unit].append(Bar(x, share, title))
            busy_s[unit] += row["busy"]
    return [
        Strip(f"{name} {i + 1}", num_bars, bars, min(1.0, busy_s[name, i] / (minutes * MINUTE_S)), (name, i) in lost)
        for (name, i), bars in found.items()
    ]
