"""chanas/prescheduler/tuning/cost_model/history.py: records of a family, and features that mean the same for all."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import EXTRA_KNOBS, Coordinate
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Operator, Workload
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model import history
from chanas.prescheduler.tuning.cost_model.history import ELSEWHERE, History, Prior, features

from ....compiler.workbench import DEVICES, HOST, OPERATORS, device, generators, random_workload, workloads

POOL = schedule_space(Workload("pool", 4, 8, 8), HOST)
HERE = dataclasses.replace(HOST, vector_lanes=16, num_vector_registers=32)
NUM_FEATURES = features(POOL, POOL.points, HOST).shape[1]


@settings(max_examples=40)
@given(workloads, st.sampled_from(list(DEVICES.values())), generators)
def test_features_are_finite_and_as_many_for_every_workload(
    workload: Workload, target: HardwareTarget, rng: np.random.Generator
) -> None:
    space = schedule_space(workload, target)
    points = space.sample(10, rng)
    got = features(space, points, target)
    assert got.shape == (len(points), NUM_FEATURES)
    assert np.all(np.isfinite(got))


@pytest.mark.parametrize("op", OPERATORS)
def test_features_tell_the_points_of_a_space_apart(op: Operator, rng: np.random.Generator) -> None:
    space = schedule_space(random_workload(op, rng), device(num_threads=2))
    points = space.sample(200, rng)
    assert len(np.unique(features(space, points, device(num_threads=2)), axis=0)) == len(points)


def test_features_tell_points_apart_by_knobs_that_a_person_or_a_further_family_adds() -> None:
    further = (Coordinate.choice("mine", 0, 1), *(Coordinate.choice(name, 0, 1) for name in EXTRA_KNOBS))
    space = dataclasses.replace(POOL, coordinates=(*POOL.coordinates, *further), is_legal=lambda _: True)
    points = space.sample(200, np.random.default_rng(0))
    assert len(np.unique(features(space, points, HOST), axis=0)) == len(points) == space.num_points


def test_a_tile_of_bfloat16_is_half_as_large_and_else_the_same() -> None:
    plain = Workload("pointwise", 8, 32, 32)
    spaces = [schedule_space(w, HERE) for w in (plain, dataclasses.replace(plain, dtype="bfloat16"))]
    tile = {"split_m": (8, 8), "split_n": (1, 2), "order": (0,)}
    points = [space.encode({**tile, "split_k": (k, 1)}) for space, k in zip(spaces, (32, 16), strict=True)]
    in_float32, in_bfloat16 = (features(s, [p], HERE)[0] for s, p in zip(spaces, points, strict=True))
    halved = [0.0] * (NUM_FEATURES - 2) + [1.0, 1.0]  # beside the caches of level 1 and level 2
    assert sorted(in_float32 - in_bfloat16) == pytest.approx(halved)


# ---- records --------------------------------------------------------------------------------------------------------
NEAR, MINE, FAR = (schedule_space(Workload("pointwise", 8, 32, out), HERE) for out in (64, 96, 384))


def filled() -> History:
    """Records of two workloads here, and elsewhere of one of these and of a third."""
    found = History(HERE)
    for space in (FAR, NEAR):
        found.add(space, [TuningRecord(p, 1e-6 * (i + 1)) for i, p in enumerate(space.points[:5])])
    for space in (NEAR, MINE):
        found.add_elsewhere(space, Prior(((space.points[0], space.points[1]),), np.array([1e-6]), HERE))
    return found


def test_the_workload_elsewhere_comes_first_then_the_most_similar_here() -> None:
    here, near, mine, far = history.HERE, NEAR.workload.key, MINE.workload.key, FAR.workload.key
    both = (here, ELSEWHERE)
    known = filled()
    assert known.others(MINE, both) == [(ELSEWHERE, mine), (here, near), (ELSEWHERE, near), (here, far)]
    assert known.others(NEAR, both) == [(ELSEWHERE, near), (ELSEWHERE, mine), (here, far)]
    assert known.others(MINE, (here,)) == [(here, near), (here, far)]
    known.drop_elsewhere(MINE)
    assert known.others(MINE, both) == [(here, near), (here, far)]
    assert (ELSEWHERE, mine) in known.others(NEAR, both)


def test_records_are_added_up_and_one_of_several_points_lies_in_their_middle() -> None:
    known = filled()
    known.add(FAR, [TuningRecord(FAR.points[7], 9e-6)])
    assert known.num(known.here) == 11
    own = known.known[history.HERE, FAR.workload.key]
    assert own.seconds.tolist() == pytest.approx([1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 9e-6])
    assert np.array_equal(own.x, features(FAR, [*FAR.points[:5], FAR.points[7]], HERE))
    there = known.known[ELSEWHERE, MINE.workload.key]
    assert np.allclose(there.x[0], features(MINE, MINE.points[:2], HERE).mean(axis=0))


def test_each_change_is_counted_and_no_other() -> None:
    known, before = filled(), filled().version
    known.add_elsewhere(FAR, Prior((), np.zeros(0), HERE))
    assert (known.version, before) == (4, 4)
    known.drop_elsewhere(FAR)
    assert known.version == 5


def test_the_best_of_another_device_are_a_point_of_each_of_its_fastest_records() -> None:
    a, b, c, *_ = POOL.points
    prior = Prior(((a, b), (c,), (b,)), np.arange(1.0, 4.0), HOST)
    assert prior.best(2) == [a, c]
