"""chanas/prescheduler/tuning/cost_model/guards.py: what was wrong is not asked again, of an operator or of a source."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.prescheduler.tuning.cost_model.guards import Guard, SourceTrust, chance_deviation, rank_correlation

taus = st.floats(-1.0, 1.0)


def trust_in(values: list[float]) -> SourceTrust:
    trust = SourceTrust()
    for number, tau in enumerate(values):
        trust.note(f"operator {number}", tau)
    return trust


# ---- of an operator -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seconds", "tau"),
    [
        ([1.0, 2.0, 3.0, 4.0], 1.0),
        ([4.0, 3.0, 2.0, 1.0], -1.0),
        ([1.02, 1.01, 1.0, 2.0], 1.0),  # all but the last are alike
        ([1.02, 1.01, 1.0, 1.0], None),
        ([2.0, 1.0, 4.0, 3.0], 1 / 3),
    ],
)
def test_only_seconds_that_differ_are_ordered(seconds: list[float], tau: float | None) -> None:
    found = rank_correlation(np.arange(4.0), np.array(seconds))
    assert found == (None if tau is None else pytest.approx(tau))
    assert rank_correlation(np.zeros(4), np.array(seconds)) is None


def test_an_opinion_is_judged_by_enough_forecasts_and_stays_lost() -> None:
    guard = Guard(4, lambda _: 0.0)
    guard.judge(np.arange(3.0), np.array([3.0, 2.0, 1.0]))
    assert (guard.value, guard.is_lost) == (None, False)
    guard.judge(np.arange(4.0), np.ones(4))  # nothing but noise
    assert (guard.value, guard.is_lost) == (None, False)
    guard.judge(np.arange(4.0), np.array([4.0, 3.0, 2.0, 1.0]))
    assert (guard.value, guard.is_lost) == (-1.0, True)
    guard.judge(np.arange(4.0), np.arange(1.0, 5.0))
    assert (guard.value, guard.is_lost) == (1.0, True)


def test_the_limit_may_be_of_the_number_of_forecasts() -> None:
    assert chance_deviation(4) == pytest.approx(0.49, abs=0.01)
    for num, is_lost in ((4, False), (40, True)):
        guard = Guard(4, lambda num: -chance_deviation(num), lambda forecasts, measured: -0.4)
        guard.judge(np.zeros(num), np.zeros(num))
        assert guard.is_lost == is_lost


# ---- of a source ----------------------------------------------------------------------------------------------------
def test_two_operators_say_too_little() -> None:
    assert not trust_in([-1.0, -1.0]).is_lost
    assert trust_in([-1.0, -1.0, -1.0]).is_lost


@given(values=st.lists(st.floats(0.2, 1.0), max_size=60))
def test_useful_records_are_never_lost(values: list[float]) -> None:
    assert not trust_in(values).is_lost


@given(values=st.lists(taus, min_size=3, max_size=40), better=st.floats(0.0, 0.5))
def test_better_forecasts_never_lose_what_worse_ones_keep(values: list[float], better: float) -> None:
    if not trust_in(values).is_lost:
        assert not trust_in([min(1.0, tau + better) for tau in values]).is_lost


def test_an_operator_counts_once() -> None:
    trust = SourceTrust()
    for _ in range(5):
        trust.note("the same", -1.0)
    assert not trust.is_lost


def orders(num: int, flips: int, rng: np.random.Generator) -> list[float]:
    """τ of `num` forecasts of four points, of which `flips` neighbours changed places."""
    found = []
    for _ in range(num):
        order = list(range(4))
        for i in rng.integers(0, 3, flips):
            order[i], order[i + 1] = order[i + 1], order[i]
        tau = rank_correlation(np.arange(4.0), np.exp(np.array(order, dtype=np.float64)))
        assert tau is not None
        found.append(tau)
    return found


@pytest.mark.parametrize(("sign", "most"), [(-1.0, 4), (1.0, 40)])
def test_a_reversed_source_is_seen_through_soon_and_a_true_one_kept(sign: float, most: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = [sign * tau for tau in orders(40, 1, rng)]
        lost_at = next((n for n in itertools.count(1) if n > len(values) or trust_in(values[:n]).is_lost), 0)
        assert lost_at <= most if sign < 0 else lost_at > most
