"""The co-search (paper, section 3.6, equation 1) from end to end: evaluate, predict, divide, evolve, prove.

It knows neither the supernet nor the compiler: how an architecture is evaluated and how finalists are proven are
callables. Everything but these two is a few seconds of numpy.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chanas.core.arch import Architecture
from chanas.core.genome import decode
from chanas.core.latency import LatencyLUT
from chanas.core.progress import named_wait
from chanas.core.task import Task
from chanas.core.usage import DTYPES
from chanas.errors import InfeasibleError
from chanas.files.writing import write_json
from chanas.search.accuracy.evaluations import Evaluate
from chanas.search.config import SearchConfig
from chanas.search.evolution.constraints import Constraint, feasible, latency_constraint, least
from chanas.search.evolution.evolution import EvolutionResult
from chanas.search.evolution.feasibility import check_together
from chanas.search.job import PICTURE, Job, propose_rows
from chanas.search.learning import Learned, Source, learn
from chanas.search.pictures import evolution_json, pictures
from chanas.search.proof import Finalist, Proof, Proposal, Prove, pick_by_prediction, prove_rounds, unmeasured_proofs
from chanas.search.subspace import RuleRegret, SubSpaceDivision
from chanas.search.target import SearchTarget

SCHEMA = 1


@dataclass(frozen=True)
class SearchOutcome:
    """The winner and all finalists, of a search for `targets`; `result` is the file with everything else.

    `regrets` is empty where no comparison of the sub-space rules was asked for.
    """

    winner: Finalist
    finalists: tuple[Finalist, ...]
    targets: tuple[SearchTarget, ...]
    division: SubSpaceDivision
    num_evaluations: int
    result: Path
    regrets: tuple[RuleRegret, ...] = ()

    @property
    def architecture(self) -> Architecture:
        return self.winner.architecture


def search(
    job: Job,
    source: Source,
    prove: Prove | None,
    *,
    learned: Learned | None = None,
    result: Path | None = None,
    with_alike: bool = False,
    progress: bool = True,
) -> SearchOutcome:
    """The most accurate architecture that measures inside every latency budget, and inside every other constraint.

    Args:
        job: what is searched for, from `new_job`.
        source: of accuracies.
        prove: compiles, checks, measures (on every target of `job`) and evaluates finalists; None where nothing can be
            measured: the winner is then the best by prediction (and by evaluation), without timings.
        learned: what several searches have learnt together (`learn`), instead of learning here.
        result: the file to write instead of `search/result.json`.
        with_alike: draw architectures that are as good as the best, for what sets networks of several targets apart.

    Raises:
        InfeasibleError: nothing meets the constraints when measured (after max_rounds).
        MeasureError: no finalist could be compiled and measured.
    """
    began = time.perf_counter()
    if learned is None:
        learned = learn([job], source, progress)
    learning_s = time.perf_counter() - began
    with named_wait("dividing the space", progress):
        division = job.divide(learned.predictor, job.first_limits())
    steps = _Steps(job, learned, division, source.evaluate, prove, progress)
    winner, finalists = steps.prove_finalists()
    outcome = SearchOutcome(
        winner,
        tuple(finalists),
        _with_budgets(job.targets, winner),
        steps.division,
        len(learned.evaluations.found),
        result or source.store.search / "result.json",
        steps.regrets(),
    )
    with named_wait("judging the predictor, and drawing the front", progress):
        document = steps.document(outcome, source, with_alike=with_alike)
    seconds = {  # the pictures in the document are counted
        "learning": learning_s,
        "searching": time.perf_counter() - began - learning_s - steps.proving_s,
        "proving": steps.proving_s,
    }
    write_json(outcome.result, {**document, "seconds": seconds})
    return outcome


def _with_budgets(targets: Sequence[SearchTarget], winner: Finalist) -> tuple[SearchTarget, ...]:
    """The targets with budgets that the winner is inside of: where an accuracy was wanted, its own latency may be."""
    measured_s = winner.measured_s or tuple(t.budget_s for t in targets)
    return tuple(replace(t, budget_s=max(t.budget_s, s)) for t, s in zip(targets, measured_s, strict=True))


@dataclass
class _Steps:
    """The steps of one search after learning, and what they leave for its result: evolutions by their limits, and the
    seconds that proving took."""

    job: Job
    learned: Learned
    division: SubSpaceDivision
    evaluate: Evaluate | None
    prove: Prove | None
    progress: bool = True
    runs: dict[tuple[float, ...], EvolutionResult] = field(default_factory=dict)
    proving_s: float = 0.0

    def prove_finalists(self) -> tuple[Finalist, Sequence[Finalist]]:
        """The winner, and all finalists; without a prover by what is predicted and evaluated."""
        job, first_limits_s = self.job, self.job.first_limits()
        if self.prove is None:
            return pick_by_prediction(self.propose, self.prove_timed, first_limits_s)
        by_target, rounds = {t.name: t.budget_s for t in job.targets}, job.config.max_rounds
        return prove_rounds(self.propose, self.prove_timed, by_target, first_limits_s, rounds, enough=job.enough)

    def propose(self, limits_s: tuple[float, ...], tried: set[str]) -> list[Proposal]:
        """Architectures to prove that aren't in `tried`."""
        job, predictor, home = self.job, self.learned.predictor, self.division.chosen
        with named_wait("evolving architectures", self.progress):
            try:
                self.runs[limits_s] = job.evolve(predictor, limits_s, home)
                genomes = job.finalists(predictor, self.runs[limits_s], self.learned.evaluations, limits_s, home, tried)
            except InfeasibleError:  # the tightened limits are below what there is: the fastest is the last hope
                genomes = job.fastest()
        proposals = propose_rows(job.space, genomes, predictor, job.latencies)
        return [p for p in proposals if p.architecture.key not in tried]

    def prove_timed(self, architectures: Sequence[Architecture]) -> Sequence[Proof]:
        """Proofs of finalists; the seconds that they take are noted."""
        start = time.perf_counter()
        try:
            if self.prove is None:
                return unmeasured_proofs(architectures, self.evaluate)
            return self.prove(architectures)
        finally:
            self.proving_s += time.perf_counter() - start

    def regrets(self) -> tuple[RuleRegret, ...]:
        """Costs of each rule of choosing a sub-space, where they are asked for."""
        if not self.job.config.compares_rules:
            return ()
        return self.job.regrets(self.learned.predictor, self.division, self.job.first_limits(), self.runs)

    def document(self, outcome: SearchOutcome, source: Source, *, with_alike: bool) -> dict[str, Any]:
        """Content of `result.json`, but for the seconds that the search took."""
        job, predictor = self.job, self.learned.predictor
        first_limits_s, run = job.first_limits(), next(iter(self.runs.values()), None)
        alike: list[Architecture] = []
        if run is not None and with_alike:
            alike = decode(job.space, job.draw_alike(predictor, first_limits_s, run))
        first, rng, budgets_s = job.latencies[0], job.rng(PICTURE), tuple(t.budget_s for t in outcome.targets)
        return {
            "schema": SCHEMA,
            **provenance(job.task, job.targets[0].lut, source.digest, job.seed, job.config, job.limits(budgets_s)),
            "budget_s": budgets_s[0],
            "latency_limit_s": first_limits_s[0],
            "smallest_latency_s": least(first.table)[0],
            "further_targets": [
                {
                    "target": t.name,
                    "target_fingerprint": t.lut.header.target.fingerprint,
                    "budget_s": t.budget_s,
                    "latency_limit_s": limit_s,
                    "smallest_latency_s": least(c.table)[0],
                }
                for t, c, limit_s in zip(job.targets[1:], job.latencies[1:], first_limits_s[1:], strict=True)
            ],
            "rule_regrets": [r.to_json() for r in outcome.regrets],
            "winner": outcome.architecture.key,
            "accuracy_range": self._accuracy_range(outcome, source.num_images),
            "finalists": [f.to_json() for f in outcome.finalists],
            "division": self.division.to_json(),
            "alike": [a.key for a in alike],
            "predictor": self.learned.figures,
            "losses": None if predictor.losses is None else predictor.losses.to_json(),
            "evolution": None if run is None else evolution_json(run),
            **pictures(job.space, first, job.others, job.config, rng, predictor, run, self.learned.evaluations),
        }

    def _accuracy_range(self, outcome: SearchOutcome, num_images: int | None) -> dict[str, Any] | None:
        """Return the known accuracies of the most accurate and of the fastest network inside the budgets, by the table
        or, of finalists, as measured; None where none is known."""
        budgets_s = tuple(t.budget_s for t in outcome.targets)
        known, top1 = self.learned.evaluations.training_set()
        inside = feasible(self.job.limits(budgets_s), known)
        pairs = list(zip(self.job.latencies[0].cost(known[inside]).tolist(), top1[inside].tolist(), strict=True))
        for f in outcome.finalists:
            is_inside = all(m <= b for m, b in zip(f.measured_s, budgets_s, strict=False))
            if f.proof.error is None and math.isfinite(f.proof.top1_holdout) and is_inside:
                pairs.append((f.measured_s[0] if f.measured_s else f.predicted_s[0], f.proof.top1_holdout))
        if not pairs:
            return None
        return {"best": max(top1 for _, top1 in pairs), "fastest": min(pairs)[1], "num_images": num_images}


