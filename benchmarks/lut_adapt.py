"""A latency table that was adapted from another processor's, beside one that was tuned on this machine in full.

    python benchmarks/lut_adapt.py [--quick] --from TABLE [--from …] [--sub-space r224-w1] [--measure 60] [--trials 12]
        [--isa avx2] [--threads 1] [--dtype f32] [--accuracy-table FILE] [--run runs/lut_adapt] [--seed 0]

All with chanas's own commands, as somebody would type them, and timed as whole processes. `chanas prescheduler` makes
the full table of the sub-space, `chanas lut adapt --from TABLE --measure 60` another one in a run directory of its own;
--isa tunes this machine without its newer vectors (CHANAS_MAX_CPU_ISA), which is another device to chanas. What lies in
the run directory already is not made again.

Rows that were predicted are compared with the full table's (each has its own schedules there), random networks of the
sub-space as sums of rows, and with --accuracy-table (a CSV file as `chanas search --accuracy-table` reads it) a search
is made with both tables under three budgets, quartiles of the networks' seconds: both winners were measured by their
searches, as all finalists are.

Figures: mean error of predicted rows and of networks, Kendall's tau, the share of predicted rows inside the interval
that is to hold nine in ten, seconds of both commands, the least accuracy that a search with the adapted table found, as
a share of what one with the full table found, and the largest share of a budget that a winner took.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import Figure, finish
from transfer import mape_percent
from transfer_tables import NINE_IN_TEN, NUM_CLASSES, log_sums

from chanas.core.arch import SearchSpace
from chanas.core.genome import sample
from chanas.core.latency import LatencyLUT
from chanas.core.processor import MAX_ISA
from chanas.core.usage import TargetName
from chanas.files.run import RunDirectory

SPACE, NUM_NETWORKS, QUARTILES = "mbv3", 2000, (0.25, 0.5, 0.75)
QUICK_BLOCKS, QUICK_TRIALS = 10, 1
MOST_ERROR_PERCENT, LEAST_TAU, MOST_SECONDS, LEAST_ACCURACY = 4.0, 0.95, 180.0, 0.98


def chanas(arguments: Sequence[str], isa: str | None) -> float:
    """Run a command of chanas; its seconds.

    Raises:
        SystemExit: it failed.
    """
    environment = {**os.environ, **({MAX_ISA: isa} if isa else {})}
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "chanas", *arguments], env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"lut_adapt: error: `chanas {' '.join(arguments)}` ended with {done.returncode}")
    return time.monotonic() - started


def usage_options(options: argparse.Namespace) -> list[str]:
    """Options of all commands that say how the processor is used."""
    return ["--threads", str(options.threads), "--dtype", options.dtype]


def make_table(run: RunDirectory, command: Sequence[str], options: argparse.Namespace) -> tuple[LatencyLUT, float]:
    """The run's table, and the seconds in which it was made; kept beside it, so that it is not made twice."""
    name = str(TargetName("cpu", options.threads, options.dtype))
    path, noted = run.lut(name), run.root / f"seconds-{name}.json"
    if not (path.is_file() and noted.is_file()):
        shared = ["--space", SPACE, "--num-classes", str(NUM_CLASSES), "--sub-space", options.sub_space]
        seconds = chanas([*command, "--run", str(run.root), *shared, *usage_options(options)], options.isa)
        noted.write_text(json.dumps(seconds))
    return LatencyLUT.load(path), float(json.loads(noted.read_text()))


def compare(full: LatencyLUT, adapted: LatencyLUT, sub_space: str, seed: int) -> dict[str, Any]:
    """Errors of the adapted table's predicted rows, and of random networks of the sub-space as sums of rows."""
    from scipy.stats import kendalltau

    space = SearchSpace.load(SPACE)
    predicted = {key: row for key, row in adapted.rows.items() if row.predicted_error is not None and key in full.rows}
    log_ratios = np.log([row.median_s / full.rows[key].median_s for key, row in predicted.items()])
    deviations = np.array([row.predicted_error for row in predicted.values()])
    (chosen,) = (s for s in space.sub_spaces if s.key == sub_space)
    genomes = sample(space, NUM_NETWORKS, np.random.default_rng(seed), chosen)
    sums = [log_sums(space, {k: row.median_s for k, row in lut.rows.items()}, genomes) for lut in (full, adapted)]
    return {
        "num_rows": len(full.rows),
        "num_predicted": len(predicted),
        "row_error_percent": mape_percent(log_ratios, np.zeros(len(predicted))) if predicted else None,
        "inside_interval": float((np.abs(log_ratios) < NINE_IN_TEN * deviations).mean()) if predicted else None,
        "network_error_percent": mape_percent(sums[1], sums[0]),
        "network_error_without_factor_percent": mape_percent(sums[1] - np.median(sums[1] - sums[0]), sums[0]),
        "kendall_tau": float(kendalltau(*sums).statistic),
        "budgets_s": np.exp(np.quantile(sums[0], QUARTILES)).tolist(),
    }


