from __future__ import annotations

import pytest
from scheduling import ONE_OF_EACH, bars, chain_job, resources_of

from chanas.errors import ConfigError
from chanas.scheduler.jobs import BUILD, DEVICE, HOST, LEARN, MEASURE, SELECT
from chanas.scheduler.mock import strict_rounds
from chanas.scheduler.policies import POLICIES, policy
from chanas.scheduler.simulation import simulate

THESIS_S = {SELECT: 22.0, BUILD: 8.3, MEASURE: 39.5, LEARN: 22.0}
"""Stage means of the thesis, whose 44.0 s are of learning and selecting together."""


def test_an_unknown_policy_is_told_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="interleaved, lookahead, sequential, shortest, slack, synchronous"):
        policy("fastest")


def test_the_shortest_stage_goes_first() -> None:
    jobs = [chain_job((LEARN, s)) for s in (5.0, 1.0, 3.0)]
    trace = simulate(jobs, resources_of(ONE_OF_EACH), policy("shortest"))
    assert [name for name, *_ in bars(trace.spans)] == ["1", "2", "0"]


def test_the_job_with_the_longest_rest_goes_first() -> None:
    jobs = [chain_job((LEARN, 1.0)), chain_job((LEARN, 1.0), (LEARN, 3.0)), chain_job((LEARN, 2.0))]
    trace = simulate(jobs, resources_of(ONE_OF_EACH), policy("slack"))
    assert [name for name, *_ in bars(trace.spans)] == ["1", "1", "2", "0"]


@pytest.mark.parametrize("name", ["shortest", "slack"])
def test_what_leads_to_an_idle_device_goes_first(name: str) -> None:
    """Of the job with the shorter rest and the longer stage: with nothing to measure, its build goes first."""
    jobs = [chain_job((LEARN, 1.0), (LEARN, 9.0)), chain_job((BUILD, 2.0), (MEASURE, 3.0))]
    trace = simulate(jobs, resources_of(ONE_OF_EACH), policy(name))
    assert bars(trace.spans)[0] == ("1", BUILD, 0.0, 2.0)


def test_a_unit_is_held_free_for_a_job_that_cannot_wait() -> None:
    """The first job needs the host for 5 s when its measurement has ended; the other's 10 s can wait until then."""
    jobs = [[(MEASURE, 2.0), (BUILD, 5.0), (MEASURE, 20.0)], [(LEARN, 10.0)]]

    def ends(name: str) -> dict[str, float]:
        return simulate([chain_job(*job) for job in jobs], resources_of(ONE_OF_EACH), policy(name)).completion_s()

    assert ends("lookahead") == {"0": 27.0, "1": 17.0}
    assert ends("slack") == {"0": 35.0, "1": 10.0}


def test_a_unit_is_not_held_free_where_it_has_no_time_to_spare() -> None:
    jobs = [chain_job((MEASURE, 2.0), (BUILD, 20.0)), chain_job((LEARN, 10.0))]
    assert simulate(jobs, resources_of(ONE_OF_EACH), policy("lookahead")).makespan_s == 30.0


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("num_jobs", [2, 4, 8])
def test_no_policy_beats_the_host_of_the_thesis(name: str, num_jobs: int) -> None:
    """91.8 s a round, of which 52.3 are the host's: at most 1.755 times as fast as one job after the other."""
    jobs = [strict_rounds(10, THESIS_S) for _ in range(num_jobs)]
    makespan_s = simulate(jobs, resources_of({HOST: 1, DEVICE: 1}), policy(name)).makespan_s
    assert 10 * num_jobs * 91.8 / makespan_s <= 91.8 / 52.3 + 1e-9


@pytest.mark.parametrize("num_jobs", [2, 3, 4, 8])
def test_least_slack_comes_close_to_it(num_jobs: int) -> None:
    jobs = [strict_rounds(10, THESIS_S) for _ in range(num_jobs)]
    makespan_s = simulate(jobs, resources_of({HOST: 1, DEVICE: 1}), policy("slack")).makespan_s
    assert 10 * num_jobs * 91.8 / makespan_s >= 1.7
