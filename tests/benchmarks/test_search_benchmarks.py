"""Figures of the search: budgets, exhaustive and random search, sub-space rules."""

from __future__ import annotations

from typing import Any

import pytest
from tables import random_table

from chanas.core.arch import SearchSpace
from chanas.core.genome import canonical, decode
from chanas.search.evolution.evolution import EvolutionConfig


def test_all_architectures_of_a_small_space_are_listed_once(load: Any, tiny_space: SearchSpace) -> None:
    budgets = load("budgets")
    every = budgets.all_genomes(tiny_space)
    assert len({a.key for a in decode(tiny_space, every)}) == len(every) == tiny_space.num_architectures
    assert (canonical(tiny_space, every) == every).all()
    whole = SearchSpace.load(budgets.SPACE)
    small = budgets.small_space(whole)
    assert small.num_architectures == 31_104
    assert set(small.all_blocks(10)) <= set(whole.all_blocks(10))


def test_the_evolution_is_compared_with_all_and_with_random_ones(load: Any, tiny_space: SearchSpace) -> None:
    budgets, effort = load("budgets"), EvolutionConfig(population=20, generations=20)
    lut = random_table(tiny_space)
    limits_s = budgets.budgets_between(*budgets.reachable_range(lut, tiny_space), 3)
    assert limits_s == sorted(limits_s)
    gaps = budgets.gap_percent(lut, tiny_space, limits_s, 0, effort)
    assert all(0.0 <= gap < 5.0 for gap in gaps)
    rows = budgets.evolution_ahead(lut, tiny_space, limits_s[:1], 2, effort)
    assert [r["seed"] for r in rows] == [0, 1]
    assert all(0 < r["evolution"] <= 1 for r in rows)


def test_regrets_are_those_of_both_rules(load: Any) -> None:
    rows = [{r: {"regret_points": p} for r, p in (("accuracy", a), ("paper", b))} for a, b in ((0.0, 1.0), (0.1, 3.0))]
    figures = load("subspace_rules").figures_of(rows)
    assert figures["accuracy_mean_regret_points"].value == pytest.approx(0.05)
    assert figures["accuracy_mean_regret_points"].met
    assert figures["paper_worst_regret_points"].value == 3.0