def new_job(
    task: Task,
    targets: Sequence[SearchTarget],
    constraints: Sequence[Constraint] = (),
    config: SearchConfig | None = None,
    seed: int = 0,
) -> Job:
    """A search that can be met, as far as the tables say, before anything is loaded for it.

    Args:
        task: its number of classes is for the last block of the tables.
        targets: with their budgets; the latencies of all pictures are those of the first.
        constraints: further hard limits, such as `macs_constraint`; the latency budgets need not be among them.

    Raises:
        InfeasibleError: nothing meets the constraints; the message names the smallest reachable value.
        LUTError: a table is of another space, or has holes that the settings do not allow.
    """
    config = config or SearchConfig()
    task = in_dtypes(task, config)
    latencies = latency_constraints(task, targets, config.covered_only)
    errors = tuple(t.error if config.latency_error is None else config.latency_error for t in targets)
    config = config.model_copy(update={"latency_error": errors[0]})
    known = check_together(task.space, [*latencies, *constraints], seed)
    return Job(task, tuple(targets), latencies, tuple(constraints), config, errors, seed, known)


def in_dtypes(task: Task, config: SearchConfig) -> Task:
    """The task of a search whose blocks may be in several dtypes, where the settings say so."""
    if not config.dtypes:
        return task
    return replace(task, space=task.space.with_dtypes([DTYPES[dtype] for dtype in config.dtypes]))


