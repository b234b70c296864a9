"""The three policies of Stiller's thesis, event for event: its listings 2 to 4, written down again as they stand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scheduling import ONE_OF_EACH, bars, chain_job, resources_of

from chanas.scheduler.jobs import RESOURCES
from chanas.scheduler.policies import policy
from chanas.scheduler.simulation import simulate

Stages = list[tuple[str, float]]  # kind, seconds
Bar = tuple[str, str, float, float]

stages = st.tuples(st.sampled_from([*RESOURCES]), st.integers(1, 9).map(float))
jobs = st.lists(st.lists(stages, min_size=1, max_size=6), min_size=1, max_size=5)


def interleaved(jobs: list[Stages]) -> list[Bar]:
    """Listing 2; where the listing polls on, the clock goes to the next end of a stage."""
    queues: dict[str, list[int]] = {r: [] for r in ONE_OF_EACH}
    position, is_queued = [0] * len(jobs), [False] * len(jobs)
    end_s: dict[int, float] = {}
    busy: dict[str, int] = {}
    active, bars, now_s = [*range(len(jobs))], [], 0.0
    while True:
        for job in list(active):
            if not is_queued[job] and end_s.get(job, now_s) <= now_s:
                if job in end_s:
                    del end_s[job], busy[RESOURCES[jobs[job][position[job]][0]]]
                    position[job] += 1
                if position[job] == len(jobs[job]):
                    active.remove(job)
                else:
                    queues[RESOURCES[jobs[job][position[job]][0]]].append(job)
                    is_queued[job] = True
        for resource, queue in queues.items():
            if resource not in busy and queue:
                job = queue.pop(0)
                is_queued[job] = False
                kind, seconds = jobs[job][position[job]]
                end_s[job], busy[resource] = now_s + seconds, job
                bars.append((str(job), kind, now_s, now_s + seconds))
        if not active:
            return bars
        now_s = min(end_s.values())


def sequential(jobs: list[Stages]) -> list[Bar]:
    """Listing 3."""
    bars, now_s = [], 0.0
    for name, job in enumerate(jobs):
        for kind, seconds in job:
            bars.append((str(name), kind, now_s, now_s + seconds))
            now_s += seconds
    return bars


def synchronous(job: Stages, num: int) -> list[Bar]:
    """Listing 4, of equal jobs: each stage of all at once, and each as long as all of them in turn."""
    bars, now_s = [], 0.0
    for kind, seconds in job:
        bars += [(str(name), kind, now_s, now_s + seconds * num) for name in range(num)]
        now_s += seconds * num
    return bars


def traced(name: str, jobs: list[Stages]) -> list[Bar]:
    return bars(simulate([chain_job(*job) for job in jobs], resources_of(ONE_OF_EACH), policy(name)).spans)


@given(jobs)
def test_interleaved_is_listing_2(jobs: list[Stages]) -> None:
    assert traced("interleaved", jobs) == sorted(interleaved(jobs), key=lambda bar: (bar[2], bar[0]))


@given(jobs)
def test_sequential_is_listing_3(jobs: list[Stages]) -> None:
    assert traced("sequential", jobs) == sequential(jobs)


@given(st.lists(stages, min_size=1, max_size=6), st.integers(2, 4))
def test_synchronous_is_listing_4(job: Stages, num: int) -> None:
    assert traced("synchronous", [job] * num) == synchronous(job, num)


def test_figure_10_of_the_thesis() -> None:
    """Two equal jobs, each on the host for four units, on the device for three, and on the host for two."""
    job: Stages = [("select", 2.0), ("build", 2.0), ("measure", 3.0), ("learn", 2.0)]
    assert traced("interleaved", [job, job]) == [
        ("0", "select", 0.0, 2.0),
        ("1", "select", 2.0, 4.0),
        ("0", "build", 4.0, 6.0),
        ("0", "measure", 6.0, 9.0),
        ("1", "build", 6.0, 8.0),
        ("0", "learn", 9.0, 11.0),  # while the other job's measurement, which had to wait, runs
        ("1", "measure", 9.0, 12.0),
        ("1", "learn", 12.0, 14.0),
    ]


def test_synchronous_runs_a_lone_job_alone() -> None:
    job: Stages = [("build", 2.0), ("measure", 3.0)]
    assert traced("synchronous", [job]) == sequential([job])


def test_synchronous_goes_on_in_step_with_those_that_have_more_to_do() -> None:
    assert traced("synchronous", [[("build", 1.0)], [("build", 3.0), ("measure", 1.0)]]) == [
        ("0", "build", 0.0, 2.0),
        ("1", "build", 0.0, 4.0),
        ("1", "measure", 4.0, 5.0),
    ]
