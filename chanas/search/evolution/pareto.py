"""Several objectives at once: the non-dominated front, and NSGA-II (Deb et al., 2002) to search for it.

Notation: N rows, M objectives, L genome length. Every objective is minimised; pass an accuracy with its sign turned.
Row a dominates row b when it is no worse in all objectives and better in one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.arrays import BoolArray, FloatArray, IntArray
from chanas.core.genome import Genomes
from chanas.search.evolution.constraints import Constraint, check_reachable, feasible, none_found
from chanas.search.evolution.dtypes import Improve
from chanas.search.evolution.evolution import EvolutionConfig, breed
from chanas.search.evolution.population import Seen, feasible_set, inside, keys

Objectives = Callable[[Genomes], FloatArray]

_CHUNK = 1024


def latency_and_error(latency: Constraint, accuracy: Callable[[Genomes], FloatArray]) -> Objectives:
    """Two objectives: the latency on a target, and an accuracy with its sign turned."""
    return lambda genomes: np.stack([latency.cost(genomes), -accuracy(genomes)], axis=1)


def dominates(left: FloatArray, right: FloatArray) -> BoolArray:
    """bool[A, B]: whether row a of float64[A, M] dominates row b of float64[B, M]."""
    no_worse = np.ones((len(left), len(right)), dtype=bool)
    better = np.zeros_like(no_worse)
    for a, b in zip(left.T, right.T, strict=True):
        no_worse &= a[:, None] <= b
        better |= a[:, None] < b
    return no_worse & better


def pareto_front(objectives: FloatArray) -> npt.NDArray[np.intp]:
    """Positions of the rows of float64[N, M] that no other row dominates, by ascending first objective.

    Of equal rows all stay. Two objectives take one sort; more take a sweep in chunks of rows.
    """
    order = np.lexsort(objectives.T[::-1])
    rows = objectives[order]
    if rows.shape[1] == 2 and len(rows):
        second = rows[:, 1]
        before = np.concatenate([[np.inf], np.minimum.accumulate(second)[:-1]])
        keep = second < before
        equal = np.concatenate([[False], (rows[1:] == rows[:-1]).all(axis=1)])
        keep = keep[np.maximum.accumulate(np.where(equal, 0, np.arange(len(rows))))]
        return order[keep]
    # sorted so, a row can only be dominated by one before it
    front: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)
    for start in range(0, len(rows), _CHUNK):
        chunk = np.arange(start, min(start + _CHUNK, len(rows)))
        rivals = np.concatenate([front, chunk])
        front = np.concatenate([front, chunk[~dominates(rows[rivals], rows[chunk]).any(axis=0)]])
    return order[front]


def ranks(objectives: FloatArray) -> IntArray:
    """int64[N]: 0 for the front, 1 for the front of the rest, and so on (fast non-dominated sorting)."""
    beaten = dominates(objectives, objectives)
    left = beaten.sum(axis=0)
    out = np.full(len(objectives), -1, dtype=np.int64)
    rank = 0
    while (out < 0).any():
        front = (out < 0) & (left == 0)
        out[front] = rank
        left = left - beaten[front].sum(axis=0)
        rank += 1
    return out


def crowding(objectives: FloatArray, rank: IntArray) -> FloatArray:
    """float64[N]: crowding distance of each row inside its rank; infinite at the ends (NSGA-II, section III.B)."""
    out = np.zeros(len(objectives))
    for column in objectives.T:
        order = np.lexsort((column, rank))
        value, group = column[order], rank[order]
        first = np.concatenate([[True], group[1:] != group[:-1]])
        last = np.concatenate([group[1:] != group[:-1], [True]])
        low, high = (
            np.maximum.reduceat(-value, np.flatnonzero(first)),
            np.maximum.reduceat(value, np.flatnonzero(first)),
        )
        extent = (low + high)[np.cumsum(first) - 1]
        gap = np.full(len(value), np.inf)
        inner = np.flatnonzero(~first & ~last)
        gap[inner] = (value[inner + 1] - value[inner - 1]) / np.where(extent[inner] > 0, extent[inner], 1.0)
        out[order] += gap
    return out


@dataclass(frozen=True)
class ParetoResult:
    """The front: int16[N, L] genomes and float64[N, M] objectives, by ascending first objective."""

    genomes: Genomes
    objectives: FloatArray


def nsga2(
    space: SearchSpace,
    objectives: Objectives,
    constraints: Sequence[Constraint],
    config: EvolutionConfig,
    rng: np.random.Generator,
    sub_space: SubSpace | None = None,
    start: Genomes | None = None,
    improve: Improve | None = None,
) -> ParetoResult:
    """The front of all that were evaluated, by NSGA-II with this package's mutation and crossover.

    `objectives` gets canonical, feasible genomes int16[N, L] and gives float64[N, M] to minimise. No architecture is
    evaluated twice; `start` adds rows to the first population, and `improve` gives architectures that are as good as
    those that are about to be looked at, or better.

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
    seen = Seen()
    rows = rows[seen.new(keys(rows))]
    population, costs = rows[:0], np.zeros((0, 0))
    archive: list[tuple[Genomes, FloatArray]] = []
    for _ in range(config.generations):
        seen.add(keys(rows))
        values = objectives(rows)
        archive.append((rows, values))
        population = np.concatenate([population, rows])
        costs = np.concatenate([costs, values]) if len(costs) else values
        rank = ranks(costs)
        order = np.lexsort((-crowding(costs, rank), rank))[: config.population]
        population, costs = population[order], costs[order]
        # binary tournament: rows stand best first, so the smaller of two positions wins
        winners = rng.integers(len(population), size=(2, config.population)).min(axis=0)
        children = breed(space, population[winners], 2 * config.population, config, rng, sub_space is not None)
        children = children if improve is None else improve(children)
        children = children[seen.new(keys(children))]
        children = children[feasible(constraints, children)]
        if not len(children):
            break
        rows = children[rng.permutation(len(children))[: config.population]]
    genomes = np.concatenate([g for g, _ in archive])
    values = np.concatenate([v for _, v in archive])
    front = pareto_front(values)
    return ParetoResult(genomes[front], values[front])
