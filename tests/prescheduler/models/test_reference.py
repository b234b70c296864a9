"""What a comparison with the framework can tell."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.prescheduler.models.reference import NETWORK_TOLERANCE, unproven_outputs

ZEROS, ONES = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
INDICES = np.array([3, 5])


@pytest.mark.parametrize(
    ("expected", "other", "unproven"),
    [
        ([ZEROS], [ZEROS], [0]),
        ([ONES], [ONES], [0]),
        ([ONES], [ONES * 0.5], []),
        ([ONES], [ONES * (1 - NETWORK_TOLERANCE / 2)], [0]),  # as close as another order of sums
        ([ONES * 1e-6], [ONES * 2e-6], []),
        ([ONES, ZEROS], [ZEROS, ZEROS], [1]),
        ([ONES * 1e6, ONES], [ZEROS, ZEROS], [1]),  # a large output beside it allows as much
        ([INDICES, INDICES > 4], [INDICES, INDICES > 2], [0]),
        ([INDICES > 4], [INDICES > 2], []),
        ([ONES], [ONES * np.nan], []),
    ],
)
def test_an_output_that_another_answer_would_pass_for_is_unproven(
    expected: list[np.ndarray], other: list[np.ndarray], unproven: list[int]
) -> None:  # type: ignore[type-arg]
    assert unproven_outputs(expected, other) == unproven
