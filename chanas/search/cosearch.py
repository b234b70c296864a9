"""The co-search (paper, section 3.6) from end to end: evaluate, predict, divide, evolve, prove.

It knows neither the supernet nor the compiler: how an architecture is evaluated and how finalists are proven are
callables. Everything but these two is a few seconds of numpy.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from tqdm import tqdm

from chanas.arch import Architecture, SearchSpace, SubSpace
from chanas.errors import InfeasibleError
from chanas.genome import FloatArray, Genomes, decode, encode
from chanas.latency import LatencyLUT
from chanas.run import RunDirectory, write_json
from chanas.search.accuracy import AccuracyPredictor
from chanas.search.accuracy_table import AccuracyTable
from chanas.search.config import SearchConfig
from chanas.search.constraints import Constraint, feasible, latency_constraint, least
from chanas.search.evaluations import Evaluations, EvaluationStore, TableEvaluations
from chanas.search.evolution import EvolutionResult, evolve
from chanas.search.explore import Evaluate, evaluate_checked, explore, new_predictor, training_set
from chanas.search.feasibility import check_together, smallest_beside
from chanas.search.pictures import pictures, predictor_figures
from chanas.search.population import inside, keys
from chanas.search.proof import Finalist, Proof, Prove, genome_of, pick, prove_rounds
from chanas.search.subspace import RuleRegret, SubSpaceDivision, divide, rule_regrets

SCHEMA = 1

# Relative standard error of a table that was never calibrated.
UNKNOWN_ERROR = 0.05

# Streams of random numbers, so that one step's draws don't shift another's.
_DIVIDE, _EVOLVE, _PICTURE, _FASTEST = 1_000_003, 1_000_033, 1_000_037, 1_000_039


@dataclass(frozen=True)
class LatencyBudget:
    """At most `budget_s` seconds on the target of a table."""

    lut: LatencyLUT
    budget_s: float

    @property
    def target(self) -> str:
        """The target's name."""
        return self.lut.header.target.name

    @property
    def error(self) -> float:
        """Relative standard error of the table's predictions."""
        return UNKNOWN_ERROR if self.lut.calibration is None else self.lut.calibration.standard_error


@dataclass(frozen=True)
class FurtherOutcome:
    """The winner on a target besides the first one."""

    target: str
    budget_s: float
    predicted_s: float
    measured_s: float
    spread_s: float


@dataclass(frozen=True)
class SearchOutcome:
    """The winner, what was predicted of it and what was proven; `result` is the file with everything else.

    Latencies are those of the first target, and `further` has the others; `regrets` is empty where no comparison of the
    sub-space rules was asked for.
    """

    architecture: Architecture
    genome: tuple[int, ...]
    predicted_latency_s: float
    predicted_top1: float
    predicted_top1_spread: float
    proof: Proof
    finalists: tuple[Finalist, ...]
    division: SubSpaceDivision
    num_evaluations: int
    result: Path
    further: tuple[FurtherOutcome, ...] = ()
    regrets: tuple[RuleRegret, ...] = ()