def found_by(run: RunDirectory, budget_s: float, options: argparse.Namespace) -> dict[str, Any]:
    """The winner of a search with the run's table, as its bundle says."""
    command = ["search", "--latency", f"{budget_s * 1e3:.3f}ms", "--run", str(run.root), "--covered-only"]
    command += ["--accuracy-table", str(options.accuracy_table), "--seed", str(options.seed), *usage_options(options)]
    seconds = chanas(command, options.isa)
    document = json.loads((run.bundle / "codesign.json").read_text())
    (part,) = document["targets"]
    return {
        "seconds": seconds,
        "predicted_top1": document["predicted"]["top1"],
        "predicted_s": part["predicted"]["latency_s"],
        "measured_s": part["measured"]["latency_s"],
        "architecture": document["architecture"],
    }


def figures_of(
    scores: dict[str, Any], seconds: dict[str, float], searches: Sequence[dict[str, Any]]
) -> dict[str, Figure]:
    """Figures and goals: see the top of this file."""
    figures = {
        "row_error_percent": Figure(scores["row_error_percent"], MOST_ERROR_PERCENT, lower_is_better=True),
        "network_error_percent": Figure(scores["network_error_percent"], MOST_ERROR_PERCENT, lower_is_better=True),
        "kendall_tau": Figure(scores["kendall_tau"], LEAST_TAU),
        "inside_interval": Figure(scores["inside_interval"]),
        "adapt_s": Figure(seconds["adapted"], MOST_SECONDS, lower_is_better=True),
        "full_s": Figure(seconds["full"]),
    }
    if searches:
        accuracies = [s["adapted"]["predicted_top1"] / s["full"]["predicted_top1"] for s in searches]
        over = [s[kind]["measured_s"] / s["budget_s"] for s in searches for kind in ("full", "adapted")]
        figures["least_accuracy_ratio"] = Figure(min(accuracies), LEAST_ACCURACY)
        figures["largest_share_of_budget"] = Figure(max(over), 1.0, lower_is_better=True)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few blocks measured, a trial an operator; writes nothing")
    parser.add_argument("--from", dest="sources", action="append", required=True, help="a table of another processor")
    parser.add_argument("--sub-space", default="r224-w1")
    parser.add_argument("--measure", type=int, help="blocks (60)")
    parser.add_argument("--trials", type=int, help="of each operator in the full table (12)")
    parser.add_argument("--isa", help="tune for a processor without newer vectors: avx2 or sse4_2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--accuracy-table", type=Path, help="a CSV file of accuracies of the space's networks")
    parser.add_argument("--run", type=Path, help="keep what was made here")
    parser.add_argument("--name", default="", help="further word in the result's name")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    measure = options.measure or (QUICK_BLOCKS if options.quick else 60)
    trials = options.trials or (QUICK_TRIALS if options.quick else 12)
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
        root = options.run or Path(scratch)
        runs = {kind: RunDirectory(root / kind) for kind in ("full", "adapted")}
        for run in runs.values():
            run.root.mkdir(parents=True, exist_ok=True)
        sources = [word for source in options.sources for word in ("--from", source)]
        commands = {
            "adapted": ["lut", "adapt", *sources, "--measure", str(measure)],
            "full": ["prescheduler", "--trials", str(trials)],
        }
        made = {kind: make_table(runs[kind], command, options) for kind, command in commands.items()}
        scores = compare(made["full"][0], made["adapted"][0], options.sub_space, options.seed)
        searches = []
        for budget_s in scores["budgets_s"] if options.accuracy_table else ():
            found = {kind: found_by(run, budget_s, options) for kind, run in runs.items()}
            searches.append({"budget_s": budget_s, **found})
    seconds = {kind: s for kind, (_, s) in made.items()}
    extra = {"measure": measure, "trials": trials, "seed": options.seed, "sub_space": options.sub_space, **scores}
    extra |= {"isa": options.isa, "threads": options.threads, "dtype": options.dtype, "searches": searches}
    extra["adapted_from"] = list(made["adapted"][0].header.adapted_from)
    print()
    suffix = "".join(f"-{word}" for word in (options.name,) if word)
    finish(f"lut_adapt{suffix}", figures_of(scores, seconds, searches), options.quick, extra)


if __name__ == "__main__":
    main()
