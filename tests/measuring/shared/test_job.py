"""chanas/measuring/shared/job.py: a tuning's turns, builds and timings as stages."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from chanas.errors import SchedulerError, ShortageError, shortage
from chanas.measuring.messages import Answer, ErrorKind, Learn, Ping
from chanas.measuring.shared.cluster import RESOURCE
from chanas.measuring.shared.job import MAX_STARTS, TuningJob
from chanas.measuring.shared.turns import Answered, Ask, Client, ProcessKilledError, Rest
from chanas.measuring.shared.workers import SharedWorkers, Slot
from chanas.scheduler.jobs import BUILD, DEVICE, HOST, LEARN, MEASURE, START, Outcome, Stage


class Script:
    """A tuning's process: the ends of its turns are given, the answers that it gets are kept. Where an error is given,
    the process is killed, and another one follows."""

    name = "a"

    def __init__(self, *rests: Rest | SchedulerError) -> None:
        self._rests = list(rests)
        self.heard: list[list[int]] = []
        self.answers: list[Answered] = []
        self.is_closed = False

    def turn(self, core: int, answers: Sequence[Answered]) -> Rest:
        assert core == 7
        self.heard.append([number for number, _ in answers])
        self.answers += answers
        rest = self._rests.pop(0)
        if isinstance(rest, SchedulerError):
            raise rest
        return rest

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Timers:
    stopped: list[str] = field(default_factory=list)

    def stop(self, job: str) -> None:
        self.stopped.append(job)

    renew = stop


@dataclass
class Core:
    """A slot that answers at once."""

    unit: int = 0
    core: int = 7

    def answer(self, job: str, ask: Ask) -> Answer:
        assert job == "a"
        return Answer({"number": ask.number}, None)


def asks(*kinds: str, first: int = 0) -> tuple[Ask, ...]:
    numbered = enumerate(kinds, first)
    return tuple(Ask(number=n, times=k == MEASURE, timeout_s=1.0, request=Ping()) for n, k in numbered)


CLUSTER = cast(Any, object())


def job_of(script: Script, *timers: Timers, times_on: str = DEVICE, cluster: Any = None, **options: Any) -> TuningJob:
    workers = SharedWorkers((), cast(Any, timers or (Timers(),)), times_on, cluster=cluster)
    return TuningJob(cast(Client, script), workers, **options)


def begun(*rests: Rest | SchedulerError, **options: Any) -> tuple[TuningJob, Script, list[Stage]]:
    """A job whose first turn is over, and the stages that follow."""
    script = Script(*rests)
    job = job_of(script, **options)
    return job, script, run(job, *job.offer())


def run(job: TuningJob, stage: Stage, unit: int = 0) -> list[Stage]:
    """Run a stage, and return those that follow."""
    job.take(stage, Outcome(stage.work(cast(Slot, Core(unit)))))
    return job.offer()


def described(stages: Iterable[Stage]) -> list[tuple[str, str, str | None]]:
    return [(s.kind, s.resource, s.next_resource) for s in stages]


@pytest.mark.parametrize(
    ("where", "builds_on", "times_on"),
    [({}, HOST, DEVICE), ({"times_on": HOST}, HOST, HOST), ({"cluster": CLUSTER}, RESOURCE, DEVICE)],
    ids=["device", "no device of its own", "cluster"],
)
def test_it_starts_on_the_host_then_builds_and_times_where_that_is_done(
    where: dict[str, Any], builds_on: str, times_on: str
) -> None:
    job = job_of(Script(Rest(asks=asks(BUILD, BUILD, MEASURE))), **where)
    [start] = job.offer()
    assert described([start]) == [(START, HOST, HOST)]
    build = (BUILD, builds_on, times_on)
    assert described(run(job, start)) == [build, build, (MEASURE, times_on, HOST)]


def test_what_is_built_is_passed_on_by_the_slot_that_built_it() -> None:
    job, script, [build] = begun(Rest(asks=asks(BUILD)), Rest(asks=asks(MEASURE, first=1)))
    assert described(run(job, build)) == [(MEASURE, DEVICE, HOST)]
    assert script.heard == [[], [0]]


def test_a_turn_takes_all_timings_that_are_there() -> None:
    job, script, [first, second, _] = begun(Rest(asks=asks(MEASURE, MEASURE, MEASURE)), Rest())
    [turn] = run(job, first)
    assert described([turn]) == [(LEARN, HOST, HOST)]
    assert run(job, second) == []
    assert run(job, turn) == []
    assert script.heard == [[], [0, 1]]


def test_an_answer_that_comes_in_a_turn_is_for_the_next_one() -> None:
    job, _, [first, second] = begun(Rest(asks=asks(MEASURE, MEASURE)), Rest(), Rest(ended=True))
    [turn] = run(job, first)
    rest = turn.work(cast(Slot, Core()))
    assert run(job, second) == []
    job.take(turn, Outcome(rest))
    [another] = job.offer()
    assert run(job, another) == []


def test_what_is_withdrawn_is_not_carried_out() -> None:
    rests = Rest(asks=asks(BUILD, MEASURE)), Rest(withdrawn=(0,)), Rest(asks=asks(BUILD, first=2))
    job, _, [build, timing] = begun(*rests)
    [turn] = run(job, timing)
    run(job, turn)
    assert build.work(cast(Slot, Core())).answer.error.kind is ErrorKind.STOPPED


def test_what_a_cost_model_asks_goes_to_the_cluster_and_its_answer_to_a_turn_on_the_host() -> None:
    question = Ask(number=0, times=False, timeout_s=1.0, request=Learn(question={}))
    job, script, [learn] = begun(Rest(asks=(question,)), Rest(ended=True), cluster=CLUSTER)
    assert (learn.kind, learn.resource) == (LEARN, RESOURCE)
    [turn] = run(job, learn)
    assert (turn.kind, turn.resource, script.heard) == (LEARN, HOST, [[]])
    assert run(job, turn) == []
    assert script.heard == [[], [0]]


def test_its_timer_is_renewed_where_it_asks_for_that() -> None:
    timers = Timers()
    job = job_of(Script(Rest(asks=asks(MEASURE), renew=True)), timers)
    run(job, job.offer()[0])
    assert timers.stopped == ["a"]


def test_facts_are_told_at_the_end() -> None:
    told: list[dict[str, Any]] = []
    job = job_of(Script(Rest(ended=True, result={"path": "x"})), done=told.append)
    assert run(job, job.offer()[0]) == []
    assert told == [{"path": "x"}]
    assert job.outlook(lambda _kind: 1.0, {HOST: 1, DEVICE: 1}).work_s == {}


@pytest.mark.parametrize("rest", [Rest(ended=True, error="planted"), Rest()], ids=["fails", "waits for nothing"])
def test_a_tuning_that_cannot_go_on_ends_its_job(rest: Rest) -> None:
    job = job_of(Script(rest))
    with pytest.raises(SchedulerError, match=r"planted|waits"):
        run(job, job.offer()[0])


def test_a_device_is_a_unit_and_tunings_begin_with_different_ones() -> None:
    wanted = [Ask(number=n, times=True, timeout_s=1.0, request=Ping(), device=d) for n, d in enumerate((0, 1))]
    script = Script(Rest(asks=(*wanted, *asks(MEASURE, first=2))), Rest(ended=True))
    job = job_of(script, Timers(), Timers(), first_device=1)
    stages = run(job, job.offer()[0])
    assert [stage.unit for stage in stages] == [1, 0, None]
    [turn] = run(job, stages[0], unit=1)
    for stage in stages[1:]:  # the device that the third one wanted is lost
        run(job, stage, unit=0)
    run(job, turn)
    assert [(number, answer.device) for number, answer in script.answers] == [(0, 0), (1, 1), (2, 1)]


@pytest.mark.parametrize("kind", [BUILD, MEASURE])
def test_a_candidate_over_which_workers_die_again_and_again_fails_alone(kind: str) -> None:
    job, script, [stage] = begun(Rest(asks=asks(kind)), Rest(ended=True))
    job.take(stage, Outcome(error="the device was lost", died=True))
    run(job, job.offer()[0])
    [(_, answer)] = script.answers
    assert answer.error is not None
    assert answer.error.kind is ErrorKind.CRASH


def test_a_worker_that_cannot_start_ends_its_job() -> None:
    job, _, [build] = begun(Rest(asks=asks(BUILD)))
    with pytest.raises(SchedulerError, match="no compiler"):
        job.take(build, Outcome(error="no compiler"))


@pytest.mark.parametrize(
    ("num_left", "where", "work_s"),
    [
        (0, {}, {HOST: 8.0, DEVICE: 30.0}),
        (10, {}, {HOST: 38.0, DEVICE: 130.0}),
        (0, {"cluster": CLUSTER}, {HOST: 4.0, RESOURCE: 4.0, DEVICE: 30.0}),
    ],
)
def test_all_that_is_asked_for_or_expected_has_to_be_built_timed_and_learned_from(
    num_left: int, where: dict[str, Any], work_s: dict[str, float]
) -> None:
    job, _, _ = begun(Rest(asks=asks(BUILD, BUILD, MEASURE), num_left=num_left), **where)
    outlook = job.outlook({BUILD: 2.0, MEASURE: 10.0, LEARN: 1.0}.__getitem__, {HOST: 1, DEVICE: 1, RESOURCE: 4})
    assert outlook.work_s == work_s
    assert outlook.alone_s == work_s[DEVICE]


KILLED = ProcessKilledError("planted kill")


def test_a_process_that_was_killed_is_followed_by_one_that_hears_of_nothing_before() -> None:
    script = Script(Rest(asks=asks(BUILD, MEASURE, MEASURE)), KILLED, Rest(asks=asks(MEASURE)), Rest(ended=True))
    timers = Timers()
    job = job_of(script, timers)
    build, timing, late = run(job, job.offer()[0])
    [turn] = run(job, timing)
    late_answer = late.work(cast(Slot, Core()))
    [start] = run(job, turn)
    assert described([start]) == [(START, HOST, HOST)]
    assert timers.stopped == ["a"]
    [again] = run(job, start)
    job.take(late, Outcome(late_answer))
    assert [*job.offer(), *run(job, build)] == []
    [last] = run(job, again)
    assert run(job, last) == []
    assert script.heard == [[], [1], [], [0]]


def test_a_turn_of_a_process_that_was_killed_takes_no_answers_of_the_next_one() -> None:
    rests = Rest(asks=asks(BUILD, MEASURE)), KILLED, Rest(asks=asks(MEASURE)), Rest(ended=True)
    job, script, [build, timing] = begun(*rests)
    [stale] = run(job, timing)
    [start] = run(job, build)
    [again] = run(job, start)
    [last] = run(job, again)
    assert run(job, stale) == []
    assert run(job, last) == []
    assert script.heard == [[], [0], [], [0]]


def test_a_tuning_whose_processes_are_killed_again_and_again_fails() -> None:
    job = job_of(Script(*[KILLED] * MAX_STARTS))
    [stage] = job.offer()
    for _ in range(MAX_STARTS - 1):
        [stage] = run(job, stage)
    with pytest.raises(SchedulerError, match=f"planted kill, as were the {MAX_STARTS - 1} before it"):
        run(job, stage)


def test_a_job_that_fails_for_a_shortage_says_so() -> None:
    job = job_of(Script(Rest(ended=True, error="cannot be written", lacking="no space")))
    with pytest.raises(ShortageError, match="cannot be written") as short:
        run(job, job.offer()[0])
    assert shortage(short.value) == "no space"
    full = OSError(errno.ENOSPC, "No space left on device")
    job = job_of(Script())
    with pytest.raises(SchedulerError) as failed:
        job.take(job.offer()[0], Outcome(error="OSError: no space", cause=full))
    assert shortage(failed.value) == "no space left on device"


def test_closing_ends_its_processes() -> None:
    script, timers = Script(), Timers()
    job_of(script, timers).close()
    assert script.is_closed
    assert timers.stopped == ["a"]
