"""Check that limits can be met together. Each by itself is answered exactly (`constraints`); together, by a search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import Genomes, decode
from chanas.errors import InfeasibleError
from chanas.search.evolution.constraints import Constraint, check_reachable, feasible
from chanas.search.evolution.evolution import EvolutionConfig, evolve
from chanas.search.evolution.population import feasible_set

# Enough to settle: the fitness is a sum over blocks, which crossover by stages suits.
_EFFORT = EvolutionConfig(population=100, generations=60)
_NUM_ROWS = 32


def smallest_beside(
    space: SearchSpace, constraints: Sequence[Constraint], others: Sequence[Constraint], rng: np.random.Generator
) -> Genomes | None:
    """The architecture int16[1, L] that exceeds the limits of `constraints` the least, or undercuts them the most, in
    shares of the limit, among those that meet `others`; None where no such one was found."""

    def fitness(genomes: Genomes) -> FloatArray:
        shares: FloatArray = np.max([c.cost(genomes) / c.limit for c in constraints], axis=0)
        return -shares

    try:
        found = evolve(space, fitness, others, _EFFORT, rng)
    except InfeasibleError:
        return None
    return found.genomes[:1]


def check_together(space: SearchSpace, constraints: Sequence[Constraint], seed: int = 0) -> Genomes:
    """Some architectures, at least one, that meet every limit: int16[N, L].

    Raises:
        InfeasibleError: one limit cannot be met by itself, or no architecture was found that meets all; the message
            names the smallest reachable value.
    """
    check_reachable(constraints)
    rng = np.random.default_rng(seed)
    rows = feasible_set(space, constraints, _NUM_ROWS, rng)
    if len(rows):
        return rows
    nearest = []
    for i, c in enumerate(constraints):
        found = smallest_beside(space, [c], [*constraints[:i], *constraints[i + 1 :]], rng)
        if found is None:
            continue
        if feasible(constraints, found).all():
            return found
        value = float(c.cost(found)[0])
        nearest.append((value / c.limit, f"{c.name} {c.enough(value)} ({decode(space, found)[0].key})"))
    demands = " and ".join(c.demand for c in constraints)
    if not nearest:
        raise InfeasibleError(
            f"no architecture was found that meets {demands} together, nor all but one of them; each alone can be met: "
            "raise several"
        )
    smallest = ", or ".join(text for _, text in sorted(nearest))
    raise InfeasibleError(
        f"no architecture was found that meets {demands} together; each alone can be met. The smallest found beside "
        f"the others: {smallest}; raise one limit to at least that"
    )
