"""The page of a run of jobs on shared machines: what ran where and when, what was idle, and what to add another of."""

from __future__ import annotations

from html import escape
from pathlib import Path

from chanas.files.writing import read_json, replacing
from chanas.report.jobs.gantt import KINDS, draw_lanes, job_colours, job_lanes, kind_colours, unit_lanes
from chanas.report.pieces import document, figure, paragraph, percent, table, tile
from chanas.report.svg import Figure
from chanas.scheduler.trace import Trace


def build_schedule_page(trace: Path, page: Path) -> None:
    """Write the page of a stored trace.

    Raises:
        ChanasError: the trace is missing or damaged, or the page cannot be written.
    """
    text = render_schedule(Trace.from_json(read_json(trace, "the trace of jobs")))
    with replacing(page) as path:
        path.write_text(text, encoding="utf-8")


def render_schedule(trace: Trace) -> str:
    """The page as text."""
    sections = ["<h1>Jobs on shared machines</h1>"]
    if not trace.spans:
        return document("jobs", [*sections, paragraph("No stage ran.")])
    sections += [_tiles(trace), _units(trace), _jobs(trace), *_ends(trace)]
    return document("jobs", sections)


def _tiles(trace: Trace) -> str:
    tiles = [tile(f"{trace.makespan_s:.0f} s", "from the first stage to the last")]
    tiles += [tile(percent(share), f"of the time {name} was busy") for name, share in trace.utilisation().items()]
    least_s = trace.least_s
    tiles.append(tile(f"{trace.makespan_s / least_s:.2f} ×", f"the least possible time of {least_s:.0f} s"))
    return (
        f'<div class="tiles">{"".join(tiles)}</div>'
        f"<p>The critical resource is <b>{escape(trace.critical_resource)}</b>: another unit of it would help most.</p>"
    )


def _units(trace: Trace) -> str:
    drawing = draw_lanes(
        "units", "Stages by machine", unit_lanes(trace), trace, job_colours(trace), lambda span: span.job
    )
    rows = [
        (name, str(num), f"{trace.busy_s(name):.1f}", percent(trace.idle_share()[name]))
        for name, num in trace.num_units.items()
    ]
    caption = (
        "What each machine did: colours are jobs. Bars of builds are lower than those of timings, learning lowest."
    )
    found = Figure(drawing, ("resource", "units", "busy seconds", "idle"), tuple(rows), 3)
    return f"<h2>Machines</h2>{figure('units', found, caption)}{table(found.head, rows, 3, label='Idle shares')}"


def _jobs(trace: Trace) -> str:
    drawing = draw_lanes("jobs", "Stages by job", job_lanes(trace), trace, kind_colours(), lambda span: span.kind)
    rows = []
    for lane in job_lanes(trace):
        seconds = [sum(s.end_s - s.start_s for s in lane.spans if s.kind == kind) for kind in KINDS]
        rows.append((lane.name, str(len(lane.spans)), *(f"{s:.1f}" for s in seconds)))
    found = Figure(drawing, ("job", "stages", *(f"{kind} (s)" for kind in KINDS)), tuple(rows), 1 + len(KINDS))
    return f"<h2>Jobs</h2>{figure('jobs', found, 'What each job did, and when it waited.')}"


def _ends(trace: Trace) -> list[str]:
    seconds = trace.completion_s()
    ends = [e for e in trace.events if e.name in seconds and e.what in ("complete", "cancelled", "killed", "failed")]
    rows = [[e.name, e.what, e.detail, f"{seconds[e.name]:.1f}"] for e in ends]
    return [table(["job", "end", "why", "seconds until then"], rows, 1, label="Ends of jobs")] if rows else []
