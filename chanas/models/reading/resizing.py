"""Enlarging and shrinking along axes, by tables of places and weights: every rule of ONNX's Resize is one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from chanas.models.graph import Read
from chanas.models.reading.making import Maker, constant
from chanas.models.sources.model import Array


@dataclass(frozen=True)
class Resizing:
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

    COORDINATES: ClassVar = (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_half_pixel_for_nn",
        "tf_crop_and_resize",
    )
    ROUNDINGS: ClassVar = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resize(make: Maker, x: Read, shape: Sequence[int], scales: Sequence[float], how: Resizing) -> Read:
    """The value resized to a shape, axis by axis."""
    before = make.shape_of(x)
    tables = {}
    outside: dict[int, Array] = {}
    for axis, (old, new) in enumerate(zip(before, shape, strict=True)):
        if old == new and scales[axis] == 1.0 and how.coordinates != "tf_crop_and_resize":
            continue
        region = how.region[axis] if how.region else (0.0, 1.0)
        at = _positions(old, new, scales[axis], region, how.coordinates)
        if how.coordinates == "tf_crop_and_resize":
            outside[axis] = (at < 0) | (at > old - 1)
        tables[axis] = _table(at, old, min(scales[axis], 1.0), how)
    times = _repeats(tables, before, shape)
    if times is not None:
        return make.node("repeat", [x], shape, make.dtype_of(x), times=times) if tables else x
    is_float = make.dtype_of(x).startswith("float")
    for axis, (places, weights) in tables.items():
        own = make.shape_of(x)
        if places.shape[1] == 1:
            x = make.take(x, constant(places[:, 0], "int64"), axis)
            continue
        reads = [make.cast(x, "float32"), constant(places, "int32"), constant(weights)]
        x = make.node("interpolate", reads, (*own[:axis], shape[axis], *own[axis + 1 :]), axis=axis)
    for axis, mask in outside.items():
        if mask.any():
            is_out = constant(mask.reshape([-1 if a == axis else 1 for a in range(len(shape))]), "bool")
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


def _table(at: Array, old: int, scale: float, how: Resizing) -> tuple[Array, Array]:
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
