"""What tiles with a smaller last one are worth: operators whose loops no useful tile divides, with and without them.

    python benchmarks/uneven_tiles.py [--quick] [--trials 64] [--run runs/uneven_tiles] [--seed 0]

Each operator is tuned twice, as `chanas tune` does it: in its own space, and in one whose tiles all divide their loops,
up to as many values as fit in registers and without chanas' rules, which leave no such tile of some of the operators.
What --run has counts, so that the script may be stopped and go on. Then the best three of each space are built again
and timed longer, in turns, weights and code cold.

Figures: for each operator seconds with tiles that divide over those of its own space.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from common import Figure, finish
from larger_spaces import best_points, time_best
from tuning import measure_points

from chanas.compiler.backends import schedule_space
from chanas.compiler.cpu.space import max_accumulators
from chanas.compiler.space import factorisations
from chanas.core.arch import SearchSpace
from chanas.core.effort import Effort
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.errors import ChanasError
from chanas.files.writing import replacing
from chanas.operators.workload import Workload
from chanas.prescheduler.blocks import surroundings

OPERATORS = (
    Workload("pointwise", 13, 512, 128, epilogue="relu"),
    Workload("pointwise", 17, 768, 192, epilogue="relu"),
    Workload("pointwise", 14, 80, 184, epilogue="relu"),
    Workload("depthwise", 17, 256, 256, 3, 1, "relu"),
    Workload("blockconv", 7, 512, 512, 3, 1, "relu"),
    Workload("blockconv", 13, 128, 128, 3, 1, "relu"),
    Workload("blockconv", 14, 256, 256, 3, 1, "relu"),
    Workload("winograd", 56, 64, 64, 3, 1, "relu"),
    Workload("winograd2", 28, 512, 512, 3, 1, "relu"),
)
OWN, EVEN = "own", "even"
NUM_TRIALS, NUM_ROUNDS = 64, 3


def tiles_that_divide(workload: Workload, target: HardwareTarget) -> dict[str, Any]:
    """Knobs of a space without smaller last tiles (`chanas tune --knobs`)."""
    limit = max_accumulators(target)
    tiled = [c for c in schedule_space(workload, target).coordinates if c.cuts_last and c.extent is not None]
    sizes = {c.name: [inner for _, inner in factorisations(c.extent or 1, 2, limit)] for c in tiled}
    return {workload.op: {**sizes, "rules": False}}


def compare(workload: Workload, target: HardwareTarget, trials: int, seed: int, run: Path) -> dict[str, Any]:
    """A row: seconds of the best points of both spaces, and how many were tried."""
    around, points, num_tried = surroundings(SearchSpace.load("mbv3"), 1000), {}, {}
    run.mkdir(parents=True, exist_ok=True)
    knobs = run / f"{workload.key}.yaml"
    with replacing(knobs) as part:
        part.write_text(yaml.safe_dump(tiles_that_divide(workload, target)), encoding="utf-8")
    for side, file in ((OWN, None), (EVEN, str(knobs))):
        effort = Effort(trials=trials, early_stopping="no", knobs=file, seed=seed)
        records = measure_points([workload], target, around, effort, run / f"{side}.sqlite")[workload]
        points[side], num_tried[side] = best_points(records), len(records)
    seconds: dict[str, list[float]] = {OWN: [], EVEN: []}
    for _ in range(NUM_ROUNDS):
        for side, best in points.items():
            seconds[side] += time_best(target, {workload: best}, around).values()
    least = {side: min(found, default=None) for side, found in seconds.items()}
    return {"key": workload.key, "num_flops": workload.num_flops, "seconds": least, "num_tried": num_tried}


def ratio(row: dict[str, Any]) -> float | None:
    """Seconds with tiles that divide over those of the own space; None where a space has no point that works."""
    own_s, even_s = row["seconds"][OWN], row["seconds"][EVEN]
    return None if own_s is None or even_s is None else even_s / own_s


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one operator, four trials of each space, no result file")
    parser.add_argument("--trials", type=int, help=f"in each space ({NUM_TRIALS}; 4 with --quick)")
    parser.add_argument("--run", type=Path, default=Path("runs/uneven_tiles"), help="records are kept here, and used")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    trials, target = options.trials or (4 if options.quick else NUM_TRIALS), load_target("cpu")
    rows = []
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
        run = Path(scratch) if options.quick else options.run
        for workload in OPERATORS[:1] if options.quick else OPERATORS:
            row = compare(workload, target, trials, options.seed, run)
            rows.append(row)
            rates = [None if s is None else row["num_flops"] / s / 1e9 for s in row["seconds"].values()]
            own, even = ("-" if rate is None else f"{rate:.1f}" for rate in rates)
            print(f"{row['key']:48s} {even:>6s} GFLOP/s with tiles that divide, {own:>6s} with all")
    figures = {row["key"]: Figure(ratio(row)) for row in rows}
    finish("uneven_tiles", figures, options.quick, {"trials": trials, "seed": options.seed, "rows": rows})


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"uneven_tiles: error: {error}") from error
