"""chanas/prescheduler/tuning/mutate.py: children of good points are points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.arrays import FloatArray
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Operator, Workload
from chanas.prescheduler.tuning.mutate import breed, cross, mutate, start_probabilities

from ...compiler.workbench import DEVICES, HOST, OPERATORS, device, generators, random_workload, workloads

SPACE = schedule_space(Workload("pointwise", 14, 96, 96, epilogue="relu", scaled=True), device(num_threads=2))
some = settings(max_examples=40)
devices = st.sampled_from(list(DEVICES.values()))
times = st.lists(st.floats(1e-7, 1e-1), min_size=1, max_size=30).map(np.array)


def parents(space: ScheduleSpace, num: int, rng: np.random.Generator) -> tuple[list[Point], FloatArray]:
    points = space.sample(num, rng)
    return points, 1e-6 * (1.0 + rng.random(len(points)))


# ---- where to start -------------------------------------------------------------------------------------------------
@given(times, st.floats(0.0, 50.0))
def test_start_probabilities_are_the_papers(seconds: FloatArray, gamma: float) -> None:
    performance = [1.0 / s for s in seconds]
    weights = [np.exp(-gamma * (max(performance) - e) / max(performance)) for e in performance]
    got = start_probabilities(seconds, gamma)
    np.testing.assert_allclose(got, np.array(weights) / sum(weights), rtol=1e-9)
    assert got.sum() == pytest.approx(1.0)


# ---- mutation and crossover -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", OPERATORS)
def test_two_thousand_mutations_in_a_row_stay_in_the_space(op: Operator, rng: np.random.Generator) -> None:
    workload = random_workload(op, rng, max_channels=100)
    space = schedule_space(workload, device(num_threads=2))
    point, seen = space.points[0], set()
    for _ in range(2000):
        child = mutate(space, space.groups(point), rng)
        if child is not None:
            assert space.contains(child)
            point = child
            seen.add(child)
    assert len(seen) > len(space.points) / 2  # any point can be reached


@given(generators)
def test_a_mutation_changes_one_coordinate_at_most(rng: np.random.Generator) -> None:
    (point,) = SPACE.sample(1, rng)
    child = mutate(SPACE, SPACE.groups(point), rng)
    if child is not None:
        before, after = SPACE.groups(point), SPACE.groups(child)
        assert sum(before[name] != after[name] for name in before) <= 1


@given(generators)
def test_a_cross_takes_every_coordinate_from_a_parent(rng: np.random.Generator) -> None:
    mother, father = SPACE.sample(2, rng)
    child = cross(SPACE, SPACE.groups(mother), SPACE.groups(father), rng)
    if child is not None:
        first, second, mixed = (SPACE.groups(p) for p in (mother, father, child))
        assert all(mixed[name] in (first[name], second[name]) for name in mixed)


def test_a_space_of_one_point_has_no_mutations(rng: np.random.Generator) -> None:
    space = schedule_space(Workload("pool", 1, 8, 8), HOST)
    assert len(space.points) == 1
    assert mutate(space, space.groups(space.points[0]), rng) is None
    assert breed(space, space.points, np.array([1e-6]), 5, rng, exclude=frozenset(space.points)) == []


# ---- breeding -------------------------------------------------------------------------------------------------------
@some
@given(workloads, devices, generators, st.integers(0, 20))
def test_children_are_legal_distinct_and_new(
    workload: Workload, target: HardwareTarget, rng: np.random.Generator, num: int
) -> None:
    space = schedule_space(workload, target)
    points, seconds = parents(space, 6, rng)
    exclude = frozenset(points)
    children = breed(space, points, seconds, num, rng, exclude=exclude)
    assert len(children) == len(set(children)) <= num
    assert all(space.contains(child) for child in children)
    assert exclude.isdisjoint(children)


@pytest.mark.parametrize("crossover_share", [0.0, 1.0])
def test_children_come_by_mutation_and_by_crossover(crossover_share: float, rng: np.random.Generator) -> None:
    points, seconds = parents(SPACE, 8, rng)
    children = breed(SPACE, points, seconds, 12, rng, crossover_share=crossover_share, exclude=frozenset(points))
    assert len(children) == 12


def test_the_same_generator_breeds_the_same_children() -> None:
    points, seconds = parents(SPACE, 8, np.random.default_rng(0))
    first, again, other = (breed(SPACE, points, seconds, 20, np.random.default_rng(s)) for s in (1, 1, 2))
    assert first == again != other


def test_with_a_large_gamma_all_children_are_of_the_fastest(rng: np.random.Generator) -> None:
    points, seconds = parents(SPACE, 8, rng)
    fastest = SPACE.groups(points[int(np.argmin(seconds))])
    children = breed(SPACE, points, seconds, 20, rng, gamma=1e6, crossover_share=0.0)
    for child in children:
        named = SPACE.groups(child)
        assert sum(named[name] != fastest[name] for name in named) <= 1
