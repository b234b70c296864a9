"""The page: the answer first, then what it rests on, then where it comes from. All text from files is escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from chanas.arch import Architecture, SearchSpace
from chanas.errors import ArchitectureError, ChanasError, ConfigError
from chanas.report import figures
from chanas.report.drawing import draw_architecture
from chanas.report.reading import RunData, at, dicts, read_run, real
from chanas.run import RunDirectory, replacing
from chanas.units import format_count, format_latency

SEARCH = "chanas search --latency …"
TRAIN = "chanas train-supernet"
TUNE = "chanas prescheduler"


def build_report(run: RunDirectory) -> Path:
    """Writes `run.report` from what the run directory holds, and returns its path.

    Stages that are missing are left out with a line that names the command to run.

    Raises:
        ChanasError: the run directory does not exist, or the page cannot be written.
    """
    if not run.root.is_dir():
        raise ChanasError(f"run directory {run.root} does not exist; run `{TRAIN}` first")
    page = render(read_run(run), run.root.name)
    with replacing(run.report) as path:
        path.write_text(page, encoding="utf-8")
    return run.report


def render(run: RunData, name: str) -> str:
    """The page as text."""
    style = (resources.files("chanas.report") / "page.css").read_text(encoding="utf-8")
    sections = [_answer(run, name), *_search(run), *_network(run), *_tuning(run), *_training(run), *_provenance(run)]
    notes = "".join(f'<p class="missing">{escape(note)}</p>' for note in run.notes)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(name)}: co-design report</title>\n<style>\n{style}</style>\n'
        f"</head>\n<body>\n{notes}{chr(10).join(sections)}\n</body>\n</html>\n"
    )


# ---- pieces ---------------------------------------------------------------------------------------------------------
def _missing(what: str, command: str) -> str:
    return f'<p class="missing">{escape(what)} is not there yet: run <code>{escape(command)}</code>.</p>'


def _figure(name: str, drawing: str | None, caption: str, wide: bool = False) -> str:
    if drawing is None:
        return ""
    body = f'<div class="scroll">{drawing}</div>' if wide else drawing
    return f'<figure id="figure-{name}">{body}<figcaption>{escape(caption)}</figcaption></figure>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0, winner: int | None = None) -> str:
    """Cells are plain text and get escaped; the last `numbers` columns stand to the right."""

    def cells(tag: str, row: Sequence[str]) -> str:
        first = len(row) - numbers
        css = ["" if i < first else ' class="number"' for i in range(len(row))]
        return "".join(f"<{tag}{c}>{escape(str(v))}</{tag}>" for c, v in zip(css, row, strict=True))

    body = "".join(
        f"<tr{' class=' + chr(34) + 'winner' + chr(34) if i == winner else ''}>{cells('td', row)}</tr>"
        for i, row in enumerate(rows)
    )
    header = f"<thead><tr>{cells('th', head)}</tr></thead>" if any(head) else ""
    return f'<div class="scroll"><table>{header}<tbody>{body}</tbody></table></div>'


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def _seconds(value: float | None) -> str:
    return "–" if value is None or value <= 0 else format_latency(value)


def _tile(value: str, label: str) -> str:
    return f'<div class="tile"><b>{escape(value)}</b>{escape(label)}</div>'


# ---- sections -------------------------------------------------------------------------------------------------------
def _answer(run: RunData, name: str) -> str:
    bundle = run.bundle
    if bundle is None:
        return f"<h1>{escape(name)}: no network yet</h1>{_missing('The co-design bundle', SEARCH)}"
    measured, budget = real(bundle, "measured", "latency_s"), real(bundle, "constraints", "latency_s")
    eager, test = real(bundle, "measured", "pytorch_eager_latency_s"), real(bundle, "measured", "top1_test")
    tiles = []
    if measured is not None:
        inside = (
            f"measured, {100 * measured / budget:.0f} % of the budget of {_seconds(budget)}" if budget else "measured"
        )
        tiles.append(_tile(_seconds(measured), inside))
    if test is not None:
        num_images = real(bundle, "measured", "num_test_images")
        label = f"accuracy on {num_images:.0f} test images" if num_images else "accuracy on the test images"
        if num_images:
            label += f" (± {100 * math.sqrt(max(test * (1 - test), 0) / num_images):.1f})"
        tiles.append(_tile(_percent(test), label))
    if eager is not None and measured:
        tiles.append(_tile(f"{eager / measured:.1f} ×", f"as fast as PyTorch eager ({_seconds(eager)})"))
    macs, params = real(bundle, "num_macs"), real(bundle, "num_params")
    if macs and params:
        tiles.append(_tile(format_count(macs), f"multiply-accumulates, {format_count(params)} parameters"))
    device = at(bundle, "target", "device")
    where = f" on {device}, {at(bundle, 'target', 'num_threads')} thread(s)" if device else ""
    key = str(at(bundle, "architecture", "key"))
    return (
        f"<h1>{escape(name)}: the network and how fast it runs</h1>"
        f"<p><code>{escape(key)}</code>{escape(where)}</p>"
        f'<div class="tiles">{"".join(tiles)}</div>'
    )


def _search(run: RunData) -> list[str]:
    out = ["<h2>Why this one</h2>"]
    result = run.result
    if result is None:
        return [*out, _missing("The search", SEARCH)]
    out.append(
        _figure(
            "pareto",
            figures.pareto(run),
            "Accuracy against latency. What is predicted comes from the latency table and the accuracy predictor; "
            "finalists stand where they were measured as whole compiled networks.",
        )
    )
    finalists = dicts(result, "finalists")
    rows = []
    for f in finalists:
        latency, table = real(f, "measured", "latency_s"), real(f, "predicted", "latency_s")
        error = at(f, "error")
        rows.append(
            [
                str(f.get("key")) + (f": {error}" if error else ""),
                _seconds(table),
                _seconds(latency),
                f"{100 * (latency / table - 1):+.1f} %" if latency and table else "–",
                _percent(real(f, "predicted", "top1"), 2),
                _percent(real(f, "measured", "top1_holdout"), 2),
            ]
        )
    if rows:
        winner = next((i for i, f in enumerate(finalists) if f.get("key") == at(result, "winner")), None)
        head = ["finalist", "by the table", "measured", "difference", "predicted top-1", "on holdout"]
        out.append(_table(head, rows, 5, winner))
        out.append(
            _figure(
                "lut",
                figures.lut_against_measured(run),
                "Sum of the latency table against the whole compiled network, for the finalists.",
            )
        )
    rule = at(result, "division", "rule")
    out.append(
        _figure(
            "cdf",
            figures.cdfs(run),
            f"Latency of random members of each sub-space. The search went on in what the rule “{rule}” chose.",
        )
    )
    out.append(_figure("evolution", figures.evolution(run), "The evolution inside the chosen sub-space."))
    out.append("<h2>How sure the accuracy predictor is</h2>")
    validation = at(result, "predictor", "cross_validation")
    if isinstance(validation, dict) and validation:
        cells = [
            [
                str(kind),
                f"{real(v, 'rmse_points') or 0:.3f}",
                "–" if (tau := real(v, "kendall_tau")) is None else f"{tau:.3f}",
                _percent(real(v, "top_decile_recall"), 0),
            ]
            for kind, v in validation.items()
        ]
        out.append(_table(["kind", "RMSE (points)", "Kendall τ", "best tenth found"], cells, 3))
        used, num = at(result, "predictor", "kind"), at(result, "predictor", "num_training")
        out.append(
            f'<p class="soft">Cross-validated on {escape(str(num))} sub-networks; used: {escape(str(used))}.</p>'
        )
    out.append(_figure("predictor", figures.learning_curve(run), "Its error as evaluations came in."))
    return out


def _network(run: RunData) -> list[str]:
    if run.bundle is None:
        return []
    out = ["<h2>The network</h2>"]
    try:
        space = SearchSpace.from_json(run.bundle["space"])
        architecture = Architecture.from_key(str(at(run.bundle, "architecture", "key")))
        names = at(run.bundle, "class_names")
        num_classes = len(names) if isinstance(names, list) and names else 1000
        drawing: str | None = draw_architecture(architecture, space, num_classes)
    except (ArchitectureError, ConfigError, KeyError, TypeError, AttributeError):
        drawing = None
        out.append(
            '<p class="missing">The architecture cannot be drawn: the bundle names no search space it is in.</p>'
        )
    out.append(_figure("architecture", drawing, "One column per block, from input to classes.", wide=True))
    table = sum(real(b, "latency_s") or 0.0 for b in dicts(run.bundle, "blocks"))
    measured = real(run.bundle, "measured", "latency_s")
    told = (
        f" Their sum is {_seconds(table)}; the whole network took {_seconds(measured)}." if measured and table else ""
    )
    out.append(
        _figure("blocks", figures.block_times(run), f"Where the time goes, by the latency table.{told}", wide=True)
    )
    return out


def _tuning(run: RunData) -> list[str]:
    out = ["<h2>Tuning</h2>"]
    if not run.tables:
        out.append(_missing("The latency table", TUNE))
    for table in run.tables:
        header = table["header"]
        device, made = at(header, "target", "device"), at(header, "created")
        facts = [f"{table['num_rows']} blocks", device and f"on {device}", made and f"made {made}"]
        text = ", ".join(str(f) for f in facts if f)
        out.append(f"<p>Table <code>{escape(table['name'])}</code>: {escape(text)}.</p>")
    if run.tuning is None:
        return [*out, _missing("Tuning records (the table records of records.sqlite)", TUNE)]
    t = run.tuning
    out.append(
        f"<p>{t.num_trials} trials of {t.num_workloads} workloads; {t.num_failed} did not compile, run or compute the "
        "right result, and are kept with their reason.</p>"
    )
    caption = "Best so far of the workloads with most trials, as a multiple of the best found in the end."
    return [*out, _figure("tuning", figures.tuning(run), caption)]


def _training(run: RunData) -> list[str]:
    out = ["<h2>Training</h2>"]
    if not run.training:
        return [*out, _missing("The supernet's training", TRAIN)]
    out.append(_figure("losses", figures.training_losses(run), "Losses of the sampled sub-networks."))
    caption = "Accuracy of the two ends of the space on images that no step was trained on."
    out.append(_figure("accuracy", figures.training_accuracy(run), caption))
    return out


def _provenance(run: RunData) -> list[str]:
    rows: list[list[str]] = []

    def add(group: str, values: Any) -> None:
        if isinstance(values, dict):
            rows.extend([group, str(k), str(v)] for k, v in sorted(values.items()) if not isinstance(v, dict | list))

    for group in ("target", "versions", "seeds", "hashes"):
        add(group, at(run.bundle, group))
    if run.bundle is None:
        for table in run.tables:
            add(f"table {table['name']}", table["header"])
    result = run.result
    keys = ("created", "seed", "space", "supernet", "target", "target_fingerprint", "budget_s", "smallest_latency_s")
    add("search", {k: at(result, k) for k in keys if at(result, k) is not None})
    add("search space", at(result, "space"))
    add(
        "supernet",
        {k: at(run.checkpoint, k) for k in ("step", "phase", "space_digest") if at(run.checkpoint, k) is not None},
    )
    return ["<h2>Provenance</h2>", _table(["", "", ""], rows) if rows else _missing("Everything", TRAIN)]
