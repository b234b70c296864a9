from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chanas.report.svg import SHAPES, Chart, marker, spread, ticks

finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(finite, finite)
def test_ticks_are_round_few_and_inside(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    assume(high - low > 1e-6 * max(1.0, abs(low), abs(high)))
    found = ticks(low, high)
    assert 1 <= len(found) <= 8
    assert all(low - 1e-6 * (high - low) <= t <= high + 1e-6 * (high - low) for t in found)


@given(st.lists(st.floats(), max_size=20))
def test_a_spread_holds_its_finite_values_and_is_never_empty(values: list[float]) -> None:
    kept = [v for v in values if abs(v) < 1e100]
    low, high = spread(kept)
    assert low < high
    assert all(low <= v <= high for v in kept if math.isfinite(v))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_mark_is_xml_and_says_what_it_is(shape: str) -> None:
    element = ElementTree.fromstring(marker(shape, 1, 2, 3, "var(--c0)", "a < b & c"))
    assert [child.text for child in element] == ["a < b & c"]


def test_a_chart_is_xml_with_a_title_a_description_and_a_legend() -> None:
    chart = Chart("name", "T & U", "what <it> shows", "x", "y", (0.0, 10.0), (0.0, 1.0))
    chart.line([(0, 0), (5, math.nan), (10, 1)], "var(--c0)", label="line <1>")
    chart.line([(0, 0)], "var(--c0)", label="too short to draw")
    chart.points([(1, 1), (math.inf, 1)], "var(--c1)", "square", label="marks")
    chart.vertical(9.9, "budget")
    chart.vertical(99.0, "outside")
    root = ElementTree.fromstring(chart.render())
    texts = [t for t in root.itertext() if t]
    assert {"T & U", "what <it> shows", "line <1>", "marks", "budget"} <= set(texts)
    assert "too short to draw" not in texts
    assert "outside" not in texts
    assert root.get("role") == "img"
    labelled = str(root.get("aria-labelledby")).split()
    assert labelled == ["name-title", "name-desc"]
    assert "nan" not in chart.render()
    assert "inf" not in chart.render().replace("info", "")
