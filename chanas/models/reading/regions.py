"""Operators that read maps between their places: at points, in parts of regions, and where a convolution is told to."""

from __future__ import annotations

import math
from typing import Any

from chanas.models.graph import Read
from chanas.models.reading.call import Call, reads
from chanas.models.reading.products import WINDOW, window_of


@reads("GridSample", attributes=["align_corners", "mode", "padding_mode"])
def _grid_sample(call: Call) -> Read:
    shape, grid = call.shape(0), call.shape(1)
    mode = call.choice("mode", "linear", ("linear", "bilinear", "nearest", "cubic", "bicubic"))
    facts: dict[str, Any] = {
        "mode": mode.removeprefix("bi"),
        "padding_mode": call.choice("padding_mode", "zeros", ("zeros", "border", "reflection")),
        "align_corners": bool(call.attribute("align_corners", 0)),
    }
    return call.make.node("grid_sample", [call.input(0), call.input(1)], (*shape[:2], *grid[1:-1]), **facts)


@reads(
    "RoiAlign",
    attributes=[
        "coordinate_transformation_mode",
        "mode",
        "output_height",
        "output_width",
        "sampling_ratio",
        "spatial_scale",
    ],
)
def _roi_align(call: Call) -> Read:
    samples = int(call.attribute("sampling_ratio", 0))
    if samples < 1:
        raise call.refused("has sampling_ratio 0, a number of samples that depends on each region; export it with 2")
    half = "half_pixel" if call.opset >= 16 else "output_half_pixel"
    rule = call.choice("coordinate_transformation_mode", half, ("half_pixel", "output_half_pixel"))
    size = (int(call.attribute("output_height", 1)), int(call.attribute("output_width", 1)))
    facts: dict[str, Any] = {
        "mode": call.choice("mode", "avg", ("avg", "max")),
        "scale": float(call.attribute("spatial_scale", 1.0)),
        "half_pixel": rule == "half_pixel",
        "samples": samples,
    }
    inputs = [call.input(i) for i in range(3)]
    return call.make.node("roi_align", inputs, (call.shape(1)[0], call.shape(0)[1], *size), **facts)


@reads("DeformConv", attributes=[*WINDOW, "group", "offset_group"])
def _deform_conv(call: Call) -> Read:
    """A convolution whose taps are moved: samples of the maps for each tap, by a 1×1 convolution."""
    make, x, weight = call.make, call.input(0), call.input(1)
    shape, own, places = call.shape(0), call.shape(1), call.shape(2)[2:]
    if len(shape) != 4:
        raise call.refused(f"has an input {list(shape)}; expected [N, C, H, W]")
    groups, offset_groups = int(call.attribute("group", 1)), int(call.attribute("offset_group", 1))
    if own[1] * groups != shape[1] or shape[1] % offset_groups:
        raise call.refused(f"has an input {list(shape)} and weights {list(own)} in {groups} groups, which do not go")
    window = window_of(call, shape[2:], own[2:])
    size = math.prod(own[2:])
    if window.outputs(shape[2:]) != places or call.shape(2)[1] != 2 * offset_groups * size:
        raise call.refused(f"has offsets {list(call.shape(2))}, which do not go with its window of {list(own[2:])}")
    reads_ = [x, call.input(2), *([call.input(4)] if call.has(4) else [])]
    facts: dict[str, Any] = {**window.facts(), "kernel": window.kernel, "offset_groups": offset_groups}
    taps = make.node("deformed", reads_, (shape[0], shape[1] * size, *places), **facts)
    plain: dict[str, Any] = {"strides": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0), "groups": groups}
    rows = make.reshape(weight, (own[0], own[1] * size, 1, 1))
    found = make.node("conv2d", [taps, rows], (shape[0], own[0], *places), **plain)
    return make.each("add", found, make.reshape(call.input(3), (1, own[0], 1, 1))) if call.has(3) else found
