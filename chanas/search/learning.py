"""Teaching the accuracy predictor for one search, or once for several that share it: exploring first, then what it
thinks is best for each search."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import Genomes, decode, encode, plain, with_random_dtypes
from chanas.core.progress import ProgressBar, named_wait, progress_bar
from chanas.errors import ConfigError
from chanas.files.run import RunDirectory
from chanas.search.accuracy.evaluations import (
    EXPLORE,
    Evaluate,
    Evaluations,
    EvaluationStore,
    TableEvaluations,
    training_set,
)
from chanas.search.accuracy.losses import DtypeLosses, fit_losses
from chanas.search.accuracy.predictor import AccuracyPredictor
from chanas.search.accuracy.table import AccuracyTable
from chanas.search.config import SearchConfig
from chanas.search.evolution.constraints import Constraint
from chanas.search.evolution.population import unevaluated
from chanas.search.explore import explore, new_predictor
from chanas.search.job import Job
from chanas.search.pictures import predictor_figures
from chanas.search.proof import pick

_LOSSES = 1_000_133  # a stream of random numbers of its own
_DTYPES_OF_ONE = 4
"""Dtypes that one architecture is evaluated with: calibrating it takes longer than evaluating it."""


@dataclass(frozen=True)
class Source:
    """The source of accuracies, and the run directory of what is learnt from it and of results.

    store       where `search/evaluations.jsonl` is kept and results are written
    digest      of the weights that `evaluate` uses, or of the table; evaluations of other weights are not reused
    evaluate    top-1 of one architecture, on holdout or in the table; NaN if that does not know it
    table       measured accuracies that the predictor learns from instead of evaluations
    num_images  of holdout, on which `evaluate` counts; None where accuracies are of a table
    evaluate_rounded  top-1 on holdout of an architecture whose blocks are in several dtypes, numbers rounded
    """

    store: RunDirectory
    digest: str
    evaluate: Evaluate | None = None
    table: AccuracyTable | None = None
    num_images: int | None = None
    evaluate_rounded: Evaluate | None = None

    def evaluations(self, space: SearchSpace) -> Evaluations:
        """The accuracies that are known, and where further ones are kept."""
        if self.table is not None:
            return TableEvaluations(space, self.table, self.digest)
        return EvaluationStore(self.store.search / "evaluations.jsonl", space, self.digest, self.evaluate)


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
        return predictor_figures(self.job.config, self.job.seed, self.evaluations, self.predictor, self.curve)


@dataclass(frozen=True)
class Refinement:
    """Evaluations of what a search may choose, after exploring.

    purpose  under which they are kept
    name     in the progress bar
    choose   up to `num` genomes int16[N, L] that are not known yet, by what the predictor has learnt so far
    """

    purpose: str
    name: str
    choose: Callable[[AccuracyPredictor, int], Genomes]


def teach_predictor(
    evaluations: Evaluations,
    limits: Sequence[Sequence[Constraint]],
    refinements: Sequence[Refinement],
    config: SearchConfig,
    seed: int,
    progress: bool,
    in_dtypes: DtypeEvaluations | None = None,
) -> tuple[AccuracyPredictor, tuple[tuple[int, float], ...]]:
    """Fit a predictor to what is known, evaluating more where that can be done; return it with its learning curve:
    (number known, error on left-out rows).

    What is explored lies inside the limits of one search or the other (`limits` has those of one or more); then what
    dtypes cost is learnt, where blocks may be in several; then the candidates of each refinement are evaluated. What is
    known already is not evaluated again.
    """
    losses: DtypeLosses | None = None

    def fit() -> AccuracyPredictor:
        predictor = new_predictor(evaluations.space, config, seed).fit(*evaluations.training_set())
        predictor.losses = losses
        return predictor

    if not evaluations.can_grow:
        predictor = fit()
        return predictor, ((len(evaluations.found), predictor.error),)

    def left_of(refinement: Refinement) -> int:
        return max(0, config.refine_evaluations - len(evaluations.with_purpose(refinement.purpose)))

    num_refined, num_known = sum(map(left_of, refinements)), len(evaluations.found)
    num_explored = max(0, config.num_evaluations - len(evaluations.with_purpose(EXPLORE)))
    num_rounded = 0 if in_dtypes is None else config.loss_evaluations
    total = num_known + num_explored + num_rounded + num_refined
    is_known = num_explored == num_refined == 0 and (in_dtypes is None or len(in_dtypes.rounded.found) >= num_rounded)
    with (
        progress_bar(total, "evaluate", "net", progress and not is_known, initial=num_known, keeps=True) as bar,
        named_wait("fitting the accuracy predictor", progress and is_known),
    ):
        curve = explore(evaluations, limits, config, seed, bar)
        bar.expect(num_rounded + num_refined)  # exploring ends early where it has nothing more to teach
        losses = None if in_dtypes is None else in_dtypes.learn(bar)
        predictor = fit()
        for refinement in refinements:
            while (left := left_of(refinement)) > 0:
                curve.append((len(evaluations.found), predictor.error))
                genomes = refinement.choose(predictor, min(config.refine_batch, left))
                if not len(genomes):
                    break
                for architecture in decode(evaluations.space, genomes):
                    found = evaluations.evaluate(architecture, refinement.purpose)
                    bar.update(1)
                    bar.set_postfix_str(f"{refinement.name}, last {100 * found.top1:.1f} %", refresh=False)
                predictor = fit()
    return predictor, tuple(curve)


def learn(jobs: Sequence[Job], source: Source, progress: bool = True) -> Learned:
    """Fit one predictor for all `jobs` (one or more), for `search(learned=…)`. They must share space, seed and config;
    their tables' errors may differ."""
    first, evaluations = jobs[0], source.evaluations(jobs[0].space)
    limits = [job.limits(job.first_limits()) for job in jobs]
    refinements = [_best_candidates(job, evaluations) for job in jobs]
    in_dtypes = dtype_evaluations(evaluations, source, first.config, first.seed)
    predictor, curve = teach_predictor(evaluations, limits, refinements, first.config, first.seed, progress, in_dtypes)
    return Learned(first, predictor, evaluations, curve)


