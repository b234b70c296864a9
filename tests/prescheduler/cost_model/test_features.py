"""chanas/prescheduler/cost_model/features.py: numbers that mean the same for every workload."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chanas.prescheduler.cost_model.features import features
from chanas.prescheduler.space import schedule_space
from chanas.prescheduler.workload import Operator, Workload
from chanas.target import HardwareTarget

from ..cases import DEVICES, HOST, OPERATORS, device, generators, random_workload, workloads

POOL = schedule_space(Workload("pool", 4, 8, 8), HOST)
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
