"""The lines that `chanas search` prints about its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from chanas.bundle.benchmark import MODULE_ALONE
from chanas.bundle.document import describe_slack
from chanas.core.units import format_bytes, format_count, format_duration, format_latency
from chanas.core.usage import TargetName
from chanas.files.run import RunDirectory
from chanas.workflows.searching.results import rule_regrets, saturation
from chanas.workflows.searching.schedules import bundle_rows, schedule_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chanas.bundle.benchmark import BenchmarkRow
    from chanas.bundle.codesign import CoDesign
    from chanas.search.front import FrontPoint
    from chanas.workflows.searching.sources import AccuracySource

NOTABLE_CHANGE = 0.1
"""Share by which a latency must differ from an earlier one to be told."""


def front_lines(front: Sequence[FrontPoint], run: RunDirectory) -> Iterator[str]:
    """The measured points of a Pareto front."""
    yield f"{'measured':>10s} {'predicted':>10s} {'top-1':>8s}   architecture"
    for point in front:
        predicted = f"{format_latency(point.predicted_latency_s):>10s}"
        if point.proof.error is not None:
            yield f"{'failed':>10s} {predicted} {'-':>8s}   {point.architecture.key}: {point.proof.error}"
            continue
        note = "   (another is faster and as accurate)" if point.dominated else ""
        note += "   (top-1 predicted)" if point.is_predicted else ""
        measured = f"{format_latency(point.measured_latency_s):>10s}"
        yield f"{measured} {predicted} {point.top1:8.2%}   {point.architecture.key}{note}"
    yield f"front      {run.search / 'pareto.json'}"


def then_and_now(bundle: CoDesign, rows: Sequence[BenchmarkRow]) -> Iterator[str]:
    """Compare a benchmark's timing of the module alone with the search's, and name the share of `chanas` itself. Yields
    nothing if one of the two is missing."""
    medians = {row.name: row.median_s for row in rows}
    own_s, alone_s = medians.get("chanas"), medians.get(MODULE_ALONE)
    if own_s is None or alone_s is None:
        return
    then_s = bundle.measured.get("latency_s")
    yield f"Python's share of chanas is {format_latency(max(0.0, own_s - alone_s))}: an image copied in, logits out."
    if not then_s:
        return
    change = alone_s / then_s - 1.0
    yield f"The search measured {format_latency(then_s)} of the module alone; now it is {change:+.0%}."
    if abs(change) > NOTABLE_CHANGE:
        yield (
            f"That is over {NOTABLE_CHANGE:.0%}: the machine is not as fast or not as quiet as it was then; "
            "`chanas doctor` tells how quiet it is."
        )


def bundle_lines(bundle: CoDesign, table_errors: Sequence[str] = (), saturated: str = "") -> Iterator[str]:
    """A bundle's architecture, budgets, latencies (with the errors of the tables that predicted them, where given) and
    accuracies (with a sentence where they cannot tell networks apart)."""
    measured, predicted = bundle.measured, bundle.predicted
    latency_s, batch = measured["latency_s"], bundle.target.batch
    of_all = f", {batch} images at once: {batch / latency_s:,.0f} images/s" if batch > 1 else ""
    rows = [
        ("architecture", bundle.architecture.key),
        ("", ", ".join(_sizes(bundle))),
        ("latency budget", format_latency(bundle.constraints["latency_s"])),
        ("latency predicted", f"{format_latency(predicted['latency_s'])} by the table"),
        *(("", error) for error in table_errors),
        ("latency measured", f"{format_latency(latency_s)} (spread {format_latency(measured['spread_s'])}){of_all}"),
    ]
    if said := describe_slack(bundle.constraints["latency_s"], latency_s):
        rows.append(("", said))
    for part in (p for p in bundle.document["targets"] if p is not bundle.part):
        budget, guess, found = (part[k]["latency_s"] for k in ("constraints", "predicted", "measured"))
        texts = (format_latency(found), format_latency(guess), format_latency(budget))
        rows.append((f"on {part['target']['name']}", "{} measured, {} predicted, budget {}".format(*texts)))
    if bundle.has_weights:
        by = "compiled module"
        eager_s = measured.get("pytorch_eager_latency_s")
        if "num_disagreements" not in measured and eager_s is None:
            by = "PyTorch here (the module was compared with it on its own device)"
        if eager_s is not None:
            ratio = f"{eager_s / latency_s:.1f}x"
            rows.append(("PyTorch eager", f"{format_latency(eager_s)} on the same network ({ratio})"))
        if "top1_test" in measured:
            of_images = f"{measured['top1_test']:.2%} of {measured['num_test_images']} images, {by}"
            rows.append(("accuracy on test", of_images))
    if "top1_table" in measured:
        top1 = measured["top1_table"]
        known = "not in the table" if top1 is None else f"{top1:.2%} in the table"
        rows.append(("accuracy predicted", f"{predicted['top1']:.2%}, {known}"))
    else:
        plain = measured.get("top1_holdout_float32")
        dtypes = " and ".join(sorted(set(bundle.architecture.dtypes))) or "int8"
        found = f"{measured['top1_holdout']:.2%}" + ("" if plain is None else f" in {dtypes}, {plain:.2%} in float32")
        rows.append(("accuracy on holdout", f"{found} (predicted {predicted['top1']:.2%})"))
    if saturated:
        rows.append(("", saturated))
    if not bundle.has_weights:
        rows.append(("weights", "none: the module was compiled and measured with random ones"))
    elif not bundle.document.get("recalibrated", True):
        rows.append(("weights", "BN statistics are not recalibrated: it classifies worse than the table says"))
    for name, value in [*rows, ("bundle", str(bundle.path))]:
        yield f"{name:19s} {value}"


def demo_lines(stages_s: Mapping[str, float], total_s: float, table_error: str) -> Iterator[str]:
    """Seconds of the demo and of its stages by name, and how far its latency table is off."""
    stages = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in stages_s.items())
    yield f"{'took':19s} {format_duration(total_s)}: {stages}"
    yield f"{'table':19s} {table_error}"


def _sizes(bundle: CoDesign) -> list[str]:
    document = bundle.document
    sizes = [f"{format_count(document['num_macs'])} MACs", f"{format_count(document['num_params'])} parameters"]
    if "peak_memory_bytes" in bundle.part:
        sizes.append(f"{format_bytes(bundle.part['peak_memory_bytes'])} of activations")
    return sizes


def regret_lines(run: RunDirectory) -> Iterator[str]:
    """The cost of each rule of choosing a sub-space, from the run's last search."""
    for row in rule_regrets(run.search / "result.json"):
        below = f"{row['regret_points']:.2f} points below the best"
        name = f"rule {row['rule']}"
        yield f"{name:19s} {row['sub_space'] or 'all'}: {row['top1']:.2%} predicted, {below}"


def say(lines: Iterable[str]) -> None:
    """Print lines."""
    for line in lines:
        typer.echo(line)


def say_accuracies(source: AccuracySource) -> None:
    """Print what there is in a file of accuracies, if they are of one."""
    if source.table is not None:
        typer.echo(f"{'accuracies':19s} {source.table.describe()}")


def say_bundle(bundle: CoDesign, run: RunDirectory) -> None:
    """Print what a search says of the bundle that it leaves."""
    from chanas.workflows.stages import tables

    say(schedule_lines(bundle_rows(bundle)))
    errors, name = [tables.table_error(run, bundle.target.name)], TargetName.parse(bundle.target.name)
    for table in bundle.part.get("hashes", {}):
        _, _, dtype = table.partition("lut-")
        if dtype:
            errors.append(f"in {dtype}: {tables.table_error(run, str(replace(name, dtype=dtype)))}")
    say(bundle_lines(bundle, errors, saturation(run.search / "result.json")))
