"""chanas/report/jobs: what ran where and when, drawn and in numbers."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chanas.errors import ChanasError
from chanas.files.writing import write_json
from chanas.report.jobs.gantt import draw_lanes, job_colours, job_lanes, kind_colours, unit_lanes
from chanas.report.jobs.page import build_schedule_page, render_schedule
from chanas.scheduler.jobs import BUILD, DEVICE, HOST, LEARN, MEASURE
from chanas.scheduler.trace import Event, Span, Trace


def trace_of(*spans: tuple[str, str, str, int, float, float]) -> Trace:
    names = dict.fromkeys(job for job, *_ in spans)
    trace = Trace({HOST: 2, DEVICE: 1})
    trace.events += [Event(0.0, "joined", name) for name in names]
    trace.spans += [Span(job, "", kind, resource, unit, start, end) for job, kind, resource, unit, start, end in spans]
    end_s = max((s.end_s for s in trace.spans), default=0.0)
    trace.events += [Event(end_s, "complete", name) for name in names]
    return trace


TWO_JOBS = trace_of(
    ("a", BUILD, HOST, 0, 0.0, 10.0),
    ("b <&>", BUILD, HOST, 1, 0.0, 20.0),
    ("a", MEASURE, DEVICE, 0, 10.0, 50.0),
    ("b <&>", MEASURE, DEVICE, 0, 50.0, 90.0),
    ("a", LEARN, HOST, 0, 50.0, 60.0),
    ("b <&>", LEARN, HOST, 0, 90.0, 100.0),
)


def bars(drawing: str) -> list[ElementTree.Element]:
    """Rectangles of stages; those of the legend have no title."""
    root = ElementTree.fromstring(drawing)
    return [e for e in root.iter() if e.tag.endswith("rect") and len(e)]


def test_lanes_are_units_idle_ones_included_or_jobs() -> None:
    trace = trace_of(("a", BUILD, HOST, 0, 0.0, 1.0))
    assert [(lane.name, len(lane.spans)) for lane in unit_lanes(trace)] == [("host 0", 1), ("host 1", 0), ("device", 0)]
    assert [(lane.name, len(lane.spans)) for lane in job_lanes(TWO_JOBS)] == [("a", 3), ("b <&>", 3)]


def test_each_stage_is_a_bar_as_long_as_it_took() -> None:
    found = bars(draw_lanes("u", "t", unit_lanes(TWO_JOBS), TWO_JOBS, job_colours(TWO_JOBS), lambda s: s.job))
    widths = [float(bar.get("width", "")) for bar in found]
    assert len(found) == 6
    assert {round(width / min(widths)) for width in widths} == {1, 2, 4}
    assert {bar.get("fill") for bar in found} == set(job_colours(TWO_JOBS).values())


def test_kinds_are_told_by_their_height_too() -> None:
    found = bars(draw_lanes("j", "t", job_lanes(TWO_JOBS), TWO_JOBS, kind_colours(), lambda s: s.kind))
    looks = {(bar.get("fill"), bar.get("height")) for bar in found}
    assert len(looks) == len({height for _, height in looks}) == 3


def test_a_long_run_is_drawn_with_no_more_bars_than_can_be_seen() -> None:
    many = trace_of(*(("a", MEASURE, DEVICE, 0, i, i + 0.9) for i in range(20_000)))
    drawing = draw_lanes("u", "t", unit_lanes(many), many, job_colours(many), lambda s: s.job)
    found = bars(drawing)
    assert len(found) < 2000
    nums = [int(m) for bar in found for m in re.findall(r"(\d+) of them", "".join(bar.itertext()))]
    assert sum(nums) == 20_000 - (len(found) - len(nums))


def test_the_page_has_idle_shares_and_the_critical_resource() -> None:
    page = render_schedule(TWO_JOBS)
    assert "The critical resource is <b>device</b>" in page
    assert "80.0 %" in page  # the device is busy
    assert "75.0 %" in page  # the host is idle
    assert "b &lt;&amp;&gt;" in page
    assert "<&>" not in page


def test_the_page_of_nothing() -> None:
    assert "No stage ran." in render_schedule(Trace({HOST: 1}))


def test_a_stored_trace_is_drawn(tmp_path: Path) -> None:
    write_json(tmp_path / "trace.json", TWO_JOBS.to_json())
    build_schedule_page(tmp_path / "trace.json", tmp_path / "jobs.html")
    assert (tmp_path / "jobs.html").read_text() == render_schedule(TWO_JOBS)


@pytest.mark.parametrize("data", [[], {}, {"schema": 2}, {"schema": 1, "num_units": [], "spans": [{}], "events": []}])
def test_what_is_no_trace_is_refused(tmp_path: Path, data: object) -> None:
    write_json(tmp_path / "trace.json", data)
    with pytest.raises(ChanasError, match="trace"):
        build_schedule_page(tmp_path / "trace.json", tmp_path / "jobs.html")
