"""chanas/service/store/jobs.py: whatever happens in whatever order, no job is lost and none ends twice."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chanas.errors import ServiceError
from chanas.service.store.database import Database
from chanas.service.store.jobs import (
    CANCEL,
    CANCELLED,
    COMPLETE,
    ENDED,
    FAILED,
    NOTHING,
    PAUSE,
    PAUSED,
    QUEUED,
    RUNNING,
    Claimed,
    JobStore,
    Made,
    NewJob,
    state_of,
)

NEW = NewJob(
    tenant="a", key=None, digest="d", kind="model", request={"kind": "model"}, content="c", effort="e", target="cpu"
)


def submitted(store: JobStore, **changes: object) -> str:
    job, _ = store.submit(dataclasses.replace(NEW, **changes), 1000).result()  # type: ignore[arg-type]
    return job


def claimed(store: JobStore) -> Claimed:
    found = store.claim().result()
    assert found is not None
    return found


def state(store: JobStore, job: str, tenant: str = "a") -> str:
    return state_of(store.get(tenant, job))


def ends(store: JobStore, job: str) -> list[str]:
    return [row["what"] for row in store.events(job, 0) if row["what"] in ENDED]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit", "claim", "complete", "fail", "release", "crash", "late", CANCEL, PAUSE, "resume", "reopen"]
        ),
        st.integers(0, 5),
    ),
    max_size=40,
)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_no_job_is_lost_and_none_ends_twice(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("store") / "service.sqlite"
    jobs: list[str] = []
    attempts: list[Claimed] = []
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(contextlib.closing(Database(path)))
        store = JobStore(database)
        for what, number in steps:
            attempt = attempts[number % len(attempts)] if attempts else None
            if what == "submit":
                jobs.append(submitted(store, content=str(len(jobs))))
            elif what == "claim":
                found = store.claim().result()
                attempts += [] if found is None else [found]
            elif what in ("complete", "late") and attempt is not None:
                store.complete(attempt.id, attempt.attempt, Made({})).result()
            elif what == "fail" and attempt is not None:
                store.fail(attempt.id, attempt.attempt, "planted").result()
            elif what == "release" and attempt is not None:
                store.release(attempt.id, attempt.attempt).result()
            elif what == "crash":
                store.recover().result()
            elif what in (CANCEL, PAUSE, "resume") and jobs:
                with contextlib.suppress(ServiceError):
                    store.want("a", jobs[number % len(jobs)], NOTHING if what == "resume" else what).result()
            elif what == "reopen":
                database = stack.enter_context(contextlib.closing(Database(path)))
                store = JobStore(database)
                store.recover().result()
        rows = {row["id"]: row for row in store.page("a", None, 1000)}
        assert set(rows) == set(jobs)
        for job in jobs:
            told = ends(store, job)
            assert told == ([rows[job]["state"]] if rows[job]["state"] in ENDED else [])
            assert rows[job]["attempt"] == sum(a.id == job for a in attempts)
        assert all(num == 1 for num in Counter((a.id, a.attempt) for a in attempts).values())


def test_only_the_newest_attempt_ends_a_job(store: JobStore) -> None:
    job = submitted(store)
    first = claimed(store)
    store.recover().result()
    second = claimed(store)
    assert (first.id, first.attempt, second.attempt) == (job, 1, 2)
    assert not store.complete(job, 1, Made({})).result()
    assert store.complete(job, 2, Made({})).result()
    assert not store.complete(job, 2, Made({})).result()
    assert ends(store, job) == [COMPLETE]


def test_a_key_is_one_job_and_of_another_request_it_is_refused(store: JobStore) -> None:
    first = store.submit(dataclasses.replace(NEW, key="k"), 10).result()
    again = store.submit(dataclasses.replace(NEW, key="k"), 10).result()
    assert (first[1], again) == (True, (first[0], False))
    with pytest.raises(ServiceError) as refused:
        store.submit(dataclasses.replace(NEW, key="k", digest="other"), 10).result()
    assert refused.value.status == 409
    assert store.submit(dataclasses.replace(NEW, key="k", tenant="b", digest="other"), 10).result()[1]


def test_a_tenant_has_so_many_open_jobs_at_most(store: JobStore) -> None:
    assert store.submit(NEW, 1).result()[1]
    with pytest.raises(ServiceError) as refused:
        store.submit(NEW, 1).result()
    assert refused.value.status == 429
    assert store.submit(dataclasses.replace(NEW, tenant="b"), 1).result()[1]


def test_priority_goes_first_then_who_has_less_running_then_the_oldest(store: JobStore) -> None:
    names = {
        submitted(store, content=name, tenant=name[0], priority=priority): name
        for name, priority in (("a1", 0), ("a2", 0), ("b1", 0), ("b2", 5))
    }
    order = [names[claimed(store).id] for _ in range(4)]
    assert order == ["b2", "a1", "a2", "b1"] or order == ["b2", "a1", "b1", "a2"]
    assert order[:2] == ["b2", "a1"]


def test_what_meets_the_demand_is_answered_at_once(store: JobStore) -> None:
    job = submitted(store)
    store.complete(job, claimed(store).attempt, Made({"latency_s": 2e-3}, 2e-3, 0.7)).result()
    for goals, others, answered in (
        (None, {}, True),
        (None, {"effort": "more"}, False),
        ((3e-3, None), {"effort": "more"}, True),
        ((1e-3, None), {}, False),
        ((3e-3, 0.6), {"tenant": "b"}, True),
        ((3e-3, 0.8), {}, False),
        (None, {"content": "other"}, False),
        (None, {"reuse": False}, False),
    ):
        new = submitted(store, goals=goals, **others)
        row = store.get(str(others.get("tenant", "a")), new)
        assert (row["state"] == COMPLETE, row["bundle"] == job) == (answered, answered), (goals, others)


def test_an_answer_at_once_says_of_a_demand_what_is_so(store: JobStore) -> None:
    job = submitted(store)
    store.complete(job, claimed(store).attempt, Made({"met": None}, 2e-3)).result()
    met = [json.loads(store.get("a", submitted(store, goals=goals))["result"])["met"] for goals in (None, (3e-3, None))]
    assert met == [None, True]


def test_a_paused_job_waits_and_a_running_one_is_put_back(store: JobStore) -> None:
    job = submitted(store)
    assert store.want("a", job, PAUSE).result() == PAUSED
    assert store.claim().result() is None
    assert store.want("a", job, NOTHING).result() == QUEUED
    attempt = claimed(store).attempt
    assert store.want("a", job, PAUSE).result() == RUNNING
    assert store.interrupted() == [f"{job}.{attempt}"]
    store.release(job, attempt).result()
    assert state(store, job) == PAUSED
    assert [row["id"] for row in store.page("a", None, 10, PAUSED)] == [job]
    assert store.page("a", None, 10, QUEUED) == []


def test_a_cancelled_job_stays_cancelled(store: JobStore) -> None:
    queued = submitted(store)
    assert store.want("a", queued, CANCEL).result() == CANCELLED
    assert store.want("a", queued, CANCEL).result() == CANCELLED
    running = submitted(store)
    attempt = claimed(store).attempt
    assert store.want("a", running, CANCEL).result() == RUNNING
    store.recover().result()
    assert state(store, running) == CANCELLED
    assert not store.complete(running, attempt, Made({})).result()
    with pytest.raises(ServiceError, match="has ended"):
        store.want("a", running, PAUSE).result()


def test_a_tenant_sees_its_own_jobs_alone(store: JobStore) -> None:
    job = submitted(store)
    for act in (lambda: store.get("b", job), lambda: store.want("b", job, CANCEL).result()):
        with pytest.raises(ServiceError) as refused:
            act()
        assert refused.value.status == 404
    assert store.page("b", None, 10) == []


def test_a_change_that_fails_leaves_the_others_of_its_transaction(database: Database, store: JobStore) -> None:
    futures = [store.submit(dataclasses.replace(NEW, key=str(i % 2), digest=str(i)), 10) for i in range(4)]
    assert [future.exception() is None for future in futures] == [True, True, False, False]
    assert len(store.page("a", None, 10)) == 2


def test_progress_is_told_of_running_jobs_alone(store: JobStore) -> None:
    job = submitted(store)
    touched: set[str] = set()
    store.listen(touched.update)
    store.progress({job: {"measure": 1}}).result()
    assert store.get("a", job)["progress"] is None
    attempt = claimed(store).attempt
    store.progress({job: {"measure": 2}}).result()
    assert store.get("a", job)["progress"] == '{"measure": 2}'
    store.fail(job, attempt, "planted").result()
    assert (state(store, job), store.get("a", job)["progress"]) == (FAILED, None)
    assert touched == {job}


def test_a_database_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "service.sqlite"
    with contextlib.closing(Database(path)) as database:
        database.write(lambda db: db.execute("PRAGMA user_version=99")).result()
    with pytest.raises(Exception, match="schema"):
        Database(path)
