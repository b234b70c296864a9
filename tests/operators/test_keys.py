"""chanas/operators/keys.py: workloads from their keys."""

from __future__ import annotations

import pytest
from hypothesis import given

from chanas.errors import ScheduleError
from chanas.operators.keys import workload_of_key
from chanas.operators.workload import Workload

from ..compiler.workbench import workloads

GENERAL = (
    Workload("blockconv", 14, 32, 64, 3, input_width=28, kernel_width=5, dilation=(2, 1), groups=2),
    Workload("upconv", 14, 32, 64, 3, 2, epilogue="leaky0.1", padding=(0, 0, -1, -1)),
    Workload("pointwise", 14, 32, 64, 1, 2, column_stride=1, residual=True, residual_first=True, epilogue="relu6"),
    Workload("pointwise", 1, 32, 64, scaled=True, wide=True, dtype="bfloat16"),
    Workload("pointwise", 14, 32, 64, epilogue="leaky1e-05", residual=True),
    Workload("pointwise", 14, 32, 64, epilogue="leaky2.5e-07", scaled=True),
    Workload("pointwise", 14, 32, 64, scaled=True, prologue="relu", residual=True),
    Workload("pointwise", 14, 32, 64, scaled=True, prologue="leaky1e-05"),
    Workload("winograd2", 14, 32, 64, 3, dtype="tf32", batch=32),
)


@given(workload=workloads)
def test_a_key_is_read_back(workload: Workload) -> None:
    assert workload_of_key(workload.key) == workload


@pytest.mark.parametrize("workload", GENERAL, ids=lambda w: w.key)
def test_keys_of_operators_that_are_not_square_are_read_back(workload: Workload) -> None:
    assert workload_of_key(workload.key) == workload


@pytest.mark.parametrize("key", ["", "pointwise", "pointwise-4px-8x32-k1s1-relu", "conv-4x4px-3x8-k3s1-none-float32"])
def test_other_texts_are_refused(key: str) -> None:
    with pytest.raises(ScheduleError, match="expected the key of a workload"):
        workload_of_key(key)
