"""chanas/scheduler/rollouts.py: the end of all jobs, tried ahead."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from scheduling import ONE_OF_EACH, Plans, chain_job, jobs_of, plans

from chanas.scheduler.bounds import load_bound_s
from chanas.scheduler.jobs import BUILD, DEVICE, HOST, LEARN, MEASURE
from chanas.scheduler.mock import MockJob
from chanas.scheduler.rollouts import Course, Now

ON_HOST = list(ONE_OF_EACH).index(HOST)


def begun(jobs: list[MockJob], num_stages: int = 1000, spread: float = 0.0) -> tuple[Course, Now]:
    """Jobs of which nothing runs yet."""
    forecasts = [job.forecast(lambda _kind: 1.0, ONE_OF_EACH) for job in jobs]
    course = Course(forecasts, [0] * len(jobs), ONE_OF_EACH, num_stages, spread)
    ready = [
        course.number(i, forecast, chain)
        for i, forecast in enumerate(forecasts)
        if forecast.segments
        for chain in range(len(forecast.segments[0]))
    ]
    work_s = [
        sum(job.outlook(lambda _: 1.0, ONE_OF_EACH).work_s.get(name, 0.0) for job in jobs) for name in ONE_OF_EACH
    ]
    return course, Now(course.left(forecasts), list(ONE_OF_EACH.values()), ready, [], [], work_s)


def ends_s(num_stages: int) -> list[float]:
    """Of the choice between the first stages of two jobs."""
    course, now = begun([chain_job((LEARN, 10.0)), chain_job((BUILD, 2.0), (MEASURE, 20.0))], num_stages)
    return [course.end_s(now, ON_HOST, stage, 0) for stage in now.ready]


def test_what_feeds_the_device_ends_earlier() -> None:
    assert ends_s(num_stages=1000) == [32.0, 22.0]


def test_a_rollout_that_is_cut_off_ends_with_a_bound() -> None:
    assert ends_s(num_stages=1) == [32.0, 22.0]


def test_a_unit_waits_until_a_stage_ends() -> None:
    """The measurement has run for 1 of its 3 s; then its job's 20 s on the host can begin, before the other's 10 s."""
    course, now = begun([chain_job((MEASURE, 3.0), (LEARN, 20.0)), chain_job((LEARN, 10.0), (MEASURE, 5.0))])
    measuring, learning = now.ready
    free = [int(name == HOST) for name in ONE_OF_EACH]
    work_s = [now.work_s[i] - 3.0 * (name == DEVICE) for i, name in enumerate(ONE_OF_EACH)]
    now = Now(now.left, free, [learning], [(measuring, 1.0)], [], work_s)
    assert course.following(measuring, now.left) == ON_HOST
    assert course.end_s(now, ON_HOST, learning, 0) == 30.0
    assert course.end_s(now, ON_HOST, None, 0) == 37.0


@given(plans)
@settings(max_examples=40)
def test_no_rollout_is_shorter_than_the_bound(plans: Plans) -> None:
    jobs = jobs_of(plans)
    course, now = begun(jobs)
    least_s = load_bound_s([task for job in jobs for task in job.tasks(ONE_OF_EACH)], ONE_OF_EACH)
    ends_s = [course.end_s(now, ON_HOST, None, 0) for _ in range(2)]
    assert ends_s[0] == ends_s[1] >= least_s - 1e-9


@pytest.mark.parametrize("num_stages", [3, 1000])
def test_scenarios_differ(num_stages: int) -> None:
    course, now = begun([chain_job((BUILD, 2.0), (MEASURE, 20.0)) for _ in range(3)], num_stages, spread=0.2)
    found = [[course.end_s(now, ON_HOST, now.ready[0], i) for i in range(4)] for _ in range(2)]
    assert found[0] == found[1]
    assert len({*found[0]}) == 4
