"""chanas/prescheduler/ideas.py: schedules for operators that were not tuned; what a point becomes in another space."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.compiler.backends import schedule_space
from chanas.compiler.cpu.space import max_accumulators
from chanas.compiler.space import Coordinate, Named, Point
from chanas.core.arch import SearchSpace
from chanas.core.target import HardwareTarget
from chanas.operators.steps import block_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.ideas import (
    Idea,
    agree,
    default_points,
    description,
    ideas,
    nearest_points,
    points_of,
    ranked_points,
)
from chanas.prescheduler.records.store import TuningRecord

from ..compiler.workbench import DEVICES, device, generators, random_workload, workloads

ONE, TWO = device(), device(num_threads=2)
WIDE, NARROW = device(lanes=16), device(lanes=8)
WHOLE, HALF, THIRD = (Workload("pointwise", 14, 96, out) for out in (192, 96, 64))
names = st.sampled_from(sorted(DEVICES))
families = ["conv", "pointwise", "depthwise", "pool"]


def ratio(source: HardwareTarget, target: HardwareTarget) -> float:
    return source.vector_lanes / target.vector_lanes


# ---- ideas ----------------------------------------------------------------------------------------------------------
def record(workload: Workload, place: int, seconds: float = 1e-6) -> TuningRecord:
    return TuningRecord(schedule_space(workload, WIDE).points[place], seconds)


@given(rng=generators)
def test_ideas_are_legal_distinct_and_in_the_order_of_trust(rng: np.random.Generator) -> None:
    workload = random_workload(rng.choice(families), rng)
    tuned = {}
    for _ in range(6):
        other = random_workload(str(rng.choice(families)), rng)
        points = schedule_space(other, WIDE).sample(2, rng)
        tuned[other] = [TuningRecord(p, 1e-6 * (i + 1)) for i, p in enumerate(points)]
    tuned.pop(workload, None)
    found = list(ideas(workload, WIDE, tuned))
    assert found == list(ideas(workload, WIDE, tuned))
    space = schedule_space(workload, WIDE)
    assert all(space.contains(idea.point) for idea in found)
    assert len({idea.point for idea in found}) == len(found) <= 3
    away = [float(np.abs(description(idea.source) - description(workload)).sum()) for idea in found]
    assert away == sorted(away)
    assert {idea.source.op for idea in found} <= {workload.op}
    mine, there = Idea(workload, space.points[0], 1e-6), Idea(workload, space.middle, 2e-6, "f00d/2t")
    assert list(ideas(workload, WIDE, tuned | {workload: [TuningRecord(mine.point, 1e-6)]}, [there])) == [
        mine,
        there,
        *found,
    ]


def test_the_most_similar_operator_gives_its_schedule_and_its_seconds_by_operations() -> None:
    tuned = {THIRD: [record(THIRD, 0, 1e-5), record(THIRD, 1)], WHOLE: [record(WHOLE, -1, 4e-5)]}
    tuned[WHOLE] = [dataclasses.replace(tuned[WHOLE][0], again_s=2e-5)]
    first, second = ideas(HALF, WIDE, tuned)
    assert (first.source, second.source) == (THIRD, WHOLE)
    theirs = schedule_space(THIRD, WIDE).groups(tuned[THIRD][0].point)
    assert [first.point] == nearest_points([theirs], schedule_space(HALF, WIDE))
    assert (first.seconds, second.seconds) == pytest.approx((1.5e-5, 1e-5))


def test_what_is_of_another_family_or_dtype_or_failed_gives_nothing() -> None:
    other = Workload("depthwise", 14, 96, 96, 3)
    half = dataclasses.replace(WHOLE, dtype="bfloat16")
    tuned = {other: [record(other, 0)], half: [TuningRecord((1,), 1e-6)], WHOLE: []}
    assert list(ideas(HALF, WIDE, tuned)) == []


@pytest.mark.parametrize("target", DEVICES.values(), ids=DEVICES)
def test_default_points_are_legal_and_fill_the_registers(tiny_space: SearchSpace, target: HardwareTarget) -> None:
    shares = []
    for block in dict.fromkeys(tiny_space.largest.blocks(tiny_space, 5)):
        for workload, point in zip(block_workloads(block), default_points(block, target), strict=True):
            space = schedule_space(workload, target)
            named = space.groups(point)  # raises where it is not legal
            assert ranked_points(workload, target, 1) == [point]
            if workload.op == "pointwise" and workload.output_size > 1 and "order" in named:
                tiles = [space.groups(p)["split_m"][-1] * space.groups(p)["split_n"][-1] for p in space.points]
                tile = named["split_m"][-1] * named["split_n"][-1]
                assert tile == max(tiles) <= max_accumulators(target)
                shares.append(tile / max_accumulators(target))
    assert max(shares) > 0.5


def test_ranked_points_have_tiles_of_their_own() -> None:
    tiles = [tile(point, WIDE) for point in ranked_points(WHOLE, WIDE, 4)]
    assert len(set(tiles)) == len(tiles) == 4
    assert [m * n for m, n in tiles] == sorted((m * n for m, n in tiles), reverse=True)


# ---- points of one space in another ---------------------------------------------------------------------------------
@given(workload=workloads)
def test_a_point_of_one_thread_stands_for_all_of_two_that_say_the_same(workload: Workload) -> None:
    one, two = schedule_space(workload, ONE), schedule_space(workload, TWO)
    assert agree(one, two)
    for point, found in zip(one.points[:20], points_of(one.points[:20], one, two, 1.0), strict=True):
        same = [p for p in two.points if {k: v for k, v in two.groups(p).items() if k != "fuse"} == one.groups(point)]
        assert list(found) == same
        assert points_of(found, two, one, 1.0) == [(point,)] * len(found)


def test_spaces_of_different_vectors_do_not_agree() -> None:
    assert not agree(schedule_space(WHOLE, WIDE), schedule_space(WHOLE, NARROW))


@given(rng=generators, source=names, target=names)
def test_every_point_has_a_legal_one_on_every_processor(rng: np.random.Generator, source: str, target: str) -> None:
    workload = random_workload(rng.choice(families), rng)
    whence, space = (schedule_space(workload, DEVICES[name]) for name in (source, target))
    for found in points_of(whence.sample(3, rng), whence, space, ratio(DEVICES[source], DEVICES[target])):
        assert len(found) == len(set(found))
        assert 1 <= len(found) <= 2 or agree(whence, space)
        assert all(space.contains(p) for p in found)


def away(ours: Named, theirs: Named) -> float:
    """Spelled out: choices that differ, and factors of two between all factors of a split but the first."""
    shared = [name for name in ours if name in theirs and len(ours[name]) == len(theirs[name])]
    choices = [name for name in shared if len(ours[name]) == 1]
    splits = [name for name in shared if len(ours[name]) > 1]
    factors = [abs(math.log2(a / b)) for n in splits for a, b in zip(ours[n][1:], theirs[n][1:], strict=True)]
    return sum(ours[n] != theirs[n] for n in choices) + math.fsum(factors)


@given(rng=generators, source=names, target=names)
def test_no_legal_point_is_nearer(rng: np.random.Generator, source: str, target: str) -> None:
    workload = random_workload(rng.choice(families), rng)
    whence, space = (schedule_space(workload, DEVICES[name]) for name in (source, target))
    named = whence.groups(whence.sample(1, rng)[0])
    (found,) = nearest_points([named], space)
    assert found in space.points
    others = space.sample(50, rng)
    assert away(space.groups(found), named) <= min(away(space.groups(p), named) for p in others) + 1e-6


def test_a_point_of_the_space_itself_is_its_own_nearest() -> None:
    space = schedule_space(WHOLE, WIDE)
    some = list(space.points[:: max(1, space.num_points // 7)])
    assert nearest_points([space.groups(p) for p in some], space) == some


def test_in_a_space_too_large_to_be_listed_a_point_stays_what_it_is() -> None:
    space = schedule_space(WHOLE, WIDE)
    large = dataclasses.replace(
        space, coordinates=(*space.coordinates, Coordinate.choice("auto_unroll", *range(1 << 18)))
    )
    assert not large.is_listed
    some = list(space.points[::50])
    assert [found[0] for found in points_of(some, space, large, 1.0)] == [(*point, 0) for point in some]
    other = schedule_space(HALF, WIDE)
    assert all(
        large.contains(point) for found in points_of(list(other.points[:5]), other, large, 1.0) for point in found
    )


def test_the_tile_of_another_size_is_kept_where_it_fits() -> None:
    whole, half = schedule_space(WHOLE, WIDE), schedule_space(HALF, WIDE)
    tiles = {half.groups(p)["split_m"] for p in half.points}
    shared = [p for p in whole.points if whole.groups(p)["split_m"] in tiles]
    named = whole.groups(shared[len(shared) // 2])
    assert half.groups(nearest_points([named], half)[0])["split_m"] == named["split_m"]


def tile(point: Point, target: HardwareTarget) -> tuple[int, int]:
    named = schedule_space(WHOLE, target).groups(point)
    return named["split_m"][-1], named["split_n"][-1]


def test_a_tile_has_as_many_values_and_then_as_many_vectors() -> None:
    whence, space = schedule_space(WHOLE, WIDE), schedule_space(WHOLE, NARROW)  # twelve vectors of 16, 24 of eight
    point = next(p for p in whence.points if tile(p, WIDE) == (4, 2))
    ((values, vectors),) = points_of([point], whence, space, ratio(WIDE, NARROW))
    assert tile(values, NARROW)[1] > tile(vectors, NARROW)[1] == 2
