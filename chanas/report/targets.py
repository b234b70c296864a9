"""The networks of several targets side by side: drawn as in the paper's figure 12, what each costs on the others, and
what sets them apart."""

from __future__ import annotations

from html import escape
from typing import Any

from chanas.arch import Architecture, SearchSpace
from chanas.errors import ArchitectureError, ConfigError
from chanas.report.drawing import draw_architecture
from chanas.report.pieces import figure, paragraph, percent, seconds, table
from chanas.report.reading import RunData, at, dicts, real
from chanas.report.svg import Figure
from chanas.report.traits import Trait, sentences, sub_space_traits, traits

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
        if entry.get("error") is not None:
            failed = f"{entry.get('target')}: {entry['error']}"
            out.append(f'<p class="missing">{escape(failed)}</p>')
            continue
        otherwise = "The architecture cannot be drawn: it is in no search space that the searches name."
        out.append(figure(f"target-{number}", _drawing(run, entry, number), _told(entry), otherwise))
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
        found = Architecture.from_key(str(key))
    except ArchitectureError:
        return None
    return found if space is not None and space.contains(found) else None


def _drawing(run: RunData, entry: dict[str, Any], number: int) -> Figure | None:
    space, num_classes = _space(run), real(run.targets, "num_classes")
    architecture = _member(space, entry.get("winner"))
    if space is None or architecture is None:
        return None
    return draw_architecture(architecture, space, int(num_classes or 1000), f"target-{number}")


def _told(entry: dict[str, Any]) -> str:
    measured, predicted, budget = (real(entry, name) for name in ("measured_s", "predicted_s", "budget_s"))
    latency = f"{seconds(measured)} measured" if measured else f"{seconds(predicted)} by its table, not measured"
    judged = _JUDGED.get(str(entry.get("judged_by")), "as predicted")
    told = f"{entry.get('target')} ({entry.get('device')}): {latency}, budget {seconds(budget)}; "
    told += f"top-1 {percent(real(entry, 'top1'), 2)} {judged}."
    elsewhere = entry.get("elsewhere")
    return told + (f" Nothing can be measured on it from where it was searched: {elsewhere}." if elsewhere else "")


def _cross(run: RunData, entries: list[dict[str, Any]]) -> list[str]:
    """What the network of the one target costs on the others, beside what the target's own network costs there."""
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
    """Traits of the winners, their range over the best of repeated searches, and the differences that are clear."""
    space = _space(run)
    winners = {name: a for name, r in run.target_results.items() if (a := _member(space, r.get("winner"))) is not None}
    if space is None or not winners:
        return []
    best = {
        name: [a for b in dicts(run.target_results[name], "best") if (a := _member(space, b.get("key"))) is not None]
        for name in winners
    }
    rows = [[t.name, *(_cell(t, winner, best[name]) for name, winner in winners.items())] for t in traits(space)]
    out = [table(["", *winners], rows, len(winners), label="Traits of the networks")]
    repeats = {at(b, "repeat") for r in run.target_results.values() for b in dicts(r, "best")}
    num = max(len(group) for group in best.values())
    if num:
        told = f"In brackets: lowest and highest among the {num} best of {len(repeats)} repeated evolutions. "
        error = real(run.targets, "error_points")
        told += "They are best by the predictor" + (
            f", which is {error:.2f} points off on architectures it has not seen." if error is not None else "."
        )
        out.append(paragraph(told))
    if len(winners) < 2 or not num:
        return out
    own = [t for t in traits(space) if t.name not in {s.name for s in sub_space_traits()}]
    clear = [line for t in own for line in sentences(t, {name: [t.of(a) for a in best[name]] for name in winners})]
    clear = [*_sub_spaces_told(run, winners), *clear]
    if not clear:
        return [
            *out,
            "<p>No difference between the targets' networks is clear: in every trait their ranges overlap.</p>",
        ]
    listed = "".join(f"<li>{escape(line)}</li>" for line in clear)
    rule = "Told is only where every one of the best networks of the one target lies above every one of the other's"
    rule += "; of resolution and width, where the other's choice would cost more accuracy than the predictor is off."
    return [*out, f'<ul id="seen">{listed}</ul>', paragraph(rule)]


def _cell(trait: Trait, winner: Architecture, best: list[Architecture]) -> str:
    values = [trait.of(a) for a in best]
    low, high = (trait.text(v) for v in (min(values), max(values))) if values else ("", "")
    return trait.text(trait.of(winner)) + (f" ({low} – {high})" if values and low != high else "")


def _sub_spaces_told(run: RunData, winners: dict[str, Architecture]) -> list[str]:
    """Clear differences of resolution and width: all members of a sub-space share them, so that only the scores of the
    sub-spaces can tell. Tables that cover different sub-spaces can't be compared."""
    covered = {str(e.get("target")): set(map(str, at(e, "covered") or ())) for e in dicts(run.targets, "targets")}
    noise = (real(run.targets, "error_points") or 0.0) / 100
    out = []
    for trait in sub_space_traits():
        values = {name: [trait.of(a)] for name, a in winners.items()}
        for a in winners:
            others = [
                b
                for b in winners
                if values[a][0] > values[b][0]
                and covered.get(a) == covered.get(b)
                and _lead(run, a, trait, values[b][0]) > noise
                and _lead(run, b, trait, values[a][0]) > noise
            ]
            out += sentences(trait, {name: values[name] for name in (a, *others)})[:1] if others else []
    return out


def _lead(run: RunData, name: str, trait: Trait, value: float) -> float:
    """By how much the best sub-space of a target is ahead of its best one with another value of a trait."""
    scores = [
        (
            real(s, "score"),
            trait.of(Architecture(int(real(s, "resolution") or 0), real(s, "width_multiplier") or 0.0, ())),
        )
        for s in dicts(run.target_results[name], "division", "sub_spaces")
    ]
    known = [score for score, _ in scores if score is not None]
    theirs = [score for score, v in scores if score is not None and v == value]
    return max(known) - max(theirs) if known and theirs else float("inf") if known else 0.0
