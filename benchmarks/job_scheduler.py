"""How close the scheduler's policies come to the least time that tuning jobs can take on shared machines.

    python benchmarks/job_scheduler.py [--quick] --simulate [--mixes 1000] [--seed 0]

Mock jobs with given stage times run on a simulated clock, so that nothing is compiled or timed and the machine doesn't
matter. Two questions:

- Jobs of 20 rounds with the stage means of Stiller's thesis (8.3 s of building, 39.5 s of measuring, 44.0 s of learning
  and selecting) on one host and one device: how much faster than one after the other? The host's 52.3 of 91.8 s a
  round allow 1.755x.
- Random mixes (`random_mix` in `chanas/scheduler/mock.py`): the makespan over the bound max(Σ host work / slots,
  Σ device work / devices, longest job alone); and over a tighter one, which knows that a device has nothing to do
  before the first build, and the host nothing after the last measurement but to learn. Policies know the means of a
  job's stages, each of which takes 20 % more or less. A mix within 1.05 is proven within 5 % of the best possible;
  of one above nothing is known, as the best possible may be above the bound, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from common import Figure, finish

from chanas.scheduler.bounds import head_tail_bound_s, load_bound_s
from chanas.scheduler.jobs import BUILD, DEVICE, HOST, LEARN, MEASURE, SELECT
from chanas.scheduler.mock import Mix, MockJob, random_mix, strict_rounds
from chanas.scheduler.policies import POLICIES, policy
from chanas.scheduler.resources import Resource
from chanas.scheduler.simulation import simulate
from chanas.scheduler.trace import Trace

KEEPS_BUSY, BEST_OF_MIXES = "slack", "lookahead"
THESIS_S = {SELECT: 22.0, BUILD: 8.3, MEASURE: 39.5, LEARN: 22.0}
NUM_ROUNDS = 20
LIMIT = sum(THESIS_S.values()) / (sum(THESIS_S.values()) - THESIS_S[MEASURE])
GOAL_SPEEDUP, GOAL_RATIO = 1.7, 1.05
BEST = "best of all"


def run_jobs(jobs: Sequence[MockJob], num_units: Mapping[str, int], name: str) -> Trace:
    """Jobs from beginning to end under a policy."""
    return simulate(jobs, [Resource(resource, num) for resource, num in num_units.items()], policy(name))


def thesis_rows(numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Speed-ups over one job after the other, and busy shares, by number of jobs and policy."""
    rows = []
    for num_jobs in numbers:
        sequential_s = num_jobs * NUM_ROUNDS * sum(THESIS_S.values())
        for name in POLICIES:
            jobs = [strict_rounds(NUM_ROUNDS, THESIS_S) for _ in range(num_jobs)]
            trace = run_jobs(jobs, {HOST: 1, DEVICE: 1}, name)
            speedup = sequential_s / trace.makespan_s
            rows.append({"jobs": num_jobs, "policy": name, "speedup": speedup, "busy": trace.utilisation()})
    return rows


def mix_row(seed: int, mix: Mix) -> dict[str, Any]:
    """Makespans of a mix over both bounds, mean seconds until a job's end, and scheduling time a stage, by policy."""
    tasks = [task for job in mix.jobs() for task in job.tasks(mix.num_units)]
    bounds_s = load_bound_s(tasks, mix.num_units), head_tail_bound_s(tasks, mix.num_units)
    makespans_s, waits_s, micros = {}, {}, {}
    for name in POLICIES:
        jobs = mix.jobs()
        start = time.process_time()
        trace = run_jobs(jobs, mix.num_units, name)
        micros[name] = 1e6 * (time.process_time() - start) / len(tasks)
        makespans_s[name] = trace.makespan_s
        waits_s[name] = statistics.mean(trace.completion_s().values())
    makespans_s[BEST] = min(makespans_s.values())
    return {
        "seed": seed,
        "stages": len(tasks),
        "load": {name: s / bounds_s[0] for name, s in makespans_s.items()},
        "tight": {name: s / bounds_s[1] for name, s in makespans_s.items()},
        "completion": {name: s / waits_s["interleaved"] for name, s in waits_s.items()},
        "micros": micros,
    }


