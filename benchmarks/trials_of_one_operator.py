"""What more trials of one operator bring, and what a second device does.

    python benchmarks/trials_of_one_operator.py [--quick] [--operator KEY] [--tuner gp] [--seeds 3] [--run DIR]
    python benchmarks/trials_of_one_operator.py --devices [--quick] [--trials 200] …

An operator is tuned alone, as `chanas tune --operator` does it, from nothing and without early stopping, in a space
that 2,000 trials do not exhaust: without chanas' rules, loops also written out automatically (`--knobs`). Figures: the
best GFLOP/s after 500, 1,000 and 2,000 trials, mean of seeds, and as a share of what the longest tuning reached.

With --devices, the same with --trials trials on one device and on two of one tracker, in turns, a seed each time. The
devices are two servers on this machine, a core each (`rpc_overhead.py`); candidates are built on the cores that are
left, so that on two cores the second device shares its core with them. Figures: the seconds of one device over those of
two, and the best of two over the best of one, geometric means of seeds. Needs `pip install 'chanas[rpc]'`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Figure, finish, geometric_mean

from chanas.core.effort import NetworkEffort
from chanas.core.usage import HERE, Place, Usage
from chanas.errors import ChanasError
from chanas.files.run import RunDirectory

OPERATOR = "blockconv-28px-128x128-k3s1-relu-float32"
KNOBS = "all: {rules: false, auto_unroll: [0, 16, 64, 512]}\n"
BUDGETS = (500, 1000, 2000)
QUICK_BUDGETS = (4, 8)


def tune(key: str, num_trials: int, tuner: str, seed: int, run: Path, usage: Usage = HERE) -> dict[str, Any]:
    """The curve of an operator that is tuned in a run directory, and what that took; kept trials count."""
    from chanas.workflows.models.one_operator import tune_operator

    run.mkdir(parents=True, exist_ok=True)
    knobs = run / "knobs.yaml"
    knobs.write_text(KNOBS, encoding="utf-8")
    effort = NetworkEffort(trials=num_trials, tuner=tuner, early_stopping="no", seed=seed, knobs=str(knobs))
    start_s = time.monotonic()
    found = tune_operator(key, usage, effort=effort, run=RunDirectory(run))
    return {
        "seed": seed,
        "trials": len(found.records),
        "failed": sum(not record.is_valid for record in found.records),
        "seconds": time.monotonic() - start_s,
        "curve": found.curve,
    }


def best_after(row: Mapping[str, Any], num_trials: int) -> float:
    """The best GFLOP/s after so many trials."""
    return max((speed for number, speed in row["curve"] if number <= num_trials), default=0.0)


def budget_figures(rows: Sequence[Mapping[str, Any]], budgets: Sequence[int]) -> dict[str, Figure]:
    """Best GFLOP/s by number of trials, and its share of what the longest tuning reached."""
    figures = {}
    for budget in budgets:
        reached = [best_after(row, budget) for row in rows]
        last = [best_after(row, budgets[-1]) for row in rows]
        figures[f"gflops_{budget}"] = Figure(statistics.fmean(reached))
        shares = [some / most for some, most in zip(reached, last, strict=True)]
        figures[f"share_{budget}"] = Figure(geometric_mean(shares))
    return figures


def device_figures(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], num_trials: int) -> dict[str, Figure]:
    """Speed-up of two devices, and what they found beside what one found."""
    speedups = [one["seconds"] / two["seconds"] for one, two in pairs]
    bests = [best_after(two, num_trials) / best_after(one, num_trials) for one, two in pairs]
    return {
        "two_devices_speedup": Figure(geometric_mean(speedups)),
        "two_devices_best_ratio": Figure(geometric_mean(bests)),
    }


def compare_budgets(given: argparse.Namespace, run: Path) -> None:
    """The part without --devices."""
    budgets = QUICK_BUDGETS if given.quick else BUDGETS
    rows = []
    for seed in range(given.seeds):
        rows.append(tune(given.operator, budgets[-1], given.tuner, seed, run / f"seed-{seed}"))
        told = ", ".join(f"{best_after(rows[-1], budget):.1f} after {budget}" for budget in budgets)
        print(f"seed {seed}: GFLOP/s {told}; {rows[-1]['failed']} failed, {rows[-1]['seconds']:.0f} s", flush=True)
    extra = {"operator": given.operator, "tuner": given.tuner, "knobs": KNOBS, "rows": rows}
    finish("trials_of_one_operator", budget_figures(rows, budgets), given.quick, extra)


def compare_devices(given: argparse.Namespace, run: Path) -> None:
    """The part with --devices."""
    from rpc_overhead import KEY, loopback_devices

    num_trials = 4 if given.quick else given.trials
    pairs = []
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as folder, loopback_devices(Path(folder)) as address:
        for seed in range(given.seeds):
            found = {}
            for num in (1, 2) if seed % 2 == 0 else (2, 1):
                usage = Usage(place=Place(str(address), KEY, num))
                place = run / f"seed-{seed}-{num}-devices"
                found[num] = tune(given.operator, num_trials, given.tuner, seed, place, usage)
            pairs.append((found[1], found[2]))
            for num, row in sorted(found.items()):
                speed = best_after(row, num_trials)
                print(f"seed {seed}, {num} device(s): {speed:.1f} GFLOP/s in {row['seconds']:.0f} s", flush=True)
    extra = {"operator": given.operator, "tuner": given.tuner, "knobs": KNOBS, "trials": num_trials, "pairs": pairs}
    finish("trials_of_one_operator-devices", device_figures(pairs, num_trials), given.quick, extra)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed and a few trials; nothing is written")
    parser.add_argument("--operator", default=OPERATOR, help="key of the operator")
    parser.add_argument("--tuner", default="gp", help="as `chanas tune --tuner` takes it")
    parser.add_argument("--seeds", type=int, help="seeds (3; 1 with --quick)")
    parser.add_argument("--devices", action="store_true", help="one device and two of a tracker instead")
    parser.add_argument("--trials", type=int, default=200, help="with --devices: trials of each tuning")
    parser.add_argument("--run", type=Path, help="keep the records here, and go on with those that are there")
    given = parser.parse_args(arguments)
    given.seeds = given.seeds or (1 if given.quick else 3)
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as folder:
        run = given.run or Path(folder)
        try:
            (compare_devices if given.devices else compare_budgets)(given, run)
        except ChanasError as error:
            raise SystemExit(f"trials_of_one_operator: error: {error}") from error


if __name__ == "__main__":
    main()
