"""The gain from tuned schedules in the search (paper, section 4.2 and figure 4), from the files of `chanas ablate`."""

from __future__ import annotations

from typing import Any

from chanas.report.figures import percent as points
from chanas.report.figures import unit_of
from chanas.report.pieces import figure, paragraph, percent, seconds, table
from chanas.report.reading import RunData, at, dicts, real
from chanas.report.svg import COLOURS, DASHES, Chart, Figure, number, spread

TUNED = "tuned"
ABLATE = "chanas ablate"
_SHAPES = ("circle", "square", "triangle", "diamond")


def ablation_section(run: RunData) -> list[str]:
    """Fronts, winners and rankings by each table of schedules; a line with the command where none were compared."""
    if run.ablation is None:
        text = f"What tuned schedules are worth to the search was not measured; {ABLATE} does it."
        return [paragraph(text)] if run.result else []
    caption = (
        "The front that the search finds with each latency table. Whatever was found is measured with tuned schedules, "
        "so that the fronts differ by the architectures alone."
    )
    out = ["<h2>With and without tuned schedules</h2>"]
    out.append(figure("ablation", draw_fronts(run), caption, "No point of the fronts could be measured."))
    budget = real(run.ablation, "budget_s")
    head = ["searched by", "slower", "Kendall τ", "winner", "measured", "top-1", "front below"]
    out.append(table(head, [_row(run, name) for name in _names(run)], 3, 0, "Searches with each table of schedules"))
    told = f"The budget is {seconds(budget)}. " if budget else ""
    told += "Slower: this table's latencies over the tuned ones. τ: how alike both tables rank random architectures. "
    told += "Front below: points of accuracy under the front of the tuned table, on average."
    return [*out, paragraph(told)]


def draw_fronts(run: RunData) -> Figure | None:
    """Accuracy against latency as measured, one front for each table of schedules."""
    fronts = {name: sorted(_measured(at(run.ablation, "searched", name))) for name in _names(run)}
    fronts = {name: front for name, front in fronts.items() if front}
    if not fronts:
        return None
    everything = [p for front in fronts.values() for p in front]
    unit, factor = unit_of([latency_s for latency_s, *_ in everything])
    budget = real(run.ablation, "budget_s")
    counts = ", ".join(f"{len(front)} by {_text(run, name)}" for name, front in fronts.items())
    chart = Chart(
        "ablation",
        "Fronts with and without tuned schedules",
        f"Architectures on the fronts, measured with tuned schedules: {counts}.",
        f"latency with tuned schedules ({unit})",
        f"top-1 {run.judged} (%)",
        spread([factor * a for a, *_ in everything] + ([factor * budget] if budget else [])),
        spread([100 * b for _, b, *_ in everything]),
    )
    rows = []
    for i, (name, front) in enumerate(fronts.items()):
        best = [(factor * a, 100 * b) for a, b, _, dominated in front if not dominated]
        chart.line(best, COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)], 1.5)
        places = [(factor * a, 100 * b) for a, b, *_ in front]
        names = [key for _, _, key, _ in front]
        shape = _SHAPES[i % len(_SHAPES)]
        chart.points(
            places, COLOURS[i % len(COLOURS)], shape, 5, f"searched by {_text(run, name)}", names, hollow=i > 0
        )
        rows += [(_text(run, name), key, number(factor * a), points(b)) for a, b, key, _ in front]
    if budget:
        chart.vertical(factor * budget, f"budget {factor * budget:.3g} {unit}")
    head = ("searched by", "architecture", f"measured ({unit})", "top-1 (%)")
    return Figure(chart.render(), head, tuple(rows), 2)


def _names(run: RunData) -> list[str]:
    """The tables of schedules, the tuned one first."""
    searched = at(run.ablation, "searched")
    names = [str(name) for name in searched] if isinstance(searched, dict) else []
    return sorted(names, key=lambda name: (name != TUNED, name))


def _text(run: RunData, name: str) -> str:
    return str(at(run.ablation, "tables", name, "text") or name)


def _measured(searched: Any) -> list[tuple[float, float, str, bool]]:
    """(seconds, top-1, key, whether another is better) of the points that could be measured."""
    return [
        (a, b, str(p.get("key")), p.get("dominated") is True)
        for p in dicts(searched, "front")
        if (a := real(p, "measured", "latency_s")) is not None and (b := real(p, "measured", "top1")) is not None
    ]


def _row(run: RunData, name: str) -> list[str]:
    searched = at(run.ablation, "searched", name)
    slower, tau = real(searched, "ranking", "slowdown"), real(searched, "ranking", "kendall_tau")
    winner, lost = at(searched, "winner"), real(searched, "points_lost")
    chosen = next((f for f in dicts(searched, "finalists") if f.get("key") == winner), None)
    key = "none" if winner is None else str(winner)
    return [
        _text(run, name),
        "–" if slower is None else f"{slower:.1f} ×",
        "–" if tau is None else f"{tau:.3f}",
        key + (" (the same)" if at(searched, "winner_changed") is False else ""),
        seconds(real(chosen, "measured", "latency_s")),
        percent(real(chosen, "measured", "top1_holdout") or real(chosen, "predicted", "top1"), 2),
        "–" if lost is None else f"{lost:.2f}",
    ]