def search(
    space: SearchSpace,
    lut: LatencyLUT,
    evaluate: Evaluate | None,
    prove: Prove,
    *,
    budget_s: float,
    num_classes: int,
    store: RunDirectory,
    supernet: str,
    config: SearchConfig | None = None,
    constraints: Sequence[Constraint] = (),
    further: Sequence[LatencyBudget] = (),
    table: AccuracyTable | None = None,
    seed: int = 0,
    progress: bool = True,
) -> SearchOutcome:
    """The most accurate architecture that measures inside `budget_s` seconds, and inside every other constraint.

    Args:
        evaluate: top-1 on holdout of one architecture; None with a `table`.
        prove: compiles, checks, measures and evaluates finalists.
        num_classes: of the classifier, for the table's last block.
        store: where `search/evaluations.jsonl` is kept and `search/result.json` written.
        supernet: digest of the weights that `evaluate` uses; evaluations of other weights are not reused.
        constraints: further hard limits, such as `macs_constraint`; the latency budgets need not be among them.
        further: budgets on other targets, where `prove` measures too; the figures of the result are the first target's.
        table: measured accuracies that the predictor learns from instead of evaluations.

    Raises:
        InfeasibleError: nothing meets the constraints, by the tables (at once) or when measured (after max_rounds).
        LUTError: a table is of another space, or has holes that the settings do not allow.
        MeasureError: no finalist could be compiled and measured.
    """
    began, proving_s = time.perf_counter(), 0.0
    config = config or SearchConfig()
    budgets = (LatencyBudget(lut, budget_s), *further)
    latencies = latency_constraints(space, num_classes, budgets, config.covered_only)
    errors = tuple(b.error if config.latency_error is None else config.latency_error for b in budgets)
    config = config.model_copy(update={"latency_error": errors[0]})
    known = check_together(space, [*latencies, *constraints], seed)
    job = _Job(space, latencies, tuple(constraints), config, errors, seed, known)
    evaluations: Evaluations
    if table is None:
        evaluations = EvaluationStore(store.search / "evaluations.jsonl", space, supernet)
    else:
        evaluations = TableEvaluations(table, supernet)
    first_limits_s = job.first_limits()
    predictor, curve = _learn(job, evaluate, evaluations, first_limits_s, progress)
    learning_s = time.perf_counter() - began
    division = job.divide(predictor, first_limits_s)
    runs: dict[tuple[float, ...], EvolutionResult] = {}

    def propose(
        limits_s: tuple[float, ...], tried: set[str]
    ) -> list[tuple[Architecture, tuple[float, ...], float, float]]:
        try:
            runs[limits_s] = job.evolve(predictor, limits_s, division.chosen)
            genomes = job.finalists(predictor, runs[limits_s], evaluations, limits_s, division.chosen, tried)
        except InfeasibleError:  # the tightened limits are below what there is: the fastest of all is the last hope
            genomes = job.fastest()
        mean, spread = predictor.predict(genomes)
        predicted_s = zip(*(c.cost(genomes).tolist() for c in latencies), strict=True)
        facts = zip(decode(space, genomes), predicted_s, mean.tolist(), spread.tolist(), strict=True)
        return [fact for fact in facts if fact[0].key not in tried]

    def timed(architectures: Sequence[Architecture]) -> Sequence[Proof]:
        nonlocal proving_s
        start = time.perf_counter()
        proofs = prove(architectures)
        proving_s += time.perf_counter() - start
        return proofs

    by_target = {b.target: b.budget_s for b in budgets}
    winner, finalists = prove_rounds(propose, timed, by_target, first_limits_s, config.max_rounds)
    regrets = job.regrets(predictor, division, first_limits_s, runs) if config.compares_rules else ()
    path = store.search / "result.json"
    outcome = SearchOutcome(
        winner.architecture,
        tuple(genome_of(space, winner.architecture)),
        winner.predicted_latency_s,
        winner.predicted_top1,
        winner.predicted_top1_spread,
        winner.proof,
        tuple(finalists),
        division,
        len(evaluations.found),
        path,
        tuple(
            FurtherOutcome(b.target, b.budget_s, predicted_s, t.latency_s, t.spread_s)
            for b, predicted_s, t in zip(further, winner.predicted_s[1:], winner.proof.further, strict=True)
        ),
        regrets,
    )
    predictor.save(store.search)
    run = next(iter(runs.values()), None)
    write_json(
        path,
        {
            "schema": SCHEMA,
            **provenance(space, lut, supernet, num_classes, seed, config, (*latencies, *constraints)),
            "budget_s": budget_s,
            "latency_limit_s": first_limits_s[0],
            "smallest_latency_s": least(latencies[0].table)[0],
            "further_targets": [
                {
                    "target": b.target,
                    "target_fingerprint": b.lut.header.target.fingerprint,
                    "budget_s": b.budget_s,
                    "latency_limit_s": limit_s,
                    "smallest_latency_s": least(c.table)[0],
                }
                for b, c, limit_s in zip(further, latencies[1:], first_limits_s[1:], strict=True)
            ],
            "rule_regrets": [r.to_json() for r in regrets],
            "winner": winner.architecture.key,
            "finalists": [f.to_json() for f in finalists],
            "division": division.to_json(),
            "predictor": predictor_figures(space, config, seed, evaluations, predictor, curve),
            "evolution": None if run is None else run.history.to_json(),
            **pictures(space, latencies[0], job.others, config, job.rng(_PICTURE), predictor, run, evaluations),
            "seconds": {  # the pictures above are counted
                "learning": learning_s,
                "searching": time.perf_counter() - began - learning_s - proving_s,
                "proving": proving_s,
            },
        },
    )
    return outcome


