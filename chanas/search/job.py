"""The inputs that every step of one search shares: its space, its limits, its seed; and the steps themselves."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import Genomes, decode
from chanas.core.task import Task
from chanas.errors import InfeasibleError
from chanas.search.accuracy.evaluations import Evaluations
from chanas.search.accuracy.predictor import AccuracyPredictor, cut
from chanas.search.config import SearchConfig
from chanas.search.evolution.alike import draw_alike
from chanas.search.evolution.constraints import Constraint, feasible, least
from chanas.search.evolution.dtypes import DtypeChoice
from chanas.search.evolution.evolution import EvolutionResult, evolve
from chanas.search.evolution.feasibility import check_together, smallest_beside
from chanas.search.evolution.population import inside, keys
from chanas.search.proof import Proposal, pick
from chanas.search.subspace import RuleRegret, SubSpaceDivision, divide, rule_regrets
from chanas.search.target import SearchTarget

# Streams of random numbers, so that one step's draws don't shift another's.
_DIVIDE, _EVOLVE, PICTURE, _FASTEST, _ALIKE = 1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081


@dataclass(frozen=True)
class Job:
    """The inputs and the steps of one search.

    targets    in order
    latencies  one for each target, with the budgets as limits; the first is the latency of all pictures
    errors     relative standard error of each target's table
    known      some architectures that meet every limit, int16[N, L]
    enough     accuracy in [0, 1] beyond which the faster one is the better one
    """

    task: Task
    targets: tuple[SearchTarget, ...]
    latencies: tuple[Constraint, ...]
    others: tuple[Constraint, ...]
    config: SearchConfig
    errors: tuple[float, ...]
    seed: int
    known: Genomes
    enough: float = math.inf

    @property
    def space(self) -> SearchSpace:
        return self.task.space

    @property
    def purpose(self) -> str:
        """Name under which evaluations of its best candidates are kept; no other search asks for it."""
        latencies = (f"latency on {t.name} {c.limit:.9g}" for t, c in zip(self.targets, self.latencies, strict=True))
        asked = ", ".join([*latencies, *(f"{c.name} {c.limit:.9g}" for c in self.others)])
        return f"refine at {asked} by {self.config.rule}"

    def limits(self, limits_s: tuple[float, ...]) -> list[Constraint]:
        moved = [replace(c, limit=limit_s) for c, limit_s in zip(self.latencies, limits_s, strict=True)]
        return [*moved, *self.others]

    def first_limits(self) -> tuple[float, ...]:
        """The budgets less the margin that the wanted confidence asks for.

        The margin is given up rather than declared infeasible: measuring decides.
        """
        quantile = NormalDist().inv_cdf(self.config.confidence)
        limits_s = []
        for c, error in zip(self.latencies, self.errors, strict=True):
            limits_s.append(max(c.limit / (1.0 + quantile * error), min(c.limit, least(c.table)[0])))
        budgets_s = tuple(c.limit for c in self.latencies)
        if tuple(limits_s) == budgets_s:
            return budgets_s
        try:
            check_together(self.space, self.limits(tuple(limits_s)), self.seed)
        except InfeasibleError:
            return budgets_s
        return tuple(limits_s)

    def rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, stream])

    def divide(self, predictor: AccuracyPredictor, limits_s: tuple[float, ...]) -> SubSpaceDivision:
        config, limits = self.config, self.limits(limits_s)
        rng = self.rng(_DIVIDE)
        first = self.latencies[0]
        return divide(self.space, predictor.mean, first, limits, rng, config.rule, config.num_samples, self.known)

    def evolve(
        self, predictor: AccuracyPredictor, limits_s: tuple[float, ...], sub_space: SubSpace | None
    ) -> EvolutionResult:
        rng = self.rng(_EVOLVE)
        limits = self.limits(limits_s)
        # rows that are known are of use where hardly any others are; elsewhere they would only be the first ones
        start = self.known if len(self.known) == 1 else None
        improve = self.dtypes(predictor, limits).within if self.space.dtypes else None
        return evolve(self.space, predictor.mean, limits, self.config.evolution, rng, sub_space, start, improve)

    def draw_alike(self, predictor: AccuracyPredictor, limits_s: tuple[float, ...], run: EvolutionResult) -> Genomes:
        """Draw random feasible architectures int16[N, L] that are within the predictor's error of the best of `run`.

        Under the rule `paper` they are drawn from the chosen sub-space, under the others from the whole space.
        """
        home = None
        if self.config.rule == "paper":
            r, w = run.genomes[0, :2].tolist()
            home = SubSpace(self.space.resolutions[r], self.space.width_multipliers[w])
        floor = float(run.fitness[0]) - predictor.error
        return draw_alike(self.space, predictor.mean, self.limits(limits_s), floor, self.rng(_ALIKE), home)

    def fastest(self) -> Genomes:
        """int16[N, L], at most 1: the architecture that comes nearest to every latency budget inside the others."""
        found = smallest_beside(self.space, self.latencies, self.others, self.rng(_FASTEST))
        if len(self.latencies) == 1:  # exact, where nothing else stands against it
            genomes = least(self.latencies[0].table)[1]
            if feasible(self.others, genomes).all():
                return genomes
        return self.known[:0] if found is None else found

    def regrets(
        self,
        predictor: AccuracyPredictor,
        division: SubSpaceDivision,
        limits_s: tuple[float, ...],
        runs: Mapping[tuple[float, ...], EvolutionResult],
    ) -> tuple[RuleRegret, ...]:
        """Compare each rule's choice with searching everything, by the same predictor and the same effort."""

        def best(sub_space: SubSpace | None) -> float:
            if sub_space == division.chosen and limits_s in runs:
                return float(runs[limits_s].fitness[0])
            try:
                return float(self.evolve(predictor, limits_s, sub_space).fitness[0])
            except InfeasibleError:  # hardly anything in it qualifies: the best of what the division found
                found = next(s for s in division.statistics if s.sub_space == sub_space)
                return found.top1_quantiles[-1]

        return rule_regrets(division.choices, lambda sub_space: float(cut(np.array(best(sub_space)))))

    def finalists(
        self,
        predictor: AccuracyPredictor,
        result: EvolutionResult,
        evaluations: Evaluations,
        limits_s: tuple[float, ...],
        sub_space: SubSpace | None,
        tried: set[str],
    ) -> Genomes:
        """Up to `num_finalists` genomes that aren't in `tried`.

        Where an accuracy is wanted, the first is the fastest that is known to have it. Of the others, half are the best
        inside `limits_s`, which all are close to it; half are the best with room for the table's error, so that one
        round of measurements seldom ends with nothing inside.
        """
        first = self.fastest_known(evaluations, self.limits(limits_s), tried)
        tried = tried | {a.key for a in decode(self.space, first)}
        num = self.config.num_finalists - len(first)
        num_safe = num // 2
        chosen = self._best(predictor, result, evaluations, limits_s, sub_space, tried, num - num_safe)
        safe_s = tuple(s / (1.0 + 2.0 * error) for s, error in zip(limits_s, self.errors, strict=True))
        if num_safe and safe_s != limits_s:
            try:
                result = self.evolve(predictor, safe_s, sub_space)
            except InfeasibleError:
                safe_s = limits_s
        if num_safe:
            tried = tried | {a.key for a in decode(self.space, chosen)}
            chosen = np.concatenate(
                [chosen, self._best(predictor, result, evaluations, safe_s, sub_space, tried, num_safe)], dtype=np.int16
            )
        return np.concatenate([first, chosen], dtype=np.int16)

    def fastest_known(
        self, evaluations: Evaluations, limits: Sequence[Constraint], tried: Container[str] = ()
    ) -> Genomes:
        """int16[N, L], at most 1: the fastest architecture inside `limits` whose known accuracy is `enough`, and that
        isn't in `tried`. It may be in any sub-space."""
        known, top1 = evaluations.training_set()
        known = known[(top1 >= self.enough) & feasible(limits, known)]
        known = known[np.argsort(self.latencies[0].cost(known), kind="stable")]
        return known[[a.key not in tried for a in decode(self.space, known)]][:1]

    def _best(
        self,
        predictor: AccuracyPredictor,
        result: EvolutionResult,
        evaluations: Evaluations,
        limits_s: tuple[float, ...],
        sub_space: SubSpace | None,
        tried: set[str],
        num: int,
    ) -> Genomes:
        limits, distance = self.limits(limits_s), self.config.min_distance
        known, top1 = evaluations.training_set()
        if self.space.dtypes:  # in the best dtypes inside the limits, less what these cost
            known = self.dtypes(predictor, limits).within(known)
            top1 = top1 if predictor.losses is None else top1 - predictor.losses.of(known)
        return best_candidates(
            self.space, result, (known, top1), limits, sub_space, tried, num, distance, keep_known=True
        )

    def dtypes(self, predictor: AccuracyPredictor, limits: Sequence[Constraint]) -> DtypeChoice:
        """The choice of dtypes of blocks inside limits."""
        return DtypeChoice(self.space, predictor.losses_by_place, limits)


