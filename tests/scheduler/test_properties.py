"""Properties of every run, whatever the jobs and the policy."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling import Plans, Units, chain_job, jobs_of, machines, num_stages, of_job, overlaps, plans, resources_of

from chanas.scheduler.board import Policy, Status
from chanas.scheduler.bounds import head_tail_bound_s, load_bound_s
from chanas.scheduler.engine import Scheduler, Terms
from chanas.scheduler.jobs import BUILD, DEVICE, HOST, MEASURE
from chanas.scheduler.mock import batched_rounds
from chanas.scheduler.policies import POLICIES, Lookahead, Shortest, Slack, policy
from chanas.scheduler.simulation import SimulatedExecutor, simulate

EXCLUSIVE = sorted(set(POLICIES) - {"synchronous"})
BUSY = sorted(set(EXCLUSIVE) - {"sequential", "lookahead"})

each_policy = pytest.mark.parametrize("name", sorted(POLICIES))
each_exclusive_policy = pytest.mark.parametrize("name", EXCLUSIVE)
few = settings(max_examples=20)


@each_policy
@given(plans, machines)
@few
def test_every_job_ends_and_each_stage_runs_once(name: str, plans: Plans, machines: Units) -> None:
    jobs = jobs_of(plans)
    trace = simulate(jobs, resources_of(machines), policy(name))
    assert sorted(e.name for e in trace.events if e.what == "complete") == sorted(map(str, range(len(jobs))))
    assert [len(of_job(trace, str(i))) for i in range(len(jobs))] == [num_stages(job) for job in jobs]


@each_exclusive_policy
@given(plans, machines)
@few
def test_a_unit_serves_one_stage_at_a_time(name: str, plans: Plans, machines: Units) -> None:
    trace = simulate(jobs_of(plans), resources_of(machines), policy(name))
    assert overlaps(trace.spans) == []
    assert all(0 <= span.unit < machines[span.resource] for span in trace.spans)


@each_policy
@given(plans, machines)
@few
def test_stages_run_in_the_order_that_their_job_asks_for(name: str, plans: Plans, machines: Units) -> None:
    trace = simulate(jobs_of(plans), resources_of(machines), policy(name))
    for number, plan in enumerate(plans):
        spans = of_job(trace, str(number))
        for segment in plan:
            own, spans = spans[: sum(map(len, segment))], spans[sum(map(len, segment)) :]
            assert sorted(s.kind for s in own) == sorted(s.kind for chain in segment for s in chain)
            assert all(later.start_s >= s.end_s for s in own for later in spans)


@each_exclusive_policy
@given(plans, machines)
@few
def test_no_run_is_shorter_than_the_bounds(name: str, plans: Plans, machines: Units) -> None:
    tasks = [task for job in jobs_of(plans) for task in job.tasks(machines)]
    makespan_s = simulate(jobs_of(plans), resources_of(machines), policy(name)).makespan_s
    assert load_bound_s(tasks, machines) <= head_tail_bound_s(tasks, machines) <= makespan_s + 1e-9


@pytest.mark.parametrize("name", BUSY)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from([BUILD, MEASURE]), st.integers(1, 9)), min_size=1), max_size=5),
    machines,
)
@few
def test_no_unit_is_idle_while_a_stage_is_ready_for_it(
    name: str, chains: list[list[tuple[str, int]]], machines: Units
) -> None:
    trace = simulate([chain_job(*chain) for chain in chains], resources_of(machines), policy(name))
    for number in range(len(chains)):
        ready_s = 0.0
        for span in of_job(trace, str(number)):
            busy = [
                s
                for s in trace.spans
                if s.resource == span.resource and s.start_s <= ready_s < s.end_s and ready_s < span.start_s
            ]
            assert ready_s == span.start_s or len(busy) == machines[span.resource]
            ready_s = span.end_s


@each_policy
@given(plans, machines)
@few
def test_the_same_jobs_give_the_same_trace(name: str, plans: Plans, machines: Units) -> None:
    first, second = (simulate(jobs_of(plans), resources_of(machines), policy(name)) for _ in range(2))
    assert first == second


commands = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(["pause", "resume", "cancel", "kill"]), st.integers(0, 3)), max_size=8
)


@each_policy
@given(plans, machines, st.lists(st.integers(0, 30), min_size=4, max_size=4), commands)
@few
def test_jobs_join_are_paused_cancelled_and_killed_while_others_run(
    name: str, plans: Plans, machines: Units, joins: list[int], commands: list[tuple[int, str, int]]
) -> None:
    scheduler = Scheduler(resources_of(machines), policy(name), SimulatedExecutor())
    jobs = jobs_of(plans)

    def join(number: int) -> None:
        scheduler.at(joins[number], lambda: scheduler.join(str(number), jobs[number]))

    def command(at_s: int, verb: str, number: int) -> None:
        if number < len(jobs):
            scheduler.at(max(at_s, joins[number]), lambda: getattr(scheduler, verb)(str(number)))

    for number in range(len(jobs)):
        join(number)
    for at_s, verb, number in commands:
        command(at_s, verb, number)
    for number in range(len(jobs)):
        command(500, "resume", number)
    trace = scheduler.run()
    assert all(entry.ended_s is not None for entry in scheduler.jobs.values())
    killed = {i for _, verb, i in commands if verb in ("cancel", "kill") and i < len(jobs)}
    assert {str(i) for i in range(len(jobs))} - {str(i) for i in killed} <= {
        name for name, entry in scheduler.jobs.items() if entry.status is Status.COMPLETE
    }
    if name != "synchronous":
        assert overlaps(trace.spans) == []


@each_exclusive_policy
@given(plans, st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1)), max_size=4))
@few
def test_every_job_ends_although_devices_go_and_come(name: str, plans: Plans, losses: list[tuple[int, int]]) -> None:
    scheduler = Scheduler(resources_of({HOST: 2, DEVICE: 3}), policy(name), SimulatedExecutor(), max_deaths=10)
    jobs = jobs_of(plans)
    for number, job in enumerate(jobs):
        scheduler.join(str(number), job)
    for at_s, unit in losses:
        scheduler.at(at_s, lambda unit=unit: scheduler.lose(DEVICE, unit))
        scheduler.at(at_s + 7, lambda unit=unit: scheduler.restore(DEVICE, unit))
    trace = scheduler.run()
    assert {entry.status for entry in scheduler.jobs.values()} == {Status.COMPLETE}
    assert [sum(s.ended == "done" for s in of_job(trace, str(i))) for i in range(len(jobs))] == [*map(num_stages, jobs)]
    assert [job.num_failed for job in jobs] == [0] * len(jobs)
    assert overlaps(trace.spans) == []


@pytest.mark.parametrize("make", [Lookahead, Shortest, Slack])
def test_no_stage_waits_for_ever_behind_more_important_jobs(make: Callable[[float], Policy]) -> None:
    """Whenever the host is free, a more important job has just joined."""

    def ends_of(patience_s: float) -> dict[str, float]:
        scheduler = Scheduler(resources_of({HOST: 1, DEVICE: 1}), make(patience_s), SimulatedExecutor())
        scheduler.join("patient", chain_job(*[(BUILD, 3.0)] * 4))
        for number in range(200):
            scheduler.at(3.0 * number, functools.partial(join, scheduler, str(number)))
        return scheduler.run().completion_s()

    def join(scheduler: Scheduler, name: str) -> None:
        scheduler.join(name, chain_job((BUILD, 3.0)), Terms(priority=1))

    assert ends_of(patience_s=1e9)["patient"] == 3.0 * 204
    assert ends_of(patience_s=50.0)["patient"] <= 4 * (50.0 + 2 * 3.0)


def test_a_job_that_builds_ahead_keeps_the_device_busy() -> None:
    """Ten candidates on one host slot and one device: the device waits for the first of them alone."""
    means_s = {"select": 1.0, "build": 2.0, "measure": 3.0, "learn": 1.0}
    ahead = simulate([batched_rounds(1, 10, means_s)], resources_of({HOST: 1, DEVICE: 1}), policy("slack"))
    assert ahead.makespan_s == 1.0 + 2.0 + 10 * 3.0 + 1.0
