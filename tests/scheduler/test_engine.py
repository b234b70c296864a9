"""The scheduler's commands, one by one, on a simulated clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from scheduling import ONE_OF_EACH, bars, chain_job, of_job, resources_of

from chanas.errors import SchedulerError
from chanas.scheduler.board import Policy, Status
from chanas.scheduler.engine import MAX_DEATHS, Scheduler, Terms
from chanas.scheduler.jobs import BUILD, DEVICE, HOST, LEARN, MEASURE, Expected, Outcome, Outlook, Stage
from chanas.scheduler.mock import MockJob, MockStage, Sleep
from chanas.scheduler.policies import Interleaved, Shortest, Slack
from chanas.scheduler.simulation import SimulatedExecutor
from chanas.scheduler.trace import Span


def scheduler_of(
    num_units: Mapping[str, int] = ONE_OF_EACH, policy: Policy | None = None, max_deaths: int = MAX_DEATHS
) -> Scheduler:
    return Scheduler(resources_of(num_units), policy or Interleaved(), SimulatedExecutor(), max_deaths)


ROUND = ((BUILD, 2.0), (MEASURE, 3.0), (LEARN, 1.0))


def test_a_paused_job_starts_nothing_and_ends_what_runs() -> None:
    scheduler = scheduler_of()
    scheduler.join("a", chain_job(*ROUND))
    scheduler.at(1.0, lambda: scheduler.pause("a"))
    scheduler.at(10.0, lambda: scheduler.resume("a"))
    assert bars(scheduler.run().spans) == [
        ("a", BUILD, 0.0, 2.0),
        ("a", MEASURE, 10.0, 13.0),
        ("a", LEARN, 13.0, 14.0),
    ]


def test_a_run_in_which_all_jobs_are_paused_is_an_error() -> None:
    scheduler = scheduler_of()
    scheduler.join("a", chain_job(*ROUND))
    scheduler.pause("a")
    with pytest.raises(SchedulerError, match="a paused"):
        scheduler.run()


def test_a_cancelled_job_is_told_of_the_stage_that_runs() -> None:
    scheduler, job = scheduler_of(), Notebook(2)
    scheduler.join("a", job)
    scheduler.at(1.0, lambda: scheduler.cancel("a"))
    trace = scheduler.run()
    assert [outcome.seconds for outcome in job.outcomes] == [2.0]
    assert [(e.at_s, e.what) for e in trace.events] == [(0.0, "joined"), (2.0, "cancelled")]


def test_a_killed_job_frees_its_unit_at_once_and_is_told_nothing() -> None:
    scheduler, job = scheduler_of(), Notebook(2)
    scheduler.join("a", job)
    scheduler.join("b", chain_job(*ROUND))
    scheduler.at(1.0, lambda: scheduler.kill("a"))
    trace = scheduler.run()
    assert job.outcomes == []
    assert [s.ended for s in of_job(trace, "a")] == ["dropped"]
    assert of_job(trace, "b")[0].start_s == 1.0


class Notebook:
    """Builds of two seconds side by side; it notes what it is told."""

    def __init__(self, num_stages: int, resource: str = HOST) -> None:
        self.outcomes: list[Outcome] = []
        self._stages = [Stage(BUILD, resource, Sleep(2.0)) for _ in range(num_stages)]

    def offer(self) -> Sequence[Stage]:
        offers, self._stages = self._stages, []
        return offers

    def take(self, stage: Stage, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def outlook(self, expected: Expected, num_units: Mapping[str, int]) -> Outlook:
        raise AssertionError("not asked by this policy")


class Faulty(Notebook):
    def take(self, stage: Stage, outcome: Outcome) -> None:
        raise RuntimeError("no such candidate")


def test_a_job_that_raises_ends_alone() -> None:
    scheduler = scheduler_of({HOST: 2, DEVICE: 1})
    scheduler.join("bad", Faulty(3))
    scheduler.join("good", chain_job(*ROUND))
    scheduler.run()
    bad, good = scheduler.jobs["bad"], scheduler.jobs["good"]
    assert (bad.status, bad.error) == (Status.FAILED, "RuntimeError: no such candidate")
    assert good.status is Status.COMPLETE


def test_each_job_that_has_ended_is_told_of() -> None:
    told: list[tuple[str, Status, float]] = []
    scheduler = Scheduler(
        resources_of(ONE_OF_EACH),
        Interleaved(),
        SimulatedExecutor(),
        ended=lambda entry: told.append((entry.name, entry.status, entry.ended_s or 0.0)),
    )
    scheduler.join("bad", Faulty(1))
    scheduler.join("good", chain_job((BUILD, 3.0)))
    scheduler.join("killed", chain_job((BUILD, 9.0)))
    scheduler.at(6.0, lambda: scheduler.kill("killed"))
    scheduler.run()
    assert told == [("bad", Status.FAILED, 2.0), ("good", Status.COMPLETE, 5.0), ("killed", Status.KILLED, 6.0)]


def test_a_stage_on_an_unknown_resource_ends_its_job() -> None:
    scheduler = scheduler_of()
    scheduler.join("a", Notebook(1, resource="moon"))
    scheduler.run()
    assert "moon" in str(scheduler.jobs["a"].error)


def test_a_lost_devices_stage_runs_again_elsewhere() -> None:
    scheduler, job = scheduler_of({HOST: 1, DEVICE: 2}), chain_job((MEASURE, 5.0))
    scheduler.join("a", job)
    scheduler.at(2.0, lambda: scheduler.lose(DEVICE, 0))
    trace = scheduler.run()
    assert [(s.unit, s.start_s, s.end_s, s.ended) for s in trace.spans] == [
        (0, 0.0, 2.0, "died"),
        (1, 2.0, 7.0, "done"),
    ]
    assert job.num_failed == 0


def test_without_a_device_that_is_left_its_jobs_fail_and_others_go_on() -> None:
    scheduler = scheduler_of()
    scheduler.join("a", chain_job((MEASURE, 5.0)))
    scheduler.join("b", chain_job((BUILD, 5.0)))
    scheduler.at(2.0, lambda: scheduler.lose(DEVICE, 0))
    scheduler.run()
    assert {name: entry.status for name, entry in scheduler.jobs.items()} == {"a": Status.FAILED, "b": Status.COMPLETE}


def test_a_stage_that_kills_its_workers_fails_in_the_end() -> None:
    scheduler, job = scheduler_of({HOST: 1, DEVICE: 4}, max_deaths=3), chain_job((MEASURE, 5.0), (LEARN, 1.0))
    scheduler.join("a", job)
    for unit in range(3):
        scheduler.at(unit + 1.0, lambda unit=unit: scheduler.lose(DEVICE, unit))
    trace = scheduler.run()
    assert [s.ended for s in trace.spans] == ["died", "died", "died", "done"]
    assert job.num_failed == 1
    assert scheduler.jobs["a"].status is Status.COMPLETE


def test_names_are_given_once_and_must_be_known() -> None:
    scheduler = scheduler_of()
    scheduler.join("a", chain_job(*ROUND))
    with pytest.raises(SchedulerError, match="'a' again"):
        scheduler.join("a", chain_job(*ROUND))
    with pytest.raises(SchedulerError, match="'b'"):
        scheduler.pause("b")


def test_the_higher_priority_goes_first() -> None:
    scheduler = scheduler_of(policy=Shortest())
    scheduler.join("low", chain_job((BUILD, 1.0), (BUILD, 1.0)))
    scheduler.join("high", chain_job((BUILD, 5.0), (BUILD, 5.0)), Terms(priority=1))
    ends = scheduler.run().completion_s()
    assert ends == {"high": 10.0, "low": 12.0}


def test_users_get_equal_parts_however_many_jobs_they_have() -> None:
    scheduler = scheduler_of(policy=Slack())
    for number in range(5):
        scheduler.join(f"many {number}", chain_job(*[(BUILD, 1.0)] * 20), Terms(user="many"))
    scheduler.join("one", chain_job(*[(BUILD, 1.0)] * 20), Terms(user="one"))
    trace = scheduler.run()
    assert trace.completion_s()["one"] in (39.0, 40.0)
    assert trace.makespan_s == 120.0


def test_a_user_who_joins_late_is_not_repaid_for_the_time_before() -> None:
    scheduler = scheduler_of(policy=Slack())
    scheduler.join("early", chain_job(*[(BUILD, 1.0)] * 40), Terms(user="early"))
    scheduler.at(20.0, lambda: scheduler.join("late", chain_job(*[(BUILD, 1.0)] * 10), Terms(user="late")))
    assert scheduler.run().completion_s()["late"] in (19.0, 20.0)


def test_least_slack_meets_deadlines_that_first_come_first_served_misses() -> None:
    def lateness_s(policy: Policy) -> float:
        scheduler = scheduler_of(policy=policy)
        scheduler.join("long", chain_job(*[(BUILD, 4.0)] * 10))
        scheduler.join("due", chain_job(*[(BUILD, 4.0)] * 5), Terms(deadline_s=28.0))
        scheduler.run()
        return float(scheduler.jobs["due"].ended_s or 0.0) - 28.0

    assert lateness_s(Slack()) <= 0.0 < lateness_s(Interleaved())


def test_work_without_given_seconds_cannot_be_simulated() -> None:
    scheduler = scheduler_of()
    job = Notebook(0)
    job._stages = [Stage(BUILD, HOST, print)]
    scheduler.join("a", job)
    with pytest.raises(SchedulerError, match="Sleep"):
        scheduler.run()


def test_estimates_are_learned_from_stages_that_ended() -> None:
    scheduler = scheduler_of()
    scheduler.join("a", MockJob([((MockStage(BUILD, 8.0, 1.0),),), ((MockStage(MEASURE, 3.0, 1.0),),)]))
    scheduler.run()
    assert scheduler.board.estimates.expected_of_kind_s("another", BUILD) == 8.0


def test_a_patient_run_waits_for_paused_jobs() -> None:
    scheduler = Scheduler(resources_of(ONE_OF_EACH), Interleaved(), SimulatedExecutor(), is_patient=True)
    scheduler.join("a", chain_job(*ROUND))
    scheduler.pause("a")
    with pytest.raises(SchedulerError, match="a simulated clock"):  # which nobody can resume it on
        scheduler.run()


def test_questions_are_answered_between_events_until_the_run_is_over() -> None:
    scheduler = scheduler_of()
    scheduler.join("a", chain_job(*ROUND))
    states = scheduler.ask(lambda: scheduler.jobs["a"].status)
    unknown = scheduler.ask(lambda: scheduler.pause("b"))
    scheduler.run()
    assert states.result() is Status.OPEN
    assert isinstance(unknown.exception(), SchedulerError)
    assert scheduler.ask(lambda: 1).cancelled()


@pytest.mark.parametrize(("back_s", "end"), [(6.0, Status.COMPLETE), (20.0, Status.FAILED)])
def test_the_last_device_that_is_lost_may_come_back_in_time(back_s: float, end: Status) -> None:
    scheduler = Scheduler(resources_of(ONE_OF_EACH), Interleaved(), SimulatedExecutor())
    scheduler.return_within_s = 10.0
    scheduler.join("a", chain_job((MEASURE, 5.0)))
    scheduler.at(2.0, lambda: scheduler.lose(DEVICE, 0))
    scheduler.at(back_s, lambda: scheduler.restore(DEVICE, 0))
    trace = scheduler.run()
    assert scheduler.jobs["a"].status is end
    assert scheduler.jobs["a"].ended_s == (back_s + 5.0 if end is Status.COMPLETE else 12.0)
    assert trace.end_s == max(back_s, float(scheduler.jobs["a"].ended_s or 0.0))


def test_a_stage_runs_on_the_unit_that_it_wants_unless_that_is_lost() -> None:
    class Homesick(Notebook):
        def __init__(self) -> None:
            super().__init__(0)
            self._stages = [Stage(MEASURE, DEVICE, Sleep(2.0), unit=1) for _ in range(3)]

    scheduler = scheduler_of({HOST: 1, DEVICE: 2})
    scheduler.join("a", Homesick())
    scheduler.at(3.0, lambda: scheduler.lose(DEVICE, 1))
    spans = scheduler.run().spans
    assert [(s.unit, s.start_s, s.end_s, s.ended) for s in spans] == [
        (1, 0.0, 2.0, "done"),
        (1, 2.0, 3.0, "died"),
        (0, 3.0, 5.0, "done"),
        (0, 5.0, 7.0, "done"),
    ]


def test_a_scheduler_that_is_observed_keeps_nothing_of_jobs_that_have_ended() -> None:
    spans: list[Span] = []
    scheduler = Scheduler(resources_of(ONE_OF_EACH), Interleaved(), SimulatedExecutor(), observe=spans.append)
    for name in ("a", "b"):
        scheduler.join(name, chain_job(*ROUND))
    scheduler.at(1.0, lambda: scheduler.kill("b"))
    trace = scheduler.run()
    assert [span.kind for span in spans if span.job == "a"] == [BUILD, MEASURE, LEARN]
    assert (trace.spans, trace.events, scheduler.jobs) == ([], [], {})
    with pytest.raises(SchedulerError, match="no job is named 'a'"):
        scheduler.kill("a")
