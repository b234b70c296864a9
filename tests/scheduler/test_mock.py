from __future__ import annotations

import statistics

import pytest

from chanas.scheduler.jobs import BUILD, DEVICE, HOST, LEARN, MEASURE, RESOURCES, SELECT, Outcome
from chanas.scheduler.mock import batched_rounds, random_mix, strict_rounds

MEANS_S = {SELECT: 1.0, BUILD: 2.0, MEASURE: 3.0, LEARN: 4.0}
ONE = {HOST: 1, DEVICE: 1}


def test_strict_rounds_offer_one_stage_at_a_time() -> None:
    job, kinds = strict_rounds(2, MEANS_S), []
    while offers := job.offer():
        assert len(offers) == 1
        kinds.append(offers[0].kind)
        job.take(offers[0], Outcome())
    assert kinds == [SELECT, BUILD, MEASURE, LEARN] * 2


def test_a_stage_says_what_it_needs_and_what_follows_it() -> None:
    job = strict_rounds(1, MEANS_S)
    followers = {}
    while offers := job.offer():
        followers[offers[0].kind] = (offers[0].resource, offers[0].next_resource)
        job.take(offers[0], Outcome())
    assert followers == {
        SELECT: (HOST, HOST),
        BUILD: (HOST, DEVICE),
        MEASURE: (DEVICE, HOST),
        LEARN: (HOST, None),
    }


def test_batched_rounds_offer_all_builds_and_learn_from_all_measurements() -> None:
    job = batched_rounds(1, 3, MEANS_S)
    (select,) = job.offer()
    assert job.offer() == []
    job.take(select, Outcome())
    builds = job.offer()
    assert [b.kind for b in builds] == [BUILD] * 3
    measures = []
    for build in builds:
        job.take(build, Outcome())
        measures += job.offer()
    assert [m.kind for m in measures] == [MEASURE] * 3
    for measure in measures:
        assert job.offer() == []
        job.take(measure, Outcome())
    assert [s.kind for s in job.offer()] == [LEARN]


def test_the_outlook_is_what_is_left() -> None:
    job = strict_rounds(2, MEANS_S)
    assert job.outlook(lambda kind: 0.0, ONE).alone_s == 20.0
    (select,) = job.offer()
    job.take(select, Outcome())
    outlook = job.outlook(lambda kind: 0.0, ONE)
    assert outlook.alone_s == 19.0
    assert outlook.work_s == {HOST: 13.0, DEVICE: 6.0}


def test_the_outlook_of_a_batch_knows_how_many_can_run_at_once() -> None:
    job = batched_rounds(1, 6, MEANS_S)
    assert job.outlook(lambda kind: 0.0, ONE).alone_s == 1.0 + 2.0 + 6 * 3.0 + 4.0
    assert job.outlook(lambda kind: 0.0, {HOST: 6, DEVICE: 6}).alone_s == 1.0 + 2.0 + 3.0 + 4.0


def test_nothing_is_left_of_a_job_that_has_ended() -> None:
    job = strict_rounds(1, {BUILD: 2.0})
    (build,) = job.offer()
    job.take(build, Outcome(error="broken"))
    outlook = job.outlook(lambda kind: 0.0, ONE)
    assert (outlook.alone_s, outlook.work_s, job.num_failed) == (0.0, {HOST: 0.0, DEVICE: 0.0}, 1)


def test_stages_vary_around_their_mean_and_the_job_expects_the_mean() -> None:
    stages = [*strict_rounds(2000, {BUILD: 5.0}, spread=0.2, seed=1).stages()]
    assert {s.expected_s for s in stages} == {5.0}
    assert statistics.mean(s.seconds for s in stages) == pytest.approx(5.0, rel=0.02)
    assert statistics.stdev(s.seconds for s in stages) == pytest.approx(1.0, rel=0.1)


def test_a_seed_gives_the_same_mix_and_another_another() -> None:
    first, second, other = random_mix(3), random_mix(3), random_mix(4)
    assert [[*job.stages()] for job in first.jobs()] == [[*job.stages()] for job in second.jobs()]
    assert [[*job.stages()] for job in first.jobs()] == [[*job.stages()] for job in first.jobs()]
    assert [[*job.stages()] for job in first.jobs()] != [[*job.stages()] for job in other.jobs()]


def test_mixes_are_of_all_sizes() -> None:
    mixes = [random_mix(seed) for seed in range(100)]
    assert {mix.num_units[HOST] for mix in mixes} == {1, 2, 3, 4}
    assert {mix.num_units[DEVICE] for mix in mixes} == {1, 2}
    assert {len(mix.jobs()) for mix in mixes} == set(range(2, 13))
    assert {stage.kind for job in mixes[0].jobs() for stage in job.stages()} == set(RESOURCES)
