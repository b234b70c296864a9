"""The figures of the report, each from stored data to SVG text; None when its data is not there."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, TypeVar

from chanas.report.reading import RunData, at, dicts, real, reals
from chanas.report.svg import COLOURS, DASHES, OTHER, SHAPES, Chart, spread, svg

_T = TypeVar("_T")
_MAX_POINTS = 300


def unit_of(values: Sequence[float]) -> tuple[str, float]:
    """(unit, factor from seconds) in which the largest of `values` reads well."""
    largest = max(values, default=0.0)
    return ("s", 1.0) if largest >= 1.0 else ("ms", 1e3) if largest >= 1e-3 else ("µs", 1e6)


def thinned(values: Sequence[_T]) -> list[_T]:
    """At most about `_MAX_POINTS` of the values, evenly spaced, with the last."""
    step = max(1, len(values) // _MAX_POINTS)
    out = list(values[::step])
    return out if not values or out[-1] is values[-1] else [*out, values[-1]]


def pareto(run: RunData) -> str | None:
    """Accuracy against latency: random architectures, the front, the budget, the finalists as measured."""
    result = run.result
    cloud = list(zip(reals(result, "cloud", "latency_s"), reals(result, "cloud", "top1"), strict=False))
    front = [(a, b) for p in dicts(result, "pareto") if (a := real(p, "latency_s")) and (b := real(p, "top1"))]
    finalists = [
        (a, b, str(f.get("key")))
        for f in dicts(result, "finalists")
        if (a := real(f, "measured", "latency_s")) and (b := real(f, "measured", "top1_holdout"))
    ]
    if not cloud and not front:
        return None
    budget = real(result, "budget_s")
    points = [*cloud, *front, *[(a, b) for a, b, _ in finalists]]
    unit, factor = unit_of([a for a, _ in points])
    chart = Chart(
        "pareto",
        "Accuracy against latency",
        f"{len(cloud)} random architectures, the Pareto front of {len(front)} and {len(finalists)} measured finalists.",
        f"latency ({unit})",
        "top-1 on holdout (%)",
        spread([factor * a for a, _ in points] + ([factor * budget] if budget else [])),
        spread([100 * b for _, b in points]),
        height=420,
    )
    chart.points([(factor * a, 100 * b) for a, b in cloud], OTHER, size=2, label="random, predicted", opacity=0.55)
    steps = sorted((factor * a, 100 * b) for a, b in front)
    chart.line(steps, COLOURS[0], label="Pareto front, predicted")
    winner = str(at(result, "winner"))
    others = [(factor * a, 100 * b) for a, b, key in finalists if key != winner]
    names = [key for _, _, key in finalists if key != winner]
    chart.points(others, COLOURS[1], "square", 5, "finalists, measured", names, hollow=True)
    best = [(factor * a, 100 * b) for a, b, key in finalists if key == winner]
    chart.points(best, COLOURS[1], "diamond", 6, "winner, measured", [winner])
    if budget:
        chart.vertical(factor * budget, f"budget {factor * budget:.3g} {unit}")
    return chart.render()


def cdfs(run: RunData) -> str | None:
    """The latency CDF of each sub-space's random members, those that a rule chose set off."""
    levels = reals(run.result, "division", "levels")
    spaces = [s for s in dicts(run.result, "division", "sub_spaces") if reals(s, "latency_quantiles_s")]
    if not levels or not spaces:
        return None
    choices = at(run.result, "division", "choices")
    choices = choices if isinstance(choices, dict) else {}
    everything = [v for s in spaces for v in reals(s, "latency_quantiles_s")]
    unit, factor = unit_of(everything)
    budget = real(run.result, "budget_s")
    named = {str(key): [rule for rule, k in choices.items() if k == key] for key in choices.values() if key}
    told = ", ".join(f"{key} by the rule {' and '.join(rules)}" for key, rules in named.items())
    chart = Chart(
        "cdf",
        "Latency of the sub-spaces",
        f"Cumulative distribution of latency in each of {len(spaces)} sub-spaces. Chosen: {told or 'all of them'}.",
        f"latency by the table ({unit})",
        "share of architectures (%)",
        spread([factor * v for v in everything] + ([factor * budget] if budget else [])),
        (0.0, 102.0),
    )
    for s in sorted(spaces, key=lambda s: str(s.get("key")) in named):
        key = str(s.get("key"))
        curve = [(factor * v, 100 * q) for v, q in zip(reals(s, "latency_quantiles_s"), levels, strict=False)]
        share = real(s, "feasible_fraction")
        title = f"{key}: {100 * (share or 0):.0f} % inside the budget"
        if key not in named:
            chart.line(curve, OTHER, width=1, title=title)
            continue
        index = list(named).index(key)
        chart.line(curve, COLOURS[index], DASHES[index], 3, f"{key}, chosen by: {', '.join(named[key])}", title)
    if budget:
        chart.vertical(factor * budget, f"budget {factor * budget:.3g} {unit}")
    return chart.render()


