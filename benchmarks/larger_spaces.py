"""Do chanas' rules leave out schedules that are faster? Its own spaces beside much larger ones without rules.

    python benchmarks/larger_spaces.py [--quick] [--points 300] [--tuner gp] [--run runs/larger_spaces]

For an operator of each family all points of its own space are measured, and --points of a much larger one: any factors
as tiles, registers or not, loops written out by LLVM or in the program up to any number of steps. Which points of the
larger one, --tuner says, knowing nothing at first: of spaces of 1,000 to 500,000 points, random ones rarely come near
the best. Points are measured as chanas tunes, weights and code cold; what --run has counts, so that the script may be
stopped and go on. Then the best five of the own space, and of what is compiled to other machine code, are built again
and timed longer, in turns.

Figures: for each family seconds of the best of its own space over those of the best beyond it. The goal is at most
1.015: no schedule that the rules leave out is more than 1.5 % faster.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from common import Figure, finish
from tuning import measure_points, time_operators

from chanas.compiler.backends import has_schedules
from chanas.compiler.knobs import changed_spaces
from chanas.compiler.space import Point
from chanas.core.arch import SearchSpace
from chanas.core.effort import Effort
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.errors import ChanasError
from chanas.files.writing import replacing
from chanas.measuring.fleet import WorkerPool
from chanas.operators.workload import Workload
from chanas.prescheduler.blocks import Surroundings, surroundings
from chanas.prescheduler.records.store import TuningRecord

GOAL = 1.015
NUM_OWN = 2000
"""Points of an own space, at most; all of these operators' are fewer."""
NUM_FINALISTS, NUM_ROUNDS = 5, 6
LARGER = {"all": {"rules": False, "auto_unroll": [0, 8, 16, 32, 64, 128, 256, 512], "unroll_explicit": [0, 1]}}
OPERATORS = (
    Workload("pointwise", 28, 40, 240, epilogue="relu"),
    Workload("depthwise", 28, 120, 120, 5, 1, "hswish"),
    Workload("conv", 224, 3, 32, 3, 2, "relu"),
    Workload("blockconv", 28, 80, 112, 3, 1, "relu"),
    Workload("winograd", 14, 256, 256, 3, 1, "relu"),
    Workload("winograd2", 28, 128, 128, 3, 1, "relu"),
    Workload("groupconv", 28, 256, 256, 3, 1, "relu", groups=32),
    Workload("upconv", 14, 128, 64, 4, 2),
)


def best_points(records: Sequence[TuningRecord]) -> list[Point]:
    """The fastest points, best first, one of each machine code."""
    valid = [(r.last_s, r.point) for r in records if r.is_valid and r.same_as is None]
    return [point for _, point in sorted(valid)[:NUM_FINALISTS]]


def beyond(own: Sequence[TuningRecord], larger: Sequence[TuningRecord]) -> list[TuningRecord]:
    """The records of a larger space whose machine code no point of the own one is compiled to."""
    known = {r.code for r in own}
    return [r for r in larger if r.code not in known]


def time_best(
    target: HardwareTarget, finalists: Mapping[Workload, Sequence[Point]], around: Surroundings
) -> dict[Workload, float]:
    """Seconds of each operator's fastest finalist: the least of a few rounds."""
    seconds: dict[Workload, float] = {}
    with WorkerPool(target) as pool, tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
        for place in range(NUM_FINALISTS):
            points = {w: found[place] for w, found in finalists.items() if place < len(found)}
            for workload, outcome in time_operators(pool, target, points, around, Path(scratch)).items():
                if outcome.seconds is not None:
                    seconds[workload] = min(outcome.seconds, seconds.get(workload, outcome.seconds))
    return seconds


def compare(
    workloads: Sequence[Workload], num_own: int, num_larger: int, tuner: str, run: Path
) -> list[dict[str, Any]]:
    """A row for each operator that the target has schedules for: points of both spaces, seconds of the best of each."""
    target, around = load_target("cpu"), surroundings(SearchSpace.load("mbv3"), 1000)
    workloads = [w for w in workloads if has_schedules(w, target)]  # groups that fill shorter vectors have none
    run.mkdir(parents=True, exist_ok=True)
    knobs = run / "larger.yaml"
    with replacing(knobs) as part:
        part.write_text(yaml.safe_dump(LARGER), encoding="utf-8")
    sides = {"own": (num_own, "random", None), "larger": (num_larger, tuner, str(knobs))}
    records, finalists = {}, dict[str, dict[Workload, list[Point]]]()
    for side, (num_points, its_tuner, file) in sides.items():
        effort = Effort(trials=num_points, tuner=its_tuner, early_stopping="no", knobs=file)
        records[side] = measure_points(workloads, target, around, effort, run / f"{side}.sqlite")
    finalists["own"] = {w: best_points(found) for w, found in records["own"].items()}
    finalists["larger"] = {w: best_points(beyond(records["own"][w], found)) for w, found in records["larger"].items()}
    seconds: dict[str, dict[Workload, float]] = {side: {} for side in sides}
    for _ in range(NUM_ROUNDS):
        for side in sides:
            for workload, found in time_best(target, finalists[side], around).items():
                seconds[side][workload] = min(found, seconds[side].get(workload, found))
    rows = []
    spaces = (changed_spaces(workloads, target, file) for file in (None, knobs))
    for workload, own, larger in zip(workloads, *spaces, strict=True):
        rows.append(
            {
                "key": workload.key,
                "family": workload.op,
                "own_points": own.num_points,
                "own_measured": len(records["own"][workload]),
                "own_s": seconds["own"].get(workload),
                "larger_points": larger.num_points,
                "larger_measured": len(records["larger"][workload]),
                "larger_failed": sum(r.seconds is None for r in records["larger"][workload]),
                "larger_s": seconds["larger"].get(workload),
            }
        )
    return rows


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Own seconds over those of the larger space, by family."""
    timed = [row for row in rows if row["own_s"] and row["larger_s"]]
    return {
        f"{row['family']}_own_over_larger": Figure(row["own_s"] / row["larger_s"], GOAL, lower_is_better=True)
        for row in timed
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="two operators, eight points of each space, no result file"
    )
    parser.add_argument("--points", type=int, help="measured of each larger space (300; 8 with --quick)")
    parser.add_argument("--tuner", default=Effort().tuner, help="that chooses them (%(default)s)")
    parser.add_argument("--run", type=Path, default=Path("runs/larger_spaces"), help="records are kept here, and used")
    options = parser.parse_args()
    num_points = options.points or (8 if options.quick else 300)
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
        run = Path(scratch) if options.quick else options.run
        workloads, num_own = (OPERATORS[:2], num_points) if options.quick else (OPERATORS, NUM_OWN)
        rows = compare(workloads, num_own, num_points, options.tuner, run)
    for row in rows:
        measured = (
            f"{row['own_measured']} of {row['own_points']}, {row['larger_measured']} of {row['larger_points']:.2g}"
        )
        print(f"{row['key']:48s} {measured:30s} {row['larger_failed']} failed")
    extra = {"num_points": num_points, "tuner": options.tuner, "rows": rows}
    finish("larger_spaces", figures_of(rows), options.quick, extra)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"larger_spaces: error: {error}") from error
