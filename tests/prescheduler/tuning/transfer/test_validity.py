"""chanas/prescheduler/tuning/transfer/validity.py: which points will work is learned from others and from trials."""

from __future__ import annotations

import numpy as np

from chanas.core.genome import FloatArray
from chanas.prescheduler.tuning.transfer.validity import Validity

X = np.linspace(0.0, 3.0, 40)
WORKS = X < 2.0


def told(works: np.ndarray, sources: FloatArray, chosen: np.ndarray) -> FloatArray:
    validity = Validity(len(X), sources)
    for index in chosen.tolist():
        validity.observe(index, bool(works[index]), np.abs(X - X[index]))
    found = validity.probabilities()
    assert found is not None
    return found


def source(works: np.ndarray) -> FloatArray:
    return np.where(works, 1.0, np.nan)[:, None]


def test_while_nothing_fails_nothing_is_said(rng: np.random.Generator) -> None:
    validity = Validity(40, np.ones((40, 2)))
    validity.observe(3, True, np.abs(X - X[3]))
    assert validity.probabilities() is None


def test_a_source_is_believed_at_first_and_no_longer_when_it_was_wrong(rng: np.random.Generator) -> None:
    first = told(WORKS, source(WORKS), np.array([0]))
    assert first[WORKS].min() > 2.0 * first[~WORKS].max()
    misled = told(WORKS, source(~WORKS), rng.permutation(40)[:20])
    assert misled[X < 1.5].min() > 2.0 * misled[X > 2.5].max()


def test_without_sources_what_is_near_a_failure_is_likely_to_fail(rng: np.random.Generator) -> None:
    found = told(WORKS, np.zeros((40, 0)), rng.permutation(40)[:20])
    assert found[X < 1.5].min() > 0.6
    assert found[X > 2.5].max() < 0.4


def test_the_right_source_is_found_among_others(rng: np.random.Generator) -> None:
    odd = np.arange(40) % 3 > 0
    found = told(odd, np.hstack([source(odd), source(WORKS)]), rng.permutation(40)[:15])
    assert found[odd].min() > 0.8
    assert found[~odd].max() < 0.3


def test_a_source_that_knows_nothing_is_left_out() -> None:
    blind = told(WORKS, np.full((40, 1), np.nan), np.array([39]))
    none = told(WORKS, np.zeros((40, 0)), np.array([39]))
    np.testing.assert_array_equal(blind, none)
