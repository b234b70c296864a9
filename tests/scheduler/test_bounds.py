from __future__ import annotations

from chanas.scheduler.bounds import Task, head_tail_bound_s, load_bound_s
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