def lut_against_measured(run: RunData) -> str | None:
    """Latency by the table against latency of the whole compiled network, for every finalist."""
    pairs = [
        (a, b, str(f.get("key")))
        for f in dicts(run.result, "finalists")
        if (a := real(f, "predicted", "latency_s")) and (b := real(f, "measured", "latency_s"))
    ]
    if not pairs:
        return None
    unit, factor = unit_of([v for a, b, _ in pairs for v in (a, b)])
    error = 100 * sum(abs(a - b) / b for a, b, _ in pairs) / len(pairs)
    limits = spread([factor * v for a, b, _ in pairs for v in (a, b)], 0.15)
    chart = Chart(
        "lut",
        "Table against measurement",
        f"{len(pairs)} finalists; mean absolute error of the table's sum {error:.1f} %.",
        f"sum of the table ({unit})",
        f"measured whole ({unit})",
        limits,
        limits,
        width=480,
        height=400,
    )
    chart.line([(limits[0], limits[0]), (limits[1], limits[1])], "var(--soft)", "4 4", 1, "equal")
    titles = [f"{key}: {100 * (a / b - 1):+.1f} %" for a, b, key in pairs]
    chart.points([(factor * a, factor * b) for a, b, _ in pairs], COLOURS[0], "circle", 5, "finalist", titles)
    return chart.render()


def block_times(run: RunData) -> str | None:
    """Bars: seconds of each block of the winning network, by the table, in order of execution."""
    blocks = [(str(b.get("key")), v) for b in dicts(run.bundle, "blocks") if (v := real(b, "latency_s")) is not None]
    if not blocks:
        return None
    total, longest = sum(v for _, v in blocks), max(v for _, v in blocks) or 1.0
    unit, factor = unit_of([longest])
    left, row, width = 330, 20, 720
    parts = []
    for i, (key, seconds) in enumerate(blocks):
        y, length = 8 + i * row, max(1.0, seconds / longest * (width - left - 110))
        share = 100 * seconds / total if total else 0.0
        parts.append(
            _text(left - 8, y + 13, key, "end", "soft")
            + f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="{row - 5}" rx="2" fill="{COLOURS[0]}"/>'
            + _text(left + length + 6, y + 13, f"{factor * seconds:.3g} {unit}, {share:.0f} %", "start", "")
        )
    description = f"{len(blocks)} blocks take {factor * total:.3g} {unit} together; the longest {factor * longest:.3g}."
    return svg("blocks", "Time inside the network", description, width, 16 + row * len(blocks), "".join(parts))


def _text(x: float, y: float, text: str, anchor: str, css: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(text)}</text>'


def tuning(run: RunData) -> str | None:
    """Best so far over trials, as a multiple of each workload's best, for the workloads with most trials."""
    curves = [c for c in run.tuning.curves if len(c.best_s) > 1] if run.tuning else []
    if not curves:
        return None
    relative = [[(float(n), s / c.best_s[-1][1]) for n, s in c.best_s] for c in curves]
    top = min(5.0, max(v for curve in relative for _, v in curve))
    chart = Chart(
        "tuning",
        "Tuning curves",
        f"Best latency so far of the {len(curves)} workloads with most trials, as a multiple of their best.",
        "trial",
        "time (× the best found)",
        (0.0, max(n for curve in relative for n, _ in curve) * 1.02),
        (0.95, top * 1.03),
    )
    for i, (c, curve) in enumerate(zip(curves, relative, strict=True)):
        shown = [(n, min(v, top)) for n, v in thinned(curve)]
        label = c.workload if len(c.workload) <= 60 else c.workload[:57] + "…"
        chart.line(shown, COLOURS[i % 6], DASHES[i % 6], label=label, title=c.workload)
    return chart.render()


def _series(rows: Sequence[dict[str, Any]], *path: str) -> list[tuple[float, float]]:
    pairs = [(real(r, "step"), real(r, *path)) for r in rows]
    return thinned([(a, b) for a, b in pairs if a is not None and b is not None])


def training_losses(run: RunData) -> str | None:
    """Losses of the supernet over steps."""
    names = {"loss": "objective", "train_loss": "train loss", "gap_loss": "loss on the gap split"}
    series = {label: _series(run.training, key) for key, label in names.items()}
    values = [v for curve in series.values() for _, v in curve]
    if not any(len(curve) > 1 for curve in series.values()):
        return None
    chart = Chart(
        "losses",
        "Training losses",
        "Losses of the supernet over training steps.",
        "step",
        "loss",
        spread([s for curve in series.values() for s, _ in curve], 0.02),
        spread(values),
        height=300,
    )
    for i, (label, curve) in enumerate(series.items()):
        chart.line(curve, COLOURS[i], DASHES[i], 1.5, label)
    return chart.render()


def training_accuracy(run: RunData) -> str | None:
    """Holdout accuracy of the largest and the smallest sub-network over steps."""
    found = {}
    for size in ("largest", "smallest"):
        found[size] = _series(run.training, f"top1_{size}") or _series(run.training, "eval", size)
    if not any(found.values()):
        return None
    points = [p for curve in found.values() for p in curve]
    chart = Chart(
        "accuracy",
        "Accuracy of the supernet",
        "Holdout accuracy of the largest and the smallest sub-network over training steps.",
        "step",
        "top-1 on holdout (%)",
        spread([s for s, _ in points], 0.03),
        spread([100 * v for _, v in points]),
        height=280,
    )
    for i, (size, curve) in enumerate(found.items()):
        percent = [(s, 100 * v) for s, v in curve]
        chart.line(percent, COLOURS[i], DASHES[i])
        chart.points(percent, COLOURS[i], SHAPES[i], 4, f"{size} sub-network")
    return chart.render()


def learning_curve(run: RunData) -> str | None:
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
        f"Error on left-out architectures fell from {curve[0][1]:.2f} to {curve[-1][1]:.2f} points.",
        "evaluated sub-networks",
        "error (points)",
        spread([a for a, _ in curve]),
        (0.0, max(b for _, b in curve) * 1.1 or 1.0),
        height=260,
    )
    chart.line(curve, COLOURS[0])
    chart.points(curve, COLOURS[0], "circle", 4)
    return chart.render()


def evolution(run: RunData) -> str | None:
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
    return chart.render()
