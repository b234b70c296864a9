"""chanas/compiler/cuda/features.py: what a GPU's point means, in as many numbers for every workload."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.compiler.cuda.families import gpu_space
from chanas.compiler.cuda.space import GPUSpace
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.history import features
from chanas.prescheduler.tuning.cost_model.models import cost_model
from chanas.prescheduler.tuning.tuner import OperatorTuner, TuneConfig

from ..cuda_cases import GPU, WORKLOADS, key


def space_of(workload: Workload) -> GPUSpace:
    return gpu_space(workload, GPU)


@pytest.mark.parametrize("workload", WORKLOADS, ids=key)
def test_features_are_finite_and_tell_points_apart(workload: Workload) -> None:
    space = gpu_space(workload, GPU)
    points = space.sample(20, np.random.default_rng(0))
    x = features(space, points, GPU)
    assert np.isfinite(x).all()
    assert len(np.unique(x, axis=0)) > 0.8 * len(points)


def test_there_are_as_many_for_every_workload() -> None:
    widths = {features(s, s.sample(1, np.random.default_rng(0)), GPU).shape[1] for s in map(space_of, WORKLOADS)}
    assert len(widths) == 1


def test_a_tuner_gets_better_in_a_space_that_is_too_large_to_be_listed() -> None:
    """A device that likes many threads: the model finds out."""
    workload = Workload("pointwise", 14, 64, 96)
    space = gpu_space(workload, GPU)
    assert space.num_points > 4096
    config = TuneConfig(num_trials=24)
    tuner = OperatorTuner(space, cost_model("gp", GPU, 0), config, [], 0)
    seconds = []
    while points := tuner.ask(4):
        assert len(set(points)) == len(points)
        records = []
        for point in points:
            named = space.groups(point)
            threads = named["split_m"][1] * named["split_n"][1]
            seconds.append(1e-4 / threads**0.5)
            records.append(TuningRecord(point, seconds[-1], 0.0))
        tuner.tell(records)
    assert len(seconds) == 24
    assert np.median(seconds[12:]) < np.median(seconds[:4])
    assert tuner.room == space.num_points - 24


def test_a_space_of_a_gpu_has_some_point_that_is_always_the_same() -> None:
    space = gpu_space(WORKLOADS[1], GPU)
    assert space.contains(space.middle)
    assert space.middle == gpu_space(WORKLOADS[1], GPU).middle
    drawn = space.shuffled(np.random.default_rng(1))
    assert len(set(drawn)) == len(drawn) > 50
