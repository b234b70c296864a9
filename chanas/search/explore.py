"""Choose the sub-networks to evaluate so that the predictor learns most: first a spread over the space, then those that
it is least sure of, until its error on left-out rows stops falling or the evaluations are spent.

Every choice depends on the seed and on the evaluations before the current batch only, so a search that was stopped
half-way goes on to the same evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.core.arch import SearchSpace
from chanas.core.genome import Genomes, decode, encode, plain, sample
from chanas.search.accuracy.evaluations import EXPLORE, Evaluation, Evaluations, training_set
from chanas.search.accuracy.predictor import AccuracyPredictor
from chanas.search.config import SearchConfig
from chanas.search.evolution.constraints import Constraint
from chanas.search.evolution.population import feasible_set, keys, unique

_POOL_PER_CHOICE = 32


def new_predictor(space: SearchSpace, config: SearchConfig, seed: int) -> AccuracyPredictor:
    """An unfitted predictor as `config` asks for."""
    return AccuracyPredictor(space, config.predictor, config.hidden, config.num_members, seed)


def choose_batch(
    space: SearchSpace,
    limits: Sequence[Sequence[Constraint]],
    num: int,
    known: Genomes,
    predictor: AccuracyPredictor | None,
    rng: np.random.Generator,
) -> Genomes:
    """Up to `num` distinct genomes that are not in `known`: half of the candidates are feasible, half from anywhere.

    The feasible ones are in turn inside the limits of each search (one or more).

    Without a predictor they are the two extremes of the space and random ones; with one, the pool is cut into `num`
    parts and the least certain of each is taken, so that a batch isn't `num` times the same question.
    """
    size = num * _POOL_PER_CHOICE if predictor is not None else num
    inside = _in_turns([_feasible(space, constraints, -(-size // len(limits)), rng) for constraints in limits])
    anywhere = sample(space, size, rng)
    mixed = np.empty((len(inside) + len(anywhere), inside.shape[1]), dtype=np.int16)
    both = min(len(inside), len(anywhere))
    mixed[: 2 * both : 2], mixed[1 : 2 * both : 2] = inside[:both], anywhere[:both]
    mixed[2 * both :] = np.concatenate([inside[both:], anywhere[both:]])
    if predictor is None:
        mixed = np.concatenate([encode(space, [space.smallest, space.largest]), mixed])
    pool = unique(plain(space, mixed))
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


def has_stopped_falling(errors: Sequence[float], patience: int, min_improvement: float) -> bool:
    """True if none of the last `patience` errors is lower, by a share of `min_improvement`, than the best before."""
    if len(errors) <= patience:
        return False
    return min(errors[-patience:]) > (1.0 - min_improvement) * min(errors[:-patience])


def explore(
    evaluations: Evaluations,
    limits: Sequence[Sequence[Constraint]],
    config: SearchConfig,
    seed: int,
    bar: Any,
) -> list[tuple[int, float]]:
    """Evaluate sub-networks; return (number known, error on left-out rows in [0, 1] units) per fit.

    What is known counts and is not evaluated again. `limits` are those of each search that it is done for (one or
    more), `bar` a progress bar or None.
    """
    space, known = evaluations.space, evaluations.with_purpose(EXPLORE)
    curve: list[tuple[int, float]] = []
    predictor: AccuracyPredictor | None = None
    end = 0
    while end < config.num_evaluations:
        begin, step = end, config.evaluation_batch if end else config.initial_evaluations
        end = min(begin + step, config.num_evaluations)
        if len(known) < end:
            seen, _ = training_set(space, known[:begin])
            rng = np.random.default_rng([seed, begin])
            batch = choose_batch(space, limits, end - begin, seen, predictor, rng)
            names = {e.architecture for e in known}
            for architecture in decode(space, batch):
                if len(known) >= end:
                    break
                if architecture.key in names:
                    continue
                known.append(evaluations.evaluate(architecture))
                if bar is not None:
                    bar.update(1)
                    bar.set_postfix_str(_figure(known, curve), refresh=False)
        if len(known) < end and begin and len(known) == begin:
            break  # the space has no more architectures
        predictor = new_predictor(space, config, seed).fit(*training_set(space, known[:end]))
        curve.append((min(end, len(known)), predictor.error))
        if has_stopped_falling([error for _, error in curve], config.patience, config.min_improvement):
            break
    return curve


def _figure(known: Sequence[Evaluation], curve: Sequence[tuple[int, float]]) -> str:
    best = f"best {100 * max(e.top1 for e in known):.1f} %"
    return f"{best}, error {100 * curve[-1][1]:.2f} points" if curve else best
