"""The figures of the search, each from stored data to a `Figure`; None when its data is not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from chanas.report.reading import RunData, at, dicts, real, reals
from chanas.report.svg import COLOURS, DASHES, OTHER, Chart, Figure, number, spread

_T = TypeVar("_T")
_MAX_POINTS = 300
_MAX_CLOUD = 1000


def unit_of(values: Sequence[float]) -> tuple[str, float]:
    """(unit, factor from seconds) in which the largest of `values` reads well."""
    largest = max(values, default=0.0)
    return ("s", 1.0) if largest >= 1.0 else ("ms", 1e3) if largest >= 1e-3 else ("µs", 1e6)


def thin_out(values: Sequence[_T], most: int = _MAX_POINTS) -> list[_T]:
    """At most about twice as many of the values as `most`, evenly spaced, with the last."""
    step = max(1, len(values) // most)
    out = list(values[::step])
    return out if not values or out[-1] is values[-1] else [*out, values[-1]]


def percent(share: float, digits: int = 2) -> str:
    """0.9876 -> 98.76."""
    return f"{100 * share:.{digits}f}"


def pareto(run: RunData) -> Figure | None:
    """Accuracy against latency: random architectures, those evaluated, the front, the budget, the finalists."""
    result = run.result
    cloud, known = (
        thin_out(list(zip(reals(result, name, "latency_s"), reals(result, name, "top1"), strict=False)), _MAX_CLOUD)
        for name in ("cloud", "evaluated")
    )
    front = [
        (a, b, str(p.get("key")))
        for p in dicts(result, "pareto")
        if (a := real(p, "latency_s")) is not None and (b := real(p, "top1")) is not None
    ]
    finalists = [
        (a, b, str(f.get("key")))
        for f in dicts(result, "finalists")
        if (a := real(f, "measured", "latency_s")) is not None
        and (b := real(f, "measured", "top1_holdout") or real(f, "predicted", "top1")) is not None
    ]
    if not cloud and not front:
        return None
    budget = real(result, "budget_s")
    points = [*cloud, *known, *[(a, b) for a, b, _ in (*front, *finalists)]]
    unit, factor = unit_of([a for a, _ in points])
    chart = Chart(
        "pareto",
        "Accuracy against latency",
        f"{len(cloud)} random architectures, {len(known)} of known accuracy, the Pareto front of {len(front)} and "
        f"{len(finalists)} measured finalists" + (f"; the budget is {factor * budget:.3g} {unit}." if budget else "."),
        f"latency ({unit})",
        f"top-1 {run.judged} (%)",
        spread([factor * a for a, _ in points] + ([factor * budget] if budget else [])),
        spread([100 * b for _, b in points]),
        height=420,
    )
    chart.points([(factor * a, 100 * b) for a, b in cloud], OTHER, size=2, label="random, predicted", opacity=0.5)
    evaluated = [(factor * a, 100 * b) for a, b in known]
    chart.points(evaluated, COLOURS[2], "plus", 3, f"known, {run.judged}", opacity=0.7)
    steps = sorted((factor * a, 100 * b) for a, b, _ in front)
    chart.line(steps, COLOURS[0], label="Pareto front, predicted")
    winner = str(at(result, "winner"))
    others = [(factor * a, 100 * b) for a, b, key in finalists if key != winner]
    names = [key for _, _, key in finalists if key != winner]
    chart.points(others, COLOURS[1], "square", 5, "finalists, measured", names, hollow=True)
    best = [(factor * a, 100 * b) for a, b, key in finalists if key == winner]
    chart.points(best, COLOURS[1], "diamond", 6, "winner, measured", [winner])
    if budget:
        chart.vertical(factor * budget, f"budget {factor * budget:.3g} {unit}")
    kinds = [
        *[("winner" if key == winner else "finalist", key, a, b) for a, b, key in finalists],
        *[("front, predicted", key, a, b) for a, b, key in sorted(front)],
        *[("known", "", a, b) for a, b in sorted(known)],
        *[("random, predicted", "", a, b) for a, b in sorted(cloud)],
    ]
    rows = tuple((kind, key, number(factor * a), percent(b)) for kind, key, a, b in kinds)
    return Figure(chart.render(), ("", "architecture", f"latency ({unit})", "top-1 (%)"), rows, 2)


def measured_front(run: RunData) -> Figure | None:
    """The points of the whole front that were compiled and measured, over the front that was predicted."""
    points = [
        (a, b, str(p.get("key")), p.get("dominated") is True, real(p, "predicted", "latency_s"))
        for p in dicts(run.front, "points")
        if (a := real(p, "measured", "latency_s")) is not None and (b := real(p, "measured", "top1")) is not None
    ]
    if not points:
        return None
    front = [
        (a, b)
        for p in dicts(run.front, "front")
        if (a := real(p, "latency_s")) is not None and (b := real(p, "top1")) is not None
    ]
    unit, factor = unit_of([a for a, *_ in points])
    chart = Chart(
        "front",
        "The measured Pareto front",
        f"{len(points)} points of the front, compiled whole and measured, from {factor * points[0][0]:.3g} to "
        f"{factor * points[-1][0]:.3g} {unit}, and the predicted front of {len(front)} architectures.",
        f"latency ({unit})",
        f"top-1 {run.judged} (%)",
        spread([factor * a for a in (*(p[0] for p in points), *(a for a, _ in front))]),
        spread([100 * b for b in (*(p[1] for p in points), *(b for _, b in front))]),
    )
    chart.line(sorted((factor * a, 100 * b) for a, b in front), COLOURS[0], DASHES[1], 1.5, "predicted front")
    for worse, label in ((False, "measured"), (True, "measured, another is better")):
        shown = [p for p in points if p[3] is worse]
        places = [(factor * a, 100 * b) for a, b, *_ in shown]
        names = [key for _, _, key, *_ in shown]
        chart.points(places, COLOURS[1], "square" if worse else "diamond", 5, label, names, hollow=worse)
    rows = tuple(
        (key, "another is better" if worse else "", number(factor * (table or 0.0)), number(factor * a), percent(b))
        for a, b, key, worse, table in points
    )
    head = ("architecture", "", f"predicted ({unit})", f"measured ({unit})", "top-1 (%)")
    return Figure(chart.render(), head, rows, 3)


def cdfs(run: RunData) -> Figure | None:
    """The latency CDF of each sub-space's random members, those that a rule chose set off."""
    factor_of = [v for s in dicts(run.result, "division", "sub_spaces") for v in reals(s, "latency_quantiles_s")]
    unit, factor = unit_of(factor_of)
    chart = Chart(
        "cdf",
        "Latency of the sub-spaces",
        "",
        f"latency by the table ({unit})",
        "share of architectures (%)",
        (0.0, 1.0),
        (0.0, 112.0),  # room for the budget's name above the curves
    )
    return _cumulative(run, chart, "latency_quantiles_s", factor, real(run.result, "budget_s"), unit)


