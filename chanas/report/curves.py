"""The curves of the two long stages: tuning over trials, training over steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from chanas.report.figures import thin_out
from chanas.report.pieces import seconds
from chanas.report.reading import RunData, Tuning, real
from chanas.report.svg import COLOURS, DASHES, SHAPES, Chart, Figure, number, spread


def tuning(found: Tuning | None) -> Figure | None:
    """Best so far over trials, as a multiple of each workload's best."""
    curves = [c for c in found.curves if len(c.best_s) > 1] if found else []
    if not curves:
        return None
    relative = [[(float(n), s / c.best_s[-1][1]) for n, s in c.best_s] for c in curves]
    top = min(5.0, max(v for curve in relative for _, v in curve))
    chart = Chart(
        "tuning",
        "Tuning curves",
        f"Best latency so far of {len(curves)} operators over the schedules that were tried, as a multiple of the best "
        "found in the end.",
        "schedules tried",
        "time (× the best found)",
        (0.0, max(n for curve in relative for n, _ in curve) * 1.02),
        (0.95, max(top * 1.03, 1.05)),
    )
    rows = []
    for i, (c, curve) in enumerate(zip(curves, relative, strict=True)):
        shown = [(n, min(v, top)) for n, v in _steps(thin_out(curve))]
        uses = f"{c.num_uses} × " if c.num_uses > 1 else ""
        label = f"{uses}{c.workload} ({seconds(c.best_s[-1][1])})"
        label = label if len(label) <= 78 else label[:77] + "…"
        chart.line(shown, COLOURS[i % 6], DASHES[i % 6], label=label, title=c.workload)
        changes = [pair for before, pair in zip([None, *c.best_s], c.best_s, strict=False) if _improves(before, pair)]
        rows += [(c.workload, f"{n}", seconds(s), f"{s / c.best_s[-1][1]:.2f}") for n, s in changes]
    return Figure(chart.render(), ("operator", "after so many", "best so far", "× the best found"), tuple(rows), 3)


def _steps(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of a curve that stays where it is until it jumps."""
    out = list(curve[:1])
    for (_, before), (n, value) in itertools.pairwise(curve):
        out += [(n, before), (n, value)]
    return out


def _improves(before: tuple[int, float] | None, now: tuple[int, float]) -> bool:
    return before is None or now[1] < before[1]


def _series(rows: Sequence[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    pairs = [(real(r, "step"), real(r, name)) for r in rows]
    return thin_out([(a, b) for a, b in pairs if a is not None and b is not None])


def _by_step(series: dict[str, list[tuple[float, float]]], factor: float = 1.0) -> tuple[tuple[str, ...], ...]:
    """A row for each step that any series has: the step, then each series' value."""
    found = {name: dict(curve) for name, curve in series.items()}
    steps = sorted({step for curve in found.values() for step in curve})
    return tuple(
        (f"{step:.0f}", *(number(factor * c[step]) if step in c else "–" for c in found.values())) for step in steps
    )


def training_losses(run: RunData) -> Figure | None:
    """Losses of the supernet over steps."""
    names = {"loss": "objective", "train_loss": "train loss", "gap_loss": "loss on the gap split"}
    series = {label: curve for key, label in names.items() if (curve := _series(run.training, key))}
    values = [v for curve in series.values() for _, v in curve]
    if not any(len(curve) > 1 for curve in series.values()):
        return None
    first, last = next(iter(series.values()))[0], next(iter(series.values()))[-1]
    chart = Chart(
        "losses",
        "Training losses",
        f"Losses of the supernet over training steps: the {next(iter(series))} went from {first[1]:.3g} to "
        f"{last[1]:.3g} in {last[0]:.0f} steps.",
        "step",
        "loss",
        spread([s for curve in series.values() for s, _ in curve], 0.02),
        spread(values),
        height=300,
    )
    for i, (label, curve) in enumerate(series.items()):
        chart.line(curve, COLOURS[i], DASHES[i], 1.5, label)
    return Figure(chart.render(), ("step", *series), _by_step(series), 1 + len(series))


def training_accuracy(run: RunData) -> Figure | None:
    """Holdout accuracy of the largest and the smallest sub-network over steps."""
    sizes = ("largest", "smallest")
    found = {size: curve for size in sizes if (curve := _series(run.training, f"top1_{size}"))}
    if not found:
        return None
    points = [p for curve in found.values() for p in curve]
    ends = " and ".join(f"{100 * curve[-1][1]:.1f} % for the {size}" for size, curve in found.items())
    chart = Chart(
        "accuracy",
        "Accuracy of the supernet",
        f"Holdout accuracy of the largest and the smallest sub-network over training steps; in the end {ends}.",
        "step",
        "top-1 on holdout (%)",
        spread([s for s, _ in points], 0.03),
        spread([100 * v for _, v in points]),
        height=280,
    )
    for i, (size, curve) in enumerate(found.items()):
        shown = [(s, 100 * v) for s, v in curve]
        chart.line(shown, COLOURS[i], DASHES[i])
        chart.points(shown, COLOURS[i], SHAPES[i], 4, f"{size} sub-network")
    return Figure(chart.render(), ("step", *(f"{s} (%)" for s in found)), _by_step(found, 100.0), 1 + len(found))
