"""chanas/operators/workload.py: an operator's key, form in JSON, sizes and costs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from chanas.operators.workload import Workload, tiled_columns

from ..prescheduler.cases import workloads


def test_what_was_stored_before_there_were_batches_is_of_one_image() -> None:
    before = {
        "op": "pointwise",
        "input_size": 7,
        "in_channels": 16,
        "out_channels": 64,
        "kernel_size": 1,
        "stride": 1,
        "epilogue": "hswish",
        "scaled": False,
        "residual": True,
        "dtype": "float16",
        "wide": False,
    }
    workload = Workload.from_json(before)
    assert workload == Workload("pointwise", 7, 16, 64, epilogue="hswish", residual=True, dtype="float16")
    assert workload.key == "pointwise-7px-16x64-k1s1-hswish-res-float16"


@pytest.mark.parametrize(
    "change",
    [
        {"op": "depthwise"},
        {"input_size": 8},
        {"in_channels": 8},
        {"out_channels": 8},
        {"kernel_size": 3},
        {"stride": 2},
        {"epilogue": "relu"},
        {"scaled": True},
        {"residual": True},
        {"dtype": "int8"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_is_in_the_key(change: dict[str, object]) -> None:
    workload = Workload("pointwise", 7, 16, 16)
    assert Workload.from_json({**workload.to_json(), **change}).key != workload.key


@given(workloads)
def test_a_workload_survives_json(workload: Workload) -> None:
    assert Workload.from_json(json.loads(json.dumps(workload.to_json()))) == workload


@pytest.mark.parametrize(("size", "stride", "expected"), [(13, 2, 7), (12, 2, 6), (1, 2, 1), (13, 1, 13)])
def test_strides_round_up(size: int, stride: int, expected: int) -> None:
    assert Workload("depthwise", size, 8, 8, 3, stride).output_size == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 1), (7, 7), (13, 13), (15, 15), (17, 18), (25, 25), (28, 28), (29, 30), (37, 39), (224, 224)],
)
def test_columns_are_rounded_up_to_equal_tiles(size: int, expected: int) -> None:
    assert tiled_columns(Workload("blockconv", size, 8, 8, 3)) == expected


def test_few_columns_are_computed_in_vain() -> None:
    for size in range(1, 300):
        columns = tiled_columns(Workload("blockconv", size, 8, 8, 3))
        assert size <= columns <= 1.06 * size


def test_pooling_leaves_one_pixel_and_has_no_weights() -> None:
    pool = Workload("pool", 7, 24, 24)
    assert (pool.output_size, pool.weight_bytes, pool.num_flops) == (1, 0, 7 * 7 * 24)
