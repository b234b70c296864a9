"""chanas/search/evolution/alike.py: random members of the set that is as good as the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chanas.core.arch import SearchSpace
from chanas.core.genome import Genomes
from chanas.core.latency import LatencyLUT
from chanas.search.evolution.alike import draw_alike
from chanas.search.evolution.constraints import Constraint, feasible, latency_constraint
from chanas.search.evolution.population import keys, unique


def inside(space: SearchSpace, lut: LatencyLUT, genomes: Genomes, quantile: float) -> Constraint:
    """A budget that a share of the genomes meets."""
    return latency_constraint(lut, space, 10, float(np.quantile(lut.latency_s(space, 10, genomes), quantile)))


def test_all_rows_are_inside_and_good_enough_and_they_lie_all_over_that_set(
    tiny_space: SearchSpace,
    tiny_genomes: Genomes,
    make_lut: Callable[..., LatencyLUT],
    make_accuracy: Callable[..., Any],
) -> None:
    truth = make_accuracy(tiny_space).many
    limit = inside(tiny_space, make_lut(tiny_space), tiny_genomes, 0.6)
    good = tiny_genomes[feasible([limit], tiny_genomes)]
    floor = float(np.sort(truth(good))[-60])  # 60 architectures are that good
    found = draw_alike(tiny_space, truth, [limit], floor, np.random.default_rng(0))
    assert len(found) == 100
    assert feasible([limit], found).all()
    assert (truth(found) >= floor).all()
    assert len(unique(found)) > 30


def test_it_keeps_to_a_sub_space(
    tiny_space: SearchSpace, make_lut: Callable[..., LatencyLUT], make_accuracy: Callable[..., Any]
) -> None:
    home = tiny_space.sub_spaces[1]
    found = draw_alike(tiny_space, make_accuracy(tiny_space).many, [], 0.0, np.random.default_rng(0), home)
    assert len(found) == 100
    assert {(int(r), int(w)) for r, w in found[:, :2]} == {
        (tiny_space.resolutions.index(home.resolution), tiny_space.width_multipliers.index(home.width_multiplier))
    }


def test_it_is_the_same_for_a_seed(tiny_space: SearchSpace, make_accuracy: Callable[..., Any]) -> None:
    truth = make_accuracy(tiny_space).many
    one, two = (draw_alike(tiny_space, truth, [], 0.8, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(keys(one), keys(two))


def test_a_floor_that_nothing_reaches_has_no_rows(tiny_space: SearchSpace, make_accuracy: Callable[..., Any]) -> None:
    assert len(draw_alike(tiny_space, make_accuracy(tiny_space).many, [], 2.0, np.random.default_rng(0))) == 0
