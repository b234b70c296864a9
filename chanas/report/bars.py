"""Bars, one a row: a name, a length, and what the bar stands for in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from chanas.report.svg import svg

_RIGHT, _ROW = 140, 22


@dataclass(frozen=True)
class Bar:
    """A bar. `length` is a share of the longest, `paint` has attributes of SVG, `hint` shows under the pointer."""

    name: str
    length: float
    paint: str
    words: str
    hint: str


def draw_bars(name: str, title: str, description: str, bars: Sequence[Bar], left: int = 160, width: int = 640) -> str:
    """Draw bars below each other; names end at `left`. `name` is a prefix of ids, unique in the page."""
    parts = []
    for row, bar in enumerate(bars):
        y, length = 6 + row * _ROW, max(1.5, bar.length * (width - left - _RIGHT))
        parts.append(
            f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{escape(bar.name)}</text>'
            f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="{_ROW - 5}" rx="2" {bar.paint}>'
            f"<title>{escape(bar.hint)}</title></rect>"
            f'<text x="{left + length + 7:.1f}" y="{y + 15}">{escape(bar.words)}</text>'
        )
    return svg(name, title, description, width, 12 + _ROW * len(bars), "".join(parts))
