"""chanas/measuring/shared/pool.py: whoever waits ends the turn, and nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chanas.measuring.local.pool import wait_for_one
from chanas.measuring.messages import Answer, Learn, Ping
from chanas.measuring.shared.pool import SharedPool
from chanas.measuring.shared.turns import Answered, Rest, Turn


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
        answers = [Answered(number=n, answer=Answer({"number": n}, None, 0.5)) for n in chosen]
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
