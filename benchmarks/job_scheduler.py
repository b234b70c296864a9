"""How close the scheduler's policies come to the least time that tuning jobs can take on shared machines.

    python benchmarks/job_scheduler.py [--quick] --simulate [--mixes 1000] [--seed 0]
    python benchmarks/job_scheduler.py [--quick] [--policy slack] [--devices 1] [--repeats 3] [--seed 0] [--keep FOLDER]

Without --simulate two tables and two networks are tuned on this machine, one after the other, then side by side
(`chanas jobs run`), each time from nothing. How long do they take together, over the bound max(Σ host work / slots,
Σ device work / devices, longest job alone) of their measured stages? And does what they find differ: the seconds of a
network, of all blocks of a table? Another process that computes meanwhile spoils both. Seconds that were measured
minutes apart differ by what the machine does; so what was found alone and side by side is also timed in turns, in one
process: networks as they were saved, of tables the slowest blocks, compiled anew at both schedules. (--again does that
alone, for what an earlier run kept.) With --devices 2 the first two cores are a device each, alone and side by side; on
two cores each of them times, compiles or learns, one thing at a time.

With it mock jobs with given stage times run on a simulated clock, so that nothing is compiled or timed and the machine
doesn't matter. Two questions:

- Jobs of 20 rounds with the stage means of Stiller's thesis (8.3 s of building, 39.5 s of measuring, 44.0 s of learning
  and selecting) on one host and one device: how much faster than one after the other? The host's 52.3 of 91.8 s a
  round allow 1.755x.
- Random mixes (`random_mix` in `chanas/scheduler/mock.py`): the makespan over the bound max(Σ host work / slots,
  Σ device work / devices, longest job alone); and over a tighter one, which knows that a device has nothing to do
  before the first build, and the host nothing after the last measurement but to learn, and how long two jobs of strict
  rounds take at least that are in each other's way. Policies know the means of a
  job's stages, each of which takes 20 % more or less. A mix within 1.05 is proven within 5 % of the best possible.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Figure, finish, machine_kind, read_result, write_result

from chanas.core.usage import HERE
from chanas.devices.timing import TimingSettings
from chanas.scheduler.bounds import head_tail_bound_s, load_bound_s, pairs_bound_s
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
GOAL_REAL_RATIO, GOAL_DIFFERENCE = 1.15, 0.01
NUM_BLOCKS, TIMEOUT_S, IN_TURNS = 16, 120.0, TimingSettings(repeats=31, min_repeat_s=0.005)
_TABLE = {"space": "mbv3-32", "num_classes": 10, "calibrate": 0}
REAL_JOBS: dict[str, dict[str, Any]] = {
    "table-24": _TABLE | {"sub_spaces": ["r24-w1"], "trials": 8},
    "table-32": _TABLE | {"sub_spaces": ["r32-w1"], "trials": 8},
    "squeezenet": {"model": "torchvision:squeezenet1_1", "trials": 16},
    "mobilenet": {"model": "torchvision:mobilenet_v2", "trials": 16},
}


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
    lines = [line for job in mix.jobs() if (line := job.line()) is not None]
    tight_s = max(head_tail_bound_s(tasks, mix.num_units), pairs_bound_s(lines, mix.num_units))
    bounds_s = load_bound_s(tasks, mix.num_units), tight_s
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
        "least": bounds_s[1] / bounds_s[0],
        "load": {name: s / bounds_s[0] for name, s in makespans_s.items()},
        "tight": {name: s / bounds_s[1] for name, s in makespans_s.items()},
        "completion": {name: s / waits_s["interleaved"] for name, s in waits_s.items()},
        "micros": micros,
    }


def share_within(rows: Sequence[Mapping[str, Any]], bound: str, name: str) -> float:
    """The share of mixes in which a policy's makespan is at most 1.05 times the bound."""
    return statistics.fmean(row[bound][name] <= GOAL_RATIO for row in rows)


def tune_jobs(names: Sequence[str], folder: Path, policy_name: str, options: argparse.Namespace) -> tuple[Trace, Any]:
    """Some of the jobs from nothing, side by side: what ran, and the seconds that each found.

    Raises:
        SystemExit: one failed.
    """
    from chanas.workflows.jobs.plan import parse_jobs
    from chanas.workflows.jobs.run import run_jobs

    jobs = [job_of(n, options) | {"name": n, "run": str(folder / n), "seed": options.seed} for n in names]
    settings: dict[str, Any] = {"jobs": jobs, "policy": policy_name}
    if options.devices > 1:
        settings["devices"] = [{"cores": [core]} for core in sorted(os.sched_getaffinity(0))[: options.devices]]
    result = run_jobs(parse_jobs(settings, "jobs"), folder / "out")
    for job in result.results:
        if job.status != "complete":
            raise SystemExit(f"job {job.name} {job.status}: {job.error}")
    return result.trace, {job.name: found_s(job.facts) for job in result.results}


