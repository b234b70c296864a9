"""chanas/operators/workload.py: an operator's key, form in JSON, sizes and costs."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given

from chanas.errors import ScheduleError
from chanas.operators.workload import Workload

from ..compiler.workbench import workloads


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
        {"input_width": 8},
        {"kernel_width": 3},
        {"column_stride": 2},
        {"dilation": (1, 2)},
        {"groups": 4},
        {"padding": (1, 0, 0, 0)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_is_in_the_key(change: dict[str, object]) -> None:
    workload = Workload("pointwise", 7, 16, 16)
    assert Workload.from_json({**workload.to_json(), **change}).key != workload.key


GENERAL = Workload(
    "blockconv",
    14,
    16,
    24,
    3,
    1,
    "relu",
    input_width=28,
    kernel_width=5,
    column_stride=2,
    dilation=(2, 1),
    groups=4,
    padding=(0, 1, 2, 2),
)


def test_what_is_not_square_is_in_the_key() -> None:
    assert GENERAL.key == "blockconv-14x28px-16x24-k3x5s1x2d2x1g4p0.1.2.2-relu-float32"
    assert GENERAL.generalities == (
        "rectangular maps",
        "rectangular kernels",
        "strides by axis",
        "dilation",
        "groups",
        "padding of its own",
    )
    assert Workload.from_json(json.loads(json.dumps(GENERAL.to_json()))) == GENERAL


def test_a_square_operator_is_stored_as_it_was_before_there_were_others() -> None:
    stored = Workload("depthwise", 7, 16, 16, 3, 2, "relu").to_json()
    assert list(stored) == [
        "op",
        "input_size",
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "epilogue",
        "scaled",
        "residual",
        "dtype",
        "wide",
        "batch",
    ]


def test_equal_operators_are_equal_however_they_are_written() -> None:
    plain = Workload("depthwise", 7, 16, 16, 3, 2)
    told = Workload("depthwise", 7, 16, 16, 3, 2, input_width=7, kernel_width=3, column_stride=2, padding=(1, 1, 1, 1))
    assert told == plain
    assert told.key == plain.key
    assert plain.generalities == ()


def test_zeros_that_no_window_reads_make_no_difference() -> None:
    """A stride of 2 over an even number of rows: the last window ends inside the map."""
    plain = Workload("depthwise", 8, 16, 16, 3, 2)
    assert dataclasses.replace(plain, padding=(1, 1, 1, 1)) == plain
    assert dataclasses.replace(plain, padding=(0, 0, 1, 1)).padding == (0, 0, 1, 1)
    assert dataclasses.replace(plain, padding=(0, 0, 2, 2)).padding == (0, 0, 1, 1)


def test_sizes_and_costs_count_rows_and_columns() -> None:
    rows, columns = GENERAL.axes
    assert (rows.output, columns.output) == (14 + 2 - 5 + 1, (28 + 3 - 5) // 2 + 1)
    assert GENERAL.output_pixels == 12 * 14
    assert GENERAL.num_flops == 2 * 12 * 14 * 15 * 4 * 24
    assert GENERAL.weight_bytes == 4 * (15 * 4 * 24 + 24)


def test_a_residual_before_the_epilogue_is_in_the_key_where_it_makes_a_difference() -> None:
    workload = Workload("blockconv", 7, 16, 16, 3, epilogue="relu", residual=True, residual_first=True)
    assert workload.key == "blockconv-7px-16x16-k3s1-relu-sum-float32"
    assert workload.generalities == ("residual", "residual before the epilogue")
    assert Workload.from_json(workload.to_json()) == workload
    for change in ({"residual": False}, {"epilogue": "none"}):
        other = Workload.from_json({**workload.to_json(), **change})
        assert other == dataclasses.replace(other, residual_first=False)
        assert "residual_first" not in other.to_json()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"groups": 3}, "expected groups that divide the channels, got 3"),
        ({"kernel_size": 40}, "the kernel fits on"),
        ({"op": "depthwise", "groups": 1}, "expected groups that divide the channels, got 16"),
    ],
)
def test_shapes_that_cannot_be_are_refused(change: dict[str, int], says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        Workload.from_json({**GENERAL.to_json(), **change})


@given(workloads)
def test_a_workload_survives_json(workload: Workload) -> None:
    assert Workload.from_json(json.loads(json.dumps(workload.to_json()))) == workload


@pytest.mark.parametrize(("size", "stride", "expected"), [(13, 2, 7), (12, 2, 6), (1, 2, 1), (13, 1, 13)])
def test_strides_round_up(size: int, stride: int, expected: int) -> None:
    assert Workload("depthwise", size, 8, 8, 3, stride).output_size == expected


@pytest.mark.parametrize(("kernel_size", "stride"), [(2, 2), (3, 2), (4, 2), (5, 3), (1, 2), (3, 1)])
def test_a_transposed_convolution_has_a_stride_of_outputs_for_each_row(kernel_size: int, stride: int) -> None:
    workload = Workload("upconv", 7, 16, 24, kernel_size, stride)
    assert workload.output_size == 7 * stride
    assert workload.num_flops == 2 * 49 * kernel_size**2 * 16 * 24


def test_the_output_of_a_transposed_convolution_is_cut_or_has_rows_added() -> None:
    assert Workload("upconv", 7, 16, 24, 3, 2, padding=(0, 0, 0, 0)).output_size == 15
    assert Workload("upconv", 7, 16, 24, 3, 2, padding=(1, 1, 1, 1)).output_size == 13
    assert Workload("upconv", 7, 16, 24, 3, 2, padding=(1, 1, 0, 0)) == Workload("upconv", 7, 16, 24, 3, 2)
    assert Workload("upconv", 7, 16, 24, 2, 2, padding=(0, 0, -1, -1)).output_size == 15


def test_pooling_leaves_one_pixel_and_has_no_weights() -> None:
    pool = Workload("pool", 7, 24, 24)
    assert (pool.output_size, pool.weight_bytes, pool.num_flops) == (1, 0, 7 * 7 * 24)


def test_winograds_products_are_counted_as_they_are_done() -> None:
    """F(4, 3) multiplies 6 times where the definition does 12, in each of two dimensions."""
    plain = Workload("blockconv", 16, 8, 24, 3)
    both = dataclasses.replace(plain, op="winograd2")
    assert (plain.num_flops_done, both.num_flops) == (plain.num_flops, plain.num_flops)
    assert both.num_flops_done == 2 * 6 * 6 * 4 * 4 * 8 * 24
