"""What the division of the search space costs: each rule's regret against searching all sub-spaces at once.

    python benchmarks/subspace_rules.py [--quick] [--lut FILE] [--num 8] [--seeds 5]

For budgets spread over the feasible range of a latency table (by default the shipped one of `mbv3`, 20 sub-spaces), and
for several accuracy landscapes, the rules `paper` and `accuracy` each choose one sub-space from random members
(`chanas/search/subspace.py`); then the same evolution searches that sub-space, and all of them. Regret is the
difference of the best predicted top-1, in points, by the same predictor. Accuracies are SYNTHETIC, learnt by the
default predictor from 300 architectures: those of `evolution_speed.py`, and 2.5 points (an assumption) for each
doubling of multiply-accumulates, so that it matters which sub-space is searched.

Figures: the mean regret of the rule `accuracy` (goal: at most 0.1 points) and the worst; for information those of
`paper`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from budgets import SHIPPED, budgets_between
from common import Figure, finish
from evolution_speed import synthetic_accuracy

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import BlockTable, Genomes, encode, sample
from chanas.core.latency import LatencyLUT
from chanas.search.accuracy.predictor import AccuracyPredictor
from chanas.search.config import SearchConfig
from chanas.search.evolution.constraints import latency_constraint, least
from chanas.search.evolution.evolution import EvolutionConfig, evolve
from chanas.search.evolution.population import unique
from chanas.search.subspace import RuleRegret, divide, rule_regrets

GOAL_POINTS = 0.1
TOP1_PER_DOUBLING = 0.025
NUM_KNOWN = 300


def growing_accuracy(space: SearchSpace, num_classes: int, rng: np.random.Generator) -> Callable[[Genomes], FloatArray]:
    """Top-1 that grows with the multiply-accumulates, besides what single choices do to it."""
    details, macs = synthetic_accuracy(space, rng), BlockTable(space, num_classes, lambda b: b.num_macs)
    middle = float(np.median(macs.of(sample(space, 500, rng))))

    def top1(genomes: Genomes) -> FloatArray:
        out: FloatArray = details(genomes) + TOP1_PER_DOUBLING * np.log2(macs.of(genomes) / middle)
        return out

    return top1


def regrets_at(
    lut: LatencyLUT,
    space: SearchSpace,
    num_classes: int,
    predictor: AccuracyPredictor,
    budget_s: float,
    seed: int,
    config: EvolutionConfig,
) -> tuple[RuleRegret, ...]:
    """What each rule costs at one budget."""
    limit = latency_constraint(lut, space, num_classes, budget_s)
    settings = SearchConfig()
    division = divide(
        space, predictor.mean, limit, [limit], np.random.default_rng(seed), num_samples=settings.num_samples
    )
    return rule_regrets(
        division.choices,
        lambda home: float(
            evolve(space, predictor.mean, [limit], config, np.random.default_rng(seed), home).fitness[0]
        ),
    )


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Mean and worst regret of both rules."""
    figures = {}
    for rule in ("accuracy", "paper"):
        points = [row[rule]["regret_points"] for row in rows]
        goal = GOAL_POINTS if rule == "accuracy" else None
        figures[f"{rule}_mean_regret_points"] = Figure(statistics.mean(points), goal, lower_is_better=True)
        figures[f"{rule}_worst_regret_points"] = Figure(max(points), None, lower_is_better=True)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two budgets, one landscape; nothing is written")
    parser.add_argument("--lut", type=Path, default=SHIPPED, help="a latency table of a preset space")
    parser.add_argument("--num", type=int, default=8, help="budgets")
    parser.add_argument("--seeds", type=int, default=5, help="accuracy landscapes")
    options = parser.parse_args(arguments)
    num, num_seeds = (2, 1) if options.quick else (options.num, options.seeds)

    lut = LatencyLUT.load(options.lut)
    space = SearchSpace.load(lut.header.space)
    num_classes = 1000 if space.name == "mbv3" else 10
    table = lut.table(space, num_classes)
    budgets_s = budgets_between(least(table)[0], float(table.of(encode(space, [space.largest]))[0]), num)
    rows: list[dict[str, Any]] = []
    print(f"{'budget ms':>10s} {'seed':>5s}  {'accuracy':>28s}  {'paper':>28s}  regret in points")
    for seed in range(num_seeds):
        rng = np.random.default_rng(seed)
        genomes = unique(sample(space, NUM_KNOWN, rng))
        top1 = growing_accuracy(space, num_classes, rng)(genomes)
        predictor = AccuracyPredictor(space, seed=seed).fit(genomes, top1)
        for budget_s in budgets_s:
            found = regrets_at(lut, space, num_classes, predictor, budget_s, seed, EvolutionConfig())
            by_rule = {r.rule: r.to_json() for r in found}
            rows.append({"budget_ms": 1e3 * budget_s, "seed": seed, **by_rule})
            texts = [f"{by_rule[r]['sub_space']} {by_rule[r]['regret_points']:7.3f}" for r in ("accuracy", "paper")]
            print(f"{1e3 * budget_s:10.2f} {seed:5d}  {texts[0]:>28s}  {texts[1]:>28s}", flush=True)
    figures = figures_of(rows)
    worst = figures["accuracy_worst_regret_points"].value
    print(
        f"\nrule accuracy: {figures['accuracy_mean_regret_points'].value:.3f} points on average, {worst:.3f} at worst"
    )
    finish("subspace_rules", figures, options.quick, {"table": str(options.lut.name), "rows": rows})


if __name__ == "__main__":
    main()