def latency_constraints(
    task: Task, targets: Sequence[SearchTarget], covered_only: bool = False
) -> tuple[Constraint, ...]:
    """One constraint for each target, named after it where there are several.

    Raises:
        LUTError: a table is of another space, or has holes that are not allowed.
    """
    names = [f"latency on {t.name}" if len(targets) > 1 else "latency" for t in targets]
    options: dict[str, Any] = {"covered_only": covered_only, "left_out": task.left_out}
    return tuple(
        latency_constraint(t.lut, task.space, task.num_classes, t.budget_s, name=name, **options)
        for t, name in zip(targets, names, strict=True)
    )


def provenance(
    task: Task,
    lut: LatencyLUT,
    supernet: str,
    seed: int,
    config: SearchConfig,
    constraints: Sequence[Constraint],
) -> dict[str, Any]:
    """Return the origin that every result of a search notes."""
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "space": {"name": task.space.name, "digest": task.space.digest},
        "target": lut.header.target.name,
        "target_fingerprint": lut.header.target.fingerprint,
        "supernet": supernet,
        "num_classes": task.num_classes,
        "seed": seed,
        "config": config.model_dump(mode="json"),
        "constraints": [{"name": c.name, "limit": c.limit, "unit": c.unit} for c in constraints],
    }
