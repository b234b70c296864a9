"""chanas/prescheduler/tuning/budget.py: trials go where time is spent and can be saved, and none is lost or made up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from chanas.core.task import Task
from chanas.operators.steps import block_workloads, device_workloads, tuned_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.tuning.budget import claims, hand_out, latency_shares, occurrences

from ...compiler.cuda_cases import GPU
from ...compiler.workbench import HOST, NANO, NUM_CLASSES

TASK = Task(NANO, NUM_CLASSES)

num_workloads = st.shared(st.integers(1, 8), key="W")
weights = num_workloads.flatmap(lambda w: arrays(np.float64, w, elements=st.one_of(st.just(0.0), st.floats(1e-9, 1e3))))
rooms = num_workloads.flatmap(lambda w: arrays(np.int64, w, elements=st.integers(0, 50)))
costs = num_workloads.flatmap(lambda w: arrays(np.float64, w, elements=st.floats(0.0, 1e-3)))
tables = num_workloads.flatmap(lambda w: arrays(np.float64, (5, w), elements=st.integers(0, 4).map(float)))


# ---- shares ---------------------------------------------------------------------------------------------------------
def test_a_share_is_that_of_each_architecture_on_average() -> None:
    shares = latency_shares(np.array([1.0, 3.0]), np.array([[1.0, 1.0], [3.0, 0.0]]))
    assert shares == pytest.approx([(0.25 + 1.0) / 2, 0.75 / 2])


@given(costs, tables)
def test_shares_add_up_to_one_or_nothing_is_known(seconds: np.ndarray, counts: np.ndarray) -> None:
    total = latency_shares(seconds, counts).sum()
    assert total == pytest.approx(1.0 if (counts @ seconds > 0.0).any() else 0.0)


@given(costs, tables)
def test_shares_do_not_depend_on_the_unit(seconds: np.ndarray, counts: np.ndarray) -> None:
    assert latency_shares(4.0 * seconds, counts) == pytest.approx(latency_shares(seconds, counts), abs=1e-9)


def test_occurrences_are_those_of_random_architectures() -> None:
    blocks = NANO.all_blocks(NUM_CLASSES)
    workloads = list(dict.fromkeys(w for b in blocks for w in block_workloads(b)))
    counts = occurrences(TASK, HOST, workloads, num=10)
    of_smallest = len([w for b in NANO.smallest.blocks(NANO, NUM_CLASSES) for w in block_workloads(b)])
    assert counts.shape == (10, len(workloads))
    assert set(counts.sum(axis=1)) == {of_smallest}  # one depth
    assert np.array_equal(counts, occurrences(TASK, HOST, workloads, num=10))


def test_what_occurs_is_counted_as_it_is_tuned() -> None:
    """Squeeze-excite in two operators, where the target has it so."""
    workloads = tuned_workloads(NANO.all_blocks(NUM_CLASSES), GPU)
    counts = occurrences(TASK, GPU, workloads, num=10)
    of_smallest = sum(len(device_workloads(b, GPU)) for b in NANO.smallest.blocks(NANO, NUM_CLASSES))
    assert set(counts.sum(axis=1)) == {of_smallest}


def test_occurrences_of_a_sub_space_are_its_own() -> None:
    blocks = NANO.all_blocks(NUM_CLASSES)
    narrow = {w for b in NANO.all_blocks(NUM_CLASSES, NANO.sub_spaces[:1]) for w in block_workloads(b)}
    workloads = list(dict.fromkeys(w for b in blocks for w in block_workloads(b)))
    found = occurrences(TASK, HOST, workloads, NANO.sub_spaces[:1], num=3).any(axis=0)
    assert {w for w, there in zip(workloads, found, strict=True) if there} == narrow


def test_workloads_that_are_not_asked_about_are_left_out() -> None:
    assert not occurrences(TASK, HOST, [Workload("pool", 99, 8, 8)], num=2).any()


# ---- claims ---------------------------------------------------------------------------------------------------------
def test_a_claim_is_share_times_improvement_above_the_noise() -> None:
    got = claims(np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.01, 0.4]), np.array([0.02, 0.02, 0.02]))
    assert got == pytest.approx([0.05, 0.0, 0.08])


def test_a_workload_that_nothing_works_for_claims_as_much_as_the_strongest() -> None:
    assert claims(np.array([0.9, 0.0]), np.array([0.1, np.inf]), np.zeros(2)) == pytest.approx([0.09, 0.09])
    assert claims(np.zeros(2), np.array([0.1, np.inf]), np.zeros(2)) == pytest.approx([0.0, 1.0])


# ---- handing out ----------------------------------------------------------------------------------------------------
@given(st.integers(0, 200), weights, rooms)
def test_all_that_there_is_room_for_is_handed_out_and_no_more(num: int, weight: np.ndarray, room: np.ndarray) -> None:
    granted = hand_out(num, weight, room)
    assert granted.sum() == min(num, room[weight > 0.0].sum())
    assert ((granted >= 0) & (granted <= room)).all()
    assert not granted[weight == 0.0].any()


@given(st.integers(0, 200), weights)
def test_with_room_for_all_it_is_in_proportion(num: int, weight: np.ndarray) -> None:
    granted = hand_out(num, weight, np.full(len(weight), 1000))
    if weight.any():
        assert (np.abs(granted - num * weight / weight.sum()) < 1.0 + 1e-6).all()


def test_what_has_no_room_goes_to_the_others() -> None:
    assert hand_out(10, np.array([8.0, 1.0, 1.0]), np.array([2, 50, 50])).tolist() == [2, 4, 4]
