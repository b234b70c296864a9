"""chanas/prescheduler/tuning/cost_model/features.py: numbers that mean the same for every workload."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chanas.compiler.backends import schedule_space
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Operator, Workload
from chanas.prescheduler.tuning.cost_model.features import features

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


def test_a_tile_of_bfloat16_is_half_as_large_and_else_the_same() -> None:
    plain = Workload("pointwise", 8, 32, 32)
    spaces = [schedule_space(w, HERE) for w in (plain, dataclasses.replace(plain, dtype="bfloat16"))]
    tile = {"split_m": (8, 8), "split_n": (1, 2), "order": (0,)}
    points = [space.encode({**tile, "split_k": (k, 1)}) for space, k in zip(spaces, (32, 16), strict=True)]
    in_float32, in_bfloat16 = (features(s, [p], HERE)[0] for s, p in zip(spaces, points, strict=True))
    halved = [0.0] * (NUM_FEATURES - 2) + [1.0, 1.0]  # beside the caches of level 1 and level 2
    assert sorted(in_float32 - in_bfloat16) == pytest.approx(halved)
