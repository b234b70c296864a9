"""How long 50,000 evaluations take (500 generations of 100) on one core, table look-up and predictor included.

The space is `mbv3`. Its latency table is SYNTHETIC: seconds in proportion to multiply-accumulates. The predictor is of
the default kind, or of another one (--kind), trained on synthetic accuracies with interactions. Neither the seconds nor
the accuracies change how long an evaluation takes; the kind does, and is printed and stored.

    python benchmarks/evolution_speed.py [--quick] [--kind pairs] [--seed 0]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from common import Figure, finish
from threadpoolctl import threadpool_limits

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import BlockTable, Genomes, sample
from chanas.search.accuracy.encoding import features
from chanas.search.accuracy.predictor import KINDS, AccuracyPredictor
from chanas.search.config import SearchConfig
from chanas.search.evolution.constraints import Constraint, macs_constraint, params_constraint
from chanas.search.evolution.evolution import EvolutionConfig, EvolutionResult, evolve

GOAL_S = 0.5
NUM_CLASSES = 1000
SECONDS_PER_MAC = 1e-11
NUM_TRAINING = 1000


def synthetic_accuracy(space: SearchSpace, rng: np.random.Generator) -> Callable[[Genomes], FloatArray]:
    """Top-1 that grows with every choice, and has products of choices that no sum over blocks can say."""
    reference = features(space, sample(space, 2000, rng)).astype(np.float64)
    weights = [np.abs(rng.normal(size=reference.shape[1])), *rng.normal(size=(2, reference.shape[1]))]
    scales = [((x := reference @ w).mean(), x.std()) for w in weights]

    def top1(genomes: Genomes) -> FloatArray:
        x = features(space, genomes).astype(np.float64)
        main, left, right = ((x @ w - mean) / std for w, (mean, std) in zip(weights, scales, strict=True))
        out: FloatArray = 0.75 + 0.02 * np.tanh((main + left * right) / 3)
        return out

    return top1


def timed(call: Callable[[], EvolutionResult], repeats: int) -> dict[str, float]:
    """Seconds by the clock (median and best) and of the processor (median), after a first call that is not counted."""
    num_evaluations = call().num_evaluations
    clock, processor = [], []
    for _ in range(repeats):
        start, start_processor = time.perf_counter(), time.process_time()
        call()
        clock.append(time.perf_counter() - start)
        processor.append(time.process_time() - start_processor)
    return {
        "evaluations": num_evaluations,
        "median_s": statistics.median(clock),
        "best_s": min(clock),
        "processor_s": statistics.median(processor),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats; nothing is written")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, default=SearchConfig().predictor, help="of the accuracy predictor")
    options = parser.parse_args(arguments)
    repeats, rng = (3 if options.quick else 15), np.random.default_rng(options.seed)

    space = SearchSpace.load("mbv3")
    training = sample(space, NUM_TRAINING, rng)
    predictor = AccuracyPredictor(space, options.kind, seed=options.seed)
    predictor.fit(training, synthetic_accuracy(space, rng)(training))
    table = BlockTable(space, NUM_CLASSES, lambda block: block.num_macs * SECONDS_PER_MAC)
    latency = Constraint("latency", 3.0e-3, table, "s")
    further = [macs_constraint(space, NUM_CLASSES, 300e6), params_constraint(space, NUM_CLASSES, 6e6)]
    home = space.sub_spaces[0]
    config = EvolutionConfig()

    def run(constraints: Sequence[Constraint], inside: bool) -> Callable[[], EvolutionResult]:
        where = home if inside else None
        seed = options.seed
        return lambda: evolve(space, predictor.mean, constraints, config, np.random.default_rng(seed), where)

    cases = {
        "one sub-space, latency": run([latency], True),
        "all sub-spaces, latency": run([latency], False),
        "all sub-spaces, latency, MACs and parameters": run([latency, *further], False),
    }
    print(f"space {space.name}, SYNTHETIC table ({SECONDS_PER_MAC:g} s per MAC), {config.generations} generations")
    print(f"of {config.population}; predictor of kind {predictor.kind}\n")
    print(f"{'search':<46}{'evaluations':>12}{'median s':>10}{'best s':>10}{'processor s':>13}{'us each':>9}")
    rows: list[dict[str, Any]] = []
    with threadpool_limits(1):
        for name, call in cases.items():
            row = timed(call, repeats)
            rows.append({"search": name, **row})
            print(
                f"{name:<46}{row['evaluations']:>12.0f}{row['median_s']:>10.3f}{row['best_s']:>10.3f}"
                f"{row['processor_s']:>13.3f}{1e6 * row['median_s'] / row['evaluations']:>9.2f}"
            )
    num_planned = config.population * config.generations
    # scaled to the full number: near the end of a search a generation may hold fewer than 100 new architectures
    value = max(r["median_s"] * num_planned / r["evaluations"] for r in rows[:2])
    print(f"\nthe slower of the first two by the clock, scaled to {num_planned} evaluations; goal {GOAL_S} s:")
    finish(
        "evolution_speed",
        {"evaluations_50k_seconds": Figure(value, GOAL_S, lower_is_better=True)},
        options.quick,
        {
            "seed": options.seed,
            "predictor": predictor.kind,
            "repeats": repeats,
            "rows": rows,
            "table": "synthetic: seconds in proportion to MACs",
        },
    )


if __name__ == "__main__":
    main()
