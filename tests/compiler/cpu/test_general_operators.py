"""Operators that are more than square: what kernels compute for any map, kernel, stride, dilation and padding is what
PyTorch computes, and what a family does not take it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import s_tir, tirx
from tvm.tirx import compilation_pipeline

from chanas.compiler.backends import schedule_operator, schedule_space
from chanas.compiler.cpu.lowering import pipeline
from chanas.compiler.cpu.space import pointwise
from chanas.compiler.space import Point
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Operator, Workload

from ..workbench import ANY_EPILOGUE, HOST, Workbench, device

DEVICES = [device(lanes, num_threads) for lanes in (16, 4) for num_threads in (1, 2)]


GENERAL = ("conv", "blockconv", "groupconv", "winograd", "winograd2", "depthwise", "pointwise", "pool", "upconv")
OUTPUTS_OF_GROUPS: dict[str, tuple[int, ...]] = {"blockconv": (16, 32), "groupconv": (1, 3, 4, 6, 8, 12, 24, 40)}
Pair = tuple[int, int]
# Square kernels, and those that are longer in either direction.
WINOGRAD_KERNELS: dict[str, tuple[Pair, ...]] = {
    "winograd": ((3, 3), (3, 3), (5, 5), (7, 7), (1, 3), (3, 1), (1, 7), (7, 1), (5, 2), (2, 5), (3, 9)),
    "winograd2": ((3, 3), (3, 3), (5, 5), (2, 4), (5, 3), (3, 5)),
}


@st.composite
def windows(draw: st.DrawFn, op: Operator) -> dict[str, Any]:
    """Any window that an operator takes, on any map, padded as usual or otherwise."""

    def pair(low: int, high: int) -> Pair:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    kernel, strides, dilation, padding = (1, 1), (1, 1), (1, 1), None
    if op in ("pointwise", "pool"):
        size = pair(1, 12)
        strides = pair(1, 3) if op == "pointwise" else strides
    elif op in WINOGRAD_KERNELS:
        kernel = draw(st.sampled_from(WINOGRAD_KERNELS[op]))
        if op == "winograd":
            strides = draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (2, 1), (1, 2)]))
        padding = draw(st.sampled_from([None, (0, 0, 0, 0), (1, 2, 0, 1)]))
        size = tuple(draw(st.integers(k, k + 14)) for k in kernel)
    elif op == "upconv":  # with and without what PyTorch calls padding and output padding
        kernel, strides, size = pair(1, 5), pair(1, 3), pair(1, 9)
        cut = [draw(st.integers(0, (k - 1) // 2)) for k in kernel]
        added = [draw(st.integers(0, stride - 1)) for stride in strides]
        padding = draw(st.sampled_from([None, (*cut, cut[0] - added[0], cut[1] - added[1])]))
    else:
        kernel, dilation, strides = pair(1, 5), pair(1, 3), pair(1, 3)
        padding = draw(st.sampled_from([None, (*pair(0, 3), *pair(0, 3))]))
        least = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        size = tuple(draw(st.integers(low, low + 9)) for low in least)
    rows = {"input_size": size[0], "kernel_size": kernel[0], "stride": strides[0]}
    columns = {"input_width": size[1], "kernel_width": kernel[1], "column_stride": strides[1]}
    return {**rows, **columns, "dilation": dilation, "padding": padding}


@st.composite
def channels(draw: st.DrawFn, op: Operator) -> dict[str, int]:
    """Channels that seldom fill their vectors, in groups that fill vectors, or share one or several of them."""
    inputs, outputs, groups = 8 * draw(st.integers(1, 6)), 8 * draw(st.integers(1, 6)), 1
    if op in ("winograd", "winograd2", "upconv"):
        inputs = draw(st.integers(1, 40))
    elif op == "conv":
        inputs = 3
    elif op in ("depthwise", "pool"):
        outputs = inputs * (draw(st.integers(1, 3)) if op == "depthwise" else 1)
    elif op == "groupconv" or (op == "blockconv" and draw(st.booleans())):
        groups, each = draw(st.sampled_from([2, 3, 4, 8])), draw(st.sampled_from(OUTPUTS_OF_GROUPS[op]))
        inputs, outputs = groups * draw(st.sampled_from([each, 1, 3, 4, 5, 8, 16])), groups * each
    return {"in_channels": inputs, "out_channels": outputs, "groups": groups}


@st.composite
def general_workloads(draw: st.DrawFn, op: Operator) -> Workload:
    scaled = op == "pointwise" and draw(st.booleans())
    return Workload(
        op,
        **draw(windows(op)),
        **draw(channels(op)),
        epilogue=draw(st.sampled_from(ANY_EPILOGUE)) if op != "pool" else "none",
        scaled=scaled,
        prologue=draw(st.sampled_from([None, *ANY_EPILOGUE])) if scaled else None,
        residual=op != "pool" and draw(st.booleans()),
        residual_first=draw(st.booleans()),
    )


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


# Maps that no tile of several pixels divides, and channel blocks that no tile of several does.
PRIME = {
    "pointwise": Workload("pointwise", 17, 32, 48, epilogue="relu", residual=True),
    "pointwise with a gate": Workload("pointwise", 13, 16, 32, epilogue="hswish", scaled=True),
    "pointwise in half a block": Workload("pointwise", 17, 32, 24),
    "depthwise": Workload("depthwise", 17, 16, 16, 3, epilogue="relu"),
    "conv": Workload("conv", 34, 3, 16, 3, 2),
    "blockconv": Workload("blockconv", 13, 16, 32, 3, residual=True),
    "blockconv of 7 columns": Workload("blockconv", 7, 16, 32, 3, residual=True),
    "groupconv": Workload("groupconv", 17, 16, 16, 3, groups=4),
    "pointwise to 13 blocks": Workload("pointwise", 14, 16, 104, scaled=True),
    "pointwise to 13 blocks, of a prime map": Workload("pointwise", 13, 16, 104),
    "conv to 13 blocks": Workload("conv", 28, 3, 104, 3, 2),
    "blockconv to 13 blocks": Workload("blockconv", 14, 16, 104, 3, residual=True),
    "winograd": Workload("winograd", 52, 8, 16, 3),
    "winograd2": Workload("winograd2", 52, 8, 16, 3),
    "winograd of 7 tiles": Workload("winograd", 28, 8, 16, 3),
    "upconv": Workload("upconv", 17, 8, 16, 3, 2),
}
# The same whose outputs, after the sums, are in loops over channel blocks.
IN_BANDS = {
    "winograd to 13 blocks": Workload("winograd", 14, 8, 104, 3),
    "winograd2 to 13 blocks": Workload("winograd2", 14, 8, 104, 3),
    "upconv to 13 blocks": Workload("upconv", 7, 8, 104, 3, 2),
}


def each(workloads: dict[str, Workload]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("workload", [pytest.param(w, id=name) for name, w in workloads.items()])


def points_with_a_smaller_last_tile(workload: Workload, target: HardwareTarget) -> list[Point]:
    space = schedule_space(workload, target)
    cut = [c for c in space.coordinates if c.cuts_last]
    uneven = [p for p in space.points if any(math.prod(space.groups(p)[c.name]) > (c.extent or 0) for c in cut)]
    return space.restricted(uneven).sample(6, np.random.default_rng(0))


@each(PRIME | IN_BANDS)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_tiles_with_a_smaller_last_one_are_right(workbench: Workbench, workload: Workload, num_threads: int) -> None:
    target = device(8, num_threads)
    points = points_with_a_smaller_last_tile(workload, target)
    assert len(points) == 6
    outcomes = workbench.run(workbench.candidate(workload, point, target) for point in points)
    assert [outcome.error for outcome in outcomes if outcome.error is not None] == []


@each(PRIME)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_no_tile_asks_whether_it_is_the_last(workload: Workload, num_threads: int) -> None:
    target = device(8, num_threads)
    for point in points_with_a_smaller_last_tile(workload, target):
        assert "if " not in body(schedule_operator(workload, point, target), target)


def body(function: tirx.PrimFunc, target: HardwareTarget) -> str:
    """What is compiled of a function, after the checks of its arguments."""
    bound = tvm.tirx.transform.BindTarget(target.tvm_target().with_host(target.tvm_target()))
    passes, _, _ = compilation_pipeline.get_tir_pipeline(pipeline())
    with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True}):
        lowered = passes(bound(tvm.IRModule({"main": function})))
    return str(lowered["main"].script().split("compute_scope")[1])


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
