"""The figures that a search leaves for the report: points to draw, and the predictor's quality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import decode, sample
from chanas.search.accuracy.evaluations import Evaluations
from chanas.search.accuracy.predictor import MIN_TRAINING, AccuracyPredictor, cut
from chanas.search.accuracy.validation import CrossValidation, cross_validate
from chanas.search.config import SearchConfig
from chanas.search.evolution.constraints import Constraint
from chanas.search.evolution.evolution import EvolutionResult
from chanas.search.evolution.pareto import ParetoResult, latency_and_error, nsga2

# Kind `pairs` takes the cube of this in time, Kendall's tau the square of it in memory.
MOST_VALIDATED = 1000


def pictures(
    space: SearchSpace,
    latency: Constraint,
    others: Sequence[Constraint],
    config: SearchConfig,
    rng: np.random.Generator,
    predictor: AccuracyPredictor,
    run: EvolutionResult | None,
    evaluations: Evaluations,
) -> dict[str, Any]:
    """Return the points that the report plots: a cloud of random architectures, those evaluated, and the Pareto front.

    Latencies are those of one target; `others` are the constraints besides.
    """
    cloud = sample(space, config.num_cloud, rng)
    known, top1 = evaluations.training_set()
    pictures: dict[str, Any] = {
        "cloud": _points(latency.cost(cloud), cut(predictor.mean(cloud))),
        "evaluated": _points(latency.cost(known), top1),
        "pareto": [],
    }
    if config.pareto_generations:
        settings = config.evolution.model_copy(update={"generations": config.pareto_generations})
        objectives = latency_and_error(latency, predictor.mean)
        start = None if run is None else run.genomes[: settings.population]
        front = nsga2(space, objectives, [*latency.left_out, *others], settings, rng, start=start)
        pictures["pareto"] = predicted_points(space, front)
    return pictures


def predicted_points(space: SearchSpace, front: ParetoResult) -> list[dict[str, Any]]:
    """Return the architectures of a predicted front, as results store them."""
    latency_s, top1 = front.objectives[:, 0].tolist(), cut(-front.objectives[:, 1]).tolist()
    facts = zip(decode(space, front.genomes), latency_s, top1, strict=True)
    return [{"key": a.key, "latency_s": cost, "top1": accuracy} for a, cost, accuracy in facts]


def evolution_json(run: EvolutionResult) -> dict[str, Any]:
    """Return the course of an evolution whose fitness is predicted accuracy, as results store it."""
    history = run.history.to_json()
    return history | {name: cut(np.array(history[name])).tolist() for name in ("best", "mean")}


def _points(latency_s: FloatArray, top1: FloatArray) -> dict[str, list[float]]:
    """Return the points whose latency the table knows."""
    known = np.isfinite(latency_s)
    return {"latency_s": latency_s[known].tolist(), "top1": top1[known].tolist()}


def predictor_figures(
    config: SearchConfig,
    seed: int,
    evaluations: Evaluations,
    predictor: AccuracyPredictor,
    curve: Sequence[tuple[int, float]],
) -> dict[str, Any]:
    """Measure the predictor: its error while it learnt, and in cross-validation, on a random part of the known
    accuracies if there are many."""
    space, (known, top1) = evaluations.space, evaluations.training_set()
    if len(known) > MOST_VALIDATED:
        drawn = np.random.default_rng(seed).choice(len(known), MOST_VALIDATED, replace=False)
        known, top1 = known[np.sort(drawn)], top1[np.sort(drawn)]
    validation: dict[str, CrossValidation] = {}
    if len(known) >= 2 * MIN_TRAINING and config.cross_validate:
        kind, hidden, num_members = predictor.kind, predictor.hidden, predictor.num_members
        validation[kind] = cross_validate(space, known, top1, kind, hidden=hidden, num_members=num_members, seed=seed)
    return {
        "kind": predictor.kind,
        "num_training": predictor.num_training,
        "error_points": 100.0 * predictor.error,
        "learning_curve": [{"num_evaluations": n, "error_points": 100.0 * error} for n, error in curve],
        "cross_validation": {kind: figures.to_json() for kind, figures in validation.items()},
    }
