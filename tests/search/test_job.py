"""chanas/search/job.py: which architectures are worth proving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chanas.core.arch import SearchSpace
from chanas.core.genome import decode, sample
from chanas.search.evolution.evolution import EvolutionResult
from chanas.search.evolution.population import unique
from chanas.search.job import best_candidates


@pytest.mark.parametrize(("keep_known", "expected"), [(False, [4, 5]), (True, [4, 1])])
def test_the_best_that_is_known_stays_where_it_is_asked_for(
    keep_known: bool, expected: list[int], demo_space: SearchSpace
) -> None:
    rows = unique(sample(demo_space, 40, np.random.default_rng(0)))[:8]
    known, found = rows[:4], rows[4:]
    top1 = np.array([0.5, 0.7, 0.6, 0.4])
    unused: Any = None
    result = EvolutionResult(found, np.array([0.9, 0.8, 0.75, 0.7]), unused)
    chosen = best_candidates(demo_space, result, (known, top1), [], None, set(), 2, 1, keep_known=keep_known)
    np.testing.assert_array_equal(chosen, rows[expected])


def test_what_was_tried_is_passed_over(demo_space: SearchSpace) -> None:
    rows = unique(sample(demo_space, 40, np.random.default_rng(0)))[:4]
    architectures = decode(demo_space, rows)
    known = rows[:1], np.array([0.9])
    unused: Any = None
    result = EvolutionResult(rows[1:], np.array([0.8, 0.7, 0.6]), unused)
    tried = {architectures[0].key, architectures[2].key}
    chosen = best_candidates(demo_space, result, known, [], None, tried, 4, 1, keep_known=True)
    np.testing.assert_array_equal(chosen, rows[[1, 3]])
