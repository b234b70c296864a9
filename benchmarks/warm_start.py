"""How many trials another device's records save, and what happens when they mislead.

    python benchmarks/warm_start.py [--quick] [--trials 32] [--source-trials 16] [--seeds 5] [--records RUN]
        [--other RUN]

Operators of `mbv3` of four families. Every point of their schedule spaces is measured once for each use of this
machine: one thread, two threads, and bfloat16 (operators whose spaces are the same in both dtypes). Then searches are
played again on these measurements, a family's operators one after the other with one cost model, as the prescheduler
does:

  cold       as without another device
  warm       with the records that such a search of --source-trials trials has made for the other use of the machine
  unguarded  the same, and the records are never dropped
  planted    the records upside down: the fastest point is the slowest
  planted_unguarded

Figures, for each pair of uses: trials until the best point is at most 5 % slower than the best of all (--trials + 1
where it never is), mean over operators and seeds, and the share of operators for which the guard dropped the records.

Then each operator is tuned alone, by `chanas tune --operator KEY --simulate RUN`, without `--warm-start` and with it
from all points that were measured for the other use (`alone`; until within 5 and 1 %, searches end after 100 trials).
The share is of the trials without: mean over operators that both uses order alike (a rank correlation of 0.8 and
more), and over the others.
--other has the points of other instructions: those of `CHANAS_MAX_CPU_ISA=avx2 python benchmarks/warm_start.py
--measure-only cpu --records RUN`, whose schedules are mapped.

One machine is what these figures are from: its uses have the same instruction set and the same caches, which another
machine need not have.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tuning_efficiency
from common import Figure, finish
from tuning_efficiency import Table, best_s, measure_all

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import ScheduleSpace
from chanas.core.arch import SearchSpace
from chanas.core.effort import DEFAULT_SEARCH, NetworkEffort, Search
from chanas.core.target import HardwareTarget
from chanas.core.usage import Usage
from chanas.devices.host import load_used
from chanas.errors import ChanasError
from chanas.files.run import RunDirectory
from chanas.operators.workload import Workload
from chanas.prescheduler.blocks import surroundings
from chanas.prescheduler.ideas import agree
from chanas.prescheduler.tuning.evolution import Evolution
from chanas.prescheduler.tuning.tuner import Trials
from chanas.prescheduler.tuning.warm_start import prior_from

if TYPE_CHECKING:
    from chanas.prescheduler.records.store import TuningRecord
    from chanas.prescheduler.tuning.cost_model.history import CostModel, Prior

CLOSE = 1.05
ALONE_TRIALS, QUICK_ALONE_TRIALS = 100, 16
ALONE_CLOSE = {5: 1.05, 1: 1.01}
ALIKE, SHARE_GOAL = 0.8, 0.29
MARKS = (1, 2, 4, 8, 16, 32)
COLD, WARM, UNGUARDED, PLANTED, PLANTED_UNGUARDED = "cold", "warm", "unguarded", "planted", "planted_unguarded"
STRATEGIES = (COLD, WARM, UNGUARDED, PLANTED, PLANTED_UNGUARDED)
FAMILIES: dict[str, tuple[Workload, ...]] = {
    "pointwise": (
        Workload("pointwise", 7, 160, 960, epilogue="hswish"),
        Workload("pointwise", 14, 112, 672, epilogue="hswish"),
        Workload("pointwise", 14, 320, 80, residual=True),
        Workload("pointwise", 28, 40, 120, epilogue="hswish"),
        Workload("pointwise", 28, 48, 192, epilogue="hswish"),
        Workload("pointwise", 56, 32, 96, epilogue="relu"),
        Workload("pointwise", 56, 144, 24, residual=True),
        Workload("pointwise", 112, 16, 96, epilogue="relu"),
    ),
    "depthwise": (
        Workload("depthwise", 7, 960, 960, 5, 1, "hswish"),
        Workload("depthwise", 14, 672, 672, 5, 1, "hswish"),
        Workload("depthwise", 28, 240, 240, 3, 1, "relu"),
        Workload("depthwise", 56, 72, 72, 3, 1, "relu"),
        Workload("depthwise", 112, 16, 16, 3, 1, "relu"),
        Workload("depthwise", 112, 64, 64, 7, 2, "relu"),
    ),
    "conv": tuning_efficiency.FAMILIES["conv"],
    "pool": (
        Workload("pool", 14, 672, 672),
        Workload("pool", 28, 120, 120),
    ),
}
PAIRS = (("cpu", "cpu-2t"), ("cpu-2t", "cpu"), ("cpu", "cpu-bf16"))

Key = tuple[str, str]


@dataclass
class Played:
    """What one search did: for each operator its curve (best so far over best of all) and whether the prior stayed."""

    curves: dict[str, list[float]] = field(default_factory=dict)
    dropped: dict[str, bool] = field(default_factory=dict)
    taus: dict[str, float | None] = field(default_factory=dict)
    records: dict[Workload, list[TuningRecord]] = field(default_factory=dict)


USES = {str(usage.name): usage for usage in (Usage(), Usage(threads=2), Usage(dtype="bf16"))}
"""This machine used in three ways, by the names that commands have for them."""


def operators(target: HardwareTarget, float_target: HardwareTarget) -> dict[str, list[Workload]]:
    """By family, those whose spaces on `target` agree with the ones in float32."""
    found: dict[str, list[Workload]] = {}
    for family, workloads in FAMILIES.items():
        for workload in workloads:
            asked = dataclasses.replace(workload, dtype=target.dtype)
            if agree(schedule_space(workload, float_target), schedule_space(asked, target)):
                found.setdefault(family, []).append(asked)
    return found


def measured_space(workload: Workload, table: Table, target: HardwareTarget) -> ScheduleSpace[Any]:
    """The space without points that were not measured."""
    whole = schedule_space(workload, target)
    return whole.restricted(point for point in table if whole.contains(point))


def upside_down(prior: Prior) -> Prior:
    """The fastest record becomes the slowest."""
    seconds = prior.seconds.min() * prior.seconds.max() / prior.seconds
    order = np.argsort(seconds, kind="stable")
    return dataclasses.replace(prior, points=tuple(prior.points[i] for i in order), seconds=seconds[order])


def play(
    workloads: Sequence[Workload],
    tables: Mapping[Workload, Table],
    target: HardwareTarget,
    num_trials: int,
    seed: int,
    priors: Mapping[Workload, Prior],
    search: Search = DEFAULT_SEARCH,
) -> Played:
    """One search of a family's operators, in an order of its own, on measured points."""
    from chanas.prescheduler.tuning.cost_model.models import cost_model

    model: CostModel = cost_model("gp", target, seed)
    played, rng = Played(), np.random.default_rng(seed)
    trials = {}
    for number, workload in enumerate(workloads):
        space = measured_space(workload, tables[workload], target)
        prior = priors.get(workload)
        tuner = Evolution(space, model, [], seed * 1000 + number, prior, search)
        trials[workload] = Trials(space, tuner, num_trials)
    for number in rng.permutation(len(workloads)):
        workload = workloads[number]
        table, own = tables[workload], trials[workload]
        made: list[TuningRecord] = []
        while points := own.ask(4):
            batch = [table[p] for p in points]
            made += batch
            own.tell(batch)
        best = best_s(list(table.values()))
        played.curves[workload.key] = [best_s(made[: i + 1]) / best for i in range(len(made))]
        use = own.prior
        played.dropped[workload.key] = use is not None and use.is_dropped
        played.taus[workload.key] = None if use is None else use.tau
        played.records[workload] = made
    return played


