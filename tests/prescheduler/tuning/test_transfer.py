"""chanas/prescheduler/tuning/transfer.py: other devices help where they are alike, and cost next to nothing where they
are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import multivariate_t, norm

from chanas.core.arrays import FloatArray
from chanas.core.statistics import matern
from chanas.prescheduler.tuning.transfer import (
    ALL,
    ALONE,
    Distances,
    FiniteProcess,
    Mixture,
    TransferSearch,
    Validity,
    encode,
)

# ---- configurations as points ----------------------------------------------------------------------------------------
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.sampled_from(["NHWC", "NCHW", "", "True", "False", "nan", "inf", "1e", "x y", "é"])


def distances2(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    out: np.ndarray = ((x[:, None] - x[None]) ** 2).sum(axis=2)  # type: ignore[type-arg]
    return out


@given(st.lists(NUMBERS, min_size=1, max_size=30))
def test_numbers_become_one_standardised_column_or_none(values: list[float]) -> None:
    x = encode(np.array(values)[:, None])
    assert x.shape[0] == len(values)
    assert x.shape[1] <= 1
    assert np.isfinite(x).all()
    if x.shape[1]:
        assert x.mean() == pytest.approx(0.0, abs=1e-6)
        assert x.std() == pytest.approx(1.0)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=30, unique=True))
def test_the_order_of_numbers_is_kept(values: list[int]) -> None:
    np.testing.assert_array_equal(np.argsort(encode(np.array(values)[:, None])[:, 0]), np.argsort(values))


@given(st.lists(WORDS, min_size=2, max_size=30))
def test_two_words_are_as_far_apart_as_any_other_two(words: list[str]) -> None:
    d = distances2(encode(np.array(words)[:, None]))
    same = np.equal.outer(words, words)
    assert (d[same] < 1e-12).all()
    assert np.ptp(d[~same]) < 1e-9 if (~same).any() else True


@given(st.lists(st.tuples(WORDS, st.integers(1, 5), st.booleans(), st.just("K20")), min_size=2, max_size=30))
def test_every_parameter_that_varies_counts_alike(rows: list[tuple[str, int, bool, str]]) -> None:
    varies = sum(len(set(column)) > 1 for column in zip(*rows, strict=True))
    x = encode([[str(cell) for cell in row] for row in rows])
    assert distances2(x).mean() == pytest.approx(2.0 * varies)


@given(st.lists(st.booleans(), min_size=2, max_size=20))
def test_a_flag_is_the_same_in_words_and_in_numbers(flags: list[bool]) -> None:
    as_words = encode(np.array([str(flag) for flag in flags])[:, None])
    as_flags = encode(np.array(flags)[:, None])
    as_numbers = encode(np.array(flags, dtype=float)[:, None])
    np.testing.assert_allclose(distances2(as_words), distances2(as_numbers), atol=1e-9)
    np.testing.assert_array_equal(as_words, as_flags)


@given(st.lists(st.tuples(WORDS, st.integers(1, 5)), min_size=2, max_size=20))
def test_the_order_of_rows_does_not_matter(rows: list[tuple[str, int]]) -> None:
    table = np.array([[word, str(number)] for word, number in rows])
    order = np.random.default_rng(0).permutation(len(rows))
    np.testing.assert_allclose(encode(table[order]), encode(table)[order], atol=1e-9)


def test_doublings_are_equal_steps() -> None:
    x = encode(np.array([["1"], ["2"], ["4"], ["8"]]))
    assert np.diff(x[:, 0]) == pytest.approx(np.full(3, np.diff(x[:, 0])[0]))


def test_a_table_without_anything_that_varies_has_no_columns() -> None:
    assert encode([["15", "K20", "True"]] * 3).shape == (3, 0)


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((0, 2)), 1.0])
def test_what_is_no_table_is_refused(values: object) -> None:
    with pytest.raises(ValueError, match="expected a table"):
        encode(np.asarray(values))


# ---- which points work -----------------------------------------------------------------------------------------------
LINE = np.linspace(0.0, 3.0, 40)
HALF_WORKS = LINE < 2.0


def chances(works: np.ndarray, sources: FloatArray, chosen: np.ndarray) -> FloatArray:
    validity = Validity(len(LINE), sources)
    for index in chosen.tolist():
        validity.observe(index, bool(works[index]), np.abs(LINE - LINE[index]))
    found = validity.probabilities()
    assert found is not None
    return found


def source(works: np.ndarray) -> FloatArray:
    return np.where(works, 1.0, np.inf)[:, None]


def test_while_nothing_fails_nothing_is_said(rng: np.random.Generator) -> None:
    validity = Validity(40, np.ones((40, 2)))
    validity.observe(3, True, np.abs(LINE - LINE[3]))
    assert validity.probabilities() is None


def test_a_source_is_believed_at_first_and_no_longer_when_it_was_wrong(rng: np.random.Generator) -> None:
    first = chances(HALF_WORKS, source(HALF_WORKS), np.array([0]))
    assert first[HALF_WORKS].min() > 2.0 * first[~HALF_WORKS].max()
    misled = chances(HALF_WORKS, source(~HALF_WORKS), rng.permutation(40)[:20])
    assert misled[LINE < 1.5].min() > 2.0 * misled[LINE > 2.5].max()


def test_without_sources_what_is_near_a_failure_is_likely_to_fail(rng: np.random.Generator) -> None:
    found = chances(HALF_WORKS, np.zeros((40, 0)), rng.permutation(40)[:20])
    assert found[LINE < 1.5].min() > 0.6
    assert found[LINE > 2.5].max() < 0.4


def test_the_right_source_is_found_among_others(rng: np.random.Generator) -> None:
    odd = np.arange(40) % 3 > 0
    found = chances(odd, np.hstack([source(odd), source(HALF_WORKS)]), rng.permutation(40)[:15])
    assert found[odd].min() > 0.8
    assert found[~odd].max() < 0.3


def test_what_a_source_has_not_tried_is_not_taken_for_a_failure() -> None:
    known = np.where(np.arange(40) % 2 == 0, source(HALF_WORKS)[:, 0], np.nan)[:, None]
    found = chances(HALF_WORKS, known, np.array([0, 38]))
    assert found[1:20:2].min() > 2.0 * found[30:40:2].max()


def test_a_source_that_knows_nothing_is_left_out() -> None:
    blind = chances(HALF_WORKS, np.full((40, 1), np.nan), np.array([39]))
    none = chances(HALF_WORKS, np.zeros((40, 0)), np.array([39]))
    np.testing.assert_array_equal(blind, none)


# ---- a process -------------------------------------------------------------------------------------------------------
NUM_POINTS, NOISE, DIFFERENCE, LEVEL, STRETCH = 30, 0.1, 0.7, 10.0, 0.25


@dataclass(frozen=True)
class Measured:
    """A process that was told of points in an order, and the covariances in units of s² that it stands for."""

    process: FiniteProcess
    distances: Distances
    expected: FloatArray
    covariance: FloatArray
    chosen: np.ndarray
    y: FloatArray


@pytest.fixture(params=[0.0, 0.5, 2.0])
def measured(request: pytest.FixtureRequest, rng: np.random.Generator) -> Measured:
    """Asked about all points after 3, 4 and 20 measurements."""
    x, expected, slopes = (
        rng.normal(size=(NUM_POINTS, 3)),
        rng.normal(size=NUM_POINTS),
        rng.normal(size=(2, NUM_POINTS)),
    )
    chosen, y = rng.permutation(NUM_POINTS)[:20], rng.normal(size=20)
    distances = Distances(x)
    process = FiniteProcess(expected, distances, request.param, NOISE, difference=DIFFERENCE, slopes=slopes)
    for num, (index, value) in enumerate(zip(chosen.tolist(), y, strict=True)):
        distances.add(index, distances.row(index))
        process.observe(index, value)
        if num in (2, 3):
            assert process.mean.shape == (NUM_POINTS,)
    apart = np.sqrt(((x[:, None] - x[None]) ** 2).sum(axis=2))
    kernel = matern(apart / request.param) if request.param else np.eye(NUM_POINTS)
    kernel = kernel + (LEVEL / DIFFERENCE) ** 2 + (STRETCH / DIFFERENCE) ** 2 * slopes.T @ slopes
    return Measured(process, distances, expected, kernel, chosen, y)


def test_the_measurements_are_as_in_one_regression(measured: Measured) -> None:
    own = measured.covariance[np.ix_(measured.chosen, measured.chosen)] + NOISE**2 * np.eye(20)
    residual, cross = measured.y - measured.expected[measured.chosen], measured.covariance[measured.chosen]
    np.testing.assert_allclose(
        measured.process.mean, measured.expected + cross.T @ np.linalg.solve(own, residual), atol=1e-7
    )
    variance = np.diag(measured.covariance) - np.einsum("nm,nm->m", cross, np.linalg.solve(own, cross))
    np.testing.assert_allclose(measured.process.variance, variance, atol=1e-7)


def test_the_mean_is_its_trend_and_what_measured_points_add(measured: Measured) -> None:
    coefficients = measured.process.coefficients()
    mean = measured.process.trend(coefficients) + measured.distances.spread(measured.process.length, coefficients)
    np.testing.assert_allclose(mean, measured.process.mean, atol=1e-7)


def test_the_evidence_is_the_density_of_what_follows_the_first_measurement(measured: Measured) -> None:
    first, rest = measured.chosen[:1], measured.chosen[1:]
    own = measured.covariance[np.ix_(rest, rest)] + NOISE**2 * np.eye(19)
    cross, variance = measured.covariance[np.ix_(rest, first)], measured.covariance[first, first] + NOISE**2
    mean = measured.expected[rest] + cross[:, 0] / variance * (measured.y[0] - measured.expected[first])
    shape = own - cross @ cross.T / variance
    density = multivariate_t(mean, shape * DIFFERENCE**2 / 2.0, df=4.0)
    assert measured.process.evidence == pytest.approx(density.logpdf(measured.y[1:]), abs=1e-6)


def test_without_lengths_the_order_of_what_was_not_measured_stays(rng: np.random.Generator) -> None:
    expected, distances = rng.normal(size=NUM_POINTS), Distances(rng.normal(size=(NUM_POINTS, 3)))
    process = FiniteProcess(expected, distances, 0.0, NOISE, difference=0.2, slopes=expected[None])
    chosen = rng.permutation(NUM_POINTS)[:10]
    for index in chosen.tolist():
        distances.add(index, distances.row(index))
        process.observe(index, expected[index] + 0.3 * rng.normal())
    left = np.setdiff1d(np.arange(NUM_POINTS), chosen)
    np.testing.assert_array_equal(np.argsort(process.mean[left]), np.argsort(expected[left]))


def test_the_improvement_is_the_integral_of_what_lies_below_the_best(measured: Measured) -> None:
    left = int(np.setdiff1d(np.arange(NUM_POINTS), measured.chosen)[0])
    process = measured.process
    mean, deviation = process.mean[left], process.deviation * np.sqrt(process.variance[left] + NOISE**2)
    integral, _ = quad(lambda y: (0.1 - y) * norm.pdf(y, mean, deviation), mean - 12 * deviation, 0.1)
    assert process.expected_improvement(0.1)[left] == pytest.approx(integral, rel=1e-6)


# ---- the search ------------------------------------------------------------------------------------------------------
NUM = 144
GRID = np.array([(a, b, c, d) for a in (1, 2, 4, 8) for b in (1, 2, 4) for c in (1, 2, 3, 4) for d in (0, 1, 2)])
X = encode(GRID.astype(np.float64))
NONE = np.zeros((NUM, 0))


def bumpy(seed: int) -> np.ndarray:  # type: ignore[type-arg]
    """A bumpy landscape: a plane, and of each configuration a share of its own."""
    rng = np.random.default_rng(seed)
    return X @ rng.normal(size=4) * 0.4 + np.sin(X @ rng.normal(size=(4, 3)) * 2).sum(axis=1) * 0.4


def alike(truth: np.ndarray, seed: int) -> np.ndarray:  # type: ignore[type-arg]
    return truth + np.random.default_rng(seed).normal(0.0, 0.1, NUM) + 3.0


def searched(sources: np.ndarray, truth: np.ndarray, num: int, seed: int = 0) -> TransferSearch:  # type: ignore[type-arg]
    search = TransferSearch(X, sources, np.random.default_rng(seed))
    for _ in range(num):
        (index,) = search.ask(1)
        search.tell([(index, truth[index])])
    return search


def mean_trials(truths: Sequence[FloatArray], sources: Sequence[FloatArray]) -> float:
    """Measurements until the optimum is found, on average."""
    found = []
    for seed, (truth, source) in enumerate(zip(truths, sources, strict=True)):
        search, num = TransferSearch(X, source, np.random.default_rng(seed)), 0
        while search.best > truth.min():
            (index,) = search.ask(1)
            search.tell([(index, truth[index])])
            num += 1
        found.append(num)
    return float(np.mean(found))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), num_sources=st.integers(0, 2), invalid=st.floats(0.0, 0.9))
def test_each_point_is_proposed_once(seed: int, num_sources: int, invalid: float) -> None:
    rng = np.random.default_rng(seed)
    x = X[:40]
    truth = np.where(rng.random(40) < invalid, np.inf, rng.normal(size=40))
    sources = np.where(rng.random((40, num_sources)) < 0.2, np.inf, rng.normal(size=(40, num_sources)))
    sources[rng.random((40, num_sources)) < 0.2] = np.nan
    search = TransferSearch(x, sources, rng)
    proposed = []
    for _ in range(40):
        proposed += search.ask(1)
        search.tell([(proposed[-1], truth[proposed[-1]])])
    assert sorted(proposed) == list(range(40))
    assert (search.ask(1), search.promise()) == ([], 0.0)


def test_several_are_asked_for_at_once_and_none_twice() -> None:
    truth = bumpy(0)
    search = TransferSearch(X, alike(truth, 1)[:, None], np.random.default_rng(0))
    search.tell([(7, truth[7])])
    first = search.ask(5)
    second = search.ask(5)
    assert len({7, *first, *second}) == 11


def test_trials_of_a_search_before_this_one_are_no_reason_to_draw_at_random_again() -> None:
    truth = bumpy(0)
    known = [(i, truth[i]) for i in range(8)]
    alone = [TransferSearch(X, NONE, np.random.default_rng(seed)) for seed in (0, 1)]
    for search in alone:
        search.tell(known)
    first, second = (search.ask(4) for search in alone)
    assert first == second  # nothing but the model chooses


def test_less_is_promised_the_more_is_known_and_beside_a_faster_rival() -> None:
    truth = bumpy(0)
    search = TransferSearch(X, NONE, np.random.default_rng(0))
    assert search.promise() == math.inf
    search.tell([(i, truth[i]) for i in np.argsort(truth)[-12:].tolist()])
    before = search.promise()
    assert before == search.promise(2.0 * math.exp(search.best)) > search.promise(0.9 * math.exp(search.best)) > 0.0
    search.tell([(i, truth[i]) for i in np.argsort(truth)[:100].tolist()])
    assert before > search.promise() > 0.0


def test_a_device_that_is_alike_saves_measurements() -> None:
    truths = [bumpy(seed) for seed in range(6)]
    others = [alike(truth, seed)[:, None] for seed, truth in enumerate(truths)]
    assert mean_trials(truths, others) <= mean_trials(truths, [NONE] * 6) / 3.0


def test_the_device_that_is_alike_is_found_among_others() -> None:
    truth = bumpy(0)
    shuffled = np.random.default_rng(0).permutation(truth)
    search = searched(np.array([shuffled, alike(truth, 1), -truth]).T, truth, 25)
    weights = search.model.weights()
    assert weights[1] > 0.2  # the mixture of all may learn to follow it, too
    assert weights.get(0, 0.0) + weights.get(2, 0.0) < 0.05


def test_asking_a_source_that_misleads_costs_little() -> None:
    truths = [bumpy(seed) for seed in range(40)]
    shuffled = [np.random.default_rng(seed).permutation(truth)[:, None] for seed, truth in enumerate(truths)]
    alone = mean_trials(truths, [NONE] * 40)
    assert mean_trials(truths, shuffled) <= 1.1 * alone
    assert mean_trials(truths, [-truth[:, None] for truth in truths]) <= 1.1 * alone


def test_a_source_that_says_nothing_is_dropped() -> None:
    trusts = []
    for seed in range(8):
        truth = bumpy(seed)
        shuffled = np.random.default_rng(seed).permutation(truth)
        trusts.append(searched(shuffled[:, None], truth, 20, seed).model.trust)
    assert np.median(trusts) < 0.05


def test_without_measurements_the_ranking_is_that_of_the_sources() -> None:
    truth = bumpy(0)
    mixture = Mixture(X, np.array([truth, truth + 2.0]).T)
    assert list(np.argsort(mixture.predict())) == list(np.argsort(truth))
    assert set(mixture.weights()) == {ALONE, ALL, 0, 1}
    assert mixture.trust == pytest.approx(0.5)


# ---- configurations that do not work --------------------------------------------------------------------------------
SUM = X[:, 0] + X[:, 1]


def failing(truth: FloatArray, limit: float) -> FloatArray:
    """Where two parameters are large together, a configuration does not work."""
    return np.where(limit < SUM, np.inf, truth)


def share_of_failures(truth: FloatArray, sources: FloatArray, begin: int = 0) -> float:
    """Of the measurements from the `begin`-th on."""
    shares = []
    for seed in range(5):
        search, failed = TransferSearch(X, sources, np.random.default_rng(seed)), []
        for _ in range(40):
            (index,) = search.ask(1)
            failed.append(bool(np.isinf(truth[index])))
            search.tell([(index, truth[index])])
        shares.append(np.mean(failed[begin:]))
    return float(np.mean(shares))


def test_what_does_not_work_elsewhere_is_seldom_tried() -> None:
    truth = failing(bumpy(0), 0.5)
    elsewhere = failing(alike(bumpy(0), 1), 0.0)[:, None]
    assert share_of_failures(truth, elsewhere) < 0.25 * np.isinf(truth).mean()


def test_without_any_other_device_failures_are_learned_from() -> None:
    truth = failing(bumpy(0), 0.5)  # a third fails, where others would be fastest
    assert share_of_failures(truth, NONE, begin=8) <= 1.5 * np.isinf(truth).mean()
