"""The co-search (paper, section 3.6, equation 1) from end to end: evaluate, predict, divide, evolve, prove.

It knows neither the supernet nor the compiler: how an architecture is evaluated and how finalists are proven are
callables. Everything but these two is a few seconds of numpy.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import decode
from chanas.core.latency import LatencyLUT
from chanas.errors import InfeasibleError
from chanas.files.run import RunDirectory
from chanas.files.writing import write_json
from chanas.search.accuracy.evaluations import Evaluations, EvaluationStore, TableEvaluations
from chanas.search.accuracy.table import AccuracyTable
from chanas.search.config import SearchConfig
from chanas.search.evolution.constraints import Constraint, latency_constraint, least
from chanas.search.evolution.evolution import EvolutionResult
from chanas.search.evolution.feasibility import check_together
from chanas.search.explore import Evaluate
from chanas.search.job import PICTURE, Job
from chanas.search.learning import Learned, learn
from chanas.search.pictures import pictures
from chanas.search.proof import Finalist, Proof, Prove, genome_of, nobody_proves, prove_rounds, unproven
from chanas.search.subspace import RuleRegret, SubSpaceDivision

SCHEMA = 1

# Relative standard error of a table that was never calibrated.
UNKNOWN_ERROR = 0.05


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
    prove: Prove | None,
    *,
    budget_s: float,
    num_classes: int,
    store: RunDirectory,
    supernet: str,
    config: SearchConfig | None = None,
    constraints: Sequence[Constraint] = (),
    further: Sequence[LatencyBudget] = (),
    table: AccuracyTable | None = None,
    learned: Learned | None = None,
    result: Path | None = None,
    seed: int = 0,
    progress: bool = True,
) -> SearchOutcome:
    """The most accurate architecture that measures inside `budget_s` seconds, and inside every other constraint.

    Args:
        evaluate: top-1 on holdout of one architecture; None with a `table`.
        prove: compiles, checks, measures and evaluates finalists; None where nothing can be measured: the winner is
            then the best by prediction (and by `evaluate`), its measured latency NaN.
        num_classes: of the classifier, for the table's last block.
        store: where `search/evaluations.jsonl` is kept and `search/result.json` written.
        supernet: digest of the weights that `evaluate` uses; evaluations of other weights are not reused.
        constraints: further hard limits, such as `macs_constraint`; the latency budgets need not be among them.
        further: budgets on other targets, where `prove` measures too; the figures of the result are the first target's.
        table: measured accuracies that the predictor learns from instead of evaluations.
        learned: what several searches have learnt together (`learn_together`), instead of learning here.
        result: the file to write instead of `search/result.json`.

    Raises:
        InfeasibleError: nothing meets the constraints, by the tables (at once) or when measured (after max_rounds).
        LUTError: a table is of another space, or has holes that the settings do not allow.
        MeasureError: no finalist could be compiled and measured.
    """
    began, proving_s, is_one_of_several = time.perf_counter(), 0.0, learned is not None
    config = config or SearchConfig()
    budgets = (LatencyBudget(lut, budget_s), *further)
    job = new_job(space, num_classes, budgets, constraints, config, seed)
    config, latencies, first_limits_s = job.config, job.latencies, job.first_limits()
    if learned is None:
        learned = learn([job], evaluate, _evaluations(space, store, supernet, table), progress)
    predictor, evaluations = learned.predictor, learned.evaluations
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
        try:
            return nobody_proves(architectures, evaluate) if prove is None else prove(architectures)
        finally:
            proving_s += time.perf_counter() - start

    by_target = {b.target: b.budget_s for b in budgets}
    if prove is None:
        winner, finalists = unproven(propose, timed, first_limits_s)
    else:
        winner, finalists = prove_rounds(propose, timed, by_target, first_limits_s, config.max_rounds)
    regrets = job.regrets(predictor, division, first_limits_s, runs) if config.compares_rules else ()
    path = result or store.search / "result.json"
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
            for b, predicted_s, t in zip(
                further, winner.predicted_s[1:], winner.proof.further, strict=prove is not None
            )
        ),
        regrets,
    )
    predictor.save(store.search)
    run = next(iter(runs.values()), None)
    alike: list[Architecture] = []
    if run is not None and is_one_of_several:
        alike = decode(space, job.alike(predictor, first_limits_s, run))
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
            "alike": [a.key for a in alike],
            "predictor": learned.figures,
            "evolution": None if run is None else run.history.to_json(),
            **pictures(space, latencies[0], job.others, config, job.rng(PICTURE), predictor, run, evaluations),
            "seconds": {  # the pictures above are counted
                "learning": learning_s,
                "searching": time.perf_counter() - began - learning_s - proving_s,
                "proving": proving_s,
            },
        },
    )
    return outcome


@dataclass(frozen=True)
class TargetTask:
    """One of several searches that share a predictor: its budget, and its limits besides latency."""

    budget: LatencyBudget
    constraints: Sequence[Constraint] = ()


def learn_together(
    space: SearchSpace,
    tasks: Sequence[TargetTask],
    evaluate: Evaluate | None,
    *,
    num_classes: int,
    store: RunDirectory,
    supernet: str,
    config: SearchConfig | None = None,
    table: AccuracyTable | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Learned:
    """What searches for several targets learn together, for `search(learned=…)`; arguments as for `search`.

    Raises:
        InfeasibleError: one of the tasks cannot be met.
        LUTError: a table is of another space, or has holes that the settings do not allow.
    """
    config = config or SearchConfig()
    jobs = [new_job(space, num_classes, [t.budget], t.constraints, config, seed) for t in tasks]
    return learn(jobs, evaluate, _evaluations(space, store, supernet, table), progress)


def new_job(
    space: SearchSpace,
    num_classes: int,
    budgets: Sequence[LatencyBudget],
    constraints: Sequence[Constraint],
    config: SearchConfig,
    seed: int,
) -> Job:
    """A search that can be met, as far as the tables say.

    Raises:
        InfeasibleError: nothing meets the constraints.
        LUTError: a table is of another space, or has holes that the settings do not allow.
    """
    latencies = latency_constraints(space, num_classes, budgets, config.covered_only)
    errors = tuple(b.error if config.latency_error is None else config.latency_error for b in budgets)
    config = config.model_copy(update={"latency_error": errors[0]})
    known = check_together(space, [*latencies, *constraints], seed)
    return Job(space, tuple(b.target for b in budgets), latencies, tuple(constraints), config, errors, seed, known)


def check_limits(
    space: SearchSpace,
    num_classes: int,
    budgets: Sequence[LatencyBudget],
    constraints: Sequence[Constraint] = (),
    config: SearchConfig | None = None,
    seed: int = 0,
) -> None:
    """What a search would say of its limits at once, before anything is loaded for it.

    Raises:
        InfeasibleError: nothing meets the constraints; the message names the smallest reachable value.
        LUTError: a table is of another space, or has holes that the settings do not allow.
    """
    new_job(space, num_classes, budgets, constraints, config or SearchConfig(), seed)


def _evaluations(space: SearchSpace, store: RunDirectory, supernet: str, table: AccuracyTable | None) -> Evaluations:
    if table is not None:
        return TableEvaluations(table, supernet)
    return EvaluationStore(store.search / "evaluations.jsonl", space, supernet)


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
