"""How few measured schedule points it takes to find a good one.

    python benchmarks/tuning_efficiency.py [--quick] [--trials 32] [--seeds 5] [--points 1000] [--metaschedule-seeds 1]
        [--records DIR]

Twelve operators, four families from small to large. First up to --points random points of each are measured (all, where
the space has fewer) as chanas tunes: checked, weights and code cold. The best of them is what the searches are judged
by. Then each search is played again on these measurements with several seeds:

  gp         Gaussian process and mutation: chanas as it is
  transfer   the same, the process having seen --trials records of each of the family's other operators
  mutation   mutation and crossover of good points, without a model (tuner ga)
  random     random points

TVM's MetaSchedule (evolutionary search, its XGBoost model) tunes the same operators in the same layout with as many
trials; its best program is then checked and timed as ours are. It builds on one core and runs on the other, as chanas
does.

Figures: gp_gap_percent, how far the best point after --trials trials is from the best of all, mean over operators and
seeds (goal: at most 3), transfer_gap_8_percent, the same after 8 trials with the records of others (goal: at most 5);
for information the other searches, MetaSchedule's time over ours (geometric mean of its best program's seconds over
those of chanas' best after as many trials), and seconds per operator of both.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Figure, finish, geometric_mean
from metaschedule import ask_worker
from tuning import measure_points, tune_operators

from chanas.core.arch import SearchSpace
from chanas.core.effort import Effort
from chanas.core.target import HardwareTarget
from chanas.devices.cores import split_cores
from chanas.devices.host import load_target
from chanas.devices.timing import TimingSettings
from chanas.errors import ChanasError
from chanas.files.run import RunDirectory
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import Measure
from chanas.operators.workload import Workload
from chanas.prescheduler.blocks import Surroundings, surroundings
from chanas.prescheduler.tuning.tuners import Tuners

if TYPE_CHECKING:
    from chanas.prescheduler.records.store import TuningRecord

GP, TRANSFER, MUTATION, RANDOM = "gp", "transfer", "mutation", "random"
STRATEGIES = (GP, TRANSFER, MUTATION, RANDOM)
TUNERS = {GP: "gp", TRANSFER: "gp", MUTATION: "ga", RANDOM: "random"}
GAP_GOAL_PERCENT, TRANSFER_GOAL_PERCENT, TRANSFER_TRIALS = 3.0, 5.0, 8
QUICK_POINTS = 24
METASCHEDULE_TIMEOUT_S = 600.0
# Small, middle and large of each family: 1x1 and depthwise of `mbv3`, its stems, layers of the paper's table 3.
FAMILIES: dict[str, tuple[Workload, ...]] = {
    "pointwise": (
        Workload("pointwise", 7, 160, 960, epilogue="hswish"),
        Workload("pointwise", 28, 40, 240, epilogue="relu"),
        Workload("pointwise", 56, 144, 24, residual=True),
    ),
    "depthwise": (
        Workload("depthwise", 7, 960, 960, 5, 1, "hswish"),
        Workload("depthwise", 28, 240, 240, 3, 1, "relu"),
        Workload("depthwise", 112, 64, 64, 7, 2, "relu"),
    ),
    "conv": (
        Workload("conv", 160, 3, 16, 3, 2, "hswish"),
        Workload("conv", 176, 3, 24, 3, 2, "hswish"),
        Workload("conv", 224, 3, 16, 3, 2, "hswish"),
    ),
    "blockconv": (
        Workload("blockconv", 14, 160, 160, 3, 1, "relu"),
        Workload("blockconv", 28, 80, 112, 3, 1, "relu"),
        Workload("blockconv", 28, 80, 112, 5, 1, "relu"),
    ),
}

Table = dict[tuple[int, ...], "TuningRecord"]


def measure_all(
    workloads: Sequence[Workload],
    target: HardwareTarget,
    around: Surroundings,
    num_points: int,
    records: Path,
) -> dict[Workload, Table]:
    """Records of up to `num_points` random points of each workload, failed ones among them; kept in the run directory
    `records`."""
    effort = Effort(trials=num_points, tuner="random", early_stopping="no")
    found = measure_points(workloads, target, around, effort, RunDirectory(records).records)
    return {w: {r.point: r for r in tried} for w, tried in found.items()}


def best_s(records: Sequence[TuningRecord]) -> float:
    """Seconds of the fastest; infinite when none works."""
    return min((r.seconds for r in records if r.seconds is not None), default=float("inf"))


def replay(
    workload: Workload,
    table: Table,
    target: HardwareTarget,
    strategy: str,
    num_trials: int,
    seed: int,
    others: Mapping[Workload, Sequence[TuningRecord]],
) -> list[TuningRecord]:
    """The records that a search would have made, in order; points that were not measured are not there for it."""
    from chanas.compiler.backends import schedule_space
    from chanas.prescheduler.tuning.replay import replay as played_on

    tuners = Tuners(TUNERS[strategy], seed=seed)
    for other, records in others.items():
        tuners.make(schedule_space(other, target), records, target)
    effort = Effort(trials=num_trials, early_stopping="no")
    return played_on(schedule_space(workload, target), list(table.values()), target, effort, tuners)


def curve(records: Sequence[TuningRecord], best_of_all_s: float, num_trials: int) -> list[float]:
    """After 1, 2, … `num_trials` trials: the best so far over the best of all."""
    made = [best_s(records[: i + 1]) / best_of_all_s for i in range(min(num_trials, len(records)))]
    return made + made[-1:] * (num_trials - len(made))


def replay_all(
    tables: Mapping[Workload, Table], target: HardwareTarget, num_trials: int, num_seeds: int
) -> dict[str, dict[str, list[list[float]]]]:
    """strategy -> workload key -> for each seed the curve."""
    curves: dict[str, dict[str, list[list[float]]]] = {s: {w.key: [] for w in tables} for s in STRATEGIES}
    for seed in range(num_seeds):
        made: dict[Workload, list[TuningRecord]] = {}
        for strategy in STRATEGIES:
            for workload, table in tables.items():
                others = {w: r for w, r in made.items() if w.op == workload.op and w != workload}
                known = others if strategy == TRANSFER else {}
                records = replay(workload, table, target, strategy, num_trials, seed, known)
                if strategy == GP:
                    made[workload] = records
                best = best_s(list(table.values()))
                curves[strategy][workload.key].append(curve(records, best, num_trials))
    return curves


def gap_percent(curves: Mapping[str, Sequence[Sequence[float]]], num_trials: int) -> float:
    """Mean over workloads and seeds of what is lost against the best of all after so many trials, in percent."""
    return 100 * (statistics.fmean(c[num_trials - 1] for group in curves.values() for c in group) - 1.0)


def run_metaschedule(
    workload: Workload, target: HardwareTarget, num_trials: int, seed: int, library: Path
) -> dict[str, Any]:
    """What `metaschedule_worker.py` answers, or {"error": why}."""
    timing, building = split_cores(target.num_threads)
    return ask_worker(
        "operator",
        (timing[:1], (building or timing)[:1]),
        METASCHEDULE_TIMEOUT_S,
        workload=workload.to_json(),
        target=target.to_json(),
        num_trials=num_trials,
        seed=seed,
        library=str(library),
    )


def time_library(workload: Workload, library: Path, target: HardwareTarget, around: Surroundings, case: Path) -> Any:
    """The worker's answer for a compiled operator, checked and timed as a candidate is."""
    from chanas.compiler.cases import operator_case

    operator_case(workload, target).save(case)
    settings = TimingSettings().cold(around.weight_bytes, around.num_blocks)
    with WorkerPool(target) as pool:
        return pool.measure(Measure(library=library, case=case, settings=settings), 60.0).result()