def priors_for(
    workloads: Sequence[Workload],
    tables: Mapping[Workload, Table],
    target: HardwareTarget,
    source: HardwareTarget,
    made: Mapping[Workload, Sequence[TuningRecord]],
) -> dict[Workload, Prior]:
    """What records of the source say of each operator."""
    found = {}
    for workload in workloads:
        its = dataclasses.replace(workload, dtype=source.dtype)
        records = sorted((r for r in made[its] if r.seconds is not None), key=lambda r: r.seconds or 0.0)
        whence, space = schedule_space(its, source), measured_space(workload, tables[workload], target)
        prior = prior_from(records, whence, space, (source, target))
        if prior is not None:
            found[workload] = prior
    return found


def play_pair(
    source: HardwareTarget,
    target: HardwareTarget,
    tables: Mapping[str, Mapping[Workload, Table]],
    families: Mapping[str, Sequence[Workload]],
    num_trials: int,
    source_trials: int,
    num_seeds: int,
) -> dict[str, list[Played]]:
    """strategy -> what it did, for each family and seed."""
    found: dict[str, list[Played]] = {strategy: [] for strategy in STRATEGIES}
    guarded, unguarded = DEFAULT_SEARCH, Search(min_tau=-1.0)
    for seed in range(num_seeds):
        for workloads in families.values():
            theirs = [dataclasses.replace(w, dtype=source.dtype) for w in workloads]
            made = play(theirs, tables[source.name], source, source_trials, 100 + seed, {}).records
            mine = tables[target.name]
            priors = priors_for(workloads, mine, target, source, made)
            planted = {w: upside_down(p) for w, p in priors.items()}
            for strategy, search, known in (
                (COLD, guarded, {}),
                (WARM, guarded, priors),
                (UNGUARDED, unguarded, priors),
                (PLANTED, guarded, planted),
                (PLANTED_UNGUARDED, unguarded, planted),
            ):
                found[strategy].append(play(workloads, mine, target, num_trials, seed, known, search))
    return found


