"""Enlarging and shrinking along axes, by tables of places and weights: every rule of ONNX's Resize is one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chanas.core.arrays import Array
from chanas.models.graph import Read
from chanas.models.reading.call import Call, reads
from chanas.models.reading.making import Maker, constant, resized

_COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
    *("tf_half_pixel_for_nn", "tf_crop_and_resize"),
)
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@reads("Upsample", attributes=["mode", "scales", "width_scale", "height_scale"])
def _upsample(call: Call) -> Read:
    mode = call.choice("mode", "nearest", ("nearest", "linear", "bilinear"))
    scales: Sequence[float] = call.attribute(
        "scales", (1.0, 1.0, call.attribute("height_scale", 1.0), call.attribute("width_scale", 1.0))
    )
    if call.has(1):
        scales = [float(s) for s in call.known(1, "scales").ravel()]
    shape = tuple(int(e * s) for e, s in zip(call.shape(0), scales, strict=True))
    how = _Rule(mode="nearest" if mode == "nearest" else "linear", coordinates="asymmetric", rounding="floor")
    return _resized(call.make, call.input(0), shape, scales, how)


@reads(
    "Resize",
    attributes=[
        "antialias",
        "axes",
        "coordinate_transformation_mode",
        "cubic_coeff_a",
        "exclude_outside",
        "extrapolation_value",
        "keep_aspect_ratio_policy",
        "mode",
        "nearest_mode",
    ],
)
def _resize(call: Call) -> Read:
    before = call.shape(0)
    rank = len(before)
    axes = [call.in_range(a, rank) for a in call.attribute("axes", range(rank))]
    is_old = call.opset < 11  # inputs are the value and the scales, as Upsample has them
    scales_at, sizes_at, region_at = (1, -1, -1) if is_old else (2, 3, 1)
    how = _Rule(
        mode=call.choice("mode", "nearest", ("nearest", "linear", "cubic")),
        coordinates="asymmetric"
        if is_old
        else call.choice("coordinate_transformation_mode", "half_pixel", _COORDINATES),
        rounding="floor" if is_old else call.choice("nearest_mode", "round_prefer_floor", _ROUNDINGS),
        cubic=float(call.attribute("cubic_coeff_a", -0.75)),
        exclude_outside=bool(call.attribute("exclude_outside", 0)),
        extrapolation=float(call.attribute("extrapolation_value", 0.0)),
        antialias=bool(call.attribute("antialias", 0)),
        region=_region(call, region_at, axes, rank),
    )
    scales, shape = [1.0] * rank, list(before)
    given = call.known_or(scales_at, "scales", np.zeros(0)).ravel()
    if given.size:
        for axis, scale in zip(axes, given, strict=True):
            low, high = how.region[axis]
            whole = before[axis] * float(scale) * ((high - low) if how.coordinates == "tf_crop_and_resize" else 1.0)
            scales[axis], shape[axis] = float(scale), math.floor(whole)
    else:
        sizes = call.whole(sizes_at, "sizes") if sizes_at > 0 else ()
        _by_sizes(call, axes, sizes, scales, shape)
    return _resized(call.make, call.input(0), tuple(shape), scales, how)


def _by_sizes(call: Call, axes: Sequence[int], sizes: Sequence[int], scales: list[float], shape: list[int]) -> None:
    """Fill in scales and shape by the sizes that are wanted, which may have to keep the proportions."""
    before = call.shape(0)
    policy = call.choice("keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller"))
    ratios = [size / before[axis] for axis, size in zip(axes, sizes, strict=True)]
    for axis, size, ratio in zip(axes, sizes, ratios, strict=True):
        if policy == "stretch":
            scales[axis], shape[axis] = ratio, size
        else:
            scales[axis] = min(ratios) if policy == "not_larger" else max(ratios)
            shape[axis] = math.floor(scales[axis] * before[axis] + 0.5)


def _region(call: Call, position: int, axes: Sequence[int], rank: int) -> list[tuple[float, float]]:
    """The part of each axis that is resized, between 0 and 1."""
    found = [(0.0, 1.0)] * rank
    roi: Array = call.known_or(position, "region", np.zeros(0)).ravel() if position > 0 else np.zeros(0)
    if roi.size == 2 * len(axes):
        for i, axis in enumerate(axes):
            found[axis] = float(roi[i]), float(roi[i + len(axes)])
    return found


# ---- tables of places and weights ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Rule:
    """A rule, in ONNX's words.

    region  part of each axis that is resized, between 0 and 1 (`tf_crop_and_resize`)
    """

    mode: str
    coordinates: str
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    extrapolation: float = 0.0
    antialias: bool = False
    region: Sequence[tuple[float, float]] = ()


def _resized(make: Maker, x: Read, shape: Sequence[int], scales: Sequence[float], how: _Rule) -> Read:
    """The value resized to a shape, axis by axis."""
    before = make.shape_of(x)
    tables = {}
    outside: dict[int, Array] = {}
    for axis, (old, new) in enumerate(zip(before, shape, strict=True)):
        if old == new and scales[axis] == 1.0 and how.coordinates != "tf_crop_and_resize":
            continue
        at = _positions(old, new, scales[axis], how.region[axis] if how.region else (0.0, 1.0), how.coordinates)
        if how.coordinates == "tf_crop_and_resize":
            outside[axis] = (at < 0) | (at > old - 1)
        tables[axis] = _table(at, old, min(scales[axis], 1.0), how)
    times = _repeats(tables, before, shape)
    if times is not None:
        return make.node("repeat", [x], shape, times=times) if tables else x
    is_float = make.dtype_of(x).startswith("float")
    for axis, (places, weights) in tables.items():
        if places.shape[1] == 1:
            x = make.take(x, constant(places[:, 0], "int64"), axis)
            continue
        reads = [make.cast(x, "float32"), constant(places, "int32"), constant(weights)]
        x = make.node("interpolate", reads, resized(make.shape_of(x), axis, shape[axis]), axis=axis)
    for axis, mask in outside.items():
        if mask.any():
            is_out = make.along(constant(mask, "bool"), axis, len(shape))
            x = make.each("where", is_out, make.number(how.extrapolation, x), x)
    return x if is_float else make.cast(x, "float32")


def _repeats(
    tables: dict[int, tuple[Array, Array]], before: Sequence[int], shape: Sequence[int]
) -> tuple[int, ...] | None:
    """The number of times that each number stands in a row along each axis, if nothing else is done."""
    times = [1] * len(before)
    for axis, (places, _) in tables.items():
        if places.shape[1] != 1 or shape[axis] % before[axis]:
            return None
        times[axis] = shape[axis] // before[axis]
        if not np.array_equal(places[:, 0], np.arange(shape[axis]) // times[axis]):
            return None
    return tuple(times)


def _positions(old: int, new: int, scale: float, region: tuple[float, float], rule: str) -> Array:
    """float64[new]: where each number lies among the old ones."""
    i = np.arange(new, dtype=np.float64)
    if rule == "asymmetric":
        return i / scale
    if rule == "align_corners":
        return np.zeros(new) if new == 1 else i * (old - 1) / (new - 1)
    if rule == "pytorch_half_pixel":
        return (i + 0.5) / scale - 0.5 if new > 1 else np.zeros(new)
    if rule == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if rule == "tf_crop_and_resize":
        low, high = region
        if new == 1:
            return np.full(1, 0.5 * (low + high) * (old - 1))
        return low * (old - 1) + i * (high - low) * (old - 1) / (new - 1)
    at = (i + 0.5) / scale - 0.5
    if rule == "half_pixel_symmetric":  # the centre stays the centre where the size was cut to a whole number
        at = at + old / 2 * (1 - new / (scale * old))
    return at


def _table(at: Array, old: int, scale: float, how: _Rule) -> tuple[Array, Array]:
    """Places int[new, taps] and weights float[new, taps] of what each number is a sum of."""
    if how.mode == "nearest":
        places = _rounded(at, how.rounding).clip(0, old - 1)[:, None]
        return places, np.ones(places.shape)
    scale = scale if how.antialias else 1.0
    reach = 1 if how.mode == "linear" else 2
    taps = 2 * math.ceil(reach / scale)
    first = np.floor(at).astype(np.int64) - taps // 2 + 1
    raw = first[:, None] + np.arange(taps)
    distance = (raw - at[:, None]) * scale
    weights = np.maximum(1 - np.abs(distance), 0) if how.mode == "linear" else _cubic(distance, how.cubic)
    if how.exclude_outside:
        weights = np.where((raw < 0) | (raw >= old), 0.0, weights)
    if how.exclude_outside or how.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    places = raw.clip(0, old - 1)
    used = np.flatnonzero(np.abs(weights).max(axis=0) > 0)
    return places[:, used], weights[:, used]


def _rounded(at: Array, rule: str) -> Array:
    if rule == "round_prefer_floor":
        found = np.ceil(at - 0.5)
    elif rule == "round_prefer_ceil":
        found = np.floor(at + 0.5)
    else:
        found = np.floor(at) if rule == "floor" else np.ceil(at)
    return found.astype(np.int64)


def _cubic(distance: Array, a: float) -> Array:
    """Weights of Keys' cubic convolution."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
