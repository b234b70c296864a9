"""Choose the sub-networks to evaluate so that the predictor learns most: first a spread over the space, then those that
it is least sure of, until its error on left-out rows stops falling or the evaluations are spent.

Every choice depends on the seed and on the evaluations before the current batch only, so a search that was stopped
half-way goes on to the same evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import Genomes, decode, encode, sample
from chanas.errors import ChanasError
from chanas.search.accuracy.evaluations import EXPLORE, Evaluation, EvaluationStore
from chanas.search.accuracy.predictor import AccuracyPredictor
from chanas.search.config import SearchConfig
from chanas.search.evolution.constraints import Constraint
from chanas.search.evolution.population import feasible_set, keys, unique

_POOL_PER_CHOICE = 32


class Evaluate(Protocol):
    """Top-1 in [0, 1] of a sub-network on the holdout images."""

    def __call__(self, architecture: Architecture, /) -> float: ...


def new_predictor(space: SearchSpace, config: SearchConfig, seed: int) -> AccuracyPredictor:
    """An unfitted predictor as `config` asks for."""
    return AccuracyPredictor(space, config.predictor, config.hidden, config.num_members, seed)


def training_set(space: SearchSpace, evaluations: Sequence[Evaluation]) -> tuple[Genomes, npt.NDArray[np.float64]]:
    """Genomes int16[N, L] and top-1 float64[N] of evaluations."""
    genomes = encode(space, [Architecture.from_key(e.architecture) for e in evaluations])
    return genomes, np.array([e.top1 for e in evaluations])


def choose_batch(
    space: SearchSpace,
    constraints: Sequence[Constraint],
    num: int,
    known: Genomes,
    predictor: AccuracyPredictor | None,
    rng: np.random.Generator,
    others: Sequence[Sequence[Constraint]] = (),
) -> Genomes:
    """Up to `num` distinct genomes that are not in `known`: half of the candidates are feasible, half from anywhere.

    With `others`, limits of further searches, the feasible ones are in turn inside `constraints` and each of these.

    Without a predictor they are the two extremes of the space and random ones; with one, the pool is cut into `num`
    parts and the least certain of each is taken, so that a batch isn't `num` times the same question.
    """
    size = num * _POOL_PER_CHOICE if predictor is not None else num
    inside = _in_turns([_feasible(space, c, -(-size // (1 + len(others))), rng) for c in (constraints, *others)])
    anywhere = sample(space, size, rng)
    mixed = np.empty((len(inside) + len(anywhere), inside.shape[1]), dtype=np.int16)
    both = min(len(inside), len(anywhere))
    mixed[: 2 * both : 2], mixed[1 : 2 * both : 2] = inside[:both], anywhere[:both]
    mixed[2 * both :] = np.concatenate([inside[both:], anywhere[both:]])
    if predictor is None:
        mixed = np.concatenate([encode(space, [space.smallest, space.largest]), mixed])
    pool = unique(mixed)
    pool = pool[~np.isin(keys(pool), keys(known))]
    if predictor is None or len(pool) <= num:
        return pool[:num]
    spread = predictor.predict(pool)[1]
    best = [int(part[spread[part].argmax()]) for part in np.array_split(rng.permutation(len(pool)), num)]
    return pool[sorted(best, key=lambda i: -spread[i])]


def _feasible(space: SearchSpace, constraints: Sequence[Constraint], num: int, rng: np.random.Generator) -> Genomes:
    return feasible_set(space, constraints, num, rng) if constraints else sample(space, num, rng)


def _in_turns(parts: Sequence[Genomes]) -> Genomes:
    """The first rows of all parts, then the second ones, and so on."""
    place = np.concatenate([np.arange(len(part)) for part in parts])
    out: Genomes = np.concatenate(parts)[np.argsort(place, kind="stable")]
    return out


def stopped_falling(errors: Sequence[float], patience: int, min_improvement: float) -> bool:
    """True if none of the last `patience` errors is lower, by a share of `min_improvement`, than the best before."""
    if len(errors) <= patience:
        return False
    return min(errors[-patience:]) > (1.0 - min_improvement) * min(errors[:-patience])


def evaluate_checked(evaluate: Evaluate, architecture: Architecture) -> float:
    """The callable's answer as a float.

    Raises:
        ChanasError: it is not a number between 0 and 1.
    """
    top1 = float(evaluate(architecture))
    if not 0.0 <= top1 <= 1.0:
        raise ChanasError(f"expected a top-1 between 0 and 1 for {architecture.key}, got {top1}")
    return top1


def explore(
    space: SearchSpace,
    evaluate: Evaluate,
    store: EvaluationStore,
    constraints: Sequence[Constraint],
    config: SearchConfig,
    seed: int,
    bar: Any,
    others: Sequence[Sequence[Constraint]] = (),
) -> list[tuple[int, float]]:
    """Evaluates sub-networks into `store`; returns (number known, error on left-out rows in [0, 1] units) per fit.

    What `store` knows counts and is not evaluated again. `bar` is a progress bar or None; `others` are the limits of
    further searches that it is done for.
    """
    known = store.with_purpose(EXPLORE)
    curve: list[tuple[int, float]] = []
    predictor: AccuracyPredictor | None = None
    end = 0
    while end < config.num_evaluations:
        begin, step = end, config.evaluation_batch if end else config.initial_evaluations
        end = min(begin + step, config.num_evaluations)
        if len(known) < end:
            seen, _ = training_set(space, known[:begin])
            rng = np.random.default_rng([seed, begin])
            batch = choose_batch(space, constraints, end - begin, seen, predictor, rng, others)
            names = {e.architecture for e in known}
            for architecture in decode(space, batch):
                if len(known) >= end:
                    break
                if architecture.key in names:
                    continue
                known.append(_evaluate(architecture, evaluate, store))
                if bar is not None:
                    bar.update(1)
                    bar.set_postfix_str(_figure(known, curve), refresh=False)
        if len(known) < end and begin and len(known) == begin:
            break  # the space has no more architectures
        predictor = new_predictor(space, config, seed).fit(*training_set(space, known[:end]))
        curve.append((min(end, len(known)), predictor.error))
        if stopped_falling([error for _, error in curve], config.patience, config.min_improvement):
            break
    return curve


def _evaluate(architecture: Architecture, evaluate: Evaluate, store: EvaluationStore) -> Evaluation:
    found = store.found.get(architecture.key)
    return found or store.add(architecture, evaluate_checked(evaluate, architecture))


def _figure(known: Sequence[Evaluation], curve: Sequence[tuple[int, float]]) -> str:
    best = f"best {100 * max(e.top1 for e in known):.1f} %"
    return f"{best}, error {100 * curve[-1][1]:.2f} points" if curve else best
