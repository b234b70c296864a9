from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import Genomes
from chanas.core.latency import LatencyLUT
from chanas.errors import InfeasibleError
from chanas.search.evolution.constraints import latency_constraint
from chanas.search.evolution.evolution import EvolutionConfig
from chanas.search.evolution.pareto import crowding, dominates, nsga2, pareto_front, ranks
from chanas.search.evolution.population import inside

points = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=30).map(lambda s: (s[0], 1 + s[1] % 4)),
    elements=st.integers(-4, 4).map(float),
)


def dominated(rows: FloatArray) -> list[bool]:
    return [any((b <= a).all() and (b < a).any() for b in rows) for a in rows]


@given(points)
def test_the_front_is_what_nothing_dominates(rows: FloatArray) -> None:
    front = pareto_front(rows)
    assert sorted(front.tolist()) == [i for i, d in enumerate(dominated(rows)) if not d]
    assert (np.diff(rows[front, 0]) >= 0).all()


@given(points)
def test_ranks_are_fronts_of_what_is_left(rows: FloatArray) -> None:
    left, rank = np.arange(len(rows)), 0
    found = ranks(rows)
    while len(left):
        front = left[pareto_front(rows[left])]
        assert (found[front] == rank).all()
        left, rank = np.setdiff1d(left, front), rank + 1
    assert found.max() == rank - 1


@given(points)
def test_dominance_is_a_strict_order(rows: FloatArray) -> None:
    table = dominates(rows, rows)
    assert not table.diagonal().any()
    assert not (table & table.T).any()
    assert np.asarray(table.any(axis=0)).tolist() == dominated(rows)


@given(points)
def test_the_ends_of_each_rank_are_the_least_crowded(rows: FloatArray) -> None:
    rank = ranks(rows)
    distance = crowding(rows, rank)
    assert (distance >= 0).all()
    for r in range(rank.max() + 1):
        here = rank == r
        for column in rows[here].T:
            assert np.isinf(distance[here][column == column.min()]).any()
            assert np.isinf(distance[here][column == column.max()]).any()


def test_a_large_front_goes_through_in_chunks(rng: np.random.Generator) -> None:
    rows = rng.random((4000, 3))
    front = pareto_front(rows)
    assert not dominates(rows, rows[front]).any()
    others = np.setdiff1d(np.arange(len(rows)), front)
    assert dominates(rows[front], rows[others]).any(axis=0).all()


@pytest.mark.parametrize("seed", range(3))
def test_nsga2_finds_the_front_of_a_space_that_can_be_listed(
    seed: int,
    tiny_space: SearchSpace,
    tiny_genomes: Genomes,
    make_lut: Callable[..., LatencyLUT],
    make_accuracy: Callable[..., Any],
) -> None:
    table, truth = make_lut(tiny_space, seed).table(tiny_space, 10), make_accuracy(tiny_space, seed=seed)

    def objectives(genomes: Genomes) -> FloatArray:
        return np.stack([table.of(genomes), -truth.many(genomes)], axis=1)

    every = objectives(tiny_genomes)
    expected = every[pareto_front(every)]
    config = EvolutionConfig(population=80, generations=40)
    result = nsga2(tiny_space, objectives, [], config, np.random.default_rng(seed))
    again = nsga2(tiny_space, objectives, [], config, np.random.default_rng(seed))
    np.testing.assert_array_equal(result.genomes, again.genomes)
    np.testing.assert_allclose(objectives(result.genomes), result.objectives)
    assert len(pareto_front(result.objectives)) == len(result.objectives)
    found = {tuple(row) for row in np.round(result.objectives, 12).tolist()}
    missing = [row for row in np.round(expected, 12).tolist() if tuple(row) not in found]
    assert len(missing) <= 0.05 * len(expected)


def test_nsga2_keeps_constraints(
    demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], make_accuracy: Callable[..., Any]
) -> None:
    lut, truth = make_lut(demo_space), make_accuracy(demo_space)
    limit = latency_constraint(lut, demo_space, 10, 9e-5)

    def objectives(genomes: Genomes) -> FloatArray:
        assert (limit.cost(genomes) <= limit.limit).all()
        return np.stack([limit.cost(genomes), -truth.many(genomes)], axis=1)

    config = EvolutionConfig(population=20, generations=10)
    assert len(nsga2(demo_space, objectives, [limit], config, np.random.default_rng(0)).genomes)
    with pytest.raises(InfeasibleError, match="smallest reachable"):
        nsga2(demo_space, objectives, [latency_constraint(lut, demo_space, 10, 1e-9)], config, np.random.default_rng(0))


def test_rows_to_start_from_stay_in_the_sub_space(
    tiny_space: SearchSpace, tiny_genomes: Genomes, make_lut: Callable[..., LatencyLUT]
) -> None:
    table, home = make_lut(tiny_space).table(tiny_space, 10), tiny_space.sub_spaces[0]

    def objectives(genomes: Genomes) -> FloatArray:
        return np.stack([table.of(genomes), -genomes.sum(axis=1).astype(np.float64)], axis=1)

    config, rng = EvolutionConfig(population=20, generations=3), np.random.default_rng(0)
    result = nsga2(tiny_space, objectives, [], config, rng, home, start=tiny_genomes)
    assert inside(tiny_space, result.genomes, home).all()
