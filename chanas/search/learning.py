"""Teaching the accuracy predictor for one search, or once for several that share it: exploring first, then what it
thinks is best inside each search's limits."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import decode, encode
from chanas.core.progress import progress_bar
from chanas.files.run import RunDirectory
from chanas.search.accuracy.evaluations import Evaluations, EvaluationStore, TableEvaluations
from chanas.search.accuracy.predictor import AccuracyPredictor
from chanas.search.accuracy.table import AccuracyTable
from chanas.search.evolution.population import keys
from chanas.search.explore import Evaluate, evaluate_checked, explore, new_predictor, training_set
from chanas.search.job import Job
from chanas.search.pictures import predictor_figures
from chanas.search.proof import pick


@dataclass(frozen=True)
class Source:
    """The source of accuracies, and the run directory of what is learnt from it and of results.

    store     where `search/evaluations.jsonl` is kept and results are written
    digest    of the weights that `evaluate` uses, or of the table; evaluations of other weights are not reused
    evaluate  top-1 on holdout of one architecture; None with a `table`
    table     measured accuracies that the predictor learns from instead of evaluations
    """

    store: RunDirectory
    digest: str
    evaluate: Evaluate | None = None
    table: AccuracyTable | None = None

    def evaluations(self, space: SearchSpace) -> Evaluations:
        """The accuracies that are known, and where further ones are kept."""
        if self.table is not None:
            return TableEvaluations(self.table, self.digest)
        return EvaluationStore(self.store.search / "evaluations.jsonl", space, self.digest)


@dataclass(frozen=True)
class Learned:
    """The predictor, what it learnt from, and its error on left-out rows as it learnt: (number known, error); `job` is
    the first that it learnt for."""

    job: Job
    predictor: AccuracyPredictor
    evaluations: Evaluations
    curve: tuple[tuple[int, float], ...]

    @functools.cached_property
    def figures(self) -> dict[str, Any]:
        """The predictor's quality, as results store it."""
        space, config, seed = self.job.space, self.job.config, self.job.seed
        return predictor_figures(space, config, seed, self.evaluations, self.predictor, self.curve)


def learn(jobs: Sequence[Job], evaluate: Evaluate | None, evaluations: Evaluations, progress: bool) -> Learned:
    """Fit one predictor for all `jobs` (one or more). They must share space, seed and config; their tables' errors may
    differ.

    What is explored lies inside the limits of one or the other; then each has its best candidates evaluated, what is
    known already not again. Where nothing can be evaluated the predictor learns from what is known.
    """
    space, config, seed = jobs[0].space, jobs[0].config, jobs[0].seed
    if evaluate is None or not isinstance(evaluations, EvaluationStore):
        given = list(evaluations.found.values())
        predictor = new_predictor(space, config, seed).fit(*training_set(space, given))
        return Learned(jobs[0], predictor, evaluations, ((len(given), predictor.error),))

    def fitted() -> AccuracyPredictor:
        return new_predictor(space, config, seed).fit(*training_set(space, list(evaluations.found.values())))

    total = config.num_evaluations + len(jobs) * config.refine_evaluations
    with progress_bar(total, "evaluate", "net", progress) as bar:
        bar.update(min(len(evaluations.found), total))
        limits, *others = (job.limits(job.first_limits()) for job in jobs)
        curve = explore(space, evaluate, evaluations, limits, config, seed, bar, others)
        predictor = fitted()
        for job in jobs:
            limits_s = job.first_limits()
            while (left := config.refine_evaluations - len(evaluations.with_purpose(job.purpose))) > 0:
                known = [Architecture.from_key(key) for key in evaluations.found]
                curve.append((len(known), predictor.error))
                result = job.evolve(predictor, limits_s, job.divide(predictor, limits_s).chosen)
                fresh = ~np.isin(keys(result.genomes), keys(encode(space, known)))
                genomes = result.genomes[fresh][: 8 * config.refine_batch]
                best = pick(genomes, result.fitness[fresh], min(config.refine_batch, left), config.min_distance)
                if not best:
                    break
                for architecture in decode(space, genomes[best]):
                    found = evaluations.add(architecture, evaluate_checked(evaluate, architecture), job.purpose)
                    bar.update(1)
                    bar.set_postfix_str(f"best candidates, last {100 * found.top1:.1f} %", refresh=False)
                predictor = fitted()
    return Learned(jobs[0], predictor, evaluations, tuple(curve))
