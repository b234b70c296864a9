"""Whether the search keeps its budgets, and how near to the best it comes.

    python benchmarks/budgets.py [--quick] [--run DIR] [--num 20] [--trials 6] [--seed 0]

1. Budgets spread evenly (in logarithms) over the range that the table says can be reached; for each a whole search with
   accuracies from a table, finalists compiled with random weights and measured. Figure: the share of budgets whose
   winner measured inside (goal: 1). For information the winner's latency as a share of the budget, the finalists that
   it took, and how many winners are inside when they are timed once more.
2. `mbv3-32` with one expand ratio and at most two blocks a stage, 31,104 architectures (the restriction nearest to
   50,000 in which depths still differ), all of them predicted and added up: how far the best that the evolution finds
   inside each of those budgets is from the best there is (goal: 1 %).
3. Evolution and random search at equal numbers of evaluations (only architectures inside the budget are counted), 10
   seeds and three budgets: the share of pairs in which evolution is ahead (goal: 1).
4. Seconds of a whole search in `mbv3` (20 sub-spaces, its shipped table) whose accuracies are known, until the first
   finalists go to the compiler (goal: 5).

The latency table of 1 to 3 is that of --run DIR (of space `mbv3-32`, made on this machine), or one that is made first,
with --trials schedule points per operator. Accuracies are SYNTHETIC in all parts (`evolution_speed.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import Figure, finish
from evolution_speed import synthetic_accuracy

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.effort import TableEffort
from chanas.core.genome import Genomes, decode, encode, sample
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.devices.host import load_target
from chanas.errors import ChanasError
from chanas.files.run import RunDirectory
from chanas.search.accuracy.predictor import AccuracyPredictor
from chanas.search.accuracy.table import AccuracyTable
from chanas.search.config import SearchConfig
from chanas.search.cosearch import new_job, search
from chanas.search.evolution.constraints import latency_constraint, least
from chanas.search.evolution.evolution import EvolutionConfig, evolve
from chanas.search.evolution.population import unique
from chanas.search.learning import Source
from chanas.search.proof import Proof
from chanas.search.target import SearchTarget

SPACE, NUM_CLASSES = "mbv3-32", 10
SHIPPED = Path(__file__).resolve().parent.parent / "luts" / "mbv3-amd-zen4-cpu.json"
NUM_KNOWN = 600
GAP_GOAL_PERCENT, SECONDS_GOAL = 1.0, 5.0


# ---- spaces, tables and accuracies ----------------------------------------------------------------------------------
def small_space(space: SearchSpace) -> SearchSpace:
    """`space` with its largest expand ratio alone and at most two blocks a stage: every block is one of `space`."""
    depths = tuple(d for d in space.depths if d <= 2)
    return dataclasses.replace(space, name=f"{space.name}-small", expand_ratios=space.expand_ratios[-1:], depths=depths)


def table_for(lut: LatencyLUT, space: SearchSpace) -> LatencyLUT:
    """The same rows as a table of another space, all of whose blocks are in it."""
    header = dataclasses.replace(lut.header, space=space.name, space_digest=space.digest)
    return LatencyLUT(header, lut.rows, lut.calibration)


def all_genomes(space: SearchSpace) -> Genomes:
    """int16[N, L]: every architecture of a small space."""
    pairs = list(itertools.product(range(len(space.kernel_sizes)), range(len(space.expand_ratios))))
    rows = []  # one way to fill a stage each: depth index, kernel and expand indices of its slots
    for i, depth in enumerate(space.depths):
        for blocks in itertools.product(pairs, repeat=depth):
            padded = [*blocks, *[(-1, -1)] * (space.max_depth - depth)]
            rows.append((i, *(k for k, _ in padded), *(e for _, e in padded)))
    stage = np.array(rows, dtype=np.int16)
    sizes = (len(space.resolutions), len(space.width_multipliers), *[len(stage)] * space.num_stages)
    r, w, *chosen = (part.ravel() for part in np.indices(sizes))
    depth, slots = space.max_depth, [stage[c] for c in chosen]
    columns = [r[:, None], w[:, None], *(s[:, :1] for s in slots)]
    columns += [s[:, 1 : 1 + depth] for s in slots] + [s[:, 1 + depth :] for s in slots]
    return np.concatenate(columns, axis=1).astype(np.int16)


def known_accuracies(space: SearchSpace, num: int, seed: int) -> AccuracyTable:
    """`num` random architectures with synthetic accuracies, as if they had been measured elsewhere."""
    rng = np.random.default_rng(seed)
    accuracy = synthetic_accuracy(space, rng)
    genomes = unique(sample(space, num, rng))
    return AccuracyTable(tuple(decode(space, genomes)), genomes, accuracy(genomes), len(genomes), (), f"seed {seed}")


def fitted(space: SearchSpace, known: AccuracyTable, seed: int) -> AccuracyPredictor:
    """A predictor that has learnt a table."""
    return AccuracyPredictor(space, seed=seed).fit(known.genomes, known.top1)


def budgets_between(low_s: float, high_s: float, num: int) -> list[float]:
    """`num` budgets at equal ratios, from 5 % above the least that can be reached to the most that is needed."""
    return [float(b) for b in np.geomspace(1.05 * low_s, max(high_s, 1.1 * low_s), num)]


def reachable_range(lut: LatencyLUT, space: SearchSpace) -> tuple[float, float]:
    """Seconds of the fastest and of the largest architecture, by the table."""
    table = lut.table(space, NUM_CLASSES)
    return least(table)[0], float(table.of(encode(space, [space.largest]))[0])


def made_table(folder: Path, trials: int, progress: bool) -> LatencyLUT:
    """A latency table of `mbv3-32` on this machine."""
    from chanas.workflows.stages.tuning import preschedule

    run = RunDirectory(folder)
    effort = TableEffort(trials=trials)
    return preschedule(run, space=SPACE, num_classes=NUM_CLASSES, effort=effort, progress=progress).lut


# ---- 1: winners measured --------------------------------------------------------------------------------------------
def winner_rows(
    lut: LatencyLUT, space: SearchSpace, target: HardwareTarget, budgets_s: Sequence[float], seed: int, root: Path
) -> list[dict[str, Any]]:
    """A whole search for each budget, and its winner compiled and timed once more."""
    from chanas.workflows.searching.sources import TableSource

    known = known_accuracies(space, NUM_KNOWN, seed)
    config = SearchConfig(cross_validate=False, pareto_generations=0)
    rows = []
    for number, budget_s in enumerate(budgets_s):
        scratch = root / f"budget{number}"
        scratch.mkdir(parents=True)
        asked = SearchTarget(target, budget_s, lut)
        source = TableSource(RunDirectory(scratch / "run"), Task(space, NUM_CLASSES), known)
        prover = source.prover([asked], scratch, progress=False)
        row: dict[str, Any] = {"budget_us": 1e6 * budget_s}
        try:
            job = new_job(source.task, [asked], config=config, seed=seed)
            outcome = search(job, source.accuracies(), prover, progress=False)
        except ChanasError as error:
            rows.append({**row, "inside": False, "error": str(error)})
            continue
        (again,) = prover([outcome.architecture])
        rows.append(
            {
                **row,
                "inside": outcome.winner.measured_s[0] <= budget_s,
                "winner": outcome.architecture.key,
                "measured_us": 1e6 * outcome.winner.measured_s[0],
                "predicted_us": 1e6 * outcome.winner.predicted_s[0],
                "again_us": 1e6 * again.measured_s[0],
                "top1": outcome.winner.proposal.predicted_top1,
                "finalists": len(outcome.finalists),
            }
        )
        print(_line(rows[-1]), flush=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['budget_us']:10.1f} us  {row['error']}"
    return (
        f"{row['budget_us']:10.1f} us {row['measured_us']:10.1f} {row['again_us']:10.1f} {row['predicted_us']:10.1f} "
        f"{row['finalists']:4d}  {row['winner']}"
    )


# ---- 2: against all that there is -----------------------------------------------------------------------------------
def gap_percent(
    lut: LatencyLUT, space: SearchSpace, budgets_s: Sequence[float], seed: int, config: EvolutionConfig
) -> list[float]:
    """For each budget, by how many percent the evolution's best predicted top-1 is below that of all architectures."""
    predictor = fitted(space, known_accuracies(space, NUM_KNOWN, seed), seed)
    every = all_genomes(space)
    top1 = np.concatenate([predictor.mean(part) for part in np.array_split(every, max(1, len(every) // 4096))])
    latency_s = lut.latency_s(space, NUM_CLASSES, every)
    gaps = []
    for budget_s in budgets_s:
        limit = latency_constraint(lut, space, NUM_CLASSES, budget_s)
        found = evolve(space, predictor.mean, [limit], config, np.random.default_rng(seed))
        best = float(top1[latency_s <= budget_s].max())
        gaps.append(100.0 * (best - float(found.fitness[0])) / best)
    return gaps


# ---- 3: against random search ---------------------------------------------------------------------------------------
def random_best(
    lut: LatencyLUT,
    space: SearchSpace,
    fitness: Callable[[Genomes], FloatArray],
    budget_s: float,
    num: int,
    seed: int,
) -> float:
    """The best of `num` distinct random architectures inside the budget (fewer where hardly any are)."""
    rng, table = np.random.default_rng(seed), lut.table(space, NUM_CLASSES)
    found = np.empty((0, sample(space, 1, rng).shape[1]), dtype=np.int16)
    for _ in range(200):
        drawn = sample(space, 4 * num, rng)
        found = unique(np.concatenate([found, drawn[table.of(drawn) <= budget_s]]))[:num]
        if len(found) == num:
            break
    return float(fitness(found).max()) if len(found) else -np.inf


def evolution_ahead(
    lut: LatencyLUT, space: SearchSpace, budgets_s: Sequence[float], num_seeds: int, config: EvolutionConfig
) -> list[dict[str, float]]:
    """The best predicted top-1 of both for each budget and seed, after as many evaluations."""
    predictor = fitted(space, known_accuracies(space, NUM_KNOWN, 0), 0)
    rows = []
    for budget_s, seed in itertools.product(budgets_s, range(num_seeds)):
        limit = latency_constraint(lut, space, NUM_CLASSES, budget_s)
        evolved = evolve(space, predictor.mean, [limit], config, np.random.default_rng(seed))
        drawn = random_best(lut, space, predictor.mean, budget_s, evolved.num_evaluations, seed)
        row = {"budget_us": 1e6 * budget_s, "seed": seed, "evaluations": evolved.num_evaluations}
        rows.append({**row, "evolution": float(evolved.fitness[0]), "random": drawn})
    return rows


# ---- 4: seconds -----------------------------------------------------------------------------------------------------
class _ReachedError(Exception):
    """The finalists are chosen."""


def seconds_to_finalists(lut: LatencyLUT, space: SearchSpace, num_classes: int, seed: int, root: Path) -> float:
    """Seconds of a search whose accuracies are known, until it hands its first finalists over."""
    known = known_accuracies(space, NUM_KNOWN, seed)
    budget_s = float(np.median(lut.latency_s(space, num_classes, known.genomes)))

    def stop(_: Sequence[Architecture]) -> Sequence[Proof]:
        raise _ReachedError

    start = time.perf_counter()
    try:
        job = new_job(Task(space, num_classes), [SearchTarget(lut.header.target, budget_s, lut)], seed=seed)
        search(job, Source(RunDirectory(root), "synthetic", table=known), stop, progress=False)
    except _ReachedError:
        return time.perf_counter() - start
    raise RuntimeError("the search ended without finalists")


# ---- all of it ------------------------------------------------------------------------------------------------------
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few budgets and seeds; nothing is written")
    parser.add_argument("--run", type=Path, help="a run directory with a latency table of mbv3-32 of this machine")
    parser.add_argument("--num", type=int, default=20, help="budgets")
    parser.add_argument("--trials", type=int, default=6, help="without --run: schedule points per operator")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    num, num_seeds, repeats = (2, 2, 1) if options.quick else (options.num, 10, 5)
    space, target = SearchSpace.load(SPACE), load_target("cpu")
    # fewer evaluations than the space has architectures, or random search would see them all too
    short = EvolutionConfig(population=50, generations=20)

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if options.run is None:
            lut = made_table(root / "made", 2 if options.quick else options.trials, progress=True)
        else:
            lut = LatencyLUT.load(RunDirectory(options.run).lut(target.name))
        lut.check(space, target)
        budgets_s = budgets_between(*reachable_range(lut, space), num)
        print(f"{'budget':>13s} {'measured':>10s} {'again':>10s} {'predicted':>10s} {'':>4s}  winner (us)")
        rows = winner_rows(lut, space, target, budgets_s, options.seed, root)
        print(f"{sum(r['inside'] for r in rows)} of {len(rows)} winners measured inside\n")

        small = small_space(space)
        small_lut = table_for(lut, small)
        gaps = gap_percent(
            small_lut,
            small,
            budgets_between(*reachable_range(small_lut, small), num),
            options.seed,
            EvolutionConfig(),
        )
        print(f"all {small.num_architectures} architectures: the evolution's best is at most {max(gaps):.3f} % below\n")

        three = budgets_between(*reachable_range(lut, space), 5)[1:4]
        pairs = evolution_ahead(lut, space, three, num_seeds, short)
        for budget_us, group in itertools.groupby(pairs, key=lambda r: r["budget_us"]):
            lead = [100 * (r["evolution"] - r["random"]) for r in group]
            print(
                f"{budget_us:10.1f} us: evolution ahead of random search by {min(lead):+.3f} to {max(lead):+.3f} points"
            )

        mbv3, shipped = SearchSpace.load("mbv3"), LatencyLUT.load(SHIPPED)
        seconds = [seconds_to_finalists(shipped, mbv3, 1000, s, root / f"seconds{s}") for s in range(repeats)]
        print(f"\n{statistics.median(seconds):.2f} s (median of {repeats}) until the finalists of mbv3 are chosen")

    measured = [r for r in rows if "measured_us" in r]
    again = sum(r["again_us"] <= r["budget_us"] for r in measured) / len(rows)
    figures = {
        "winners_inside_share": Figure(sum(r["inside"] for r in rows) / len(rows), 1.0),
        "winners_inside_again_share": Figure(again, 1.0),
        "winners_share_of_budget": Figure(
            statistics.median(r["measured_us"] / r["budget_us"] for r in measured) if measured else None
        ),
        "gap_to_exhaustive_percent": Figure(max(gaps), GAP_GOAL_PERCENT, lower_is_better=True),
        "evolution_ahead_share": Figure(sum(r["evolution"] > r["random"] for r in pairs) / len(pairs), 1.0),
        "seconds_to_finalists": Figure(statistics.median(seconds), SECONDS_GOAL, lower_is_better=True),
    }
    extra = {"seed": options.seed, "accuracies": "synthetic", "table": lut.header.to_json(), "winners": rows}
    finish("budgets", figures, options.quick, {**extra, "gaps_percent": gaps, "pairs": pairs, "seconds": seconds})


if __name__ == "__main__":
    main()
