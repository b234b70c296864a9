"""Compilers and runtimes beside each other: nine networks of torchvision, on one and two threads, in one run.

    python benchmarks/compilers.py [--quick] [--networks vgg16 …] [--threads 1 2] [--minutes 2 | --trials N]
                                   [--seconds S] [--run runs/compilers] [--again] [--seed 0]

Each network is tuned by chanas and by TVM's MetaSchedule, for as long as chanas took or for --seconds, and timed beside
PyTorch eager, torch.compile, ONNX Runtime, OpenVINO, LiteRT and TVM without schedules, as `tune_models.py --untuned
--metaschedule` does it: random weights, same inputs, threads and cores, in turns. A contender that is not installed, or
does not take a network, has a note that says why.

Figures, for each number of threads: the geometric mean over networks of each contender's median over ours
(`openvino_1t`), of those that ran on all of them. The results are written after each network, and
`results/compilers-KIND.svg` in the end; the same command goes on with what is missing, with --again it begins anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Figure, finish, geometric_mean, machine_kind, result_path, write_result
from contenders import ContenderError
from tune_models import ALL_PEERS, OURS, QUICK_NETWORK, UNTUNED, Options, Row, measure

from chanas.errors import ChanasError

NETWORKS = (
    "vgg16",
    "resnet50",
    "resnet152",
    "inception_v3",
    "mobilenet_v2",
    "squeezenet1_1",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "densenet121",
)
CONTENDERS = {**ALL_PEERS, "untuned": UNTUNED}
DEFAULT_MINUTES = 2.0
Rows = dict[tuple[int, str], Row]
"""By threads and network."""


def figures_of(rows: Rows, networks: Sequence[str], threads: Sequence[int]) -> dict[str, Figure]:
    """Geometric means of the ratios to ours; no value unless a contender ran on all networks."""
    figures = {}
    for num in threads:
        for short, name in CONTENDERS.items():
            ratios = [rows[num, n].ratio(name) if (num, n) in rows else None for n in networks]
            known = [ratio for ratio in ratios if ratio is not None]
            value = geometric_mean(known) if len(known) == len(networks) else None
            figures[f"{short}_{num}t"] = Figure(value)
    return figures


def kept_rows(settings: Mapping[str, Any]) -> Rows:
    """Rows of the last run of the same settings on this kind of machine, but those that failed."""
    path = result_path("compilers", machine_kind())
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if any(content.get(key) != value for key, value in settings.items()):
        return {}
    rows = (row for row in content["rows"] if "error" not in row)
    return {(row["threads"], row["network"]): Row(row["network"], row) for row in rows}


def draw(rows: Rows, networks: Sequence[str], threads: Sequence[int], path: Path) -> None:
    """Latencies of all contenders by network, a panel for each number of threads."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    names = (OURS, *CONTENDERS.values())
    hatches = ("", "//", "--", "xx", "\\\\", "++", "||", "/-")
    width = 0.85 / len(names)
    with pyplot.rc_context({"svg.hashsalt": "chanas", "svg.fonttype": "none", "font.size": 9}):
        figure, panels = pyplot.subplots(len(threads), figsize=(11, 3.6 * len(threads)), layout="constrained")
        for num, axes in zip(threads, [panels] if len(threads) == 1 else panels, strict=True):
            for i, (name, hatch) in enumerate(zip(names, hatches, strict=True)):
                medians = [rows[num, n].median_s(name) if (num, n) in rows else None for n in networks]
                there = [(x, 1e3 * s) for x, s in enumerate(medians) if s is not None]
                places = [x + (i - (len(names) - 1) / 2) * width for x, _ in there]
                heights = [ms for _, ms in there]
                axes.bar(places, heights, width, label=name, hatch=hatch, edgecolor="white", linewidth=0.3)
            axes.set_yscale("log")
            axes.set_xticks(range(len(networks)), networks, rotation=12)
            axes.set_ylabel("latency, ms")
            axes.set_title(f"float32, batch 1, {num} thread{'s' if num > 1 else ''}")
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(names), frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def print_rows(rows: Rows) -> None:
    """Milliseconds of all contenders, and why some have none."""
    names = (OURS, *CONTENDERS.values())
    print(f"\n{'threads, ms':24s}" + "".join(f"{name:>15s}" for name in names))
    for (num, network), row in rows.items():
        medians = [row.median_s(name) for name in names]
        cells = "".join(f"{'-':>15s}" if s is None else f"{1e3 * s:15.3f}" for s in medians)
        print(f"{num} {network:22s}{cells}")
    notes = {f"{name}: {note}" for row in rows.values() for name, note in row.content.get("notes", {}).items()}
    print("\n".join(sorted(notes | {str(row.content["error"]) for row in rows.values() if "error" in row.content})))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="one small network on one thread, no torch.compile and MetaSchedule"
    )
    parser.add_argument("--networks", nargs="+", help="names in torchvision")
    parser.add_argument("--threads", nargs="+", type=int, choices=(1, 2), help="threads of every contender (1 and 2)")
    parser.add_argument("--minutes", type=float, help="of tuning each network (2 without --trials)")
    parser.add_argument("--trials", type=int, help="schedule points per operator on average")
    parser.add_argument("--seconds", type=float, help="of tuning with MetaSchedule (as many as ours took)")
    parser.add_argument("--run", type=Path, default=Path("runs/compilers"), help="where tuning keeps its records")
    parser.add_argument("--again", action="store_true", help="measure all networks, those that were measured too")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    quick = given.quick
    networks = tuple(given.networks or ((QUICK_NETWORK,) if quick else NETWORKS))
    threads = tuple(given.threads or ((1,) if quick else (1, 2)))
    trials = given.trials or (1 if quick else None)
    minutes = DEFAULT_MINUTES if given.minutes is None and trials is None else given.minutes
    effort = {"minutes": minutes, "trials": trials, "metaschedule_seconds": given.seconds or "ours"}
    settings = {**effort, "seed": given.seed}
    rows = {} if given.again or quick else kept_rows(settings)

    def extra() -> dict[str, Any]:
        return {**settings, "threads": threads, "rows": [dict(row.content) for row in rows.values()]}

    with contextlib.ExitStack() as stack:
        run = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chanas-bench-"))) if quick else given.run
        for num in threads:
            options = Options(
                networks,
                num,
                minutes,
                trials,
                given.seed,
                untuned=True,
                metaschedule=not quick,
                seconds=given.seconds,
                quick=quick,
            )
            for name in networks:
                if (num, name) in rows:
                    print(f"{name}, {num} thread(s): measured already")
                    continue
                try:
                    content = measure(name, run / options.run_name, options)
                except (ChanasError, ContenderError) as error:
                    content = {"network": name, "error": f"{name}, {num} thread(s): {error}"}
                rows[num, name] = Row(name, {**content, "threads": num})
                if not quick:
                    write_result("compilers", figures_of(rows, networks, threads), extra())
    print_rows(rows)
    if not quick:
        draw(rows, networks, threads, result_path("compilers", machine_kind(), ".svg"))
    figures = figures_of(rows, networks, threads)
    print(", ".join(f"{name} {figure.value:.2f}x" for name, figure in figures.items() if figure.value is not None))
    finish("compilers", figures, quick, extra())


if __name__ == "__main__":
    main()
