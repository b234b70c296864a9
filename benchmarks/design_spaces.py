"""What happens when a design space grows: one more candidate at a time, and new knobs.

    python benchmarks/design_spaces.py [--quick] [--network torchvision:squeezenet1_1] [--trials 32] [--seeds 3]
        [--run runs/design_spaces]

A network is tuned from nothing in spaces that grow (`--knobs`), by tuner gp without early stopping, once with as many
trials of each operator in every space, and once with trials in proportion to the combinations of the larger space (at
most eight times as many):

  candidates  a 1x1 convolution's loop over input channels is written out by 1; then by 2, 4, 8 and 16 as well, one
              after the other
  knobs       chanas' own spaces; then loops written out automatically (3 candidates more), then by the program too,
              then without rules about registers and written-out code; that one with the budget kept alone, since most
              of its programs take seconds to compile

Figures: for each space the network's latency over that of the first space of its row, geometric mean of seeds, with the
budget kept and grown; for information mean and best GFLOP/s of the operators. A space whose best operator is faster and
whose network is slower with the budget kept is what was seen elsewhere (AutoTVM spaces on a GPU, 2021).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from common import Figure, finish, geometric_mean

from chanas.compiler.knobs import changed_spaces
from chanas.core.effort import NOTHING, NetworkEffort
from chanas.devices.host import load_target
from chanas.errors import ChanasError

KEPT, GROWN = "kept", "grown"
MAX_GROWTH = 8.0
_CHANNELS = [[1], [1, 2], [1, 2, 4], [1, 2, 4, 8], [1, 2, 4, 8, 16]]
NO_RULES = "no rules"
_UNROLLED = {"auto_unroll": [0, 16, 64, 512]}
ROWS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "candidates": [(f"up to {c[-1]}", {"pointwise": {"split_k": c}}) for c in _CHANNELS],
    "knobs": [
        ("chanas' own", {}),
        ("written out", {"all": _UNROLLED}),
        ("in the program", {"all": {**_UNROLLED, "unroll_explicit": [0, 1]}}),
        (NO_RULES, {"all": {**_UNROLLED, "unroll_explicit": [0, 1], "rules": False}}),
    ],
}


@dataclass(frozen=True)
class Tuned:
    """A network tuned in one space: its latency, and GFLOP/s of its operators by key."""

    latency_s: float
    gflops: dict[str, float]


def tune(network: str, knobs: dict[str, Any], num_trials: int, seed: int, folder: Path) -> Tuned:
    """The network tuned from nothing; what is in the folder already is taken as it is."""
    from chanas.bundle.tuned import TunedNetwork
    from chanas.files.run import RunDirectory
    from chanas.operators.keys import workload_of_key
    from chanas.workflows.models.chain import Model

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "knobs.yaml"
    file.write_text(yaml.safe_dump(knobs))
    if not (folder / "network").is_dir():
        effort = NetworkEffort(
            trials=num_trials,
            early_stopping="no",
            warm_start=NOTHING,
            seed=seed,
            knobs=str(file) if knobs else None,
        )
        Model.load(network).tune(effort=effort, run=RunDirectory(folder)).build().save(folder / "network")
    document = TunedNetwork.open(folder / "network").document
    gflops = {o["key"]: workload_of_key(o["key"]).gflops(o["seconds"]) for o in document["operators"]}
    return Tuned(document["measured"]["latency_s"], gflops)


def growth(network: str, first: dict[str, Any], knobs: dict[str, Any], folder: Path) -> float:
    """Combinations of the operators' spaces over those of a row's first space, geometric mean over operators."""
    from chanas.models.lowering import lower
    from chanas.workflows.models.chain import Model

    target = load_target("cpu")
    sizes = []
    for number, changes in enumerate((first, knobs)):
        file = folder / f"growth-{number}.yaml"
        file.write_text(yaml.safe_dump(changes))
        workloads = lower(Model.load(network).graph, target).workloads()
        sizes.append([s.num_combinations for s in changed_spaces(workloads, target, file if changes else None)])
    return geometric_mean([after / before for before, after in zip(*sizes, strict=True)])


def play(network: str, num_trials: int, seeds: Sequence[int], run: Path, quick: bool) -> list[dict[str, Any]]:
    """A row of the table for each space and budget."""
    found = []
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
        for row, spaces in ROWS.items():
            spaces = [spaces[0], spaces[-1]] if quick else spaces
            for name, knobs in spaces:
                ratio = growth(network, spaces[0][1], knobs, Path(scratch))
                for budget in (KEPT, GROWN):
                    if budget == GROWN and (knobs == spaces[0][1] or name == NO_RULES):
                        continue
                    trials = num_trials if budget == KEPT else round(num_trials * min(ratio, MAX_GROWTH))
                    made = [
                        tune(network, knobs, trials, seed, run / row / name.replace(" ", "-") / f"{budget}-{seed}")
                        for seed in seeds
                    ]
                    gflops = [speed for each in made for speed in each.gflops.values()]
                    found.append(
                        {
                            "row": row,
                            "space": name,
                            "budget": budget,
                            "growth": ratio,
                            "trials": trials,
                            "latency_s": [each.latency_s for each in made],
                            "mean_gflops": statistics.fmean(gflops),
                            "best_gflops": max(gflops),
                        }
                    )
                    print_row(found[-1])
    return found


def print_row(row: dict[str, Any]) -> None:
    latencies = " ".join(f"{1e3 * s:6.2f}" for s in row["latency_s"])
    print(
        f"{row['row']:11s} {row['space']:15s} {row['budget']:6s} {row['growth']:7.1f}x {row['trials']:5d} trials  "
        f"{row['mean_gflops']:6.1f} mean {row['best_gflops']:6.1f} best GFLOP/s  {latencies} ms",
        flush=True,
    )


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Latencies over those of each row's first space."""
    figures = {}
    for row in rows:
        first = next(r for r in rows if r["row"] == row["row"])
        if row is not first:
            ratios = [s / base for s, base in zip(row["latency_s"], first["latency_s"], strict=True)]
            name = "_".join((row["row"], row["space"].replace(" ", "_"), row["budget"], "latency_ratio"))
            figures[name] = Figure(geometric_mean(ratios), lower_is_better=True)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="first and last spaces, few trials, no result file")
    parser.add_argument("--network", default="torchvision:squeezenet1_1", help="as `chanas tune` takes it")
    parser.add_argument("--trials", type=int, help="trials of each operator in the first space (32; 2 with --quick)")
    parser.add_argument("--seeds", type=int, help="seeds (3; 1 with --quick)")
    parser.add_argument("--run", type=Path, help="keep what is tuned here, and go on with it")
    options = parser.parse_args(arguments)
    num_trials, num_seeds = options.trials or (2 if options.quick else 32), options.seeds or (1 if options.quick else 3)
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as folder:
        run = options.run or Path(folder)
        rows = play(options.network, num_trials, range(num_seeds), run, options.quick)
    extra = {"network": options.network, "trials": num_trials, "seeds": list(range(num_seeds)), "rows": rows}
    finish("design_spaces", figures_of(rows), options.quick, extra)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"design_spaces: error: {error}") from error
