"""chanas/measuring/shared/turns.py: a tuning computes in its turns and tells how it ends; whoever waits ends the turn,
and nobody else; what is told arrives as it was told."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from chanas.core.codec import from_json, to_json
from chanas.errors import CheckpointError, ConfigError, SchedulerError
from chanas.measuring.fleet import wait_for_one
from chanas.measuring.messages import Answer, Build, ErrorKind, Learn, OperatorAt, Ping, WorkerError
from chanas.measuring.shared.turns import (
    Ask,
    Client,
    Exchange,
    Rest,
    SharedPool,
    Tuning,
    Turn,
    serve_turns,
)

from ...compiler.workbench import HOST, WORKLOAD


# ---- messages -------------------------------------------------------------------------------------------------------
def test_a_turn() -> None:
    failed = Answer(None, WorkerError(ErrorKind.CRASH, "the worker ended", last_words="oh"), 1.5)
    turn = Turn(core=3, answers=((7, failed), (8, Answer({"a": 1}, None))))
    assert from_json(Turn, json.loads(json.dumps(to_json(turn)))) == turn


def test_the_end_of_a_turn() -> None:
    request = Build(target=HOST, what=OperatorAt(WORKLOAD, (1, 2)), path=Path("a.so"))
    ask = Ask(number=4, times=False, timeout_s=20.0, request=request)
    rest = Rest(asks=(ask,), withdrawn=(1, 2), renew=True, ended=True, error="no", result={"path": "x"})
    arrived = from_json(Rest, json.loads(json.dumps(to_json(rest))))
    assert arrived == rest


# ---- the end that the scheduler has ---------------------------------------------------------------------------------
class ClosedInStart(Client):
    """One that another thread closes before its process is known."""

    started: subprocess.Popen[bytes]

    def _start(self, core: int) -> subprocess.Popen[bytes]:
        self.started = super()._start(core)
        self.close()
        assert self.started.poll() is None
        return self.started


def test_a_process_is_ended_that_starts_while_its_job_is(tmp_path: Path) -> None:
    client = ClosedInStart("a", ("-c", "import sys; sys.stdin.read()"), {}, tmp_path / "a.log")
    with pytest.raises(SchedulerError, match="job 'a' has ended"):
        client.turn(min(os.sched_getaffinity(0)), ())
    assert client.started.poll() is not None


# ---- the end that the tuning has ------------------------------------------------------------------------------------
PLAN = {"job": "a"}


class Pipe:
    """Turns on given cores, and what was told in them."""

    def __init__(self, *cores: int) -> None:
        lines = [PLAN, *(to_json(Turn(core=core)) for core in cores)]
        self._rests = io.StringIO()
        self.moved: list[set[int]] = []
        self._lines = io.StringIO("".join(json.dumps(x) + "\n" for x in lines))

    def serve(self, tune: Tuning) -> None:
        serve_turns(self._lines, self._rests, tune, self.moved.append)

    @property
    def rests(self) -> Sequence[Rest]:
        return [from_json(Rest, json.loads(line)) for line in self._rests.getvalue().splitlines()]


def test_each_turn_is_on_the_core_that_it_is_given() -> None:
    pipe = Pipe(2, 5)

    def tune(plan: dict[str, Any], exchange: Exchange) -> dict[str, Any]:
        assert plan == PLAN
        assert pipe.moved == [{2}]
        assert exchange(Rest(renew=True)) == Turn(core=5)
        return {"made": 1}

    pipe.serve(tune)
    assert pipe.moved == [{2}, {5}]
    assert pipe.rests == [Rest(renew=True), Rest(ended=True, result={"made": 1})]


@pytest.mark.parametrize(
    ("error", "told"), [(ConfigError("no such space"), "no such space"), (KeyError("x"), "KeyError: 'x'")]
)
def test_an_error_is_told_in_one_line(error: Exception, told: str) -> None:
    def tune(_plan: dict[str, Any], _exchange: Exchange) -> dict[str, Any]:
        raise error

    pipe = Pipe(0)
    pipe.serve(tune)
    assert pipe.rests == [Rest(ended=True, error=told)]


def test_a_shortage_is_told_as_one(tmp_path: Path) -> None:
    def tune(_plan: dict[str, Any], _exchange: Exchange) -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(tmp_path / "full.sqlite")) as db:
            db.execute("PRAGMA max_page_count=2")
            try:
                db.execute("CREATE TABLE a (b)")
                db.execute("INSERT INTO a VALUES (?)", ("x" * 100_000,))
            except sqlite3.Error as error:
                raise CheckpointError("records cannot be written") from error
        return {}

    pipe = Pipe(0)
    pipe.serve(tune)
    assert pipe.rests == [Rest(ended=True, error="records cannot be written", lacking="database or disk is full")]


def test_without_another_turn_a_tuning_ends_as_with_ctrl_c() -> None:
    kept = []

    def tune(_plan: dict[str, Any], exchange: Exchange) -> dict[str, Any]:
        try:
            exchange(Rest())
        finally:
            kept.append("records")
        return {}

    pipe = Pipe(0)
    with pytest.raises(KeyboardInterrupt):
        pipe.serve(tune)
    assert kept == ["records"]
    assert pipe.rests == [Rest()]


class Others:
    """Ends turns; `choose` says which of the open numbers are answered in the next one."""

    def __init__(self, choose: Callable[[Sequence[int]], Sequence[int]] = lambda numbers: numbers) -> None:
        self.rests: list[Rest] = []
        self._choose, self._open = choose, list[int]()

    def exchange(self, rest: Rest) -> Turn:
        self.rests.append(rest)
        self._open += [ask.number for ask in rest.asks]
        chosen = self._choose(self._open)
        self._open = [number for number in self._open if number not in chosen]
        answers = [(n, Answer({"number": n}, None, 0.5)) for n in chosen]
        return Turn(core=0, answers=tuple(answers))


def test_a_turn_ends_where_an_answer_is_waited_for() -> None:
    others = Others()
    pool = SharedPool(others.exchange, num_builders=2, overlap=True)
    build, timing = pool.build(Ping(), 1.0), pool.measure(Ping(), 2.0)
    assert others.rests == []
    assert build.result().result == {"number": 0}
    assert timing.result().result == {"number": 1}
    [rest] = others.rests
    assert [(a.number, a.times, a.timeout_s, a.request) for a in rest.asks] == [
        (0, False, 1.0, Ping()),
        (1, True, 2.0, Ping()),
    ]


def test_what_a_cost_model_asks_ends_a_turn() -> None:
    others = Others()
    pool = SharedPool(others.exchange, num_builders=2, overlap=True, learns=True)
    assert pool.compute is not None
    timing = pool.measure(Ping(), 1.0)
    assert pool.compute({"x": 1}) == {"number": 1}
    assert timing.done()
    assert [ask.request for ask in others.rests[0].asks] == [Ping(), Learn(question={"x": 1})]
    assert SharedPool(others.exchange, num_builders=2, overlap=True).compute is None


def test_turns_go_on_until_one_of_those_waited_for_is_answered() -> None:
    others = Others(lambda numbers: numbers[:1])
    pool = SharedPool(others.exchange, num_builders=2, overlap=True)
    futures = [pool.build(Ping(), 1.0) for _ in range(4)]
    assert wait_for_one(futures[2:]) == {futures[2]}
    assert [future.done() for future in futures] == [True, True, True, False]
    assert len(others.rests) == 3


def test_seconds_of_builds_and_timings_are_counted() -> None:
    pool = SharedPool(Others().exchange, num_builders=2, overlap=True)
    pool.build(Ping(), 1.0).result()
    for _ in range(2):
        pool.measure(Ping(), 1.0).result()
    assert (pool.building_s, pool.timing_s) == (0.5, 1.0)


def test_what_is_cancelled_before_anybody_heard_of_it_is_not_asked_for() -> None:
    others = Others()
    pool = SharedPool(others.exchange, num_builders=2, overlap=True)
    unwanted, wanted = pool.build(Ping(), 1.0), pool.build(Ping(), 1.0)
    assert unwanted.cancel()
    wanted.result()
    assert [[ask.number for ask in rest.asks] for rest in others.rests] == [[1]]


def test_what_is_cancelled_later_is_withdrawn() -> None:
    others = Others(lambda numbers: numbers[-1:])
    pool = SharedPool(others.exchange, num_builders=2, overlap=True)
    unwanted, wanted = pool.build(Ping(), 1.0), pool.build(Ping(), 1.0)
    wanted.result()
    assert unwanted.cancel()
    pool.measure(Ping(), 1.0).result()
    pool.measure(Ping(), 1.0).result()
    assert [rest.withdrawn for rest in others.rests] == [(), (0,), (0,)]


def test_an_answer_that_nobody_wants_any_more_is_no_fault() -> None:
    others = Others(lambda numbers: numbers[-1:])
    pool = SharedPool(others.exchange, num_builders=2, overlap=True)
    unwanted = pool.build(Ping(), 1.0)
    pool.build(Ping(), 1.0).result()
    unwanted.cancel()
    others._choose = lambda numbers: numbers
    assert pool.measure(Ping(), 1.0).result().error is None


def test_timers_are_renewed_at_the_end_of_the_turn() -> None:
    others = Others()
    pool = SharedPool(others.exchange, num_builders=2, overlap=True)
    pool.measure(Ping(), 1.0).result()
    pool.renew_timers()
    pool.measure(Ping(), 1.0).result()
    pool.measure(Ping(), 1.0).result()
    assert [rest.renew for rest in others.rests] == [False, True, False]


def test_builds_that_were_expected_and_made_are_not_expected_any_more() -> None:
    others = Others()
    pool = SharedPool(others.exchange, num_builders=2, overlap=True)
    pool.expect(2)
    for _ in range(3):
        pool.build(Ping(), 1.0).result()
    assert [rest.num_left for rest in others.rests] == [1, 0, 0]