def compare_metaschedule(
    tables: Mapping[Workload, Table],
    target: HardwareTarget,
    around: Surroundings,
    num_trials: int,
    num_seeds: int,
    folder: Path,
) -> list[dict[str, Any]]:
    """One row per workload and seed: its curve, its wall time, and its best program timed as ours."""
    rows = []
    for workload in tables:
        for seed in range(num_seeds):
            library = folder / f"metaschedule-{seed}-{workload.key}.so"
            row: dict[str, Any] = {"workload": workload.key, "seed": seed}
            row |= run_metaschedule(workload, target, num_trials, seed, library)
            if row.get("built"):
                answer = time_library(workload, library, target, around, folder / "metaschedule.npz")
                row["seconds"] = answer.timing.seconds if answer.error is None else None
                if answer.error is not None:
                    row["error"] = str(answer.error)
            print(f"MetaSchedule {workload.key}: {row.get('error') or row.get('seconds')}, {row.get('wall_s')} s")
            rows.append(row)
    return rows


def seconds_per_operator(
    workloads: Sequence[Workload], target: HardwareTarget, around: Surroundings, num_trials: int, folder: Path
) -> float:
    """Wall seconds for each operator when chanas tunes all of them from nothing."""
    with WorkerPool(target) as pool:
        tuned = tune_operators(pool, target, workloads, num_trials, around, folder, 0)
    return tuned.wall_s / len(workloads)


