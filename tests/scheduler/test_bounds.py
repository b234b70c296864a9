from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chanas.scheduler.bounds import Chain, Task, head_tail_bound_s, load_bound_s, two_chains_s
from chanas.scheduler.jobs import BUILD, DEVICE, HOST, LEARN, MEASURE, SELECT
from chanas.scheduler.mock import batched_rounds

ONE = {HOST: 1, DEVICE: 1}


def tasks_of(*jobs: tuple[tuple[str, float], ...]) -> list[Task]:
    tasks = []
    for job in jobs:
        seconds = [s for _, s in job]
        tasks += [Task(r, s, sum(seconds[:i]), sum(seconds[i + 1 :])) for i, (r, s) in enumerate(job)]
    return tasks


def test_the_busiest_resource_bounds() -> None:
    tasks = tasks_of(*[((HOST, 3.0), (DEVICE, 1.0))] * 4)
    assert load_bound_s(tasks, ONE) == 12.0
    assert load_bound_s(tasks, {HOST: 2, DEVICE: 1}) == 6.0


def test_the_longest_job_bounds() -> None:
    assert load_bound_s(tasks_of(((HOST, 3.0), (DEVICE, 5.0)), ((HOST, 1.0),)), {HOST: 4, DEVICE: 4}) == 8.0


def test_a_device_waits_for_its_first_stage_and_is_followed_by_the_shortest_tail() -> None:
    tasks = tasks_of(*[((HOST, 2.0), (DEVICE, 5.0), (HOST, 1.0))] * 3)
    assert load_bound_s(tasks, ONE) == 15.0
    assert head_tail_bound_s(tasks, ONE) == 2.0 + 15.0 + 1.0


def test_each_device_waits_for_a_first_stage() -> None:
    tasks = [Task(DEVICE, 5.0, head_s, 1.0) for head_s in (0.0, 4.0, 4.0, 4.0)]
    assert load_bound_s(tasks, {DEVICE: 2}) == 10.0
    assert head_tail_bound_s(tasks, {DEVICE: 2}) == (0.0 + 4.0 + 4 * 5.0 + 2 * 1.0) / 2


def test_late_heads_bound_where_all_heads_together_do_not() -> None:
    """Two stages that come late, beside one that could begin at once."""
    tasks = [Task(DEVICE, 1.0, 0.0, 0.0), Task(DEVICE, 4.0, 10.0, 0.0), Task(DEVICE, 4.0, 10.0, 0.0)]
    assert load_bound_s(tasks, ONE) == 14.0
    assert head_tail_bound_s(tasks, ONE) == 18.0


def test_stages_cannot_be_cut_in_halves() -> None:
    tasks = [Task(DEVICE, 6.0, 0.0, 0.0)] * 3
    assert load_bound_s(tasks, {DEVICE: 2}) == 9.0
    assert head_tail_bound_s(tasks, {DEVICE: 2}) == 12.0
    assert head_tail_bound_s([*tasks, Task(DEVICE, 2.0, 1.0, 1.0)], {DEVICE: 2}) == 12.0


def test_an_empty_mix_takes_no_time() -> None:
    assert load_bound_s([], ONE) == head_tail_bound_s([], ONE) == 0.0


def test_a_job_alone_measures_its_candidates_one_after_the_other() -> None:
    means_s = {SELECT: 1.0, BUILD: 2.0, MEASURE: 3.0, LEARN: 4.0}
    tasks = batched_rounds(2, 5, means_s).tasks(ONE)
    assert load_bound_s(tasks, ONE) == 2 * (1.0 + 2.0 + 5 * 3.0 + 4.0)
    on_many = batched_rounds(2, 5, means_s).tasks({HOST: 9, DEVICE: 9})
    assert max(t.head_s + t.seconds + t.tail_s for t in on_many) == 20.0


def least_by_trying(one: Chain, other: Chain) -> float:
    """The least time of two chains of whole seconds, by trying all that can be done each second."""
    left = {(tuple(one), tuple(other), 0, 0)}
    seconds = 0
    while ((), (), 0, 0) not in left:
        left = set(_next_second(left))
        seconds += 1
    return float(seconds)


def _next_second(states: Iterable[tuple[Chain, Chain, float, float]]) -> Iterator[tuple[Chain, Chain, float, float]]:
    """All states after another second; of each chain what is left, and how long its first stage is at work."""
    for one, other, done_one, done_other in states:
        for works, also in itertools.product((True, False), repeat=2):
            if (not works and done_one) or (not also and done_other):
                continue  # a stage is not interrupted
            if works and also and one and other and one[0][0] == other[0][0]:
                continue
            moved = [_move(c, d) if w else (c, d) for c, d, w in ((one, done_one, works), (other, done_other, also))]
            yield moved[0][0], moved[1][0], moved[0][1], moved[1][1]


def _move(chain: Chain, done: float) -> tuple[Chain, float]:
    if not chain:
        return chain, 0
    return (chain[1:], 0) if done + 1 == chain[0][1] else (chain, done + 1)


few = st.lists(st.tuples(st.sampled_from([HOST, DEVICE]), st.integers(1, 3)), max_size=3)


@settings(max_examples=50)
@given(few, few)
def test_two_chains_take_as_long_as_the_best_of_all_schedules(one: Any, other: Any) -> None:
    assert two_chains_s(one, other, {HOST: 1, DEVICE: 1}) == least_by_trying(one, other)


@settings(max_examples=20)
@given(few, few)
def test_chains_that_have_a_unit_each_are_in_no_others_way(one: Any, other: Any) -> None:
    longest_s = max(sum(seconds for _, seconds in chain) for chain in (one, other))
    assert two_chains_s(one, other, {HOST: 2, DEVICE: 2}) == longest_s
