"""chanas/operators/grouped.py: groups of channels that share vectors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.operators.grouped import abreast
from chanas.operators.workload import Workload


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from([4, 8, 16]))
def test_each_output_has_a_lane_and_no_set_is_without_groups(groups: int, outputs: int, lanes: int) -> None:
    workload = Workload("groupconv", 7, groups, groups * outputs, 3, groups=groups)
    shared = abreast(workload, lanes)
    assert shared.groups * shared.outputs == lanes
    assert shared.vectors * shared.outputs == outputs
    assert (shared.sets - 1) * shared.groups < groups <= shared.sets * shared.groups


@pytest.mark.parametrize(("each", "expected"), [(4, (4, 4, 1, 8)), (8, (2, 8, 1, 16)), (24, (2, 8, 3, 16))])
def test_groups_of_few_outputs_share_vectors_of_16(each: int, expected: tuple[int, ...]) -> None:
    groups = 32
    assert abreast(Workload("groupconv", 7, groups * each, groups * each, 3, groups=groups), 16) == expected


def test_groups_that_fill_vectors_share_none() -> None:
    assert abreast(Workload("groupconv", 7, 64, 64, 3, groups=4), 16).groups == 1