def figures_of(
    curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    tables: Mapping[Workload, Table],
    metaschedule: Sequence[Mapping[str, Any]],
    own_s: float | None,
    num_trials: int,
) -> dict[str, Figure]:
    """All figures; MetaSchedule's are missing unless every operator has a program that computes the right thing."""
    figures = {
        "gp_gap_percent": Figure(gap_percent(curves[GP], num_trials), GAP_GOAL_PERCENT, lower_is_better=True),
        "transfer_gap_8_percent": Figure(
            gap_percent(curves[TRANSFER], min(TRANSFER_TRIALS, num_trials)), TRANSFER_GOAL_PERCENT, lower_is_better=True
        ),
        "gp_gap_8_percent": Figure(gap_percent(curves[GP], min(TRANSFER_TRIALS, num_trials))),
        "mutation_gap_percent": Figure(gap_percent(curves[MUTATION], num_trials)),
        "random_gap_percent": Figure(gap_percent(curves[RANDOM], num_trials)),
        "seconds_per_operator": Figure(own_s),
    }
    by_key = {w.key: best_s(list(t.values())) for w, t in tables.items()}
    ratios, walls = [], []
    for row in metaschedule:
        if row.get("seconds") is not None:
            ours_s = by_key[row["workload"]] * statistics.fmean(c[num_trials - 1] for c in curves[GP][row["workload"]])
            ratios.append(row["seconds"] / ours_s)
            walls.append(row["wall_s"])
    complete = bool(metaschedule) and len(ratios) == len(metaschedule)
    figures["metaschedule_time_over_ours"] = Figure(geometric_mean(ratios) if complete else None)
    figures["metaschedule_seconds_per_operator"] = Figure(statistics.fmean(walls) if walls else None)
    return figures


def print_table(curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], num_trials: int) -> None:
    """How far each search is from the best of all, in percent, after 4, 8, 16 and so on trials."""
    marks = [n for n in (4, 8, 16, 32, 64) if n <= num_trials]
    print(f"\n{'percent above the best':24s}" + "".join(f"{n:>9d}" for n in marks) + "   trials")
    for strategy, group in curves.items():
        print(f"{strategy:24s}" + "".join(f"{gap_percent(group, n):9.1f}" for n in marks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="two operators, few points, no MetaSchedule, no result file"
    )
    parser.add_argument("--trials", type=int, help="trials of each search (32; 8 with --quick)")
    parser.add_argument("--seeds", type=int, help="seeds of each search (5; 2 with --quick)")
    parser.add_argument("--points", type=int, help=f"random points measured (1000; {QUICK_POINTS} with --quick)")
    parser.add_argument("--metaschedule-seeds", type=int, help="seeds of MetaSchedule (1; 0 with --quick)")
    parser.add_argument("--records", type=Path, help="keep the random points' records here, use those that there are")
    options = parser.parse_args()
    quick = options.quick
    num_trials, num_seeds = options.trials or (8 if quick else 32), options.seeds or (2 if quick else 5)
    num_points = options.points or (QUICK_POINTS if quick else 1000)
    peer_seeds = options.metaschedule_seeds if options.metaschedule_seeds is not None else (0 if quick else 1)
    target = load_target("cpu")
    workloads = [w for family in FAMILIES.values() for w in family]
    if quick:
        workloads = list(FAMILIES["pointwise"][:2])
    around = surroundings(SearchSpace.load("mbv3"), 1000)
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as name:
        folder = Path(name)
        tables = measure_all(workloads, target, around, num_points, options.records or folder)
        curves = replay_all(tables, target, num_trials, num_seeds)
        print_table(curves, num_trials)
        metaschedule = compare_metaschedule(tables, target, around, num_trials, peer_seeds, folder)
        own_s = None if quick else seconds_per_operator(workloads, target, around, num_trials, folder / "own")
    figures = figures_of(curves, tables, metaschedule, own_s, num_trials)
    extra: dict[str, Any] = {
        "num_trials": num_trials,
        "num_seeds": num_seeds,
        "measured_points": {w.key: len(t) for w, t in tables.items()},
        "best_s": {w.key: best_s(list(t.values())) for w, t in tables.items()},
        "mean_curves": {
            s: {k: [statistics.fmean(v) for v in zip(*c, strict=True)] for k, c in group.items()}
            for s, group in curves.items()
        },
        "metaschedule": metaschedule,
    }
    finish("tuning_efficiency", figures, quick, extra)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"tuning_efficiency: error: {error}") from error