def latency_constraints(
    space: SearchSpace, num_classes: int, budgets: Sequence[LatencyBudget], covered_only: bool = False
) -> tuple[Constraint, ...]:
    """One constraint for each target, named after it where there are several.

    Raises:
        LUTError: a table is of another space, or has holes that are not allowed.
    """
    names = [f"latency on {b.target}" if len(budgets) > 1 else "latency" for b in budgets]
    return tuple(
        latency_constraint(b.lut, space, num_classes, b.budget_s, name=name, covered_only=covered_only)
        for b, name in zip(budgets, names, strict=True)
    )


def provenance(
    space: SearchSpace,
    lut: LatencyLUT,
    supernet: str,
    num_classes: int,
    seed: int,
    config: SearchConfig,
    constraints: Sequence[Constraint],
) -> dict[str, Any]:
    """What every result of a search says of where it comes from."""
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "space": {"name": space.name, "digest": space.digest},
        "target": lut.header.target.name,
        "target_fingerprint": lut.header.target.fingerprint,
        "supernet": supernet,
        "num_classes": num_classes,
        "seed": seed,
        "config": config.model_dump(mode="json"),
        "constraints": [{"name": c.name, "limit": c.limit, "unit": c.unit} for c in constraints],
    }


def _learn(
    job: _Job, evaluate: Evaluate | None, evaluations: Evaluations, limits_s: tuple[float, ...], progress: bool
) -> tuple[AccuracyPredictor, list[tuple[int, float]]]:
    """The predictor, taught by exploring, then by evaluating what it thinks is best, and its error as it learnt.

    Where nothing can be evaluated it learns from what is known.
    """
    config, limits = job.config, job.limits(limits_s)
    if evaluate is None or not isinstance(evaluations, EvaluationStore):
        given = list(evaluations.found.values())
        predictor = new_predictor(job.space, config, job.seed).fit(*training_set(job.space, given))
        return predictor, [(len(given), predictor.error)]
    total = config.num_evaluations + config.refine_evaluations
    with tqdm(total=total, desc="evaluate", unit="net", disable=not progress) as bar:
        bar.update(min(len(evaluations.found), total))
        curve = explore(job.space, evaluate, evaluations, limits, config, job.seed, bar)
        asked = ", ".join(f"{c.name} {c.limit:.9g}" for c in (*job.latencies, *job.others))
        purpose = f"refine at {asked} by {config.rule}"
        while True:
            known = list(evaluations.found.values())
            predictor = new_predictor(job.space, config, job.seed).fit(*training_set(job.space, known))
            left = config.refine_evaluations - len(evaluations.with_purpose(purpose))
            if left <= 0:
                return predictor, curve
            curve.append((len(known), predictor.error))
            chosen = job.divide(predictor, limits_s).chosen
            result = job.evolve(predictor, limits_s, chosen)
            fresh = ~np.isin(keys(result.genomes), keys(encode(job.space, _architectures(known))))
            genomes = result.genomes[fresh][: 8 * config.refine_batch]
            best = pick(genomes, result.fitness[fresh], min(config.refine_batch, left), config.min_distance)
            if not best:
                return predictor, curve
            for architecture in decode(job.space, genomes[best]):
                found = evaluations.add(architecture, evaluate_checked(evaluate, architecture), purpose)
                bar.update(1)
                bar.set_postfix_str(f"best candidates, last {100 * found.top1:.1f} %", refresh=False)


