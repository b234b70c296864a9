"""Schedule spaces, drawn from the points that were tried: the best GFLOP/s over two knobs, and each knob's effect."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from chanas.report.pieces import figure
from chanas.report.svg import COLOURS, Figure, marker, number, svg, ticks

_LETTER = 7.4  # width of a letter, about
_CELL, _NARROW, _CELL_HEIGHT = 62, 26, 26
_MAX_WITH_NUMBERS = 12  # columns; with more there is no room for numbers
_ROW, _MAX_ROWS, _WIDTH = 20, 60, 640


@dataclass(frozen=True)
class TriedSpace:
    """The points of an operator's schedule space that were tried and work.

    knobs   names, and the candidates of each as texts
    points  of each point the number of each knob's candidate, and its GFLOP/s
    """

    operator: str
    knobs: tuple[tuple[str, tuple[str, ...]], ...]
    points: tuple[tuple[tuple[int, ...], float], ...]

    def speeds(self, *knobs: int) -> dict[tuple[int, ...], list[float]]:
        """GFLOP/s of the points by their candidates of some knobs."""
        found: dict[tuple[int, ...], list[float]] = {}
        for candidates, speed in self.points:
            found.setdefault(tuple(candidates[knob] for knob in knobs), []).append(speed)
        return dict(sorted(found.items()))

    def effect(self, knob: int) -> float:
        """The share of the variance of log GFLOP/s that a knob decides alone, 0 to 1: η² of its candidates as groups,
        adjusted for their number (ε²; Kelley, 1935), so that a candidate with one point decides nothing."""
        groups = [[math.log(speed) for speed in speeds] for speeds in self.speeds(knob).values()]
        num = len(self.points)
        if num <= len(groups):
            return 0.0
        total = statistics.pvariance([value for group in groups for value in group]) * num
        within = sum(statistics.pvariance(group) * len(group) for group in groups)
        if total <= 0.0:
            return 0.0
        return max(0.0, 1.0 - (within / (num - len(groups))) / (total / (num - 1)))

    def by_effect(self) -> list[int]:
        """The knobs of which more than one candidate was tried, the one with the largest effect first."""
        varied = [knob for knob in range(len(self.knobs)) if len(self.speeds(knob)) > 1]
        return sorted(varied, key=lambda knob: -self.effect(knob))


def draw_best(space: TriedSpace, name: str) -> Figure | None:
    """The best GFLOP/s over the two knobs with the largest effects, where two were varied. `name` is a prefix of ids,
    unique in the page."""
    varied = space.by_effect()[:2]
    if len(varied) < 2:
        return None
    down, across = sorted(varied, key=lambda knob: -len(space.speeds(knob)))
    speeds = space.speeds(down, across)
    best = {place: max(values) for place, values in speeds.items()}
    fastest = max(best, key=lambda place: best[place])
    rows, columns = (sorted({place[i] for place in best}) for i in (0, 1))
    (down_name, down_texts), (across_name, across_texts) = space.knobs[down], space.knobs[across]
    has_numbers = len(columns) <= _MAX_WITH_NUMBERS
    cell = _CELL if has_numbers else _NARROW
    left = 16 + _LETTER * max(len(down_texts[row]) for row in rows)
    longest = max(len(across_texts[column]) for column in columns)
    is_upright = _LETTER * longest > cell
    top = 34 + (_LETTER * longest if is_upright else 14)
    parts = [f'<text x="4" y="16">{escape(down_name)} (down), {escape(across_name)} (across)</text>']
    for i, column in enumerate(columns):
        x, y = left + (i + 0.5) * cell, top - 8
        turn = f' transform="rotate(-90 {x + 4:.1f} {y:.1f})"' if is_upright else ""
        place = f'x="{x + 4 if is_upright else x:.1f}" y="{y:.1f}" text-anchor="{"start" if is_upright else "middle"}"'
        parts.append(f'<text class="soft" {place}{turn}>{escape(across_texts[column])}</text>')
    for j, row in enumerate(rows):
        y = top + j * _CELL_HEIGHT
        parts.append(
            f'<text class="soft" x="{left - 8:.1f}" y="{y + 17:.1f}" text-anchor="end">{escape(down_texts[row])}</text>'
        )
        for i, column in enumerate(columns):
            if (speed := best.get((row, column))) is None:
                continue
            x = left + i * cell
            edge = 'stroke="var(--ink)" stroke-width="2"' if (row, column) == fastest else 'stroke="var(--line)"'
            strength = 0.08 + 0.72 * speed / best[fastest]
            hint = f"{down_texts[row]}, {across_texts[column]}: {number(speed)} GFLOP/s"
            parts.append(
                f'<rect x="{x + 1:.1f}" y="{y + 1:.1f}" width="{cell - 2}" height="{_CELL_HEIGHT - 2}" '
                f'fill="{COLOURS[0]}" fill-opacity="{strength:.2f}" {edge}><title>{escape(hint)}</title></rect>'
            )
            if has_numbers:
                middle = f'x="{x + cell / 2:.1f}" y="{y + 17:.1f}" text-anchor="middle"'
                parts.append(f'<text class="halo" {middle}>{number(float(f"{speed:.3g}"))}</text>')
    description = (
        f"The best of {len(space.points)} points by {down_name} and {across_name}: up to {number(best[fastest])} "
        f"GFLOP/s with {down_texts[fastest[0]]} and {across_texts[fastest[1]]}. What was not tried is blank."
    )
    width = max(int(left + cell * len(columns) + 8), 320)
    height = int(top + _CELL_HEIGHT * len(rows) + 8)
    drawing = svg(name, f"Best GFLOP/s of {space.operator}", description, width, height, "".join(parts))
    data = tuple(
        (down_texts[row], across_texts[column], f"{len(speeds[row, column])}", number(speed))
        for (row, column), speed in best.items()
    )
    return Figure(drawing, (down_name, across_name, "points", "best GFLOP/s"), data, 2)


def draw_effects(space: TriedSpace, name: str) -> Figure | None:
    """Median and best GFLOP/s of the points with each candidate, knob by knob, the largest effect first; None where no
    knob was varied. `name` is a prefix of ids, unique in the page."""
    shown: list[int] = []
    for knob in space.by_effect():
        if shown and sum(1 + len(space.speeds(k)) for k in (*shown, knob)) > _MAX_ROWS:
            break
        shown.append(knob)
    if not shown:
        return None
    texts = [space.knobs[knob][1][candidate] for knob in shown for (candidate,) in space.speeds(knob)]
    left = 30 + _LETTER * max(map(len, texts))
    most = max(speed for _, speed in space.points)

    def x(speed: float) -> float:
        return left + speed / most * (_WIDTH - left - 20)

    parts, data, y = list[str](), list[tuple[str, ...]](), 6
    for knob in shown:
        knob_name, candidates = space.knobs[knob]
        decided = f"{knob_name}: decides {100 * space.effect(knob):.0f} %"
        parts.append(f'<text x="4" y="{y + 15}">{escape(decided)}</text>')
        y += _ROW
        for (candidate,), speeds in space.speeds(knob).items():
            median, best = statistics.median(speeds), max(speeds)
            values = f"median {number(median)}, best {number(best)} GFLOP/s"
            hint = f"{candidates[candidate]}: {len(speeds)} points, {values}"
            middle = y + _ROW / 2
            parts.append(
                f'<text class="soft" x="{left - 8:.1f}" y="{y + 14}" text-anchor="end">{escape(candidates[candidate])}'
                f'</text><path class="grid" d="M{left:.1f} {middle}H{x(most):.1f}"/>'
                f'<path d="M{x(median):.1f} {middle}H{x(best):.1f}" stroke="{COLOURS[0]}" stroke-width="2"/>'
                + marker("circle", x(median), middle, 4, COLOURS[0], hint, hollow=True)
                + marker("circle", x(best), middle, 4, COLOURS[0], hint)
            )
            data.append((knob_name, candidates[candidate], f"{len(speeds)}", number(median), number(best)))
            y += _ROW
    for value in ticks(0.0, most):
        parts.append(f'<path class="grid" d="M{x(value):.1f} 6V{y}"/>')
        parts.append(f'<text class="soft" x="{x(value):.1f}" y="{y + 16}" text-anchor="middle">{number(value)}</text>')
    parts.append(f'<text x="{(left + _WIDTH) / 2:.0f}" y="{y + 36}" text-anchor="middle">GFLOP/s</text>')
    first = space.knobs[shown[0]][0]
    left_out = len(space.by_effect()) - len(shown)
    description = (
        f"Median and best GFLOP/s of the points with each candidate of {len(shown)} knobs; {first} decides most."
        + (f" {left_out} knobs with less effect are left out." if left_out else "")
    )
    drawing = svg(name, f"Effect of each knob of {space.operator}", description, _WIDTH, y + 46, "".join(parts))
    return Figure(drawing, ("knob", "candidate", "points", "median GFLOP/s", "best GFLOP/s"), tuple(data), 3)


def space_sections(spaces: Sequence[TriedSpace]) -> list[str]:
    """Both figures of each space, as HTML."""
    sections = []
    for i, space in enumerate(spaces):
        sections.append(f"<h3><code>{escape(space.operator)}</code></h3>")
        name = f"space-{i}"
        caption = "The best GFLOP/s of the points that were tried, over the two knobs that decide most."
        otherwise = "Fewer than two knobs were varied in the points that were tried and work."
        sections.append(figure(name, draw_best(space, name), caption, otherwise))
        name = f"effects-{i}"
        caption = (
            "Points with each candidate: their median (open) and the best (filled). A knob decides the share of the "
            "differences in speed, on a logarithmic scale, that lies between its candidates. A tuner tries more points "
            "near good ones, so medians are of what was tried, not of the whole space."
        )
        sections.append(figure(name, draw_effects(space, name), caption))
    return sections
