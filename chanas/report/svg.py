"""Line and scatter figures as SVG text. Colours are CSS variables of the page, so one figure serves light, dark and
print; every series also has a shape or a dash of its own, so colour never tells it alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

Points = Sequence[tuple[float, float]]

COLOURS = tuple(f"var(--c{i})" for i in range(6))
OTHER = "var(--other)"
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 4", "1 4")
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "plus")


def ticks(low: float, high: float, num: int = 5) -> list[float]:
    """About `num` round values from `low` to `high`, both finite and `low` < `high`."""
    raw = (high - low) / max(num, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * 0.999), 10.0 * power)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def spread(values: Sequence[float], margin: float = 0.05) -> tuple[float, float]:
    """A range that holds all finite values with a margin; never empty."""
    finite = [v for v in values if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    room = (high - low) * margin or abs(high) * margin or 1.0
    return low - room, high + room


def number(value: float) -> str:
    """A coordinate or tick with no more digits than can be seen."""
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.0f}"


def marker(shape: str, x: float, y: float, size: float, colour: str, title: str = "", hollow: bool = False) -> str:
    """One mark about (x, y), `size` in pixels from the centre; `title` shows under the pointer."""
    s = size
    paths = {
        "square": f"M{x - s:.1f} {y - s:.1f}h{2 * s:.1f}v{2 * s:.1f}h{-2 * s:.1f}z",
        "triangle": f"M{x:.1f} {y - 1.2 * s:.1f}l{1.2 * s:.1f} {2.1 * s:.1f}h{-2.4 * s:.1f}z",
        "diamond": f"M{x:.1f} {y - 1.4 * s:.1f}l{1.4 * s:.1f} {1.4 * s:.1f}l{-1.4 * s:.1f} {1.4 * s:.1f}"
        f"l{-1.4 * s:.1f} {-1.4 * s:.1f}z",
        "cross": f"M{x - s:.1f} {y - s:.1f}l{2 * s:.1f} {2 * s:.1f}m0 {-2 * s:.1f}l{-2 * s:.1f} {2 * s:.1f}",
        "plus": f"M{x - s:.1f} {y:.1f}h{2 * s:.1f}m{-s:.1f} {-s:.1f}v{2 * s:.1f}",
    }
    open_shape = hollow or shape in {"cross", "plus"}
    paint = f'fill="{"none" if open_shape else colour}" stroke="{colour}" stroke-width="{2 if open_shape else 1}"'
    hint = f"<title>{escape(title)}</title>" if title else ""
    if shape in paths:
        return f'<path d="{paths[shape]}" {paint}>{hint}</path>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{s:.1f}" {paint}>{hint}</circle>'


@dataclass
class Chart:
    """Axes to draw into; `render` gives the SVG. Ranges are (low, high) in data units.

    name   prefix of ids, unique in the page        title, description   what a screen reader says
    """

    name: str
    title: str
    description: str
    x_label: str
    y_label: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    width: int = 640
    height: int = 360
    left: int = 66
    right: int = 16
    top: int = 14
    bottom: int = 50
    parts: list[str] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom)

    def line(
        self, points: Points, colour: str, dash: str = "", width: float = 2.0, label: str = "", title: str = ""
    ) -> None:
        """A polyline; points that aren't finite are left out. `label` adds it to the legend."""
        shown = [(self.x(a), self.y(b)) for a, b in points if math.isfinite(a) and math.isfinite(b)]
        if len(shown) < 2:
            return
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in shown)
        style = f'fill="none" stroke="{colour}" stroke-width="{width:g}"' + (
            f' stroke-dasharray="{dash}"' if dash else ""
        )
        hint = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(f'<path d="{path}" {style} stroke-linejoin="round">{hint}</path>')
        if label:
            self.legend.append((f'<path d="M0 0h26" {style}/>', label))

    def points(
        self,
        points: Points,
        colour: str,
        shape: str = "circle",
        size: float = 4.0,
        label: str = "",
        titles: Sequence[str] = (),
        hollow: bool = False,
        opacity: float = 1.0,
    ) -> None:
        """Marks; `titles` say what each one is."""
        marks = [
            marker(shape, self.x(a), self.y(b), size, colour, hint, hollow)
            for (a, b), hint in zip(points, itertools.chain(titles, itertools.repeat("")), strict=False)
            if math.isfinite(a) and math.isfinite(b)
        ]
        self.parts.append(f'<g opacity="{opacity:g}">{"".join(marks)}</g>')
        if label and marks:
            self.legend.append((marker(shape, 13, 0, size, colour, hollow=hollow), label))

    def vertical(self, value: float, label: str, colour: str = "var(--ink)") -> None:
        """A line across the plot at x = `value`, named at its top."""
        if not self.x_range[0] <= value <= self.x_range[1]:
            return
        x = self.x(value)
        near_end = x > self.width - self.right - 8 * len(label)
        anchor, shift = ("end", -5) if near_end else ("start", 5)
        self.parts.append(
            f'<path d="M{x:.1f} {self.top}V{self.height - self.bottom}" stroke="{colour}" stroke-dasharray="6 3"/>'
            f'<text x="{x + shift:.1f}" y="{self.top + 11}" text-anchor="{anchor}" class="halo">{escape(label)}</text>'
        )

    def _axes(self) -> str:
        floor, wall = self.height - self.bottom, self.width - self.right
        out = []
        for value in ticks(*self.x_range, num=7):
            x = self.x(value)
            out.append(f'<path class="grid" d="M{x:.1f} {self.top}V{floor}"/>')
            out.append(f'<text class="soft" x="{x:.1f}" y="{floor + 17}" text-anchor="middle">{number(value)}</text>')
        for value in ticks(*self.y_range):
            y = self.y(value)
            out.append(f'<path class="grid" d="M{self.left} {y:.1f}H{wall}"/>')
            label = f'<text class="soft" x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>'
            out.append(label)
        out.append(f'<path class="axis" d="M{self.left} {self.top}V{floor}H{wall}"/>')
        below, beside = f"translate({(self.left + wall) / 2:.0f} {floor + 40})", (self.top + floor) / 2
        for place, label in ((below, self.x_label), (f"translate(14 {beside:.0f}) rotate(-90)", self.y_label)):
            out.append(f'<text transform="{place}" text-anchor="middle">{escape(label)}</text>')
        return "".join(out)

    def _legend(self) -> tuple[str, int]:
        """The legend's rows below the plot, and their height."""
        start, out = 10, list[str]()
        x, y = start, self.height + 10
        for sample, label in self.legend:
            width = 52 + int(7.3 * len(label))
            if x + width > self.width and x > start:
                x, y = start, y + 22
            out.append(f'<g transform="translate({x} {y})">{sample}<text x="33" y="4">{escape(label)}</text></g>')
            x += width
        return "".join(out), (y + 14 - self.height) if self.legend else 0

    def render(self) -> str:
        """The whole figure as an `<svg>` element with a title and a description."""
        legend, extra = self._legend()
        return svg(
            self.name,
            self.title,
            self.description,
            self.width,
            self.height + extra,
            self._axes() + "".join(self.parts) + legend,
        )


def svg(name: str, title: str, description: str, width: int, height: int, content: str) -> str:
    """An `<svg>` element that names itself to screen readers. On a narrow screen it keeps 85 % of its size, so that its
    text can be read, and its frame scrolls."""
    size = f'viewBox="0 0 {width} {height}" style="max-width:{width * 1.15:.0f}px;min-width:{width * 0.85:.0f}px"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>{content}</svg>'
    )


@dataclass(frozen=True)
class Figure:
    """A drawing, and the same data as a table of plain text for those who can't or won't look at it.

    head, rows  names of the columns, and cells; the last `numbers` columns are numbers
    """

    drawing: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int
