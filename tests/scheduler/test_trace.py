from __future__ import annotations

import json

import pytest
from scheduling import ONE_OF_EACH, chain_job, resources_of

from chanas.errors import SchedulerError
from chanas.scheduler.jobs import BUILD, DEVICE, HOST, LEARN, MEASURE
from chanas.scheduler.policies import policy
from chanas.scheduler.simulation import simulate
from chanas.scheduler.trace import Event, Span, Trace


@pytest.fixture
def trace() -> Trace:
    job = ((BUILD, 4.0), (MEASURE, 3.0), (LEARN, 1.0))
    return simulate([chain_job(*job), chain_job(*job)], resources_of(ONE_OF_EACH), policy("interleaved"))


def test_busy_and_idle_shares_are_of_the_makespan(trace: Trace) -> None:
    assert trace.makespan_s == 12.0
    assert trace.utilisation() == {HOST: 10 / 12, DEVICE: 6 / 12}
    assert trace.idle_share()[DEVICE] == 0.5
    assert trace.critical_resource == HOST


def test_shares_are_of_all_units() -> None:
    trace = simulate([chain_job((BUILD, 2.0))], resources_of({HOST: 4, DEVICE: 1}), policy("interleaved"))
    assert trace.utilisation() == {HOST: 0.25, DEVICE: 0.0}


def test_several_stages_on_one_unit_are_busy_once() -> None:
    spans = [Span("a", "", BUILD, HOST, 0, 0.0, 4.0), Span("b", "", BUILD, HOST, 0, 1.0, 5.0)]
    assert Trace({HOST: 1}, spans).busy_s(HOST) == 5.0


def test_jobs_complete_so_long_after_they_joined() -> None:
    joined = [Event(1.0, "joined", "a"), Event(2.0, "joined", "b")]
    ended = [Event(5.0, "killed", "b"), Event(9.0, "complete", "a")]
    assert Trace({HOST: 1}, [], joined + ended).completion_s() == {"b": 3.0, "a": 8.0}


def test_an_empty_trace_took_no_time() -> None:
    trace = Trace({HOST: 1})
    assert (trace.makespan_s, trace.utilisation()) == (0.0, {HOST: 0.0})


def test_a_stored_trace_begins_at_zero_and_is_otherwise_the_same() -> None:
    trace = Trace({HOST: 2, DEVICE: 1}, [Span("a", "me", BUILD, HOST, 1, 7.0, 9.0, "failed")])
    trace.events.append(Event(5.0, "joined", "a"))
    stored = Trace.from_json(json.loads(json.dumps(trace.to_json(), sort_keys=True)))
    assert stored == Trace(
        {HOST: 2, DEVICE: 1}, [Span("a", "me", BUILD, HOST, 1, 2.0, 4.0, "failed")], [Event(0.0, "joined", "a")]
    )
    assert list(stored.num_units) == [HOST, DEVICE]


def test_a_trace_of_another_version_is_refused() -> None:
    with pytest.raises(SchedulerError, match="schema 1, got 2"):
        Trace.from_json({"schema": 2})


def test_the_busiest_resource_bounds_the_time(trace: Trace) -> None:
    assert trace.least_s == trace.busy_s(HOST) == 10.0
