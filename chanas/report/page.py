"""The page: the answer first, then what it rests on, then where it comes from. All text from files is escaped."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from chanas.bundle.document import describe_slack
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.units import format_count
from chanas.errors import ArchitectureError, ChanasError, ConfigError
from chanas.files.run import RunDirectory
from chanas.files.writing import replacing
from chanas.network.accuracy import describe_saturation, interval_of
from chanas.report import blocks, curves, figures
from chanas.report.ablation import ablation_section
from chanas.report.cost import cost_rows
from chanas.report.drawing import draw_architecture
from chanas.report.pieces import document, figure, missing, paragraph, percent, seconds, table, tile
from chanas.report.reading import RunData, at, dicts, read_run, real, reals
from chanas.report.svg import Figure
from chanas.report.targets import targets_section

SEARCH = "chanas search --latency …"
FRONT = "chanas search --pareto"
TRAIN = "chanas train-supernet"
TUNE = "chanas prescheduler"


def build_report(run: RunDirectory) -> Path:
    """Writes `run.report` from what the run directory holds, and returns its path.

    Stages that are missing are left out with a line that names the command to run.

    Raises:
        ChanasError: the run directory does not exist or is empty, or the page cannot be written.
    """
    if not run.root.is_dir():
        raise ChanasError(f"run directory {run.root} does not exist; run `{TRAIN}` first")
    data = read_run(run)
    if data.is_empty:
        raise ChanasError(f"there is nothing to report in {run.root} yet; run `{TRAIN}` first")
    page = render(data, run.root.absolute().name)
    with replacing(run.report) as path:
        path.write_text(page, encoding="utf-8")
    return run.report


def render(run: RunData, name: str) -> str:
    """The page as text."""
    sections = [
        *(_answer(run, name), *targets_section(run), *_choice(run), *_front(run), *_network(run), *_latency(run)),
        *_division(run),
        *(*_predictor(run), *ablation_section(run), *_tuning(run), *_training(run), *_cost(run), *_provenance(run)),
    ]
    notes = "".join(f'<p class="missing">{escape(note)}</p>' for note in run.notes)
    sections[0] = notes + sections[0]
    return document(f"{name}: co-design report", sections)


def _answer(run: RunData, name: str) -> str:
    bundle, part = run.bundle, run.part
    if bundle is None:
        return f"<h1>{escape(name)}: no network yet</h1>{missing('The co-design bundle', SEARCH)}"
    measured, budget = real(part, "measured", "latency_s"), real(part, "constraints", "latency_s")
    tiles = []
    if measured is not None:
        share = (
            f"measured, {100 * measured / budget:.0f} % of the budget of {seconds(budget)}" if budget else "measured"
        )
        tiles.append(tile(seconds(measured), share))
    for other in dicts(bundle, "targets")[1:]:
        found, asked = real(other, "measured", "latency_s"), real(other, "constraints", "latency_s")
        if found is not None and asked is not None:
            label = f"measured on {at(other, 'target', 'name')}, budget {seconds(asked)}"
            tiles.append(tile(seconds(found), label))
    tiles += _accuracy_tile(run)
    eager = real(part, "measured", "pytorch_eager_latency_s")
    if eager is not None and measured:
        tiles.append(tile(f"{eager / measured:.1f} ×", f"as fast as PyTorch eager ({seconds(eager)})"))
    macs, params = real(bundle, "num_macs"), real(bundle, "num_params")
    if macs and params:
        tiles.append(tile(format_count(macs), f"multiply-accumulates, {format_count(params)} parameters"))
    device = at(part, "target", "device")
    where = f" on {device}, {at(part, 'target', 'num_threads')} thread(s)" if device else ""
    batch = real(part, "target", "batch")
    where += f", {batch:.0f} images at once" if batch else ""
    key = str(at(bundle, "architecture", "key"))
    return (
        f"<h1>{escape(name)}: the network and how fast it runs</h1>"
        f"<p><code>{escape(key)}</code>{escape(where)}</p>"
        f'<div class="tiles">{"".join(tiles)}</div>'
    )


def _accuracy_tile(run: RunData) -> list[str]:
    """Accuracy on the test images with its interval; without weights, what the table of accuracies says."""
    test, num_images = real(run.part, "measured", "top1_test"), real(run.part, "measured", "num_test_images")
    if test is not None:
        label = "accuracy on the test images"
        if num_images:
            label = f"accuracy on {num_images:.0f} test images ({_interval(test, num_images)})"
        return [tile(percent(test), label)]
    given, predicted = real(run.bundle, "measured", "top1_table"), real(run.bundle, "predicted", "top1")
    if given is not None:
        weights = "" if isinstance(at(run.bundle, "recalibrated"), bool) else "; the bundle has no weights"
        return [tile(percent(given), f"accuracy by the table that was given{weights}")]
    return [tile(percent(predicted), "accuracy, predicted")] if predicted is not None else []


def _interval(top1: float, num_images: float) -> str:
    low, high = interval_of(top1, int(num_images))
    return f"95 % interval {100 * low:.1f} to {percent(high)}"


def _choice(run: RunData) -> list[str]:
    out, result = ["<h2>Why this one</h2>"], run.result
    if result is None:
        return [*out, missing("The search", SEARCH)]
    out.append(
        figure(
            "pareto",
            figures.pareto(run),
            "Accuracy against latency. What is predicted comes from the latency table and the accuracy predictor; "
            "finalists stand where they were measured as whole compiled networks.",
            "No picture of the space: the search stored neither random architectures nor a front.",
        )
    )
    finalists = dicts(result, "finalists")
    rows = []
    for f in finalists:
        latency, by_table = real(f, "measured", "latency_s"), real(f, "predicted", "latency_s")
        error = at(f, "error")
        rows.append(
            [
                str(f.get("key")) + _elsewhere(f) + (f": {error}" if error else ""),
                seconds(by_table),
                seconds(latency),
                f"{100 * (latency / by_table - 1):+.1f} %" if latency and by_table else "–",
                percent(real(f, "predicted", "top1"), 2),
                percent(real(f, "measured", "top1_holdout"), 2),
            ]
        )
    if rows:
        winner = next((i for i, f in enumerate(finalists) if f.get("key") == at(result, "winner")), None)
        head = ["finalist", "by the table", "measured", "difference", "predicted top-1", run.judged]
        out.append(table(head, rows, 5, winner, "The finalists"))
    out += [paragraph(f"{said[0].upper()}{said[1:]}.") for said in _remarks(run)]
    return out


def _remarks(run: RunData) -> list[str]:
    """Sentences about the winner's accuracy on holdout, accuracies that are saturated, and budgets that don't bind."""
    result, said = run.result, []
    num = real(result, "accuracy_range", "num_images")
    best, fastest = (real(result, "accuracy_range", name) for name in ("best", "fastest"))
    top1 = next(
        (
            real(f, "measured", "top1_holdout")
            for f in dicts(result, "finalists")
            if f.get("key") == at(result, "winner")
        ),
        None,
    )
    if num and top1 is not None:
        said.append(f"of {num:.0f} holdout images the winner gets {percent(top1, 2)} right ({_interval(top1, num)})")
    if best is not None and fastest is not None and num != 0:
        said.append(describe_saturation(best, fastest, None if num is None else int(num)))
    for part in dicts(run.bundle, "targets"):
        said.append(describe_slack(real(part, "constraints", "latency_s"), real(part, "measured", "latency_s")))
    return [text for text in said if text]


def _elsewhere(finalist: dict[str, Any]) -> str:
    """Measured latencies on further targets, in words."""
    return "".join(f", {t.get('target')}: {seconds(real(t, 'measured_s'))}" for t in dicts(finalist, "further"))


def _front(run: RunData) -> list[str]:
    """The whole front, where one was measured."""
    found = figures.measured_front(run)
    if found is None:
        if run.result is None:
            return []
        return [paragraph(f"The front of all budgets was not measured; {FRONT} does it.")]
    caption = (
        "What latency buys without a budget: points of the predicted front, each compiled whole and measured. "
        f"The predictor is {real(run.front, 'error_points') or 0.0:.2f} points off on architectures it has not seen."
    )
    return ["<h2>The front of all budgets</h2>", figure("front", found, caption)]


def _network(run: RunData) -> list[str]:
    if run.bundle is None:
        return []
    out, drawing = ["<h2>The network</h2>"], _drawing(run.bundle)
    if drawing is None:
        out.append(
            '<p class="missing">The architecture cannot be drawn: the bundle names no search space it is in.</p>'
        )
    out.append(figure("architecture", drawing, "One column per block, from input to classes."))
    bars = blocks.draw_block_times(run)
    if bars is None:
        return [*out, paragraph("Where the time goes is not known: the bundle lists no blocks.")]
    return [*out, "<h2>Where the time goes</h2>", figure("blocks", bars, _blocks_caption(run)), *_schedules(run)]


def _schedules(run: RunData) -> list[str]:
    """The schedule of each block in words, how fast it is, and what tuning was worth to it."""
    entries = dicts(run.part, "blocks")
    if not any(isinstance(entry.get("schedule"), list) for entry in entries):
        return []
    rows = []
    for block, entry in zip(blocks.block_times(run), entries, strict=False):
        lines, default_s = entry.get("schedule"), real(entry, "default_latency_s")
        words = "; ".join(map(str, lines)) if isinstance(lines, list) else "–"
        rate, share = real(entry, "gflops"), real(entry, "share_of_peak")
        gain = "–" if not default_s or not block.seconds else f"{default_s / block.seconds:.2f} ×"
        cells = ["–" if rate is None else f"{rate:.1f}", percent(share, 0), seconds(default_s), gain]
        rows.append([block.name, words, seconds(block.seconds), *cells])
    head = ["block", "schedule", "time", "GFLOP/s", "of peak", "default schedule", "gain"]
    told = (
        "A channel block is a vector of channels, a tile what stays in registers. Of peak: beside a matrix product by "
        "this machine's BLAS on as many threads. Default schedule: the block with schedules that were not tuned."
    )
    return ["<h2>The schedules</h2>", table(head, rows, 5, label="Schedules of the blocks"), paragraph(told)]


def _drawing(bundle: dict[str, Any]) -> Figure | None:
    """Draw the winner; None if the bundle does not hold an architecture of its space."""
    try:
        space = SearchSpace.from_json(bundle["space"])
        architecture = Architecture.from_key(str(at(bundle, "architecture", "key"))).plain
        names = at(bundle, "class_names")
        num_classes = len(names) if isinstance(names, list) and names else 1000
        return draw_architecture(architecture, space, num_classes)
    except (ArchitectureError, ConfigError, KeyError, TypeError, AttributeError):
        return None


def _blocks_caption(run: RunData) -> str:
    """The sum of the blocks, what the calibration makes of it, and the measurement, in words."""
    text = "Each block as the latency table has it. "
    parts = [f"{name} {percent(share, 0)}" for name, share in blocks.shares(run)]
    text += f"Of the time: {', '.join(parts)}. " if parts else ""
    total = sum(b.seconds for b in blocks.block_times(run))
    extra, measured = blocks.correction_s(run), real(run.part, "measured", "latency_s")
    text += f"The sum is {seconds(total)}. "
    if extra is not None:
        fit = at(run.table, "calibration")
        signed = f"{'+' if extra >= 0 else '−'}{seconds(abs(extra))}"
        text += f"Calibration corrects it by {signed}: {_calibration_terms(fit)}. "
    return text + (f"The whole network measured {seconds(measured)}." if measured else "")


def _calibration_terms(fit: dict[str, Any]) -> str:
    start, boundary, scale = (real(fit, name) for name in ("start_s", "boundary_s", "scale"))
    terms = [(start, "for the start of the network"), (boundary, "at the end of each block")]
    told = [f"{1e6 * value:.2g} µs {what}" for value, what in terms if value]
    if scale is not None:
        told.append(f"blocks times {scale:.3f}")
    return ", ".join(told)


def _latency(run: RunData) -> list[str]:
    out = ["<h2>How far the table is off</h2>"] if run.result or run.front else []
    if out:
        caption = "Latency by the table (the corrected sum of its blocks) against the whole compiled network."
        otherwise = "No whole network was measured beside its prediction."
        out.append(figure("lut", figures.lut_against_measured(run), caption, otherwise))
    fit = at(run.table, "calibration")
    error, worst, tau, num = (real(fit, name) for name in ("mape", "worst", "kendall_tau", "num_networks"))
    if out and error is not None and worst is not None and tau is not None and num is not None:
        plain = real(fit, "uncorrected_mape")
        before = f"; {percent(plain)} before the correction" if plain is not None else ""
        out.append(
            f"<p>On {num:.0f} random whole networks, each left out of the fit: {percent(error)} on average, "
            f"{percent(worst)} at worst, Kendall τ {tau:.3f}{before}.</p>"
        )
    elif out:
        out.append(paragraph("The table was not calibrated; chanas lut calibrate does it."))
    return out


def _division(run: RunData) -> list[str]:
    if run.result is None:
        return []
    rule = at(run.result, "division", "rule")
    latency = f"Latency of random members of each sub-space. The search went on in what the rule “{rule}” chose."
    accuracy = "Predicted accuracy of those of them that are inside the budget."
    return [
        "<h2>The sub-spaces</h2>",
        figure("cdf", figures.cdfs(run), latency, "The search stored no latencies of the sub-spaces."),
        figure("cdf-accuracy", figures.accuracy_cdfs(run), accuracy, "It stored no predicted accuracies of them."),
        figure(
            "evolution",
            figures.evolution(run),
            "The evolution inside the chosen sub-space.",
            "There was no evolution, or a single generation.",
        ),
    ]


def _predictor(run: RunData) -> list[str]:
    result = run.result
    if result is None:
        return []
    out = ["<h2>How sure the accuracy predictor is</h2>"]
    validation = at(result, "predictor", "cross_validation")
    if isinstance(validation, dict) and validation:
        cells = [
            [
                str(kind),
                f"{real(v, 'rmse_points') or 0:.3f}",
                "–" if (tau := real(v, "kendall_tau")) is None else f"{tau:.3f}",
                percent(real(v, "top_decile_recall"), 0),
            ]
            for kind, v in validation.items()
        ]
        used = at(result, "predictor", "kind")
        num = next((n for v in validation.values() if (n := at(v, "num_architectures"))), "?")
        head, kinds = ["kind", "RMSE (points)", "Kendall τ", "best tenth found"], list(validation)
        winner = kinds.index(used) if used in kinds else None
        out.append(table(head, cells, 3, winner, "Predictors"))
        out.append(paragraph(f"Cross-validated on {num} sub-networks. The search used {used}."))
    else:
        error = real(result, "predictor", "error_points")
        told = "" if error is None else f" On rows left out of its fit it is {error:.2f} points off."
        kind = at(result, "predictor", "kind")
        out.append(paragraph(f"The search used {kind}, which was not cross-validated.{told}"))
    out += _dtype_losses(run)
    caption, otherwise = "Its error as evaluations came in.", "No learning curve: the predictor was fitted once."
    return [*out, figure("predictor", figures.learning_curve(run), caption, otherwise)]


def _dtype_losses(run: RunData) -> list[str]:
    """The costs of dtypes that the search has learnt, where blocks may be in several."""
    found = at(run.result, "losses")
    by_dtype = at(found, "costs_points") if isinstance(found, dict) else None
    if not isinstance(by_dtype, dict):
        return []
    num, mean, error = at(found, "num_evaluations"), real(found, "mean_points"), real(found, "error_points")
    largest = [f"{max(costs):.2f} points in {dtype}" for dtype in by_dtype if (costs := reals(by_dtype, dtype))]
    return [
        paragraph(
            f"In random dtypes {num} sub-networks lost {mean or 0.0:.2f} points on average. A block costs at most "
            f"{', '.join(largest)}; the sum is {error or 0.0:.2f} points off for sub-networks that were left out."
        )
    ]


def _tuning(run: RunData) -> list[str]:
    out = ["<h2>Tuning</h2>"]
    if not run.tables:
        out.append(missing("The latency table", TUNE))
    for made in run.tables:
        header = made["header"]
        device, created, batch = at(header, "target", "device"), at(header, "created"), at(header, "batch")
        facts = [f"{made['num_rows']} blocks", device and f"on {device}", created and f"made {created}"]
        facts += [f"{batch} images at once"] if isinstance(batch, int) and batch > 1 else []
        text = ", ".join(str(f) for f in facts if f)
        out.append(f"<p>Table <code>{escape(made['name'])}</code>: {escape(text)}.</p>")
    if run.tuning is None:
        return [*out, missing("Tuning records (the table records of records.sqlite)", TUNE)]
    t = run.tuning
    out.append(
        f"<p>{t.num_trials} trials of {t.num_workloads} workloads; {t.num_failed} did not compile, run or compute the "
        "right result, and are kept with their reason.</p>"
    )
    which = "Operators with most trials"
    if t.share is not None:
        which = f"The operators that the winner spends most time in ({percent(t.share, 0)} of the time of all)"
    caption = f"{which}: best so far, as a multiple of the best in the end."
    return [*out, figure("tuning", curves.tuning(run.tuning), caption, "No operator has two schedules that worked.")]


def _training(run: RunData) -> list[str]:
    out = ["<h2>Training</h2>"]
    if not run.training:
        if (file := at(run.checkpoint, "published", "file")) is not None:
            return [*out, paragraph(f"Nothing was trained here: the supernet was imported from {file}.")]
        if at(run.bundle, "hashes", "accuracy_table") is not None:
            return [*out, paragraph("Nothing was trained: the accuracies came from a table.")]
        return [*out, missing("The supernet's training", TRAIN)]
    caption, otherwise = "Losses of the sampled sub-networks.", "Fewer than two steps were logged."
    out.append(figure("losses", curves.training_losses(run), caption, otherwise))
    caption = "Accuracy of the two ends of the space on images that no step was trained on."
    return [*out, figure("accuracy", curves.training_accuracy(run), caption, "It was not evaluated yet.")]


def _cost(run: RunData) -> list[str]:
    rows = cost_rows(run)
    if not rows:
        return []
    spent = table(["", "needed", "time", "hours", "of which"], rows, label="What it cost")
    return ["<h2>What it cost</h2>", spent, paragraph("By the clock, as the stages recorded it.")]


def _provenance(run: RunData) -> list[str]:
    rows: list[list[str]] = []

    def add(group: str, values: Any) -> None:
        if isinstance(values, dict):
            rows.extend([group, str(k), str(v)] for k, v in sorted(values.items()) if not isinstance(v, dict | list))

    for group in ("target", "versions", "seeds", "hashes"):
        add(group, at(run.part, group))
        add(group, at(run.bundle, group))
    for made in run.tables:
        add(f"table {made['name']}", made["header"])
    result = run.result
    keys = ("created", "seed", "supernet", "target", "target_fingerprint", "budget_s", "smallest_latency_s")
    add("search", {k: at(result, k) for k in keys if at(result, k) is not None})
    add("search settings", at(result, "config"))
    add("search space", at(result, "space"))
    keys = ("step", "phase", "seed", "space_digest", "splits_digest", "checksum", "world_size")
    add("supernet", {k: at(run.checkpoint, k) for k in keys if at(run.checkpoint, k) is not None})
    body = table(["of", "what", "value"], rows, label="Provenance") if rows else missing("Everything", TRAIN)
    return ["<h2>Provenance</h2>", body]
