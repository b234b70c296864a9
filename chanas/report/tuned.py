"""The page of a tuned network: where its time goes, the trials of each operator, and the spaces they came from. All
text from files is escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from chanas.files.run import RunDirectory
from chanas.files.writing import replacing
from chanas.report import curves
from chanas.report.bars import Bar, draw_bars
from chanas.report.figures import unit_of
from chanas.report.pieces import document, figure, paragraph, percent, seconds, table, tile
from chanas.report.reading import Tuning, at, dicts, real
from chanas.report.spaces import TriedSpace, space_sections
from chanas.report.svg import COLOURS, OTHER, Figure, number

_MAX_BARS = 12


@dataclass(frozen=True)
class TunedData:
    """Content of the page.

    network  content of `tuned.json`
    gflops   of the whole network; None where its operations are not known
    tuning   the run's records of its operators in short; None without them
    spaces   of the operators that take most of the time
    notes    what could not be read, one line each
    """

    network: Mapping[str, Any]
    gflops: float | None = None
    tuning: Tuning | None = None
    spaces: Sequence[TriedSpace] = ()
    notes: Sequence[str] = ()


def build_tuned_report(folder: Path, data: TunedData) -> Path:
    """Write `report.html` into the folder of a tuned network, and return its path.

    Raises:
        ChanasError: it cannot be written.
    """
    page = RunDirectory(folder).report
    with replacing(page) as path:
        path.write_text(render(data), encoding="utf-8")
    return page


def render(data: TunedData) -> str:
    """The page as text."""
    notes = "".join(f'<p class="missing">{escape(note)}</p>' for note in data.notes)
    network = data.network
    sections = [notes + _answer(data), *_time(network), *_operators(network), *_tuning(data), *_provenance(network)]
    return document(f"{network['name']}: tuned network", sections)


def total_s(operator: Mapping[str, Any]) -> float:
    """Seconds of all places of an operator, alone with cold weights."""
    return float(operator["count"] * operator["seconds"])


def _by_time(network: Mapping[str, Any]) -> list[dict[str, Any]]:
    return sorted(dicts(network, "operators"), key=lambda operator: -total_s(operator))


def _answer(data: TunedData) -> str:
    network = data.network
    measured, operators = network["measured"], dicts(network, "operators")
    target = network["target"]
    where = f"on {target.get('device')}, {target.get('num_threads')} thread(s)"
    latency_s, spread_s = measured["latency_s"], real(measured, "spread_s")
    tiles = [tile(seconds(latency_s), f"measured ± {seconds(spread_s)}")]
    peak = real(measured, "peak_gflops")
    if data.gflops is not None:
        told = "of the network, by its operators' definitions"
        told += "" if peak is None else f"; a product of matrices by NumPy reaches {peak:.1f}"
        tiles.append(tile(f"{data.gflops:.1f} GFLOP/s", told))
    num_places = sum(operator["count"] for operator in operators)
    tiles.append(tile(str(len(operators)), f"operators with a schedule, in {num_places} places"))
    tried = [operator["trials"] for operator in operators if operator.get("trials") is not None]
    if tried:
        tiles.append(tile(str(sum(tried)), "trials of these operators, kept ones included"))
    for found in dicts(network, "quantized", "accuracies"):
        before = percent(real(found, "top1_float32"), 2)
        told = f"top-1 of {found.get('num_images')} {found.get('split')} images, {before} in float32"
        tiles.append(tile(percent(real(found, "top1_int8"), 2), told))
    remark = paragraph(str(network["remark"])) if network.get("remark") else ""
    return (
        f"<h1>{escape(str(network['name']))}: the tuned network and how fast it runs</h1>"
        f'<p>{escape(where)}</p>{remark}<div class="tiles">{"".join(tiles)}</div>'
    )


def _time(network: Mapping[str, Any]) -> list[str]:
    caption = (
        "Each operator alone, with cold weights, as often as the network has it. The last bar is the network's time "
        "beyond these: operators without a schedule, and what lies between operators."
    )
    return ["<h2>Where the time goes</h2>", figure("operators", draw_times(network), caption, "It has no operators.")]


def draw_times(network: Mapping[str, Any]) -> Figure | None:
    """A bar for each of the operators that take most of the time, and one for the rest of the network."""
    operators, whole_s = _by_time(network), network["measured"]["latency_s"]
    if not operators:
        return None
    times = [(str(operator["key"]), operator["count"], total_s(operator), COLOURS[0]) for operator in operators]
    further = times[_MAX_BARS:]
    if further:
        name = f"{len(further)} further operators"
        times[_MAX_BARS:] = [(name, sum(t[1] for t in further), sum(t[2] for t in further), COLOURS[5])]
    others_s = max(0.0, whole_s - sum(map(total_s, operators)))
    times.append(("everything else", 1, others_s, OTHER))
    longest = max(time_s for _, _, time_s, _ in times)
    unit, factor = unit_of([longest])
    bars = [
        Bar(
            name if count == 1 else f"{count} × {name}",
            time_s / longest,
            f'fill="{colour}"',
            f"{factor * time_s:.3g} {unit}, {percent(time_s / whole_s)}",
            name,
        )
        for name, count, time_s, colour in times
    ]
    left = int(24 + 7.4 * max(len(bar.name) for bar in bars))
    description = (
        f"{len(operators)} operators; {times[0][0]} takes {percent(times[0][2] / whole_s)} of the network's "
        f"{seconds(whole_s)}."
    )
    drawing = draw_bars("operators", "Time of the operators", description, bars, left, left + 420)
    rows = [
        (str(o["key"]), str(o["count"]), number(factor * total_s(o)), percent(total_s(o) / whole_s)) for o in operators
    ]
    rows.append(("everything else", "", number(factor * others_s), percent(others_s / whole_s)))
    return Figure(drawing, ("operator", "places", f"time ({unit})", "share"), tuple(rows), 3)


def _operators(network: Mapping[str, Any]) -> list[str]:
    whole_s = network["measured"]["latency_s"]
    rows = []
    for operator in _by_time(network):
        taken = f", schedule of {operator['taken_from']}" if operator.get("taken_from") else ""
        trials, failed = operator.get("trials"), operator.get("failed")
        told = "–" if trials is None else f"{trials} ({failed} failed)" if failed else str(trials)
        mean, best = ("–" if v is None else f"{v:.1f}" for v in map(operator.get, ("mean_gflops", "best_gflops")))
        cells = [seconds(total_s(operator)), percent(total_s(operator) / whole_s), told, mean, best]
        share = percent(real(operator, "share_of_peak"), 0)
        rows.append([f"{operator['key']}{taken}", json.dumps(operator["point"]), str(operator["count"]), *cells, share])
    head = ("operator", "schedule", "places", "time", "share", "trials", "mean GFLOP/s", "best GFLOP/s", "of peak")
    told = (
        "Mean and best are of the trials that work, each operator alone with cold weights; the share of the peak is "
        "that of the best, the peak a product of matrices by NumPy's BLAS on as many cores. A schedule is one that "
        "`chanas tune --operator OPERATOR --schedule SCHEDULE` takes."
    )
    return ["<h2>The operators</h2>", table(head, rows, 7, label="Operators"), paragraph(told)]


def _tuning(data: TunedData) -> list[str]:
    if data.tuning is None:
        return []
    found = data.tuning
    operators = f"{found.num_workloads} of its operators"
    told = f"The run has {found.num_trials} trials of {operators}; {found.num_failed} failed."
    share = "" if found.share is None else f" They take {percent(found.share, 0)} of the time of all of them."
    caption = f"The operators that take most of the time: best so far, as a multiple of the best in the end.{share}"
    curve = figure("tuning", curves.tuning(found), caption, "No operator has two schedules that worked.")
    out = ["<h2>Tuning</h2>", paragraph(told), curve]
    return [*out, "<h2>The schedule spaces</h2>", *space_sections(data.spaces)] if data.spaces else out


def _provenance(network: Mapping[str, Any]) -> list[str]:
    rows: list[list[str]] = []
    for group in ("origin", "target", "knobs", "trials", "seconds", "versions", "hashes"):
        values = at(network, group)
        if isinstance(values, dict):
            rows += [[group, str(k), str(v)] for k, v in sorted(values.items()) if not isinstance(v, dict | list)]
    known = [(key, at(network, key)) for key in ("run_id", "created", "run", "seed")]
    rows += [["network", key, str(value)] for key, value in known if value is not None]
    return ["<h2>Provenance</h2>", table(["of", "what", "value"], rows, label="Provenance")]
