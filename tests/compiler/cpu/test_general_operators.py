"""Operators that are more than square: what kernels compute for any map, kernel, stride, dilation and padding is what
PyTorch computes, and what a family does not take it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import s_tir, tirx

from chanas.compiler.backends import schedule_operator, schedule_space
from chanas.compiler.cpu.space import pointwise
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Operator, Workload

from ..workbench import ANY_EPILOGUE, HOST, Workbench, device

DEVICES = [device(lanes, num_threads) for lanes in (16, 4) for num_threads in (1, 2)]


@st.composite
def winograd_workloads(draw: st.DrawFn) -> Workload:
    """A square kernel or one that is longer in either direction, on any map, padded as usual or otherwise."""
    kernels = st.sampled_from([(3, 3), (3, 3), (5, 5), (7, 7), (1, 3), (3, 1), (1, 7), (7, 1), (5, 2), (2, 5), (3, 9)])
    kernel, strides = draw(kernels), draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (2, 1), (1, 2)]))
    padding = draw(st.sampled_from([None, (0, 0, 0, 0), (1, 2, 0, 1)]))
    height, width = (draw(st.integers(k, k + 14)) for k in kernel)
    return Workload(
        "winograd",
        height,
        draw(st.integers(1, 40)),
        8 * draw(st.integers(1, 6)),
        kernel[0],
        strides[0],
        draw(st.sampled_from(ANY_EPILOGUE)),
        residual=draw(st.booleans()),
        residual_first=draw(st.booleans()),
        input_width=width,
        kernel_width=kernel[1],
        column_stride=strides[1],
        padding=padding,
    )


@st.composite
def square_tile_workloads(draw: st.DrawFn) -> Workload:
    """Two to five taps each way, on any map, padded as usual or otherwise."""
    kernel = draw(st.sampled_from([(3, 3), (3, 3), (5, 5), (2, 4), (5, 3), (3, 5)]))
    return Workload(
        "winograd2",
        draw(st.integers(kernel[0], kernel[0] + 14)),
        draw(st.integers(1, 40)),
        8 * draw(st.integers(1, 6)),
        kernel[0],
        1,
        draw(st.sampled_from(ANY_EPILOGUE)),
        residual=draw(st.booleans()),
        residual_first=draw(st.booleans()),
        input_width=draw(st.integers(kernel[1], kernel[1] + 14)),
        kernel_width=kernel[1],
        padding=draw(st.sampled_from([None, (0, 0, 0, 0), (1, 2, 0, 1)])),
    )


@st.composite
def transposed_workloads(draw: st.DrawFn) -> Workload:
    """Any kernel and strides, with and without what PyTorch calls padding and output padding."""
    kernels, strides, sizes = ((draw(st.integers(1, high)), draw(st.integers(1, high))) for high in (5, 3, 9))
    cut = [draw(st.integers(0, (kernel - 1) // 2)) for kernel in kernels]
    added = [draw(st.integers(0, stride - 1)) for stride in strides]
    padding = (cut[0], cut[1], cut[0] - added[0], cut[1] - added[1])
    return Workload(
        "upconv",
        sizes[0],
        draw(st.integers(1, 40)),
        8 * draw(st.integers(1, 6)),
        kernels[0],
        strides[0],
        draw(st.sampled_from(ANY_EPILOGUE)),
        residual=draw(st.booleans()),
        residual_first=draw(st.booleans()),
        input_width=sizes[1],
        kernel_width=kernels[1],
        column_stride=strides[1],
        padding=draw(st.sampled_from([None, padding])),
    )


@st.composite
def groups_of_channels(draw: st.DrawFn, op: Operator) -> tuple[int, int, int]:
    """Input and output channels of groups that fill vectors, or share one or several of them."""
    groups, outputs = draw(st.sampled_from([2, 3, 4, 8])), draw(st.sampled_from(OUTPUTS_OF_GROUPS[op]))
    inputs = draw(st.sampled_from([outputs, 1, 3, 4, 5, 8, 16]))
    return groups * inputs, groups * outputs, groups


@st.composite
def general_workloads(draw: st.DrawFn, op: Operator) -> Workload:
    """Any window on any map; channels that seldom fill their vectors."""

    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    if op == "winograd":
        return draw(winograd_workloads())
    if op == "winograd2":
        return draw(square_tile_workloads())
    if op == "upconv":
        return draw(transposed_workloads())
    if op in ("pointwise", "pool"):
        (height, width), kernels, dilation, padding = pair(1, 12), (1, 1), (1, 1), None
    else:
        kernels, dilation = pair(1, 5), pair(1, 3)
        before, after = pair(0, 3), pair(0, 3)
        padding = draw(st.sampled_from([None, (*before, *after)]))
        least = [(k - 1) * d + 1 for k, d in zip(kernels, dilation, strict=True)]
        height, width = (draw(st.integers(low, low + 9)) for low in least)
    strides = pair(1, 3) if op != "pool" else (1, 1)
    channels, out_channels, groups = 8 * draw(st.integers(1, 6)), 8 * draw(st.integers(1, 6)), 1
    if op in ("depthwise", "pool"):
        out_channels = channels * (draw(st.integers(1, 3)) if op == "depthwise" else 1)
    if op == "groupconv" or (op == "blockconv" and draw(st.booleans())):
        channels, out_channels, groups = draw(groups_of_channels(op))
    scaled = op == "pointwise" and draw(st.booleans())
    return Workload(
        op,
        height,
        3 if op == "conv" else channels,
        out_channels,
        kernels[0],
        strides[0],
        draw(st.sampled_from(ANY_EPILOGUE)) if op != "pool" else "none",
        scaled=scaled,
        prologue=draw(st.sampled_from([None, *ANY_EPILOGUE])) if scaled else None,
        residual=op != "pool" and draw(st.booleans()),
        residual_first=draw(st.booleans()),
        input_width=width,
        kernel_width=kernels[1],
        column_stride=strides[1],
        dilation=dilation,
        groups=groups,
        padding=padding,
    )


GENERAL = ("conv", "blockconv", "groupconv", "winograd", "winograd2", "depthwise", "pointwise", "pool", "upconv")
OUTPUTS_OF_GROUPS: dict[Operator, tuple[int, ...]] = {"blockconv": (16, 32), "groupconv": (1, 3, 4, 6, 8, 12, 24, 40)}


def devices_for(workload: Workload) -> list[HardwareTarget]:
    """Devices of which groups fill the vectors, or of others that they do not fill, as the operator has it."""
    is_shared = workload.op == "groupconv"
    return [d for d in DEVICES if not is_shared or workload.outputs_per_group % d.vector_lanes]


each_general_family = pytest.mark.parametrize("op", GENERAL)


def errors(workbench: Workbench, op: Operator, data: st.DataObject, num_points: int) -> list[str]:
    """What is wrong with some points of some operator on some device."""
    workload = data.draw(general_workloads(op))
    target = data.draw(st.sampled_from(devices_for(workload)))
    points = schedule_space(workload, target).sample(num_points, np.random.default_rng(data.draw(st.integers(0, 9))))
    outcomes = workbench.run(workbench.candidate(workload, point, target) for point in points)
    return [outcome.error for outcome in outcomes if outcome.error is not None]


@each_general_family
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_any_window_is_right_at_any_point(workbench: Workbench, op: Operator, data: st.DataObject) -> None:
    assert errors(workbench, op, data, 1) == []


@pytest.mark.slow
@each_general_family
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_many_windows_are_right_at_any_point(workbench: Workbench, op: Operator, data: st.DataObject) -> None:
    assert errors(workbench, op, data, 2) == []


@each_general_family
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_general_operator_has_points(op: Operator, data: st.DataObject) -> None:
    workload = data.draw(general_workloads(op))
    for target in devices_for(workload):
        points = schedule_space(workload, target).points
        assert 0 < len(points) == len(set(points))


@pytest.mark.parametrize(("epilogue", "is_written_out"), [("relu", True), ("swish", False), ("gelu", False)])
def test_rows_of_a_tile_stay_a_loop_after_the_sums_where_the_epilogue_is_long(
    epilogue: str, is_written_out: bool
) -> None:
    workload = Workload("pointwise", 28, 64, 64, epilogue=epilogue)
    schedule = s_tir.Schedule(schedule_operator(workload, pointwise(workload, HOST).middle, HOST))
    rows, columns, _ = (schedule.get(loop) for loop in schedule.get_loops(schedule.get_sblock("op0_out"))[-3:])
    assert int(rows.extent) > 1
    assert (rows.kind == tirx.ForKind.UNROLLED) == is_written_out
    assert columns.kind == tirx.ForKind.UNROLLED