def propose_rows(
    space: SearchSpace, genomes: Genomes, predictor: AccuracyPredictor, latencies: Sequence[Constraint]
) -> list[Proposal]:
    """Genomes int16[N, L] as proposals, with their costs by `latencies` and what is predicted of their accuracy."""
    mean, spread = predictor.predict(genomes)
    predicted_s = zip(*(c.cost(genomes).tolist() for c in latencies), strict=True)
    facts = zip(decode(space, genomes), predicted_s, mean.tolist(), spread.tolist(), strict=True)
    return [Proposal(*fact) for fact in facts]


def best_candidates(
    space: SearchSpace,
    result: EvolutionResult,
    known: tuple[Genomes, FloatArray],
    limits: Sequence[Constraint],
    sub_space: SubSpace | None,
    tried: Container[str],
    num: int,
    min_distance: int,
    *,
    keep_known: bool = False,
) -> Genomes:
    """Up to `num` genomes inside `limits`, of an evolution's result and of what is known (genomes and top-1), that
    aren't in `tried`: the best by known top-1, or by the predicted one where there is none. With `keep_known` the best
    that is known is always among them."""
    rows, top1 = known
    usable = feasible(limits, rows) & inside(space, rows, sub_space)
    rows, top1 = rows[usable], top1[usable]
    fresh = ~np.isin(keys(result.genomes), keys(rows))
    genomes = np.concatenate([rows, result.genomes[fresh]])
    value: FloatArray = np.concatenate([top1, result.fitness[fresh]])
    untried = np.array([a.key not in tried for a in decode(space, genomes)], dtype=bool)
    num_known = int(np.count_nonzero(untried[: len(rows)]))
    genomes, value = genomes[untried], value[untried]
    chosen = pick(genomes, value, num, min_distance)
    best = int(value[:num_known].argmax()) if num_known and keep_known else None
    if best is not None and best not in chosen:
        chosen[-1] = best
    out: Genomes = genomes[np.array(chosen, dtype=np.intp)]
    return out
