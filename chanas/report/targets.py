"""The networks of several targets side by side: drawn as in the paper's figure 12, what each costs on the others, and
what sets them apart."""

from __future__ import annotations

from html import escape
from typing import Any

from chanas.core.arch import Architecture, SearchSpace
from chanas.errors import ArchitectureError, ConfigError
from chanas.report.drawing import draw_architecture
from chanas.report.pieces import figure, paragraph, percent, seconds, table
from chanas.report.reading import RunData, at, dicts, real
from chanas.report.svg import Figure
from chanas.report.traits import CLEAR, Trait, sentences, traits

_JUDGED = {"test": "on the test images", "table": "by the table that was given", "holdout": "on holdout"}


def targets_section(run: RunData) -> list[str]:
    """Empty where there was no search for several targets."""
    entries = dicts(run.targets, "targets")
    if not entries:
        return []
    out = ["<h2>A network for each target</h2>"]
    if at(run.targets, "complete") is not True:
        out.append('<p class="missing">The searches were cut off; the same command goes on.</p>')
    for number, entry in enumerate(entries, start=1):
        out.append(f"<h3>{escape(str(entry.get('target')))}</h3>")
        if entry.get("leftover"):
            out.append(f'<p class="missing">{escape(str(entry["leftover"]))} is of an earlier search.</p>')
        if entry.get("error") is not None:
            out.append(f'<p class="missing">{escape(str(entry["error"]))}</p>')
            continue
        otherwise = "The architecture cannot be drawn: it is in no search space that the searches name."
        out.append(figure(f"target-{number}", _drawing(run, entry, number), _caption(entry), otherwise))
    out += _cross(run, entries)
    out += _seen(run)
    if run.shown is not None:
        out.append(paragraph(f"What stands below of one network is that of target {run.shown}."))
    return out


def _space(run: RunData) -> SearchSpace | None:
    try:
        return SearchSpace.from_json(at(run.targets, "space"))
    except (ArchitectureError, ConfigError, KeyError, TypeError, AttributeError):
        return None


def _member(space: SearchSpace | None, key: Any) -> Architecture | None:
    """The architecture of a key, where it is one of the space."""
    try:
        found = Architecture.from_key(str(key)).plain
    except ArchitectureError:
        return None
    return found if space is not None and space.contains(found) else None


def _drawing(run: RunData, entry: dict[str, Any], number: int) -> Figure | None:
    space, num_classes = _space(run), real(run.targets, "num_classes")
    architecture = _member(space, entry.get("winner"))
    if space is None or architecture is None:
        return None
    return draw_architecture(architecture, space, int(num_classes or 1000), f"target-{number}")


def _caption(entry: dict[str, Any]) -> str:
    measured, predicted, budget = (real(entry, name) for name in ("measured_s", "predicted_s", "budget_s"))
    latency = f"{seconds(measured)} measured" if measured else f"{seconds(predicted)} by its table, not measured"
    judged = _JUDGED.get(str(entry.get("judged_by")), "as predicted")
    told = f"{entry.get('device')}: {latency}, budget {seconds(budget)}; "
    told += f"top-1 {percent(real(entry, 'top1'), 2)} {judged}."
    elsewhere = entry.get("elsewhere")
    return told + (f" Nothing can be measured on it from where it was searched: {elsewhere}." if elsewhere else "")


def _cross(run: RunData, entries: list[dict[str, Any]]) -> list[str]:
    """Compare the network of one target on the others with the networks found for them."""
    costs = {(str(c.get("network")), str(c.get("target"))): c for c in dicts(run.targets, "cross")}
    networks = list(dict.fromkeys(network for network, _ in costs))
    targets = list(dict.fromkeys(target for _, target in costs))
    if len(targets) < 2:
        return []
    budgets = {str(e.get("target")): real(e, "budget_s") for e in entries}
    rows = [[n, *(_cost(costs.get((n, t)), costs.get((t, t)), budgets.get(t)) for t in targets)] for n in networks]
    head = ["network searched for", *(f"on {target}" for target in targets)]
    told = (
        "What each network takes on each target, compiled with that target's schedules; in brackets, against the "
        "target's own network. Measured in turns; ~: by the table alone; !: over the target's budget."
    )
    return [table(head, rows, len(targets), label="Latency of each network on each target"), paragraph(told)]


def _cost(cost: dict[str, Any] | None, own: dict[str, Any] | None, budget_s: float | None) -> str:
    measured = real(cost, "measured_s")
    known = measured or real(cost, "predicted_s")
    if known is None:
        return "not in the table"
    reference = real(own, "measured_s") if measured else real(own, "predicted_s")
    against = f" ({known / reference:.2f} ×)" if reference and own is not cost else ""
    return f"{'' if measured else '~'}{seconds(known)}{'!' if budget_s and known > budget_s else ''}{against}"


def _seen(run: RunData) -> list[str]:
    """Traits of the winners, those of networks as good as them, and the differences that are clear."""
    space = _space(run)
    winners = {name: a for name, r in run.target_results.items() if (a := _member(space, r.get("winner"))) is not None}
    if space is None or not winners:
        return []
    alike = {name: _alike(space, run.target_results[name]) for name in winners}
    every = traits(space)
    rows = [[t.name, *(_cell(t, winner, alike[name]) for name, winner in winners.items())] for t in every]
    out = [table(["", *winners], rows, len(winners), label="Traits of the networks")]
    if not any(alike.values()):
        return out
    error = real(run.targets, "error_points")
    within = f"within its error of {error:.2f} points" if error is not None else "within its error"
    out.append(
        paragraph(
            f"In brackets: the middle 80 % of {max(map(len, alike.values()))} random networks inside the budget that "
            f"are as good as the best by the predictor, {within}."
        )
    )
    if len(winners) < 2:
        return out
    groups = _comparable(run, list(winners))
    clear = [
        line
        for names in groups
        for t in every
        for line in sentences(t, {n: [t.of(a) for a in alike[n]] for n in names})
    ]
    if clear:
        items = "".join(f"<li>{escape(line)}</li>" for line in clear)
        out.append(f'<p>What sets the networks apart:</p><ul id="seen">{items}</ul>')
    elif any(len(names) > 1 for names in groups):
        out.append("<p>Nothing clearly sets the networks apart.</p>")
    told = f"Told is what holds in {100 * CLEAR:.0f} or more of 100 pairs of networks that are as good as the best."
    if len(groups) > 1:
        told += (
            " Targets whose tables cover different sub-spaces are not compared: they could not choose among the same."
        )
    return [*out, paragraph(told)]


def _comparable(run: RunData, names: list[str]) -> list[list[str]]:
    """Targets together whose searches could choose among the same sub-spaces."""
    covered = {str(e.get("target")): str(at(e, "covered")) for e in dicts(run.targets, "targets")}
    return [[n for n in names if covered.get(n) == c] for c in dict.fromkeys(covered.get(n) for n in names)]


def _alike(space: SearchSpace, result: dict[str, Any]) -> list[Architecture]:
    keys = at(result, "alike")
    return [a for key in keys if (a := _member(space, key)) is not None] if isinstance(keys, list) else []


def _cell(trait: Trait, winner: Architecture, alike: list[Architecture]) -> str:
    text = trait.text(trait.of(winner))
    if not alike:
        return text
    values = sorted(trait.of(a) for a in alike)
    low, high = (trait.text(values[round(level * (len(values) - 1))]) for level in (0.1, 0.9))
    return f"{text} ({low})" if low == high else f"{text} ({low} – {high})"