def alone(
    run: RunDirectory,
    source: str,
    target: HardwareTarget,
    tables: Mapping[Workload, Table],
    num_trials: int,
    num_seeds: int,
) -> list[dict[str, Any]]:
    """For each operator that the source has measured: the rank correlation of its seconds with those here, and mean
    trials of the command until within 5 and 1 % without (`cold_5`, `cold_1`) and with (`warm_5`, `warm_1`) what it
    has."""
    from scipy.stats import spearmanr

    from chanas.prescheduler.tuning.warm_start import open_warm_start
    from chanas.workflows.models.one_operator import simulate_operator

    usage, warm_start, rows = Usage(threads=target.num_threads), open_warm_start(source, run, target), []
    for workload, table in tables.items():
        prior = warm_start.prior(measured_space(workload, table, target))
        if prior is None:
            continue
        here = np.array([best_s([table[point] for point in points if point in table]) for points in prior.points])
        worked, best = np.isfinite(here), best_s(list(table.values()))
        correlation = float(spearmanr(prior.seconds[worked], here[worked]).statistic)
        row: dict[str, Any] = {"operator": workload.key, "points": len(table), "correlation": correlation}
        for strategy, named in ((COLD, None), (WARM, source)):
            curves = []
            for seed in range(num_seeds):
                effort = NetworkEffort(trials=num_trials, early_stopping="no", seed=seed, warm_start=named)
                made = simulate_operator(workload.key, usage, effort=effort, run=run).records
                curves.append([best_s(made[: i + 1]) / best for i in range(len(made))])
            for percent, close in ALONE_CLOSE.items():
                row[f"{strategy}_{percent}"] = statistics.fmean(trials_until(c, num_trials, close) for c in curves)
        rows.append(row)
    return rows


def shares_of(rows: Sequence[Mapping[str, Any]], percent: int) -> dict[str, float | None]:
    """Trials with the source over those without: mean of operators that are alike on both, and of the others."""
    found: dict[str, list[float]] = {"alike": [], "unlike": []}
    for row in rows:
        kind = "alike" if row["correlation"] >= ALIKE else "unlike"
        found[kind].append(row[f"{WARM}_{percent}"] / row[f"{COLD}_{percent}"])
    return {kind: statistics.fmean(shares) if shares else None for kind, shares in found.items()}


def alone_figures(by_pair: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Figure]:
    """Shares over all pairs, and trials of each pair."""
    figures, rows = {}, [row for rows in by_pair.values() for row in rows]
    for percent in ALONE_CLOSE:
        for kind, share in shares_of(rows, percent).items():
            goal = SHARE_GOAL if kind == "alike" else 1.0
            figures[f"alone_share_{kind}_{percent}"] = Figure(share, goal, lower_is_better=True)
    for pair, own in by_pair.items():
        for name in (f"{strategy}_{percent}" for strategy in (COLD, WARM) for percent in ALONE_CLOSE):
            value = statistics.fmean(row[name] for row in own) if own else None
            figures[f"{pair.replace(' ', '_').replace('-', '_')}_alone_{name}"] = Figure(value)
    return figures


def print_alone(pair: str, rows: Sequence[Mapping[str, Any]]) -> None:
    names = [f"{strategy}_{percent}" for percent in ALONE_CLOSE for strategy in (COLD, WARM)]
    print(f"\n{pair + ', each operator alone':48s}{'points':>8s}{'alike':>7s}" + "".join(f"{n:>8s}" for n in names))
    for row in rows:
        numbers = "".join(f"{row[name]:8.1f}" for name in names)
        print(f"{row['operator']:48s}{row['points']:8d}{row['correlation']:7.2f}{numbers}")


def trials_until(curve: Sequence[float], num_trials: int, close: float = CLOSE) -> int:
    """Trials until the best is at most `close` times the best of all; one more than there are when it never is."""
    return next((i + 1 for i, ratio in enumerate(curve) if ratio <= close), num_trials + 1)


def mean_trials(played: Sequence[Played], num_trials: int) -> float:
    return statistics.fmean(trials_until(c, num_trials) for p in played for c in p.curves.values())


def gap_percent(played: Sequence[Played], num_trials: int) -> float:
    """What is lost against the best of all after so many trials, in percent, mean."""
    curves = [c for p in played for c in p.curves.values()]
    return 100 * (statistics.fmean(c[min(num_trials, len(c)) - 1] for c in curves) - 1.0)


def dropped_share(played: Sequence[Played]) -> float:
    return statistics.fmean(d for p in played for d in p.dropped.values())


