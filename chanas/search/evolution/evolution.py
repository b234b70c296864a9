"""Evolutionary search (paper, section 3.6, equation 1), vectorised end to end: mutation, crossover, cost look-up and
fitness act on whole populations; constraints are hard; no architecture is evaluated twice.

Notation: N rows, L genome length, G generations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import Genomes, crossover, mutate
from chanas.search.evolution.constraints import Constraint, check_reachable, feasible, none_found
from chanas.search.evolution.dtypes import Improve
from chanas.search.evolution.population import Seen, feasible_set, inside, keys

Fitness = Callable[[Genomes], FloatArray]

_MAX_OVERSAMPLING = 8.0


class EvolutionConfig(BaseModel):
    """Settings of the evolution; the defaults are once-for-all's (population, generations, parents, mutation)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    population: int = Field(default=100, ge=4, description="architectures evaluated per generation")
    generations: int = Field(default=500, ge=1, description="the first is the initial population")
    parents_fraction: float = Field(default=0.25, gt=0, le=1, description="share of the population that breeds")
    mutation_share: float = Field(
        default=0.5, ge=0, le=1, description="share of children by mutation, the rest by crossover"
    )
    mutation_probability: float = Field(default=0.1, gt=0, le=1, description="chance of each gene to be redrawn")
    keep: int = Field(default=1000, ge=1, description="how many of the best are returned")


@dataclass(frozen=True)
class EvolutionHistory:
    """One entry per generation.

    best           float64[G]  best fitness so far
    mean           float64[G]  mean fitness of the rows evaluated in this generation
    num_evaluated  int64[G]    how many those were
    feasible       float64[G]  share of the proposed children that met every limit
    """

    best: FloatArray
    mean: FloatArray
    num_evaluated: FloatArray
    feasible: FloatArray

    def to_json(self, num_points: int = 100) -> dict[str, Any]:
        """Lists of at most `num_points` evenly spaced generations."""
        at = np.unique(np.linspace(0, len(self.best) - 1, min(num_points, len(self.best))).astype(int))
        return {
            "generation": at.tolist(),
            "best": self.best[at].tolist(),
            "mean": self.mean[at].tolist(),
            "num_evaluated": int(self.num_evaluated.sum()),
            "feasible": self.feasible[at].tolist(),
        }


@dataclass(frozen=True)
class EvolutionResult:
    """The best distinct architectures that were evaluated: int16[N, L] and float64[N], best first."""

    genomes: Genomes
    fitness: FloatArray
    history: EvolutionHistory

    @property
    def num_evaluations(self) -> int:
        return int(self.history.num_evaluated.sum())


def breed(
    space: SearchSpace, parents: Genomes, num: int, config: EvolutionConfig, rng: np.random.Generator, fixed: bool
) -> Genomes:
    """`num` children of random parents: mutations, then stage-wise crossovers; `fixed` keeps the sub-space."""
    mothers = parents[rng.integers(len(parents), size=num)]
    num_mutants = round(num * config.mutation_share)
    mutants = mutate(space, mothers[:num_mutants], config.mutation_probability, rng, fix_sub_space=fixed)
    fathers = parents[rng.integers(len(parents), size=num - num_mutants)]
    return np.concatenate([mutants, crossover(space, mothers[num_mutants:], fathers, rng)])


def evolve(
    space: SearchSpace,
    fitness: Fitness,
    constraints: Sequence[Constraint],
    config: EvolutionConfig,
    rng: np.random.Generator,
    sub_space: SubSpace | None = None,
    start: Genomes | None = None,
    improve: Improve | None = None,
) -> EvolutionResult:
    """Architectures of high `fitness` (larger is better) that meet every constraint.

    `fitness` gets canonical genomes int16[N, L] that are all feasible and gives float64[N]. `sub_space` keeps the
    search inside one; None searches all. `start` adds rows (only feasible ones count) to the first population.
    `improve` gets all that is about to be looked at, and gives architectures that are as good or better.
    The number of fitness calls is at most `config.generations`, of rows population × generations.

    Raises:
        InfeasibleError: a constraint cannot be met, or no architecture was found that meets all of them together.
    """
    check_reachable(constraints, sub_space)
    rows = feasible_set(space, constraints, config.population, rng, sub_space)
    if start is not None and len(start):
        home = inside(space, start, sub_space)
        rows = np.concatenate([start[home & feasible(constraints, start)], rows])
    if not len(rows):
        raise none_found(constraints)
    rows = rows if improve is None else improve(rows)
    seen = Seen()
    rows = rows[seen.new(keys(rows))][: config.population]
    num_parents = max(2, round(config.population * config.parents_fraction))
    evaluated: list[tuple[Genomes, FloatArray]] = []
    history: list[tuple[float, float, int, float]] = []
    parents, parent_fitness = rows[:0], np.zeros(0)
    rate = 1.0
    for generation in range(config.generations):
        seen.add(keys(rows))
        values = fitness(rows)
        evaluated.append((rows, values))
        parents, parent_fitness = np.concatenate([parents, rows]), np.concatenate([parent_fitness, values])
        order = np.argsort(-parent_fitness, kind="stable")[:num_parents]
        parents, parent_fitness = parents[order], parent_fitness[order]
        history.append((float(parent_fitness[0]), float(values.mean()), len(rows), rate))
        if generation + 1 == config.generations:
            break
        # as many children as are likely to leave a full population once repeats and breaches are dropped
        most = _MAX_OVERSAMPLING if improve is None else 1.1  # improving takes its time
        num = math.ceil(config.population * min(most, 1.1 / max(rate, 0.1)))
        children = breed(space, parents, num, config, rng, sub_space is not None)
        children = children if improve is None else improve(children)
        children = children[seen.new(keys(children))]
        children = children[feasible(constraints, children)]
        rate = 0.8 * rate + 0.2 * len(children) / num
        rows = children[rng.permutation(len(children))[: config.population]] if len(children) else children
        if not len(rows):  # everything near is known: look elsewhere, and end when there is nothing left
            rows = feasible_set(space, constraints, config.population, rng, sub_space)
            rows = rows[seen.new(keys(rows))]
            if not len(rows):
                break
    genomes = np.concatenate([g for g, _ in evaluated])
    values = np.concatenate([v for _, v in evaluated])
    order = np.argsort(-values, kind="stable")[: config.keep]
    columns = [np.array(c, dtype=np.float64) for c in zip(*history, strict=True)]
    return EvolutionResult(genomes[order], values[order], EvolutionHistory(*columns))
