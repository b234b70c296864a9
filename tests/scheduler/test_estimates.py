from __future__ import annotations

import pytest

from chanas.scheduler.estimates import UNKNOWN_S, Estimates
from chanas.scheduler.jobs import BUILD, HOST, MEASURE, Stage


def stage(expected_s: float | None = None) -> Stage:
    return Stage(BUILD, HOST, print, expected_s)


def test_a_jobs_own_guess_holds_until_a_stage_has_ended() -> None:
    estimates = Estimates()
    assert estimates.expected_s("a", stage(7.0)) == 7.0
    estimates.learn("a", BUILD, 3.0)
    assert estimates.expected_s("a", stage(7.0)) == 3.0


def test_what_other_jobs_took_is_taken_where_a_job_has_no_guess() -> None:
    estimates = Estimates()
    assert estimates.expected_s("b", stage()) == UNKNOWN_S
    estimates.learn("a", BUILD, 3.0)
    assert estimates.expected_s("b", stage()) == estimates.expected_of_kind_s("b", BUILD) == 3.0
    assert estimates.expected_of_kind_s("b", MEASURE) == UNKNOWN_S


def test_the_mean_forgets_exponentially() -> None:
    estimates = Estimates(weight=0.5)
    for seconds in (8.0, 4.0, 2.0):
        estimates.learn("a", BUILD, seconds)
    assert estimates.expected_s("a", stage()) == pytest.approx(((8.0 + 4.0) / 2 + 2.0) / 2)


def test_an_ended_jobs_stages_stay_in_the_mean_of_their_kind() -> None:
    estimates = Estimates()
    estimates.learn("a", BUILD, 3.0)
    estimates.forget("a")
    assert estimates.expected_s("a", stage(7.0)) == 7.0
    assert estimates.expected_s("a", stage()) == 3.0