def job_of(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A real job; on several devices, which are cores that do host work, too, networks get fewer trials."""
    trials = 2 if options.quick else min(REAL_JOBS[name]["trials"], 16 if options.devices == 1 else 12)
    return REAL_JOBS[name] | {"trials": trials}


def found_s(facts: Mapping[str, Any]) -> float:
    """Seconds of the network, or of all blocks of the table, that a job ended with."""
    from chanas.core.latency import LatencyLUT

    if "latency_s" in facts:
        return float(facts["latency_s"])
    return math.fsum(row.median_s for row in LatencyLUT.load(Path(facts["path"])).rows.values())


def real_row(names: Sequence[str], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A repeat: each job alone, then all side by side."""
    alone = {name: tune_jobs([name], folder / "alone" / name, options.policy, options) for name in names}
    trace, found = tune_jobs(names, folder / "together", options.policy, options)
    longest_s = max(each.makespan_s for each, _ in alone.values())
    bound_s = max(trace.least_s, longest_s)
    return {
        "sequential_s": math.fsum(each.makespan_s for each, _ in alone.values()),
        "makespan_s": trace.makespan_s,
        "work_bound_s": trace.least_s,
        "longest_alone_s": longest_s,
        "ratio": trace.makespan_s / bound_s,
        "busy": trace.utilisation(),
        "critical": trace.critical_resource,
        "found_s": found,
        "difference": {name: found[name] / alone[name][1][name] - 1.0 for name in names},
        "difference_in_turns": differences_in_turns(names, folder),
    }


def differences_in_turns(names: Sequence[str], folder: Path) -> dict[str, float]:
    """How much slower is what was found side by side than what was found alone: each network as a whole, of each table
    the blocks that take longest."""
    from chanas.bundle.tuned import TunedNetwork
    from chanas.devices.timing import time_in_turns

    found = {}
    for name in names:
        if "model" not in REAL_JOBS[name]:
            tables = [folder / "alone" / name / name, folder / "together" / name]
            found[name] = table_difference(name, *(next(run.glob("luts/*.json")) for run in tables))
            continue
        together = next((folder / "together" / name).glob("*/tuned.json")).parent
        alone = folder / "alone" / name / name / together.name
        calls = [[(TunedNetwork.open(place).program(), ())] for place in (alone, together)]
        before, after = time_in_turns(calls, 10, TimingSettings(repeats=101, min_repeat_s=0.02))
        found[name] = after.seconds / before.seconds - 1.0
    return found


def table_difference(name: str, alone: Path, together: Path) -> float:
    """How much slower the slowest blocks of a table are at the schedules found side by side than at those found alone,
    in sum. Both are compiled anew and timed in turns; blocks with the same schedules are not: they are as fast."""
    from chanas.compiler.backends import case_of
    from chanas.core.arch import SearchSpace
    from chanas.core.latency import LatencyLUT
    from chanas.devices.host import load_used
    from chanas.files.scratch import scratch_folder
    from chanas.measuring.fleet import WorkerPool
    from chanas.measuring.messages import BlockAt, Build, Measure

    tables = [LatencyLUT.load(path) for path in (alone, together)]
    blocks = SearchSpace.load(REAL_JOBS[name]["space"]).all_blocks(REAL_JOBS[name]["num_classes"])
    both = [block for block in blocks if all(block.key in table.rows for table in tables)]
    slowest = sorted(both, key=lambda block: -tables[0].rows[block.key].median_s)[:NUM_BLOCKS]
    target, sums_s = load_used(HERE), [0.0, 0.0]
    with WorkerPool(target) as pool, scratch_folder() as scratch:
        for block in slowest:
            schedules = [table.rows[block.key].schedules for table in tables]
            seconds = [tables[0].rows[block.key].median_s] * 2
            if schedules[0] != schedules[1]:
                library, case = scratch / block.key, scratch / f"{block.key}.npz"
                library.mkdir()
                case_of(block, target).save(case)
                for i, own in enumerate(schedules):
                    points = [point for _, point in own]
                    build = Build(target=target, what=BlockAt(block, points), path=library / f"{i}.so")
                    pool.build(build, TIMEOUT_S).result()
                timed = pool.measure(Measure(library=library, case=case, num=2, settings=IN_TURNS), TIMEOUT_S)
                seconds = [member.timing.seconds for member in timed.result().members]
            sums_s = [total + own for total, own in zip(sums_s, seconds, strict=True)]
    return sums_s[1] / sums_s[0] - 1.0


def result_name(options: argparse.Namespace) -> str:
    """What the result of real jobs is called."""
    return "tuning_jobs" if options.devices == 1 else f"tuning_jobs-{options.devices}-devices"


def time_again(options: argparse.Namespace) -> None:
    """Time what an earlier run kept, and write it into its result."""
    content = read_result(result_name(options), machine_kind())
    for repeat, row in enumerate(content["repeats"]):
        row["difference_in_turns"] = differences_in_turns(list(content["jobs"]), options.keep / f"repeat-{repeat}")
        print(", ".join(f"{name} {value:+.1%}" for name, value in row["difference_in_turns"].items()), flush=True)
    extra: dict[str, Any] = {n: content[n] for n in ("seed", "policy", "devices", "jobs", "repeats") if n in content}
    finish(result_name(options), real_figures(content["repeats"]), options.quick, extra)


def real_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """What tuning for real stands for: medians over the repeats."""
    figures = {
        "real_makespan_over_bound": Figure(statistics.median(r["ratio"] for r in rows), GOAL_REAL_RATIO, True),
        "real_speedup_over_sequential": Figure(statistics.median(r["sequential_s"] / r["makespan_s"] for r in rows)),
    }
    for name in rows[0]["difference_in_turns"]:  # what is slower side by side; faster is the search's own luck
        slower = statistics.median(row["difference_in_turns"][name] for row in rows)
        figures[f"real_{name}_slower_in_turns"] = Figure(slower, GOAL_DIFFERENCE, True)
    for name in rows[0]["busy"]:
        figures[f"real_{name}_busy"] = Figure(statistics.median(row["busy"][name] for row in rows))
    return figures


def tune_for_real(options: argparse.Namespace) -> None:
    """Repeats of all jobs, their table, and the result file."""
    names = list(REAL_JOBS)[:3:2] if options.quick else list(REAL_JOBS)
    settings = {"seed": options.seed, "policy": options.policy, "devices": options.devices}
    extra = settings | {"jobs": {n: job_of(n, options) for n in names}}
    rows: list[dict[str, Any]] = []
    print(
        f"{'one by one':>11}{'together':>10}{'bound':>8}{'over it':>9}  busy, and each job: what it found over what it "
        "found alone, in turns"
    )
    for repeat in range(1 if options.quick else options.repeats):
        with kept_folder(options.keep, f"repeat-{repeat}") as folder:
            rows.append(row := real_row(names, folder, options))
        if not options.quick:  # what is measured stays if the rest is cut off
            write_result(result_name(options), real_figures(rows), extra | {"repeats": rows})
        bound_s = max(row["work_bound_s"], row["longest_alone_s"])
        told = [f"{name} {share:.0%}" for name, share in row["busy"].items()]
        told += [f"{name} {difference:+.1%}" for name, difference in row["difference_in_turns"].items()]
        seconds = f"{row['sequential_s']:>9.0f} s{row['makespan_s']:>8.0f} s{bound_s:>6.0f} s{row['ratio']:>9.3f}"
        print(f"{seconds}  {', '.join(told)}", flush=True)
    finish(result_name(options), real_figures(rows), options.quick, extra | {"repeats": rows})


@contextlib.contextmanager
def kept_folder(keep: Path | None, name: str) -> Iterator[Path]:
    """A new folder in the one that is to be kept, or one for a while."""
    with contextlib.ExitStack() as stack:
        root = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chanas-bench-")))
        folder = root / name
        if folder.exists():
            raise SystemExit(f"{folder} is there already: its jobs would go on from what they measured")
        folder.mkdir(parents=True)
        yield folder


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
        "share_of_mixes_proven_above_1.05": Figure(statistics.mean(row["least"] > GOAL_RATIO for row in mixes)),
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
    parser.add_argument("--quick", action="store_true", help="20 mixes, or two jobs of two trials; nothing is written")
    parser.add_argument("--simulate", action="store_true", help="mock jobs on a simulated clock")
    parser.add_argument("--policy", default=KEEPS_BUSY, help="of jobs that are not simulated")
    parser.add_argument("--repeats", type=int, default=3, help="of jobs that are not simulated")
    parser.add_argument("--devices", type=int, default=1, help="cores that are a device each, for real jobs")
    parser.add_argument("--keep", type=Path, help="folder for runs, logs and traces of jobs that are not simulated")
    parser.add_argument("--mixes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first mix; the others follow")
    parser.add_argument("--again", action="store_true", help="only time what an earlier run kept once more")
    options = parser.parse_args(arguments)
    if options.again:
        if options.keep is None:
            parser.error("--again needs --keep, the folder of the earlier run")
        time_again(options)
        return
    if not options.simulate:
        tune_for_real(options)
        return
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
