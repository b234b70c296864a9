from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import BlockTable, Genomes, canonical, sample
from chanas.core.latency import LatencyLUT
from chanas.errors import InfeasibleError
from chanas.search.evolution.constraints import (
    Constraint,
    feasible,
    latency_constraint,
    least,
    macs_constraint,
    params_constraint,
)
from chanas.search.evolution.evolution import EvolutionConfig, evolve
from chanas.search.evolution.population import unique

SHORT = EvolutionConfig(population=40, generations=40)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("quantile", [0.0, 0.02, 0.3, 1.0])
def test_it_finds_the_optimum_of_a_space_that_can_be_listed(
    quantile: float,
    seed: int,
    tiny_space: SearchSpace,
    tiny_genomes: Genomes,
    make_lut: Callable[..., LatencyLUT],
    make_accuracy: Callable[..., Any],
) -> None:
    lut, truth = make_lut(tiny_space, seed), make_accuracy(tiny_space, seed=seed)
    latency_s = lut.latency_s(tiny_space, 10, tiny_genomes)
    constraint = latency_constraint(lut, tiny_space, 10, float(np.quantile(latency_s, quantile)))
    inside = feasible([constraint], tiny_genomes)
    result = evolve(tiny_space, truth.many, [constraint], SHORT, np.random.default_rng(seed))
    assert result.fitness[0] == pytest.approx(truth.many(tiny_genomes[inside]).max(), abs=1e-12)


def test_what_comes_back_is_distinct_canonical_feasible_and_sorted(
    demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], make_accuracy: Callable[..., Any]
) -> None:
    lut, truth = make_lut(demo_space), make_accuracy(demo_space)
    limits = [
        latency_constraint(lut, demo_space, 10, 1.3 * least(lut.table(demo_space, 10))[0]),
        macs_constraint(demo_space, 10, 3.5e6),
        params_constraint(demo_space, 10, 260e3),
    ]
    evaluated: list[Genomes] = []

    def fitness(genomes: Genomes) -> FloatArray:
        evaluated.append(genomes)
        top1: FloatArray = truth.many(genomes)
        return top1

    result = evolve(demo_space, fitness, limits, SHORT, np.random.default_rng(0))
    every = np.concatenate(evaluated)
    assert len(evaluated) <= SHORT.generations
    assert max(map(len, evaluated)) <= SHORT.population
    assert feasible(limits, every).all()
    assert len(unique(every)) == len(every) == result.num_evaluations
    assert (canonical(demo_space, result.genomes) == result.genomes).all()
    assert (np.diff(result.fitness) <= 0).all()
    np.testing.assert_allclose(truth.many(result.genomes), result.fitness, rtol=1e-12)
    assert result.fitness[0] == pytest.approx(truth.many(every).max(), rel=1e-12)
    assert (np.diff(result.history.best) >= 0).all()
    assert result.history.best[-1] == result.fitness[0]
    assert result.history.to_json(10)["generation"][-1] == len(evaluated) - 1


def test_it_stays_in_the_sub_space(demo_space: SearchSpace, make_accuracy: Callable[..., Any]) -> None:
    truth, sub_space = make_accuracy(demo_space), demo_space.sub_spaces[1]
    result = evolve(demo_space, truth.many, [], SHORT, np.random.default_rng(0), sub_space)
    assert (result.genomes[:, :2] == [0, 1]).all()
    everywhere = evolve(demo_space, truth.many, [], SHORT, np.random.default_rng(0))
    assert len(np.unique(everywhere.genomes[:, :2], axis=0)) > 1


def test_equal_seeds_give_equal_results(demo_space: SearchSpace, make_accuracy: Callable[..., Any]) -> None:
    truth = make_accuracy(demo_space)
    one, two, other = (evolve(demo_space, truth.many, [], SHORT, np.random.default_rng(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.genomes, two.genomes)
    np.testing.assert_array_equal(one.fitness, two.fitness)
    assert not np.array_equal(one.genomes, other.genomes)


@pytest.mark.parametrize("seed", range(10))
def test_it_beats_random_search_at_equal_evaluations(
    seed: int, demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], make_accuracy: Callable[..., Any]
) -> None:
    lut, truth = make_lut(demo_space, seed), make_accuracy(demo_space, seed=seed)
    rng = np.random.default_rng(seed)
    rows = sample(demo_space, 1600, rng)
    latency_s = lut.latency_s(demo_space, 10, rows)
    constraint = latency_constraint(lut, demo_space, 10, float(np.median(latency_s)))
    result = evolve(demo_space, truth.many, [constraint], SHORT, rng)
    assert result.num_evaluations <= 1600
    assert result.fitness[0] > truth.many(rows[latency_s <= constraint.limit]).max()


def test_it_uses_the_rows_it_is_started_with(demo_space: SearchSpace, make_accuracy: Callable[..., Any]) -> None:
    truth = make_accuracy(demo_space)
    good = evolve(demo_space, truth.many, [], SHORT, np.random.default_rng(0)).genomes[:1]
    brief = EvolutionConfig(population=8, generations=1)
    again = evolve(demo_space, truth.many, [], brief, np.random.default_rng(1), start=good)
    np.testing.assert_array_equal(again.genomes[0], good[0])


def test_a_space_of_one_architecture_ends(tiny_space: SearchSpace) -> None:
    one = dataclasses.replace(
        tiny_space, resolutions=(16,), width_multipliers=(1.0,), kernel_sizes=(3,), expand_ratios=(2,), depths=(1,)
    )
    result = evolve(one, lambda genomes: np.ones(len(genomes)), [], SHORT, np.random.default_rng(0))
    assert result.num_evaluations == 1


def test_infeasible_limits_are_named(
    demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], make_accuracy: Callable[..., Any]
) -> None:
    truth, lut = make_accuracy(demo_space), make_lut(demo_space)
    with pytest.raises(InfeasibleError, match="smallest reachable is"):
        evolve(demo_space, truth.many, [latency_constraint(lut, demo_space, 10, 1e-9)], SHORT, np.random.default_rng(0))
    table = lut.table(demo_space, 10)
    # a cost that is least where latency is largest: each limit alone can be met
    against = BlockTable(demo_space, 10, lambda block: 1e-2 - lut.block_s(block))
    limits = [
        Constraint("latency", least(table)[0] * 1.0001, table, "s"),
        Constraint("slowness", least(against)[0] * 1.0001, against, "things"),
    ]
    with pytest.raises(InfeasibleError, match=r"latency of at most .* and slowness of at most .* together"):
        evolve(demo_space, truth.many, limits, SHORT, np.random.default_rng(0))
