"""The fastest architecture of a wanted accuracy: the smallest latency budget at which the search finds one.

Without a budget the objectives of the co-search (paper, equation 1) change places: latency falls while the accuracy
stays at or above a goal. Budgets are found by bisection on predictions, then each is searched as if it had been asked
for, until what is found and measured has the accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from chanas.core.progress import named_wait
from chanas.errors import InfeasibleError
from chanas.search.config import SearchConfig
from chanas.search.cosearch import SearchOutcome, new_job, search
from chanas.search.evolution.constraints import NO_LIMIT_S, feasible, least
from chanas.search.evolution.population import keys
from chanas.search.job import Job
from chanas.search.learning import Learned, Source, learn
from chanas.search.proof import Finalist, Prove

PRECISION = 0.005
"""Share of a latency to which the smallest budget is found."""

_MAX_SEARCHES = 6
_SEEKING = "finding the smallest budget by the table"
_STEP = 1.01  # by which a budget grows at least, where what it has given misses the goal

MakeJob = Callable[[float], Job]


def search_fastest(job: Job, top1: float, source: Source, prove: Prove, *, progress: bool = True) -> SearchOutcome:
    """The fastest architecture whose top-1 is at least `top1`: its latency is measured on the target, its accuracy on
    holdout, or predicted where there are no weights. Its budget is in the outcome's target.

    Args:
        job: of one target, whose budget is `NO_LIMIT_S`, from `new_job`.
        top1: in [0, 1].
        source: of accuracies.
        prove: compiles, checks, measures and evaluates finalists.

    Raises:
        InfeasibleError: no architecture is predicted to be so accurate, or none that was evaluated is.
        MeasureError: no finalist could be compiled and measured.
    """
    config = job.config

    def job_of(budget_s: float) -> Job:
        (target,) = job.targets
        inside = new_job(job.task, [replace(target, budget_s=budget_s)], job.others, config, job.seed)
        return replace(inside, enough=top1)

    learned = _learn(job_of, top1, source, config, progress)
    trial = source.store.search / "trial.json"
    goal, best = top1, None
    error: InfeasibleError | None = None
    with named_wait(_SEEKING, progress):
        budget_s = smallest_budget_s(job_of, learned, goal)
    for number in range(1, _MAX_SEARCHES + 1):
        try:
            outcome = search(job_of(budget_s), source, prove, learned=learned, result=trial, progress=progress)
        except InfeasibleError:  # all measured more than the budget, and none has the accuracy
            if best is not None:
                break
            error, budget_s = _missed(None, top1, number), _STEP * budget_s
            continue
        if outcome.winner.top1 >= top1:
            if best is not None and not _is_faster(outcome.winner, best.winner):
                break
            trial.replace(source.store.search / "result.json")
            best = replace(outcome, result=source.store.search / "result.json")
            if math.isnan(outcome.winner.proof.top1_holdout) or budget_s <= least(job.latencies[0].table)[0]:
                break
            budget_s = outcome.winner.measured_s[0] / _STEP
        elif best is not None:
            break
        else:
            error = _missed(outcome, top1, number)
            budget_s = _STEP * budget_s
            if top1 + _shortfall(outcome, top1) > goal:
                goal = top1 + _shortfall(outcome, top1)
                try:
                    with named_wait(_SEEKING, progress):
                        budget_s = max(budget_s, smallest_budget_s(job_of, learned, goal))
                except InfeasibleError:  # of the raised goal, which nobody has asked for
                    break
    trial.unlink(missing_ok=True)
    if best is None:
        assert error is not None
        raise error
    return best


def smallest_budget_s(job_of: MakeJob, learned: Learned, top1: float) -> float:
    """The smallest latency limit inside which an architecture is known to have a top-1 of `top1`; or, to `PRECISION` of
    it, inside which an evolution finds one that is predicted to have it, if that is smaller.

    Raises:
        InfeasibleError: there is none without a limit.
    """
    job, evaluations = replace(job_of(NO_LIMIT_S), enough=top1), learned.evaluations
    known, known_top1 = evaluations.training_set()
    unlimited = job.limits((NO_LIMIT_S,))
    accurate = job.fastest_known(evaluations, unlimited)
    known_s = float(job.latencies[0].cost(accurate)[0]) if len(accurate) else math.inf

    def best(limit_s: float) -> tuple[float, float]:
        """The best predicted top-1 inside a limit of what is not known, and the seconds of the architecture."""
        try:
            found = job.evolve(learned.predictor, (limit_s,), None)
        except InfeasibleError:  # the others' limits leave nothing that is so fast
            return -math.inf, limit_s
        fresh = np.flatnonzero(~np.isin(keys(found.genomes), keys(known)))[:1]
        if not len(fresh):
            return -math.inf, limit_s
        return float(found.fitness[fresh][0]), float(job.latencies[0].cost(found.genomes[fresh])[0])

    low_s = least(job.latencies[0].table)[0]
    most, high_s = best(min(known_s, NO_LIMIT_S))
    if most < top1:
        if len(accurate):
            return known_s
        most = max(min(most, 1.0), *known_top1[feasible(unlimited, known)].tolist())
        raise InfeasibleError(
            f"no network is known or predicted to have an accuracy of {top1:.2%}: the most accurate one has "
            f"{most:.2%}; ask for less, or relax the limits"
        )
    if known_s <= low_s or best(low_s)[0] >= top1:
        return low_s
    while high_s > low_s * (1.0 + PRECISION):
        middle_s = math.sqrt(low_s * high_s)
        accuracy, latency_s = best(middle_s)
        if accuracy >= top1:
            high_s = min(middle_s, latency_s)
        else:
            low_s = middle_s
    return high_s


def _learn(job_of: MakeJob, top1: float, source: Source, config: SearchConfig, progress: bool) -> Learned:
    """Learn all over the space first; where there are weights to evaluate, then near the budget that this asks for."""
    without = config.model_copy(update={"refine_evaluations": 0})
    job = replace(job_of(NO_LIMIT_S), config=without)
    learned = learn([job], source, progress)
    if not learned.evaluations.can_grow or not config.refine_evaluations:
        return replace(learned, job=job_of(NO_LIMIT_S))
    with named_wait(_SEEKING, progress):
        budget_s = smallest_budget_s(job_of, learned, top1)
    return learn([job_of(budget_s)], source, progress)


def _missed(outcome: SearchOutcome | None, top1: float, num_searches: int) -> InfeasibleError:
    plural = "es" if num_searches > 1 else ""
    last = "" if outcome is None else f": the last one found {outcome.winner.top1:.2%} ({outcome.architecture.key})"
    return InfeasibleError(
        f"no network with an accuracy of {top1:.2%} was found in {num_searches} search{plural}{last}; ask for less"
    )


def _is_faster(winner: Finalist, earlier: Finalist) -> bool:
    """True of another network that measured less; one that was only measured again is no progress."""
    return winner.architecture != earlier.architecture and winner.measured_s < earlier.measured_s


def _shortfall(outcome: SearchOutcome, top1: float) -> float:
    """The most by which predictions of finalists that miss the goal were too high; never negative."""
    proofs = [f for f in outcome.finalists if f.proof.error is None and f.top1 < top1]
    return max((min(f.proposal.predicted_top1 - f.top1, top1 - f.top1) for f in proofs), default=0.0)