def share_within(rows: Sequence[Mapping[str, Any]], bound: str, name: str) -> float:
    """The share of mixes in which a policy's makespan is at most 1.05 times the bound."""
    return statistics.mean(row[bound][name] <= GOAL_RATIO for row in rows)


def figures_of(thesis: Sequence[Mapping[str, Any]], mixes: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """What the script stands for."""
    speedups = [row["speedup"] for row in thesis if row["policy"] == KEEPS_BUSY]
    ratios = [row["load"][BEST_OF_MIXES] for row in mixes]
    return {
        "thesis_speedup_least": Figure(min(speedups), GOAL_SPEEDUP),
        "thesis_speedup_most": Figure(max(speedups), LIMIT * (1 + 1e-9), lower_is_better=True),
        "makespan_over_bound_mean": Figure(statistics.mean(ratios), GOAL_RATIO, lower_is_better=True),
        "makespan_over_bound_worst": Figure(max(ratios), GOAL_RATIO, lower_is_better=True),
        "share_of_mixes_within_1.05": Figure(share_within(mixes, "load", BEST_OF_MIXES), 1.0),
        "share_of_mixes_within_1.05_of_tight_bound": Figure(share_within(mixes, "tight", BEST_OF_MIXES)),
        "scheduler_us_per_stage": Figure(statistics.median(row["micros"][BEST_OF_MIXES] for row in mixes)),
    }


def show_mixes(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of mixes."""
    heads = ("policy", "over bound", "worst", "<= 1.05", "tight bound", "worst", "<= 1.05", "mean completion")
    print(f"\n{len(rows)} random mixes; completion is over that of interleaved\n")
    print(f"{heads[0]:<14}" + "".join(f"{head:>13}" for head in heads[1:-1]) + f"{heads[-1]:>18}")
    for name in (*POLICIES, BEST):
        cells = []
        for bound in ("load", "tight"):
            ratios = [row[bound][name] for row in rows]
            cells += [f"{statistics.mean(ratios):.3f}", f"{max(ratios):.3f}", f"{share_within(rows, bound, name):.1%}"]
        completion = statistics.mean(row["completion"][name] for row in rows) if name in POLICIES else None
        print(f"{name:<14}" + "".join(f"{c:>13}" for c in cells) + (f"{completion:>18.2f}" if completion else ""))


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is kept of the mixes: ratios of each by policy are too many, the worst of ours are not."""
    kept: dict[str, Any] = {}
    for name in (*POLICIES, BEST):
        kept[name] = {
            bound: {
                "mean": statistics.mean(row[bound][name] for row in rows),
                "worst": max(row[bound][name] for row in rows),
                "share_within": share_within(rows, bound, name),
            }
            for bound in ("load", "tight")
        }
    worst = sorted(rows, key=lambda row: -row["load"][BEST_OF_MIXES])[:10]
    return {"policies": kept, "worst_mixes": [{"seed": r["seed"], **r["load"]} for r in worst]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 mixes; nothing is written")
    parser.add_argument("--simulate", action="store_true", help="mock jobs on a simulated clock; no others yet")
    parser.add_argument("--mixes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first mix; the others follow")
    options = parser.parse_args(arguments)
    if not options.simulate:
        parser.error("only simulated jobs are there so far: add --simulate")
    num_mixes = 20 if options.quick else options.mixes

    thesis = thesis_rows([2, 8] if options.quick else [2, 3, 4, 8, 16])
    means = ", ".join(f"{kind} {seconds} s" for kind, seconds in THESIS_S.items())
    print(f"{NUM_ROUNDS} rounds of {means}; one host, one device\n")
    print(f"{'jobs':>4} {'policy':<14}{'speed-up':>10}{'host busy':>11}{'device busy':>13}")
    for row in thesis:
        busy = row["busy"]
        print(f"{row['jobs']:>4} {row['policy']:<14}{row['speedup']:>10.3f}{busy[HOST]:>11.1%}{busy[DEVICE]:>13.1%}")
    mixes = [mix_row(seed, random_mix(seed)) for seed in range(options.seed, options.seed + num_mixes)]
    show_mixes(mixes)
    print()
    extra = {"seed": options.seed, "mixes": num_mixes, "thesis": thesis, **summary(mixes)}
    finish("job_scheduler", figures_of(thesis, mixes), options.quick, extra)


if __name__ == "__main__":
    main()
