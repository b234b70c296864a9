"""The stages of jobs over time, as bars in lanes: a lane for each unit of a resource, or for each job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from chanas.report.svg import COLOURS, OTHER, number, svg, ticks
from chanas.scheduler.trace import Span, Trace

_WIDTH, _LEFT, _RIGHT, _TOP = 880, 110, 12, 8
_LANE, _BAR, _AXIS = 30, 22, 46
KINDS = ("start", "select", "build", "measure", "learn")
"""Kinds of stages in the order in which they are drawn; bars of each have a height of their own."""
_HEIGHTS = {"start": 1.0, "select": 0.55, "build": 0.8, "measure": 1.0, "learn": 0.4}
_NARROW = 0.6
"""Pixels between two bars of one look that are drawn as one, and the least width of a bar."""


@dataclass(frozen=True)
class Lane:
    """A row of bars under a name."""

    name: str
    spans: Sequence[Span]


def unit_lanes(trace: Trace) -> list[Lane]:
    """A lane for each unit of each resource, idle ones included."""
    return [
        Lane(
            resource if num == 1 else f"{resource} {unit}",
            [s for s in trace.spans if (s.resource, s.unit) == (resource, unit)],
        )
        for resource, num in trace.num_units.items()
        for unit in range(num)
    ]


def job_lanes(trace: Trace) -> list[Lane]:
    """A lane for each job that ran a stage, in the order in which they joined."""
    names = dict.fromkeys([*(e.name for e in trace.events if e.what == "joined"), *(s.job for s in trace.spans)])
    lanes = [Lane(name, [s for s in trace.spans if s.job == name]) for name in names]
    return [lane for lane in lanes if lane.spans]


def job_colours(trace: Trace) -> dict[str, str]:
    """A colour for each of the first jobs; later ones share one."""
    names = [lane.name for lane in job_lanes(trace)]
    return {name: COLOURS[i] if i < len(COLOURS) else OTHER for i, name in enumerate(names)}


def kind_colours() -> dict[str, str]:
    """A colour for each kind of stage."""
    return {kind: COLOURS[i] for i, kind in enumerate(KINDS)}


def draw_lanes(
    name: str,
    title: str,
    lanes: Sequence[Lane],
    trace: Trace,
    colours: Mapping[str, str],
    key: Callable[[Span], str],
) -> str:
    """The bars of all lanes over seconds, as an `<svg>` element.

    Bars that are too close to be told apart are drawn as one, so that a run of hours is no larger than one of minutes.

    Args:
        name: prefix of ids, unique in the page.
        colours: by what `key` says of a span; the legend names them.
    """
    start_s, end_s = trace.start_s, max(trace.end_s, trace.start_s + 1e-9)
    scale = (_WIDTH - _LEFT - _RIGHT) / (end_s - start_s)
    floor = _TOP + _LANE * len(lanes)
    parts = []
    for value in ticks(0.0, end_s - start_s, num=8):
        x = _LEFT + value * scale
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{floor}"/>')
        parts.append(f'<text class="soft" x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{number(value)}</text>')
    for i, lane in enumerate(lanes):
        middle = _TOP + _LANE * (i + 0.5)
        parts.append(f'<text x="{_LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(_short(lane.name))}</text>')
        for bar in _bars(lane.spans, start_s, scale, key):
            parts.append(_rectangle(bar, middle, colours.get(key(bar.first), OTHER)))
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{floor}H{_WIDTH - _RIGHT}"/>')
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{floor + 36}" text-anchor="middle">seconds</text>')
    used = {key(span): None for lane in lanes for span in lane.spans}
    legend, height = _legend([(k, c) for k, c in colours.items() if k in used], floor + _AXIS)
    described = f"{len(lanes)} lanes over {end_s - start_s:.0f} seconds; the table has the same in numbers"
    return svg(name, title, described, _WIDTH, height, "".join(parts) + legend)


@dataclass
class _Bar:
    """Spans that are drawn as one, from the first one's start to the last one's end, in pixels."""

    first: Span
    left: float
    right: float
    num: int = 1


def _bars(spans: Sequence[Span], start_s: float, scale: float, key: Callable[[Span], str]) -> list[_Bar]:
    bars: dict[tuple[str, str], list[_Bar]] = {}
    for span in sorted(spans, key=lambda s: s.start_s):
        left, right = (_LEFT + (at_s - start_s) * scale for at_s in (span.start_s, span.end_s))
        alike = bars.setdefault((key(span), span.kind), [])
        if alike and left - alike[-1].right < _NARROW:
            alike[-1].right = max(alike[-1].right, right)
            alike[-1].num += 1
        else:
            alike.append(_Bar(span, left, right))
    return [bar for alike in bars.values() for bar in alike]


def _rectangle(bar: _Bar, middle: float, colour: str) -> str:
    span, height = bar.first, _BAR * _HEIGHTS.get(bar.first.kind, 1.0)
    many = f", {bar.num} of them from {span.start_s:.2f} s" if bar.num > 1 else f", {span.start_s:.2f} s"
    hint = escape(f"{span.job}: {span.kind}{many}")
    return (
        f'<rect x="{bar.left:.1f}" y="{middle - height / 2:.1f}" width="{max(_NARROW, bar.right - bar.left):.1f}" '
        f'height="{height:.1f}" fill="{colour}"><title>{hint}</title></rect>'
    )


def _legend(colours: Sequence[tuple[str, str]], top: float) -> tuple[str, int]:
    """The legend's rows, and where they end."""
    out, x, y = list[str](), 10, top + 10
    for name, colour in colours:
        width, height = 44 + int(7.3 * len(name)), _BAR * _HEIGHTS.get(name, 1.0)
        if x + width > _WIDTH and x > 10:
            x, y = 10, y + _LANE
        sample = f'<rect x="{x}" y="{y - height / 2:.1f}" width="20" height="{height:.1f}" fill="{colour}"/>'
        out.append(f'{sample}<text x="{x + 26}" y="{y + 4:.1f}">{escape(name)}</text>')
        x += width
    return "".join(out), int(y + 16)


def _short(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"