def _architectures(known: Sequence[Any]) -> list[Architecture]:
    return [Architecture.from_key(e.architecture) for e in known]


@dataclass(frozen=True)
class _Job:
    """What every step of one search shares.

    latencies  one for each target, with the budgets as limits; the first one's is the latency of all pictures
    errors     relative standard error of each target's table
    known      some architectures that meet every limit, int16[N, L]
    """

    space: SearchSpace
    latencies: tuple[Constraint, ...]
    others: tuple[Constraint, ...]
    config: SearchConfig
    errors: tuple[float, ...]
    seed: int
    known: Genomes

    def limits(self, limits_s: tuple[float, ...]) -> list[Constraint]:
        tightened = [replace(c, limit=limit_s) for c, limit_s in zip(self.latencies, limits_s, strict=True)]
        return [*tightened, *self.others]

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
        return evolve(self.space, predictor.mean, limits, self.config.evolution, rng, sub_space, start)

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
        """What each rule's choice costs against searching everything, by the same predictor and the same effort."""

        def best(sub_space: SubSpace | None) -> float:
            if sub_space == division.chosen and limits_s in runs:
                return float(runs[limits_s].fitness[0])
            try:
                return float(self.evolve(predictor, limits_s, sub_space).fitness[0])
            except InfeasibleError:  # hardly anything in it qualifies: the best of what the division found
                found = next(s for s in division.statistics if s.sub_space == sub_space)
                return found.top1_quantiles[-1]

        return rule_regrets(division.choices, best)

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

        Half of them are the best inside `limits_s`, which all lie close to it; half are the best with room for the
        table's error, so that one round of measurements seldom ends with nothing inside.
        """
        num_safe = self.config.num_finalists // 2
        chosen = self._best(result, evaluations, limits_s, sub_space, tried, self.config.num_finalists - num_safe)
        safe_s = tuple(s / (1.0 + 2.0 * error) for s, error in zip(limits_s, self.errors, strict=True))
        if num_safe and safe_s != limits_s:
            try:
                result = self.evolve(predictor, safe_s, sub_space)
            except InfeasibleError:
                safe_s = limits_s
        if num_safe:
            tried = tried | {a.key for a in decode(self.space, chosen)}
            chosen = np.concatenate(
                [chosen, self._best(result, evaluations, safe_s, sub_space, tried, num_safe)], dtype=np.int16
            )
        return chosen

    def _best(
        self,
        result: EvolutionResult,
        evaluations: Evaluations,
        limits_s: tuple[float, ...],
        sub_space: SubSpace | None,
        tried: set[str],
        num: int,
    ) -> Genomes:
        """Up to `num` genomes by predicted top-1, or by the evaluated one where there is one; the best that was
        evaluated is always among them."""
        known, top1 = training_set(self.space, list(evaluations.found.values()))
        usable = feasible(self.limits(limits_s), known) & inside(self.space, known, sub_space)
        known, top1 = known[usable], top1[usable]
        fresh = ~np.isin(keys(result.genomes), keys(known))
        genomes = np.concatenate([known, result.genomes[fresh]])
        value: FloatArray = np.concatenate([top1, result.fitness[fresh]])
        untried = np.array([a.key not in tried for a in decode(self.space, genomes)], dtype=bool)
        num_known = int(np.count_nonzero(untried[: len(known)]))
        genomes, value = genomes[untried], value[untried]
        chosen = pick(genomes, value, num, self.config.min_distance)
        best = int(value[:num_known].argmax()) if num_known else None
        if best is not None and best not in chosen:
            chosen[-1] = best
        out: Genomes = genomes[np.array(chosen, dtype=np.intp)]
        return out
