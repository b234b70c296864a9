"""Architectures that are as good as a winner, as far as the predictor can tell: what they have in common is what a
budget asks for, and what differs among them is chance.

Notation: N rows, L genome length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import Genomes, mutate
from chanas.search.evolution.constraints import Constraint, feasible
from chanas.search.evolution.population import feasible_set

NUM_SWARMS, NUM_WALKERS, NUM_KEPT = 5, 60, 20
# One or two genes of mbv3's 47 change in a step; half of the steps are taken then.
_PROBABILITY = 0.03
_STEPS, _LAST_STEPS = 10, 50
_MOST_LEVELS = 100


def draw_alike(
    space: SearchSpace,
    fitness: Callable[[Genomes], FloatArray],
    constraints: Sequence[Constraint],
    floor: float,
    rng: np.random.Generator,
    sub_space: SubSpace | None = None,
) -> Genomes:
    """int16[N, L], at most NUM_SWARMS · NUM_KEPT: random feasible rows whose `fitness` is at least `floor`, with
    repeats.

    A walk from the best would stay near it. Each of several swarms begins anywhere inside the limits; a level rises to
    the median fitness of its walkers, those below go on from where others stand, and all take random steps that keep to
    the level, until it is the floor (nested sampling: Skilling, Bayesian Analysis 1, 2006). A swarm that does not get
    there has no rows.
    """
    swarms = [_swarm(space, fitness, constraints, floor, rng, sub_space) for _ in range(NUM_SWARMS)]
    return np.concatenate(swarms)


def _swarm(
    space: SearchSpace,
    fitness: Callable[[Genomes], FloatArray],
    constraints: Sequence[Constraint],
    floor: float,
    rng: np.random.Generator,
    sub_space: SubSpace | None,
) -> Genomes:
    rows = feasible_set(space, constraints, NUM_WALKERS, rng, sub_space)
    if not len(rows):
        return rows
    value = fitness(rows)
    for _ in range(_MOST_LEVELS):
        level = min(float(np.median(value)), floor)
        above = np.flatnonzero(value >= level)
        chosen = np.concatenate([above, rng.choice(above, len(rows) - len(above))])
        rows, value = rows[chosen], value[chosen]
        for _ in range(_LAST_STEPS if level == floor else _STEPS):
            steps = mutate(space, rows, _PROBABILITY, rng, fix_sub_space=sub_space is not None)
            found, meets = np.full(len(rows), -np.inf), feasible(constraints, steps)
            if meets.any():
                found[meets] = fitness(steps[meets])
            taken = found >= level
            rows, value = np.where(taken[:, None], steps, rows), np.where(taken, found, value)
        if level == floor:
            return rows[rng.permutation(len(rows))[:NUM_KEPT]]
    return rows[:0]