def accuracy_cdfs(run: RunData) -> Figure | None:
    """The CDF of predicted accuracy of each sub-space's members inside the budget."""
    chart = Chart(
        "cdf-accuracy",
        "Predicted accuracy of the sub-spaces",
        "",
        "predicted top-1 (%)",
        "share of those inside the budget (%)",
        (0.0, 1.0),
        (0.0, 102.0),
    )
    return _cumulative(run, chart, "top1_quantiles", 100.0, None, "%")


def _cumulative(run: RunData, chart: Chart, name: str, factor: float, budget: float | None, unit: str) -> Figure | None:
    """Quantiles `name` of each sub-space as curves; those that a rule chose in colour, the others grey."""
    levels = reals(run.result, "division", "levels")
    spaces = [s for s in dicts(run.result, "division", "sub_spaces") if reals(s, name)]
    if not levels or not spaces:
        return None
    choices = at(run.result, "division", "choices")
    choices = choices if isinstance(choices, dict) else {}
    named = {str(key): [rule for rule, k in choices.items() if k == key] for key in choices.values() if key}
    told = ", ".join(f"{key} by the rule {' and '.join(rules)}" for key, rules in named.items())
    chart.description = f"Cumulative distribution in each of {len(spaces)} sub-spaces. Chosen: {told or 'all of them'}."
    everything = [factor * v for s in spaces for v in reals(s, name)]
    chart.x_range = spread(everything + ([factor * budget] if budget else []))
    rows = []
    has_other = False
    for s in sorted(spaces, key=lambda s: str(s.get("key")) in named):
        key = str(s.get("key"))
        curve = [(factor * v, 100 * q) for v, q in zip(reals(s, name), levels, strict=False)]
        share = real(s, "feasible_fraction")
        title = f"{key}: {100 * (share or 0):.0f} % inside the budget"
        shown = {round(q): v for v, q in curve}
        rows.append((key, *(number(shown[q]) if q in shown else "–" for q in (0, 25, 50, 75, 100))))
        if key not in named:
            chart.line(curve, OTHER, width=1, title=title, label="" if has_other else "another sub-space")
            has_other = True
            continue
        index = list(named).index(key)
        chart.line(curve, COLOURS[index], DASHES[index], 3, f"{key}, chosen by: {', '.join(named[key])}", title)
    if budget:
        chart.vertical(factor * budget, f"budget {factor * budget:.3g} {unit}")
    head = ("sub-space", *(f"{q} ({unit})" for q in ("lowest", "quarter", "median", "three quarters", "highest")))
    return Figure(chart.render(), head, tuple(rows), 5)