def rows_of(found: Mapping[str, Sequence[Played]], num_trials: int) -> list[dict[str, Any]]:
    """One row per strategy: trials, how far after some numbers of trials, dropped, and trials by family."""
    rows = []
    for strategy, played in found.items():
        families: dict[str, list[int]] = {}
        for p in played:
            for key, curve in p.curves.items():
                families.setdefault(key.partition("-")[0], []).append(trials_until(curve, num_trials))
        taus = [t for p in played for t in p.taus.values() if t is not None]
        rows.append(
            {
                "strategy": strategy,
                "trials": mean_trials(played, num_trials),
                "gap_percent": {str(n): gap_percent(played, n) for n in MARKS if n <= num_trials},
                "dropped": dropped_share(played),
                "median_tau": statistics.median(taus) if taus else None,
                "trials_by_family": {k: statistics.fmean(v) for k, v in families.items()},
            }
        )
    return rows


def print_rows(pair: str, rows: Sequence[Mapping[str, Any]]) -> None:
    marks = list(rows[0]["gap_percent"])
    print(f"\n{pair:20s}{'trials':>8s}{'dropped':>9s}{'tau':>7s}   percent off after " + " ".join(marks) + " trials")
    for row in rows:
        tau = "-" if row["median_tau"] is None else f"{row['median_tau']:.2f}"
        gaps = "".join(f"{row['gap_percent'][n]:7.1f}" for n in marks)
        by_family = ", ".join(f"{k} {v:.1f}" for k, v in row["trials_by_family"].items())
        print(f"{row['strategy']:20s}{row['trials']:8.1f}{row['dropped']:9.0%}{tau:>7s}{gaps}   {by_family}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="depthwise operators of 28 px and less; no result file")
    parser.add_argument("--trials", type=int, help="trials of each search (32; 8 with --quick)")
    parser.add_argument("--source-trials", type=int, default=16, help="trials of the search that the records are from")
    parser.add_argument("--seeds", type=int, help="seeds of each search (5; 2 with --quick)")
    parser.add_argument(
        "--records", type=Path, help="run directory of the measurements; those that there are, are used"
    )
    parser.add_argument("--other", type=Path, help="run directory of such measurements with other instructions")
    parser.add_argument("--measure-only", choices=sorted(USES), help="measure for this use of the machine, and end")
    options = parser.parse_args()
    quick = options.quick
    num_trials, num_seeds = options.trials or (8 if quick else 32), options.seeds or (2 if quick else 5)
    pairs = PAIRS[:1] if quick else PAIRS
    names = [options.measure_only] if options.measure_only else list(dict.fromkeys(n for pair in pairs for n in pair))
    known = {name: load_used(USES[name]) for name in ("cpu", *names)}  # without bfloat16 there is the quick run
    around = surroundings(SearchSpace.load("mbv3"), 1000)
    families = {name: operators(target, known["cpu"]) for name, target in known.items()}
    if quick:
        small = {"depthwise": [w for w in FAMILIES["depthwise"] if w.input_size <= 28]}
        families = dict.fromkeys(families, small)
    tables: dict[str, dict[Workload, Table]] = {}
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as folder:
        records = options.records or Path(folder)
        for name in names:
            workloads = [w for group in families[name].values() for w in group]
            tables[name] = measure_all(workloads, known[name], around, 10_000, records)
            print(f"{name}: {sum(len(t) for t in tables[name].values())} points of {len(workloads)} operators")
        if options.measure_only:
            return
        sources = [*pairs, *([(str(options.other.resolve()), "cpu")] if options.other else [])]
        alone_trials = QUICK_ALONE_TRIALS if quick else ALONE_TRIALS
        by_pair = {}
        for source, name in sources:
            pair = f"{Path(source).name} to {name}"
            by_pair[pair] = alone(RunDirectory(records), source, known[name], tables[name], alone_trials, num_seeds)
            print_alone(pair, by_pair[pair])
    results, figures = {}, alone_figures(by_pair)
    for source, name in pairs:
        found = play_pair(
            known[source], known[name], tables, families[name], num_trials, options.source_trials, num_seeds
        )
        pair = f"{source} to {name}"
        results[pair] = rows_of(found, num_trials)
        print_rows(pair, results[pair])
        short = pair.replace(" ", "_").replace("-", "_")
        for row in results[pair]:
            figures[f"{short}_{row['strategy']}_trials"] = Figure(row["trials"])
        figures[f"{short}_dropped_percent"] = Figure(100 * dropped_share(found[WARM]))
        figures[f"{short}_planted_dropped_percent"] = Figure(100 * dropped_share(found[PLANTED]))
    points = {name: {w.key: len(t) for w, t in group.items()} for name, group in tables.items()}
    extra = {
        "num_trials": num_trials,
        "source_trials": options.source_trials,
        "num_seeds": num_seeds,
        "measured_points": points,
        "pairs": results,
        "alone": by_pair,
    }
    finish("warm_start", figures, quick, extra)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"warm_start: error: {error}") from error
