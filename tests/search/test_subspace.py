from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chanas.core.arch import SearchSpace
from chanas.core.genome import Genomes
from chanas.core.latency import LatencyLUT
from chanas.errors import ConfigError, InfeasibleError
from chanas.search.evolution.constraints import latency_constraint, least
from chanas.search.subspace import LEVELS, RULES, divide


@pytest.fixture
def parts(
    demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], make_accuracy: Callable[..., Any]
) -> tuple[SearchSpace, LatencyLUT, Any]:
    return demo_space, make_lut(demo_space), make_accuracy(demo_space)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_takes_what_it_says(rule: str, parts: tuple[SearchSpace, LatencyLUT, Any]) -> None:
    space, lut, truth = parts
    latency = latency_constraint(lut, space, 10, 1.5e-4)
    division = divide(space, truth.many, latency, [latency], np.random.default_rng(0), rule, num_samples=100)
    by_key = {s.sub_space.key: s for s in division.statistics}
    assert len(by_key) == 4
    assert division.choices["all"] is None
    paper, accuracy = division.choices["paper"], division.choices["accuracy"]
    assert paper is not None
    assert accuracy is not None
    assert by_key[paper.key].mean_latency_s == min(s.mean_latency_s for s in by_key.values() if s.mean_latency_s)
    assert by_key[accuracy.key].score == max(s.score for s in by_key.values() if s.score)
    assert division.chosen == division.choices[rule]
    assert paper == space.sub_spaces[0]  # the paper's rule, to the letter, takes the smallest


def test_the_statistics_are_those_of_the_samples(parts: tuple[SearchSpace, LatencyLUT, Any]) -> None:
    space, lut, truth = parts
    latency = latency_constraint(lut, space, 10, 1e-4)
    division = divide(space, truth.many, latency, [latency], np.random.default_rng(0), num_samples=200)
    for s in division.statistics:
        assert len(s.latency_quantiles_s) == len(LEVELS)
        assert (np.diff(s.latency_quantiles_s) >= 0).all()
        assert s.smallest_latency_s <= s.latency_quantiles_s[0]
        assert s.smallest_latency_s == least(latency.table, s.sub_space)[0]
        if s.num_feasible:
            assert max(s.feasible_latency_quantiles_s) <= latency.limit
            assert s.mean_latency_s is not None
            assert s.score is not None
            assert s.score >= s.top1_quantiles[-1]  # a search goes on from the best of the samples
        else:
            assert s.mean_latency_s is s.score is None
    again = divide(space, truth.many, latency, [latency], np.random.default_rng(0), num_samples=200)
    assert json.loads(json.dumps(division.to_json())) == again.to_json()


def test_a_tiny_feasible_region_is_still_divided(parts: tuple[SearchSpace, LatencyLUT, Any]) -> None:
    space, lut, truth = parts
    smallest_s = least(lut.table(space, 10))[0]
    latency = latency_constraint(lut, space, 10, smallest_s)
    division = divide(space, truth.many, latency, [latency], np.random.default_rng(0), num_samples=50)
    assert sum(s.num_feasible for s in division.statistics) == 1
    assert division.choices["paper"] == division.choices["accuracy"]
    latency = latency_constraint(lut, space, 10, 0.99 * smallest_s)
    with pytest.raises(InfeasibleError, match="smallest reachable"):
        divide(space, truth.many, latency, [latency], np.random.default_rng(0))


def test_an_unknown_rule_lists_the_known(parts: tuple[SearchSpace, LatencyLUT, Any]) -> None:
    space, lut, _ = parts
    latency = latency_constraint(lut, space, 10, 1e-3)

    def predict(genomes: Genomes) -> Any:
        raise AssertionError

    with pytest.raises(ConfigError, match="unknown sub-space rule 'best'; known: accuracy, all, paper"):
        divide(space, predict, latency, [latency], np.random.default_rng(0), "best")