def lut_against_measured(run: RunData) -> Figure | None:
    """Latency by the table against latency of the whole compiled network, for all networks that were proven."""
    sets = [("finalist", dicts(run.result, "finalists")), ("point of the front", dicts(run.front, "points"))]
    pairs = [
        (a, b, str(p.get("key")), kind)
        for kind, points in sets
        for p in points
        if (a := real(p, "predicted", "latency_s")) and (b := real(p, "measured", "latency_s"))
    ]
    if not pairs:
        return None
    unit, factor = unit_of([v for a, b, *_ in pairs for v in (a, b)])
    errors = [100 * abs(a - b) / b for a, b, *_ in pairs]
    low, high = spread([factor * v for a, b, *_ in pairs for v in (a, b)], 0.15)
    limits = max(low, 0.0), high
    chart = Chart(
        "lut",
        "Table against measurement",
        f"{len(pairs)} whole networks; the prediction was {sum(errors) / len(errors):.1f} % off on average, "
        f"{max(errors):.1f} % at worst.",
        f"by the table ({unit})",
        f"measured whole ({unit})",
        limits,
        limits,
        width=480,
        height=400,
    )
    chart.line([(limits[0], limits[0]), (limits[1], limits[1])], "var(--soft)", "4 4", 1, "equal")
    for i, (kind, _) in enumerate(sets):
        shown = [p for p in pairs if p[3] == kind]
        titles = [f"{key}: {100 * (a / b - 1):+.1f} %" for a, b, key, _ in shown]
        places = [(factor * a, factor * b) for a, b, *_ in shown]
        chart.points(places, COLOURS[i], ("circle", "diamond")[i], 5, kind, titles, hollow=i == 1)
    rows = tuple(
        (kind, key, number(factor * a), number(factor * b), f"{100 * (a / b - 1):+.1f}") for a, b, key, kind in pairs
    )
    head = ("", "architecture", f"by the table ({unit})", f"measured ({unit})", "error (%)")
    return Figure(chart.render(), head, rows, 3)


def learning_curve(run: RunData) -> Figure | None:
    """The predictor's error on left-out architectures against the number of evaluations."""
    rows = dicts(run.result, "predictor", "learning_curve")
    curve = [
        (a, b)
        for r in rows
        if (a := real(r, "num_evaluations")) is not None and (b := real(r, "error_points")) is not None
    ]
    if len(curve) < 2:
        return None
    chart = Chart(
        "predictor",
        "What the predictor learnt",
        f"Error on left-out architectures went from {curve[0][1]:.2f} to {curve[-1][1]:.2f} points.",
        "evaluated sub-networks",
        "error (points)",
        spread([a for a, _ in curve]),
        (0.0, max(b for _, b in curve) * 1.1 or 1.0),
        height=260,
    )
    chart.line(curve, COLOURS[0])
    chart.points(curve, COLOURS[0], "circle", 4)
    cells = tuple((f"{a:.0f}", f"{b:.3f}") for a, b in curve)
    return Figure(chart.render(), ("evaluated sub-networks", "error (points)"), cells, 2)


def evolution(run: RunData) -> Figure | None:
    """Best and mean predicted accuracy over generations."""
    steps = reals(run.result, "evolution", "generation")
    series = {name: reals(run.result, "evolution", name) for name in ("best", "mean")}
    if len(steps) < 2 or not all(len(values) == len(steps) for values in series.values()):
        return None
    chart = Chart(
        "evolution",
        "Evolution",
        f"Best predicted accuracy rose from {100 * series['best'][0]:.2f} to {100 * series['best'][-1]:.2f} %.",
        "generation",
        "predicted top-1 (%)",
        spread(steps, 0.02),
        spread([100 * v for values in series.values() for v in values]),
        height=260,
    )
    labels = {"best": "best so far", "mean": "mean of the generation"}
    for i, (name, values) in enumerate(series.items()):
        points = [(s, 100 * v) for s, v in zip(steps, values, strict=True)]
        chart.line(points, COLOURS[i], DASHES[i], label=labels[name])
    rows = thin_out([(f"{s:.0f}", percent(a), percent(b)) for s, a, b in zip(steps, *series.values(), strict=True)])
    return Figure(chart.render(), ("generation", "best so far (%)", "mean (%)"), tuple(rows), 3)
