"""The co-search (paper, section 3.6) from end to end: evaluate, predict, divide, evolve, prove.

It knows neither the supernet nor the compiler: how an architecture is evaluated and how finalists are proven are
callables. Everything but these two is a few seconds of numpy.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from tqdm import tqdm

from chanas.arch import Architecture, SearchSpace, SubSpace
from chanas.errors import InfeasibleError
from chanas.genome import FloatArray, Genomes, decode, encode, sample
from chanas.latency import LatencyLUT
from chanas.run import RunDirectory, write_json
from chanas.search.accuracy import MIN_TRAINING, AccuracyPredictor
from chanas.search.accuracy_table import AccuracyTable
from chanas.search.config import SearchConfig
from chanas.search.constraints import Constraint, check_reachable, feasible, latency_constraint, least
from chanas.search.evaluations import Evaluations, EvaluationStore, TableEvaluations
from chanas.search.evolution import EvolutionResult, evolve
from chanas.search.explore import Evaluate, evaluate_checked, explore, new_predictor, training_set
from chanas.search.pareto import nsga2
from chanas.search.population import keys
from chanas.search.proof import Finalist, Proof, Prove, genome_of, pick, prove_rounds
from chanas.search.subspace import SubSpaceDivision, divide
from chanas.search.validation import CrossValidation, cross_validate

SCHEMA = 1

# Relative standard error of a table that was never calibrated.
UNKNOWN_ERROR = 0.05

# Streams of random numbers, so that one step's draws don't shift another's.
_DIVIDE, _EVOLVE, _PICTURE = 1_000_003, 1_000_033, 1_000_037


@dataclass(frozen=True)
class SearchOutcome:
    """The winner, what was predicted of it and what was proven; `result` is the file with everything else."""

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
        constraints: further hard limits, such as `macs_constraint`; the latency budget need not be among them.
        table: measured accuracies that the predictor learns from instead of evaluations.

    Raises:
        InfeasibleError: nothing meets the constraints, by the table (at once) or when measured (after max_rounds).
        LUTError: the table is of another space or has holes.
        MeasureError: no finalist could be compiled and measured.
    """
    began, proving_s = time.perf_counter(), 0.0
    config = config or SearchConfig()
    latency = latency_constraint(lut, space, num_classes, budget_s)
    check_reachable([latency, *constraints])
    if config.latency_error is None:
        fit = lut.calibration
        config = config.model_copy(update={"latency_error": UNKNOWN_ERROR if fit is None else fit.standard_error})
    margin = 1.0 + NormalDist().inv_cdf(config.confidence) * (config.latency_error or 0.0)
    job = _Job(space, latency, tuple(constraints), config, seed)
    evaluations: Evaluations
    if table is None:
        evaluations = EvaluationStore(store.search / "evaluations.jsonl", space, supernet)
    else:
        evaluations = TableEvaluations(table, supernet)
    # the margin is given up rather than declared infeasible: measuring decides
    first_limit_s = max(budget_s / margin, min(budget_s, least(latency.table)[0]))
    predictor, curve = _learn(job, evaluate, evaluations, first_limit_s, progress)
    learning_s = time.perf_counter() - began
    division = job.divide(predictor, first_limit_s)
    runs: dict[float, EvolutionResult] = {}

    def propose(limit_s: float, tried: set[str]) -> list[tuple[Architecture, float, float, float]]:
        try:
            runs[limit_s] = job.evolve(predictor, limit_s, division.chosen)
            genomes = job.finalists(predictor, runs[limit_s], evaluations, limit_s, division.chosen, tried)
        except InfeasibleError:  # the tightened limit is below what there is: the fastest of all is the last hope
            genomes = least(latency.table)[1]
            genomes = genomes[feasible(constraints, genomes)]
        mean, spread = predictor.predict(genomes)
        facts = zip(decode(space, genomes), latency.cost(genomes).tolist(), mean.tolist(), spread.tolist(), strict=True)
        return [fact for fact in facts if fact[0].key not in tried]

    def timed(architectures: Sequence[Architecture]) -> Sequence[Proof]:
        nonlocal proving_s
        start = time.perf_counter()
        proofs = prove(architectures)
        proving_s += time.perf_counter() - start
        return proofs

    winner, finalists = prove_rounds(propose, timed, budget_s, first_limit_s, config.max_rounds)
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
    )
    predictor.save(store.search)
    run = next(iter(runs.values()), None)
    write_json(
        path,
        {
            "schema": SCHEMA,
            **provenance(space, lut, supernet, num_classes, seed, config, (latency, *constraints)),
            "budget_s": budget_s,
            "latency_limit_s": first_limit_s,
            "smallest_latency_s": least(latency.table)[0],
            "winner": winner.architecture.key,
            "finalists": [f.to_json() for f in finalists],
            "division": division.to_json(),
            "predictor": _predictor_json(job, evaluations, predictor, curve),
            "evolution": None if run is None else run.history.to_json(),
            **job.pictures(predictor, run, evaluations),
            "seconds": {  # the pictures above are counted
                "learning": learning_s,
                "searching": time.perf_counter() - began - learning_s - proving_s,
                "proving": proving_s,
            },
        },
    )
    return outcome


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
    job: _Job, evaluate: Evaluate | None, evaluations: Evaluations, limit_s: float, progress: bool
) -> tuple[AccuracyPredictor, list[tuple[int, float]]]:
    """The predictor, taught by exploring, then by evaluating what it thinks is best, and its error as it learnt.

    Where nothing can be evaluated it learns from what is known.
    """
    config, limits = job.config, job.limits(limit_s)
    if evaluate is None or not isinstance(evaluations, EvaluationStore):
        given = list(evaluations.found.values())
        predictor = new_predictor(job.space, config, job.seed).fit(*training_set(job.space, given))
        return predictor, [(len(given), predictor.error)]
    total = config.num_evaluations + config.refine_evaluations
    with tqdm(total=total, desc="evaluate", unit="net", disable=not progress) as bar:
        bar.update(min(len(evaluations.found), total))
        curve = explore(job.space, evaluate, evaluations, limits, config, job.seed, bar)
        purpose = f"refine at {job.latency.limit:.9g} s by {config.rule}"
        while True:
            known = list(evaluations.found.values())
            predictor = new_predictor(job.space, config, job.seed).fit(*training_set(job.space, known))
            left = config.refine_evaluations - len(evaluations.with_purpose(purpose))
            if left <= 0:
                return predictor, curve
            curve.append((len(known), predictor.error))
            chosen = job.divide(predictor, limit_s).chosen
            result = job.evolve(predictor, limit_s, chosen)
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
    """What every step of one search shares."""

    space: SearchSpace
    latency: Constraint
    others: tuple[Constraint, ...]
    config: SearchConfig
    seed: int

    def limits(self, limit_s: float) -> list[Constraint]:
        return [replace(self.latency, limit=limit_s), *self.others]

    def rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, stream])

    def divide(self, predictor: AccuracyPredictor, limit_s: float) -> SubSpaceDivision:
        config, limits = self.config, self.limits(limit_s)
        rng = self.rng(_DIVIDE)
        return divide(self.space, predictor.mean, self.latency, limits, rng, config.rule, config.num_samples)

    def evolve(self, predictor: AccuracyPredictor, limit_s: float, sub_space: SubSpace | None) -> EvolutionResult:
        rng = self.rng(_EVOLVE)
        return evolve(self.space, predictor.mean, self.limits(limit_s), self.config.evolution, rng, sub_space)

    def finalists(
        self,
        predictor: AccuracyPredictor,
        result: EvolutionResult,
        evaluations: Evaluations,
        limit_s: float,
        sub_space: SubSpace | None,
        tried: set[str],
    ) -> Genomes:
        """Up to `num_finalists` genomes that aren't in `tried`.

        Half of them are the best inside `limit_s`, which all lie close to it; half are the best with room for the
        table's error, so that one round of measurements seldom ends with nothing inside.
        """
        num_safe = self.config.num_finalists // 2
        chosen = self._best(result, evaluations, limit_s, sub_space, tried, self.config.num_finalists - num_safe)
        safe_s = limit_s / (1.0 + 2.0 * (self.config.latency_error or 0.0))
        if num_safe and safe_s < limit_s:
            try:
                result = self.evolve(predictor, safe_s, sub_space)
            except InfeasibleError:
                safe_s = limit_s
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
        limit_s: float,
        sub_space: SubSpace | None,
        tried: set[str],
        num: int,
    ) -> Genomes:
        """Up to `num` genomes by predicted top-1, or by the evaluated one where there is one; the best that was
        evaluated is always among them."""
        known, top1 = training_set(self.space, list(evaluations.found.values()))
        usable = feasible(self.limits(limit_s), known)
        if sub_space is not None:
            home = [a.sub_space == sub_space for a in decode(self.space, known)]
            usable &= np.array(home, dtype=bool)
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

    def pictures(
        self, predictor: AccuracyPredictor, run: EvolutionResult | None, evaluations: Evaluations
    ) -> dict[str, Any]:
        """What the report draws: a cloud of random architectures, those evaluated, and the Pareto front."""
        config, rng = self.config, self.rng(_PICTURE)
        cloud = sample(self.space, config.num_cloud, rng)
        known, top1 = training_set(self.space, list(evaluations.found.values()))
        pictures: dict[str, Any] = {
            "cloud": {"latency_s": self.latency.cost(cloud).tolist(), "top1": predictor.mean(cloud).tolist()},
            "evaluated": {"latency_s": self.latency.cost(known).tolist(), "top1": top1.tolist()},
            "pareto": [],
        }
        if config.pareto_generations:
            settings = config.evolution.model_copy(update={"generations": config.pareto_generations})

            def objectives(genomes: Genomes) -> FloatArray:
                return np.stack([self.latency.cost(genomes), -predictor.mean(genomes)], axis=1)

            start = None if run is None else run.genomes[: settings.population]
            front = nsga2(self.space, objectives, self.others, settings, rng, start=start)
            rows = zip(decode(self.space, front.genomes), front.objectives.tolist(), strict=True)
            pictures["pareto"] = [{"key": a.key, "latency_s": cost, "top1": -loss} for a, (cost, loss) in rows]
        return pictures


def _predictor_json(
    job: _Job, evaluations: Evaluations, predictor: AccuracyPredictor, curve: Sequence[tuple[int, float]]
) -> dict[str, Any]:
    known, top1 = training_set(job.space, list(evaluations.found.values()))
    config = job.config
    validation: dict[str, CrossValidation] = {}
    if len(known) >= 2 * MIN_TRAINING and config.cross_validate:
        kinds, hidden = config.cross_validate, config.hidden
        validation = cross_validate(
            job.space, known, top1, kinds, hidden=hidden, num_members=config.num_members, seed=job.seed
        )
    return {
        "kind": predictor.kind,
        "num_training": predictor.num_training,
        "error_points": 100.0 * predictor.error,
        "learning_curve": [{"num_evaluations": n, "error_points": 100.0 * error} for n, error in curve],
        "cross_validation": {kind: figures.to_json() for kind, figures in validation.items()},
    }
