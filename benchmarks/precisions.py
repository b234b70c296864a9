"""Operators in float32, bfloat16 and int8, as far as this machine's instructions go.

    python benchmarks/precisions.py [--quick] [--trials 24] [--run runs/precisions] [--seed 0]

In each dtype an operator is tuned by random points of its space; where the processor has matrix registers (AMX), once
with them and once with dot products of vectors alone. What --run has counts, so that the script may be stopped and go
on. Then the best three points of each are built again and timed longer, in turns, weights and code warm.

Figures: seconds in float32 over those in each other way, the geometric mean of all operators that have it.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Figure, finish
from larger_spaces import best_points, time_best
from tuning import WARM, measure_points

from chanas.compiler.backends import has_schedules
from chanas.compiler.space import Point
from chanas.core.effort import Effort
from chanas.core.processor import host_processor
from chanas.core.target import HardwareTarget, processor_dtypes
from chanas.devices.host import load_target
from chanas.errors import ChanasError
from chanas.operators.workload import Workload

OPERATORS = (
    Workload("pointwise", 14, 480, 112),
    Workload("pointwise", 7, 960, 160),
    Workload("pointwise", 14, 112, 672, epilogue="hswish"),
    Workload("pointwise", 28, 40, 240, epilogue="hswish"),
    Workload("pointwise", 112, 16, 64, epilogue="relu"),
    Workload("pointwise", 56, 64, 256),
    Workload("pointwise", 14, 1024, 256, epilogue="relu"),
    Workload("pointwise", 14, 1024, 2048, stride=2),
    Workload("pointwise", 1, 960, 1280, epilogue="hswish"),
    Workload("blockconv", 56, 64, 64, 3, epilogue="relu"),
    Workload("blockconv", 28, 128, 128, 3, epilogue="relu"),
    Workload("blockconv", 28, 256, 256, 3, 2, epilogue="relu"),
    Workload("blockconv", 14, 256, 256, 3, epilogue="relu"),
    Workload("blockconv", 7, 512, 512, 3, epilogue="relu"),
    Workload("depthwise", 14, 672, 672, 3, epilogue="hswish"),
    Workload("depthwise", 28, 240, 240, 5, epilogue="relu"),
    Workload("depthwise", 56, 144, 144, 3, 2, "relu6"),
    Workload("depthwise", 112, 32, 32, 3, epilogue="relu6"),
    Workload("conv", 224, 3, 16, 3, 2, "hswish"),
    Workload("conv", 224, 3, 64, 7, 2, "relu"),
)
FLOAT, DOTS = "f32", " by dots"
NUM_TRIALS, NUM_ROUNDS = 24, 3


def ways() -> dict[str, HardwareTarget]:
    """This machine's ways to compute: its dtypes, those with matrix registers without them as well."""
    found = {dtype: load_target("cpu", dtype=dtype) for dtype in processor_dtypes(host_processor())}
    matrices = {name: target for name, target in found.items() if target.has_matrices}
    return found | {name + DOTS: dataclasses.replace(t, has_matrices=False) for name, t in matrices.items()}


def compare(
    workloads: Sequence[Workload], targets: Mapping[str, HardwareTarget], effort: Effort, run: Path
) -> list[dict[str, Any]]:
    """A row for each operator: seconds of its best points in each way that it has schedules in."""
    points: dict[str, dict[Workload, list[Point]]] = {}
    for name, target in targets.items():
        typed = [dataclasses.replace(workload, dtype=target.dtype) for workload in workloads]
        able = [workload for workload in typed if has_schedules(workload, target)]
        records = measure_points(able, target, WARM, effort, run / f"{name.replace(' ', '-')}.sqlite")
        points[name] = {workload: best_points(found) for workload, found in records.items()}
    rows: dict[Workload, dict[str, float]] = {workload: {} for workload in workloads}
    for _ in range(NUM_ROUNDS):
        for name, best in points.items():
            for typed_one, found_s in time_best(targets[name], best, WARM).items():
                seconds = rows[dataclasses.replace(typed_one, dtype="float32")]
                seconds[name] = min(found_s, seconds.get(name, found_s))
    return [{"key": w.key, "num_flops": w.num_flops, "seconds": seconds} for w, seconds in rows.items()]


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Geometric means of the speed in each other way than float32."""
    names = dict.fromkeys(name for row in rows for name in row["seconds"] if name != FLOAT)
    figures = {}
    for name in names:
        both = [row["seconds"] for row in rows if {name, FLOAT} <= set(row["seconds"])]
        figures[name] = Figure(statistics.geometric_mean(s[FLOAT] / s[name] for s in both) if both else None)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one operator, two trials of each, no result file")
    parser.add_argument("--trials", type=int, help=f"of each operator in each way ({NUM_TRIALS}; 2 with --quick)")
    parser.add_argument("--run", type=Path, default=Path("runs/precisions"), help="records are kept here, and used")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    trials, targets = options.trials or (2 if options.quick else NUM_TRIALS), ways()
    effort = Effort(trials=trials, tuner="random", early_stopping="no", seed=options.seed)
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
        run = Path(scratch) if options.quick else options.run
        rows = compare(OPERATORS[:1] if options.quick else OPERATORS, targets, effort, run)
    print(f"{'us':48s} {' '.join(f'{name:>13s}' for name in targets)}")
    for row in rows:
        found = [row["seconds"].get(name) for name in targets]
        print(f"{row['key']:48s} {' '.join('-'.rjust(13) if s is None else f'{1e6 * s:13.1f}' for s in found)}")
    finish("precisions", figures_of(rows), options.quick, {"trials": trials, "seed": options.seed, "rows": rows})


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"precisions: error: {error}") from error
