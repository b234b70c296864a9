"""The forms of a tuned network's operators explained: what each takes in each form, what was chosen, and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chanas.core.units import format_latency
from chanas.errors import ConfigError

ONLY, FASTEST, COPIES, ACCURACY = "no other form", "fastest", "copies", "accuracy"
_MEANING = {
    ONLY: "there are no schedules in another form, or none was tried",
    FASTEST: "it takes least alone",
    COPIES: "another form takes less alone, and more with the copies that it needs",
    ACCURACY: "in int8 the network would lose more accuracy than is allowed",
}


@dataclass(frozen=True)
class Explained:
    """An operator in each form.

    key      without the type
    seconds  alone, by the form
    reason   a key of `_MEANING`
    """

    key: str
    seconds: Mapping[str, float]
    chosen: str
    reason: str
    loss: float | None = None


def explained(folder: Path) -> list[str]:
    """Lines about each operator of a network that was tuned in several forms, and about the copies between forms.

    Raises:
        CheckpointError: the folder has no tuned network, or is damaged.
        ConfigError: it was tuned in one form alone, or by an older version.
    """
    from chanas.bundle.tuned import TunedNetwork

    network = TunedNetwork.open(folder)
    found = network.document.get("layouts") or {}
    if "operators" not in found:
        raise ConfigError(
            f"{folder} was tuned in one form, or by an older version; there is something to explain after "
            "`chanas tune` with --dtype bf16, --dtype int8 or --layouts"
        )
    rows = list(map(_explained, found["operators"]))
    return [*_table(rows), *_summary(rows, found)]


def _explained(entry: Mapping[str, Any]) -> Explained:
    seconds, chosen = entry["seconds"], entry["chosen"]
    best = min(seconds, key=lambda form: seconds[form])
    reason = COPIES
    if len(seconds) == 1:
        reason = ONLY
    elif chosen == best:
        reason = FASTEST
    elif entry.get("for_accuracy", False):
        reason = ACCURACY
    return Explained(entry["key"].rpartition("-")[0], seconds, chosen, reason, entry.get("loss"))


def _forms(rows: Sequence[Explained]) -> list[str]:
    return list(dict.fromkeys(form for row in rows for form in row.seconds))


def _table(rows: Sequence[Explained]) -> Iterator[str]:
    """A line for each operator, in the order of the network."""
    forms, width = _forms(rows), max(len(row.key) for row in rows)
    has_loss = any(row.loss is not None for row in rows)
    loss = f"{'error':>9}" if has_loss else ""
    yield f"{'operator':{width}}{''.join(f'{form:>14}' for form in forms)}{loss}  chosen because"
    for row in rows:
        cells = "".join(f"{_cell(row, form):>14}" for form in forms)
        loss = "" if not has_loss else f"{'-' if row.loss is None else f'{row.loss:.3%}':>9}"
        yield f"{row.key:{width}}{cells}{loss}  {row.reason}"


def _cell(row: Explained, form: str) -> str:
    """The time in a form, marked where it was chosen."""
    mark = "*" if form == row.chosen else " "
    return f"{format_latency(row.seconds[form])}{mark}" if form in row.seconds else "- "


def _summary(rows: Sequence[Explained], found: Mapping[str, Any]) -> Iterator[str]:
    reasons = Counter(row.reason for row in rows)
    for form in _forms(rows):
        chosen = [row for row in rows if row.chosen == form]
        alone = [row for row in rows if row.seconds.get(form, math.inf) <= min(row.seconds.values())]
        yield f"{form}: chosen for {len(chosen)} of {len(rows)} operators, takes least alone for {len(alone)}"
    for reason, number in reasons.items():
        yield f"{reason}: {number} of {len(rows)}; {_MEANING[reason]}"
    copies_s = math.fsum(copy["seconds"] for copy in found["copies"])
    yield f"copies: {len(found['copies'])} between forms, {format_latency(copies_s)} together"
    for key, number in Counter(copy["key"] for copy in found["copies"]).most_common():
        seconds = next(copy["seconds"] for copy in found["copies"] if copy["key"] == key)
        yield f"  {format_latency(seconds):>9} {key}{f', {number} times' if number > 1 else ''}"
    if not found["joint_is_kept"]:
        yield "the network in one form is kept all the same: as a whole it is the faster one"
