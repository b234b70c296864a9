"""chanas/compiler/cuda/space.py: points stay within the GPU's limits, and are drawn without listing the
space."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.cuda.operators import is_dense, output_rows
from chanas.compiler.cuda.points import product_plan
from chanas.compiler.space import Named
from chanas.core.arch import SearchSpace
from chanas.devices.target_files import describe_target
from chanas.operators.steps import block_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.gaussian_process import GaussianProcessModel
from chanas.prescheduler.tuning.cost_model.history import History
from chanas.prescheduler.tuning.evolution import Evolution
from chanas.prescheduler.tuning.mutate import breed
from chanas.prescheduler.tuning.tuner import Trials

from ..cuda_cases import GPU, IN_HALVES, IN_TF32, OF_THREE, OF_TWO_IN_HALVES, WORKLOADS, key

each_workload = pytest.mark.parametrize("workload", WORKLOADS + OF_THREE, ids=key)
on_tensor_cores = pytest.mark.parametrize(
    "workload",
    [w for w in (*IN_HALVES, *IN_TF32, *OF_TWO_IN_HALVES) if w.op in ("pointwise", "blockconv") and not is_dense(w)],
    ids=key,
)


def extents(workload: Workload) -> dict[str, int]:
    """The length of each loop that a point splits."""
    size, inputs, out = workload.output_size, workload.in_channels, workload.out_channels
    if workload.op == "squeeze":
        return {"split_n": out}
    if workload.op == "depthwise":
        return {"split_h": size, "split_w": size, "split_c": out}
    if workload.op == "pool" or is_dense(workload):
        return {"split_n": out, "split_k": workload.input_size**2 if workload.op == "pool" else inputs}
    return {"split_m": output_rows(workload), "split_n": out, "split_tap": workload.kernel_area, "split_c": inputs}


def num_threads(workload: Workload, named: Named) -> int:
    summed = {"split_tap"} if workload.op == "depthwise" else {"split_tap", "split_c"}
    return math.prod(named[name][1] for name in extents(workload).keys() - summed) * named.get("shares", (1,))[0]


@each_workload
def test_split_factors_multiply_to_their_loops(workload: Workload) -> None:
    space, expected = schedule_space(workload, GPU), extents(workload)
    for point in space.sample(20, np.random.default_rng(0)):
        named = space.groups(point)
        assert {name: math.prod(named[name]) for name in expected} == expected


@on_tensor_cores
def test_tiles_of_tensor_cores_cover_their_loops_in_whole_instructions(workload: Workload) -> None:
    space, expected = schedule_space(workload, GPU), extents(workload)
    points = [space.groups(p) for p in space.sample(50, np.random.default_rng(0))]
    on_cores = [named for named in points if named["mma"][0]]
    assert 0 < len(on_cores) < len(points)
    for named in on_cores:
        core = product_plan(workload, space.read(named), GPU.required_gpu).core
        assert core is not None
        for name, unit in (("split_m", 16), ("split_n", 8), ("split_c", core.depth)):
            assert math.prod(named[name]) >= expected[name]
            assert math.prod(named[name][1:]) < expected[name] + math.prod(named[name][1:])
            assert named[name][-1] % unit == 0


@on_tensor_cores
def test_threads_of_tensor_cores_are_whole_warps_within_the_limits(workload: Workload) -> None:
    space, gpu = schedule_space(workload, GPU), GPU.required_gpu
    for point in space.sample(50, np.random.default_rng(1)):
        plan = product_plan(workload, space.decode(point), gpu)
        if plan.core:
            assert plan.threads % gpu.warp_size == 0
        assert plan.threads * plan.shares <= gpu.max_threads_per_block
        assert plan.shared_bytes <= gpu.max_shared_bytes_per_block
        assert plan.num_stretches % plan.shares == 0


@each_workload
def test_a_block_has_at_least_a_warp_and_no_more_threads_than_fit(workload: Workload) -> None:
    """Half of what a product of less than two warps allows, such as three images of ten classes."""
    space, gpu = schedule_space(workload, GPU), GPU.required_gpu
    fewest = min(gpu.warp_size, workload.batch * workload.out_channels // 2) if workload.output_size == 1 else 32
    for point in space.sample(20, np.random.default_rng(2)):
        assert fewest <= num_threads(workload, space.groups(point)) <= gpu.max_threads_per_block


@each_workload
def test_limits_are_the_descriptors(workload: Workload) -> None:
    small = dataclasses.replace(GPU.required_gpu, max_threads_per_block=64, max_shared_bytes_per_block=4096)
    space = schedule_space(workload, dataclasses.replace(GPU, gpu=small))
    points = space.sample(30, np.random.default_rng(3))
    assert points
    assert all(num_threads(workload, space.groups(p)) <= 64 for p in points)
    assert not all(space.contains(p) for p in schedule_space(workload, GPU).sample(50, np.random.default_rng(4)))


@each_workload
def test_mutation_and_crossover_stay_in_the_space(workload: Workload) -> None:
    space, rng = schedule_space(workload, GPU), np.random.default_rng(5)
    points = space.sample(10, rng)
    children = breed(space, points, np.linspace(1.0, 2.0, len(points)), 10, rng)
    assert all(space.contains(child) for child in children)


def test_every_operator_of_the_presets_has_points() -> None:
    spaces = [SearchSpace.load("mbv3"), SearchSpace.load("mbv3-32")]
    every = {w for s in spaces for b in s.all_blocks(1000, None) for w in block_workloads(b)}
    rng = np.random.default_rng(6)
    some = rng.choice(np.array(sorted(every, key=key), dtype=object), 150, replace=False)
    assert [w.key for w in some if len(schedule_space(w, GPU).sample(4, rng)) < 4] == []


def test_a_smaller_gpu_has_a_smaller_space() -> None:
    """A block of a Jetson Nano has half the registers."""
    nano, h100 = (schedule_space(WORKLOADS[1], describe_target(name)) for name in ("jetson-nano", "h100"))
    points = h100.sample(200, np.random.default_rng(7))
    assert all(h100.contains(p) for p in nano.sample(200, np.random.default_rng(7)))
    assert points


def test_a_tuner_gets_better_in_a_space_that_is_too_large_to_be_listed() -> None:
    """A device that likes many threads: the model finds out."""
    workload = Workload("pointwise", 14, 64, 96)
    space = schedule_space(workload, GPU)
    assert space.num_points > 4096
    tuner = Trials(space, Evolution(space, GaussianProcessModel(History(GPU)), [], 0), 24)
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


def test_some_of_a_space_that_is_too_large_to_be_listed_are_drawn_where_others_take_all() -> None:
    drawn = schedule_space(WORKLOADS[1], GPU).shuffled(np.random.default_rng(1))
    assert len(set(drawn)) == len(drawn) > 50
