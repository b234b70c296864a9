"""Numbers read between places that are computed: at the points of a grid, and in parts of regions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tvm import te, tirx

from chanas.models import elementwise
from chanas.models.graph import Node
from chanas.models.reducers import LARGEST


def interpolate(node: Node, lanes: int, x: Any, places: Any, weights: Any) -> Any:
    """Along an axis, sums of numbers at `places`, int32[out, taps], times `weights`, float32[out, taps]."""
    axis, taps = node.attributes["axis"], int(places.shape[1])

    def element(*i: Any) -> Any:
        at = i[axis]
        terms = (x[(*i[:axis], places[at, t], *i[axis + 1 :])] * weights[at, t] for t in range(taps))
        return functools.reduce(lambda a, b: a + b, terms)

    return te.compute(node.shape, element, name="interpolated")


def _limited(place: Any, extent: int) -> Any:
    """A place along an axis; those beyond the ends stand for the ends."""
    return tirx.max(tirx.min(place, float(extent - 1)), 0.0)


def _nearest(x: Any, lead: Sequence[Any], at: Sequence[Any]) -> Any:
    """The number at whole places along the last axes."""
    places = [_limited(p, int(e)).astype("int32") for p, e in zip(at, x.shape[2:], strict=True)]
    return x[(*lead, *places)]


def _or_zero(x: Any, lead: Sequence[Any], at: Sequence[Any]) -> Any:
    """The same; zeros beyond the ends."""
    inside = tirx.all(*(tirx.all(p >= 0.0, p <= float(int(e) - 1)) for p, e in zip(at, x.shape[2:], strict=True)))
    return tirx.Select(inside, _nearest(x, lead, at), tirx.const(0.0, "float32"))


def _linear(lead: Sequence[Any], at: Sequence[Any], tap: Callable[..., Any]) -> Any:
    """The linear interpolation at a place of fractions, of the numbers that `tap` gives for whole places."""
    return functools.reduce(lambda a, b: a + b, _corners(lead, at, tap))


def _corners(lead: Sequence[Any], at: Sequence[Any], tap: Callable[..., Any]) -> Iterator[Any]:
    """The numbers at the whole places around one of fractions, each by its share."""
    low = [tirx.floor(p) for p in at]
    for corner in itertools.product((0, 1), repeat=len(at)):
        weight: Any = tirx.const(1.0, "float32")
        for p, left, c in zip(at, low, corner, strict=True):
            weight = weight * ((p - left) if c else (1.0 - (p - left)))
        yield weight * tap(lead, [left + float(c) for left, c in zip(low, corner, strict=True)])


def _cubic_weights(t: Any, a: float) -> list[Any]:
    """Weights of the four numbers around a place, `t` behind the second."""

    def near(d: Any) -> Any:
        return ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0

    def far(d: Any) -> Any:
        return ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a

    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def grid_sample(node: Node, lanes: int, x: Any, grid: Any) -> Any:
    """Maps [N, C, …] at places between −1 and 1, [N, …, axes]; the grid's last number is of the first axis."""
    a, num = node.attributes, len(node.shape) - 2
    extents = [int(e) for e in x.shape[2:]]

    def to_pixels(value: Any, extent: int) -> Any:
        if a["align_corners"]:
            return (value + 1.0) * ((extent - 1) / 2.0)
        return ((value + 1.0) * float(extent) - 1.0) * 0.5

    def reflected(p: Any, extent: int) -> Any:
        low, high = (0.0, extent - 1.0) if a["align_corners"] else (-0.5, extent - 0.5)
        span = high - low
        if span <= 0:
            return p * 0.0
        away = tirx.abs(p - low)
        times = tirx.floor(away / span)
        rest = away - times * span
        even = times - tirx.floor(times * 0.5) * 2.0
        return tirx.Select(even == 0.0, rest + low, high - rest)

    def tap(lead: Sequence[Any], at: Sequence[Any]) -> Any:
        if a["padding_mode"] == "zeros":
            return _or_zero(x, lead, at)
        if a["padding_mode"] == "reflection":
            at = [reflected(p, e) for p, e in zip(at, extents, strict=True)]
        return _nearest(x, lead, at)

    def element(n: Any, c: Any, *i: Any) -> Any:
        at = [to_pixels(grid[(n, *i, num - 1 - axis)], e) for axis, e in enumerate(extents)]
        if a["mode"] == "cubic":
            return _cubic((n, c), at, tap)
        if a["padding_mode"] == "border":
            at = [_limited(p, e) for p, e in zip(at, extents, strict=True)]
        elif a["padding_mode"] == "reflection":
            at = [_limited(reflected(p, e), e) for p, e in zip(at, extents, strict=True)]
        if a["mode"] == "nearest":
            return tap((n, c), [tirx.nearbyint(p) for p in at])
        return _linear((n, c), at, tap)

    return te.compute(node.shape, element, name="sampled")


