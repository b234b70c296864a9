"""chanas/prescheduler/tuning/offline/primitives.py: schedules as sequences of primitives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chanas.compiler.backends import schedule_space
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Workload
from chanas.prescheduler.tuning.offline.primitives import (
    SLOTS,
    WIDTH,
    Rows,
    flatten,
    primitive_rows,
    primitives,
)

from ....compiler.workbench import DEVICES, workloads
from .records import ONE, TWO

CONV = Workload("blockconv", 28, 64, 64, 3, epilogue="relu")


@given(workload=workloads, target=st.sampled_from(list(DEVICES.values())))
def test_points_that_differ_have_sequences_that_differ(workload: Workload, target: HardwareTarget) -> None:
    space = schedule_space(workload, target)
    points = space.points[:64]
    flat = flatten(primitive_rows(space, points, target))
    assert len(np.unique(flat, axis=0)) == len(points)


def test_a_sequence_has_what_the_point_makes_of_the_loops() -> None:
    space = schedule_space(CONV, TWO)
    named = space.groups(space.points[0])
    found = dict(primitives(space, named, TWO))
    assert found["SP h"][:3] == tuple(np.log2(named["split_h"]))
    assert found["FU"] == (named["fuse"][0],)
    assert found["AN vec"] == (np.log2(TWO.vector_lanes), 1.0)
    order = [slot.split()[0] for slot, _ in primitives(space, named, TWO)]
    assert order == ["WL", "DV", "CHW", *["SP"] * 4, "RE", "RE", "FU", "PR", "CA", "AN"]


def test_one_thread_fuses_nothing() -> None:
    space = schedule_space(CONV, ONE)
    assert "FU" not in dict(primitives(space, space.groups(space.middle), ONE))


def test_a_row_names_one_primitive() -> None:
    space = schedule_space(CONV, ONE)
    rows = primitive_rows(space, space.points[:5], ONE)
    assert rows.values.shape == (rows.offsets[-1], WIDTH)
    assert (rows.values[:, : len(SLOTS)].sum(axis=1) == 1.0).all()


@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_rows_of_some_records_are_theirs(lengths: list[int], seed: int) -> None:
    parts = [np.full((length, 2), i, dtype=np.float32) for i, length in enumerate(lengths)]
    chosen = np.random.default_rng(seed).permutation(len(parts)).astype(np.int64)
    taken = Rows.join(parts).of(chosen)
    assert taken.lengths.tolist() == [lengths[i] for i in chosen]
    assert taken.values[:, 0].tolist() == [i for i in chosen for _ in range(lengths[i])]


@given(workload=workloads, target=st.sampled_from(list(DEVICES.values())))
def test_every_coordinate_of_every_family_has_a_name(workload: Workload, target: HardwareTarget) -> None:
    space = schedule_space(workload, target)
    slots = {slot for slot, _ in primitives(space, space.groups(space.middle), target)}
    assert not slots & {"SP other", "AN other"}