@dataclass(frozen=True)
class DtypeEvaluations:
    """Evaluations that teach the costs of dtypes: networks of known accuracy, in random dtypes.

    rounded  their evaluations, kept in `search/rounded.jsonl`
    """

    evaluations: Evaluations
    rounded: EvaluationStore
    config: SearchConfig
    seed: int

    def drawn(self) -> list[Architecture]:
        """Those that are evaluated: architectures that were explored, each in a few random choices of dtypes."""
        space, num = self.evaluations.space, self.config.loss_evaluations
        known, _ = training_set(space, self.evaluations.with_purpose(EXPLORE))
        rng = np.random.default_rng([self.seed, _LOSSES])
        shapes = rng.permutation(len(known))[: -(-num // _DTYPES_OF_ONE)]
        rows = np.repeat(known[shapes], _DTYPES_OF_ONE, axis=0)[:num]
        return decode(space, with_random_dtypes(space, rows, rng))

    def learn(self, bar: ProgressBar) -> DtypeLosses:
        """Evaluate what is not known yet, and fit costs to all."""
        drawn, found = self.drawn(), list[float]()
        for architecture in drawn:
            before, after = self.evaluations.evaluate(architecture.plain), self.rounded.evaluate(architecture)
            found.append(before.top1 - after.top1)
            bar.update(1)
            bar.set_postfix_str(f"dtypes, {100 * float(np.mean(found)):.2f} points lost on average", refresh=False)
        return fit_losses(self.evaluations.space, encode(self.evaluations.space, drawn), np.array(found), self.seed)


def dtype_evaluations(
    evaluations: Evaluations, source: Source, config: SearchConfig, seed: int
) -> DtypeEvaluations | None:
    """The evaluations that teach the costs of dtypes; None where all blocks are in one.

    Raises:
        ConfigError: nothing can be evaluated.
    """
    if not evaluations.space.dtypes:
        return None
    if source.evaluate_rounded is None or not evaluations.can_grow:
        raise ConfigError(
            "what dtypes cost is learnt from evaluations: --dtypes needs a supernet with images, and no file of "
            "accuracies"
        )
    path = source.store.search / "rounded.jsonl"
    rounded = EvaluationStore(path, evaluations.space, source.digest, source.evaluate_rounded)
    return DtypeEvaluations(evaluations, rounded, config, seed)


def _best_candidates(job: Job, evaluations: Evaluations) -> Refinement:
    """Evaluate what an evolution inside the job's limits finds best."""
    config, limits_s = job.config, job.first_limits()

    def choose(predictor: AccuracyPredictor, num: int) -> Genomes:
        result = job.evolve(predictor, limits_s, job.divide(predictor, limits_s).chosen)
        fresh = unevaluated(job.space, result.genomes, evaluations.training_set()[0])[: 8 * config.refine_batch]
        genomes = plain(job.space, result.genomes[fresh])
        best = pick(genomes, result.fitness[fresh], num, config.min_distance)
        return genomes[np.array(best, dtype=np.intp)]

    return Refinement(job.purpose, "best candidates", choose)
