from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from strategies import spaces_and_genomes

from chanas.core.arch import SearchSpace
from chanas.core.genome import Genomes, plain, sample, with_random_dtypes
from chanas.core.latency import LatencyLUT
from chanas.search.evolution.constraints import Constraint, feasible, latency_constraint, least, macs_constraint
from chanas.search.evolution.population import Seen, feasible_set, keys, unevaluated, unique


def test_keys_differ_where_genomes_do(tiny_genomes: Genomes) -> None:
    assert len(np.unique(keys(tiny_genomes))) == len(tiny_genomes)


@given(spaces_and_genomes())
def test_unique_keeps_first_appearances(drawn: tuple[SearchSpace, Genomes]) -> None:
    _, genomes = drawn
    doubled = np.concatenate([genomes, genomes[::-1]])
    expected = list(dict.fromkeys(map(tuple, doubled.tolist())))
    assert [tuple(row) for row in unique(doubled).tolist()] == expected


def test_the_same_architecture_in_other_dtypes_is_evaluated_once(
    demo_space: SearchSpace, rng: np.random.Generator
) -> None:
    space = demo_space.with_dtypes(("float32", "int8"))
    shapes = sample(space, 30, rng)
    rows = np.concatenate([with_random_dtypes(space, shapes, rng) for _ in range(3)])
    known = plain(space, shapes[:10])
    assert unevaluated(space, rows, known).tolist() == list(range(10, 30))


def test_seen_lets_each_row_through_once(tiny_genomes: Genomes, rng: np.random.Generator) -> None:
    seen, met = Seen(), set()
    for _ in range(60):
        rows = tiny_genomes[rng.integers(len(tiny_genomes), size=50)]
        row_keys = keys(rows)
        new = seen.new(row_keys)
        fresh = list(dict.fromkeys(k for k in row_keys.tolist() if k not in met))
        assert row_keys[new].tolist() == fresh
        seen.add(row_keys[new])
        met.update(fresh)
    assert seen.sorted_keys.tolist() == sorted(met)


@pytest.mark.parametrize("share", [1.0, 1.0001, 1.02, 1.2, 3.0])
def test_a_feasible_set_is_found_however_small_the_region(
    share: float, demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], rng: np.random.Generator
) -> None:
    lut = make_lut(demo_space)
    budget_s = share * least(lut.table(demo_space, 10))[0]
    constraint = latency_constraint(lut, demo_space, 10, budget_s)
    rows = feasible_set(demo_space, [constraint], 50, rng)
    assert 1 <= len(rows) <= 50
    assert (constraint.cost(rows) <= budget_s).all()
    assert len(unique(rows)) == len(rows)
    if share > 1.1:
        assert len(rows) == 50


def test_a_feasible_set_under_two_limits_and_in_one_sub_space(
    demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], rng: np.random.Generator
) -> None:
    lut, sub_space = make_lut(demo_space), demo_space.sub_spaces[2]
    table = lut.table(demo_space, 10)
    macs = macs_constraint(demo_space, 10, 1.0)
    limits = [
        Constraint("latency", 1.05 * least(table, sub_space)[0], table, "s"),
        macs_constraint(demo_space, 10, 1.05 * least(macs.table, sub_space)[0]),
    ]
    rows = feasible_set(demo_space, limits, 20, rng, sub_space)
    assert len(rows)
    assert feasible(limits, rows).all()
    assert (rows[:, :2] == [1, 0]).all()


def test_no_constraints_give_random_rows(demo_space: SearchSpace, rng: np.random.Generator) -> None:
    assert len(feasible_set(demo_space, [], 30, rng)) == 30
