"""chanas/prescheduler/tuning/mapping.py: what a point becomes in another space."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Named, Point
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Workload
from chanas.prescheduler.tuning.mapping import mapped_points, nearest_point, nearest_points

from ...compiler.workbench import DEVICES, device, generators, random_workload

WIDE, NARROW = device(lanes=16), device(lanes=8)
WHOLE, HALF = Workload("pointwise", 14, 96, 192), Workload("pointwise", 14, 96, 96)
names = st.sampled_from(sorted(DEVICES))


def away(ours: Named, theirs: Named) -> float:
    """Spelled out: choices that differ, and factors of two between all factors of a split but the first."""
    shared = [name for name in ours if name in theirs and len(ours[name]) == len(theirs[name])]
    choices = [name for name in shared if len(ours[name]) == 1]
    splits = [name for name in shared if len(ours[name]) > 1]
    factors = [abs(math.log2(a / b)) for n in splits for a, b in zip(ours[n][1:], theirs[n][1:], strict=True)]
    return sum(ours[n] != theirs[n] for n in choices) + math.fsum(factors)


@given(rng=generators, source=names, target=names)
def test_no_legal_point_is_nearer(rng: np.random.Generator, source: str, target: str) -> None:
    workload = random_workload(rng.choice(["conv", "pointwise", "depthwise", "pool"]), rng)
    whence, space = (schedule_space(workload, DEVICES[name]) for name in (source, target))
    named = whence.groups(whence.sample(1, rng)[0])
    found = nearest_point(named, space)
    assert found in space.points
    others = space.sample(50, rng)
    assert away(space.groups(found), named) <= min(away(space.groups(p), named) for p in others) + 1e-6


def test_a_point_of_the_space_itself_is_its_own_nearest() -> None:
    space = schedule_space(WHOLE, WIDE)
    some = list(space.points[:: max(1, space.num_points // 7)])
    assert nearest_points([space.groups(p) for p in some], space) == some


def test_the_tile_of_another_size_is_kept_where_it_fits() -> None:
    whole, half = schedule_space(WHOLE, WIDE), schedule_space(HALF, WIDE)
    tiles = {half.groups(p)["split_m"] for p in half.points}
    shared = [p for p in whole.points if whole.groups(p)["split_m"] in tiles]
    named = whole.groups(shared[len(shared) // 2])
    assert half.groups(nearest_point(named, half))["split_m"] == named["split_m"]


@given(rng=generators, source=names, target=names)
def test_every_point_has_a_legal_one_on_every_processor(rng: np.random.Generator, source: str, target: str) -> None:
    workload = random_workload(rng.choice(["conv", "pointwise", "depthwise", "pool"]), rng)
    whence, space = (schedule_space(workload, DEVICES[name]) for name in (source, target))
    for found in mapped_points(whence.sample(3, rng), whence, space, ratio(DEVICES[source], DEVICES[target])):
        assert 1 <= len(found) == len(set(found)) <= 2
        assert all(space.contains(p) for p in found)


def ratio(source: HardwareTarget, target: HardwareTarget) -> float:
    return source.vector_lanes / target.vector_lanes


def tile(point: Point, target: HardwareTarget) -> tuple[int, int]:
    named = schedule_space(WHOLE, target).groups(point)
    return named["split_m"][-1], named["split_n"][-1]


def test_a_tile_has_as_many_values_and_then_as_many_vectors() -> None:
    whence, space = schedule_space(WHOLE, WIDE), schedule_space(WHOLE, NARROW)  # twelve vectors of 16, 24 of eight
    point = next(p for p in whence.points if tile(p, WIDE) == (4, 2))
    ((values, vectors),) = mapped_points([point], whence, space, ratio(WIDE, NARROW))
    assert tile(values, NARROW)[1] > tile(vectors, NARROW)[1] == 2