def _cubic(lead: Sequence[Any], at: Sequence[Any], tap: Callable[..., Any]) -> Any:
    low = [tirx.floor(p) for p in at]
    weights = [_cubic_weights(p - left, -0.75) for p, left in zip(at, low, strict=True)]
    terms = []
    for offsets in itertools.product(range(4), repeat=len(at)):
        weight = functools.reduce(lambda u, v: u * v, (w[o] for w, o in zip(weights, offsets, strict=True)))
        terms.append(weight * tap(lead, [left + float(o - 1) for left, o in zip(low, offsets, strict=True)]))
    return functools.reduce(lambda u, v: u + v, terms)


def roi_align(node: Node, lanes: int, x: Any, rois: Any, batches: Any) -> Any:
    """The mean or the largest of interpolated samples in each part of each region, [R, C, oh, ow]."""
    a = node.attributes
    height, width = (int(e) for e in x.shape[2:])
    rows, columns = node.shape[2:]
    samples = a["samples"]
    shift = 0.5 if a["half_pixel"] else 0.0
    tap = functools.partial(_nearest, x)
    ky, kx = (te.reduce_axis((0, samples), name=name) for name in ("ky", "kx"))

    def sample(r: Any, c: Any, h: Any, w: Any) -> Any:
        def along(first: int, out: Any, number: int, tap_at: Any, extent: int) -> tuple[Any, Any]:
            start = rois[r, first] * a["scale"] - shift
            size = rois[r, first + 2] * a["scale"] - shift - start
            size = size if a["half_pixel"] else tirx.max(size, 1.0)
            step = size / float(number)
            at = start + step * (out.astype("float32") + (tap_at.astype("float32") + 0.5) / float(samples))
            is_in = tirx.all(at >= -1.0, at <= float(extent))
            return _limited(at, extent), is_in

        y, y_in = along(1, h, rows, ky, height)
        z, z_in = along(0, w, columns, kx, width)
        zero = tirx.const(0.0, "float32")
        lead = (batches[r].astype("int32"), c)
        if a["mode"] == "avg":
            value = _linear(lead, (y, z), tap)
        else:
            value = functools.reduce(elementwise.maximum, _corners(lead, (y, z), tap))
        return tirx.Select(tirx.all(y_in, z_in), value, zero)

    fold = te.sum if a["mode"] == "avg" else LARGEST
    found = te.compute(node.shape, lambda *i: fold(sample(*i), axis=[ky, kx]), name="region")
    share = tirx.const(1.0 / samples**2 if a["mode"] == "avg" else 1.0, "float32")
    return te.compute(node.shape, lambda *i: found[i] * share, name="aligned")


def deformed(node: Node, lanes: int, x: Any, offsets: Any, mask: Any = None) -> Any:
    """Samples of maps [N, C, H, W] for each tap of a window that moves over them, [N, C · taps, oh, ow]: each tap lies
    where `offsets`, [N, groups · taps · 2, oh, ow], move it to, and counts as much as `mask`,
    [N, groups · taps, oh, ow], says. Outside the maps there are zeros."""
    a = node.attributes
    (kh, kw), groups = a["kernel"], a["offset_groups"]
    taps, each = kh * kw, int(x.shape[1]) // groups

    def element(n: Any, row: Any, *i: Any) -> Any:
        c, t = row // taps, row % taps
        place = c // each * taps + t
        at = [
            (j * s + number * d - b).astype("float32") + offsets[(n, place * 2 + axis, *i)]
            for axis, (j, s, number, d, b) in enumerate(
                zip(i, a["strides"], (t // kw, t % kw), a["dilation"], a["padding"][:2], strict=True)
            )
        ]
        value = _linear((n, c), at, functools.partial(_or_zero, x))
        return value if mask is None else value * mask[(n, place, *i)]

    return te.compute(node.shape, element, name="deformed")


SAMPLED: Mapping[str, Callable[..., Any]] = {
    "deformed": deformed,
    "grid_sample": grid_sample,
    "interpolate": interpolate,
    "roi_align": roi_align,
}
"""These operators by name."""
