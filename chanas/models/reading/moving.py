"""Operators that move numbers: shapes, parts, copies, padding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from chanas.models.graph import Constant, Read
from chanas.models.reading.arithmetic import type_of
from chanas.models.reading.call import Call, reads
from chanas.models.reading.making import constant, resized


@reads("Identity", "Dropout", attributes=["ratio", "seed", "is_test"])
def _identity(call: Call) -> Sequence[Read]:
    """A dropout does nothing once a network is trained; its mask says that all is kept."""
    if call.op == "Dropout" and call.has(2) and bool(call.known(2, "mode").any()):
        raise call.refused("is in training mode; export the network for inference")
    x = call.input(0)
    return [x, call.make.broadcast(constant(True, "bool"), call.make.shape_of(x))][: max(call.outputs, 1)]


# ---- shapes ---------------------------------------------------------------------------------------------------------
@reads("Shape", attributes=["start", "end"])
def _shape(call: Call) -> Read:
    extents = call.shape(0)
    return constant(extents[slice(call.attribute("start", 0), call.attribute("end", None))], "int64")


@reads("Size")
def _size(call: Call) -> Read:
    return constant(math.prod(call.shape(0)), "int64")


@reads("Reshape", attributes=["shape", "allowzero"])
def _reshape(call: Call) -> Read:
    before = call.shape(0)
    wanted = list(call.numbers("shape", 1, "shape") or ())
    if not call.attribute("allowzero", 0):
        if any(e == 0 and i >= len(before) for i, e in enumerate(wanted)):
            raise call.refused(f"makes {list(before)} to {wanted}, whose 0 stands for no axis")
        wanted = [before[i] if e == 0 else e for i, e in enumerate(wanted)]
    if wanted.count(-1) == 1:
        known = math.prod(e for e in wanted if e != -1)
        wanted[wanted.index(-1)] = math.prod(before) // max(known, 1)
    if min(wanted, default=0) < 0 or math.prod(wanted) != math.prod(before):
        raise call.refused(f"makes {list(before)} to {wanted}, which has not as many numbers; give another --shape")
    return call.make.reshape(call.input(0), wanted)


@reads("Flatten", attributes=["axis"])
def _flatten(call: Call) -> Read:
    before = call.shape(0)
    axis = int(call.attribute("axis", 1))
    axis = axis + len(before) if axis < 0 else axis
    return call.make.reshape(call.input(0), (math.prod(before[:axis]), math.prod(before[axis:])))


@reads("Squeeze", attributes=["axes"])
def _squeeze(call: Call) -> Read:
    before = call.shape(0)
    given = call.numbers("axes", 1, "axes")
    ones = [a for a, e in enumerate(before) if e == 1]
    axes = {call.in_range(a, len(before)) for a in (ones if given is None else given)}
    if wrong := [a for a in axes if before[a] != 1]:
        raise call.refused(f"takes out axis {wrong[0]} of {list(before)}, which has more than one number")
    return call.make.reshape(call.input(0), [e for a, e in enumerate(before) if a not in axes])


@reads("Unsqueeze", attributes=["axes"])
def _unsqueeze(call: Call) -> Read:
    before = list(call.shape(0))
    given = call.numbers("axes", 1, "axes") or ()
    rank = len(before) + len(given)
    for axis in sorted(call.in_range(a, rank) for a in given):
        before.insert(axis, 1)
    return call.make.reshape(call.input(0), before)


@reads("Transpose", attributes=["perm"])
def _transpose(call: Call) -> Read:
    rank = len(call.shape(0))
    axes = call.attribute("perm", tuple(range(rank))[::-1])
    if sorted(axes) != list(range(rank)):
        raise call.refused(f"has perm {list(axes)}, of a value with {rank} axes")
    return call.make.transpose(call.input(0), axes)


@reads("Expand")
def _expand(call: Call) -> Read:
    wanted = call.whole(1, "shape")
    try:
        shape = np.broadcast_shapes(call.shape(0), wanted)
    except ValueError:
        raise call.refused(f"makes {list(call.shape(0))} to {list(wanted)}, which does not go") from None
    return call.make.broadcast(call.input(0), shape)


@reads("DepthToSpace", attributes=["blocksize", "mode"])
def _depth_to_space(call: Call) -> Read:
    make, x, size = call.make, call.input(0), int(call.attribute("blocksize"))
    n, c, h, w = call.shape(0)
    mode, each = call.choice("mode", "DCR", ("DCR", "CRD")), c // size**2
    parts, axes = ((n, size, size, each, h, w), (0, 3, 4, 1, 5, 2))
    if mode == "CRD":
        parts, axes = ((n, each, size, size, h, w), (0, 1, 4, 2, 5, 3))
    return make.reshape(make.transpose(make.reshape(x, parts), axes), (n, each, h * size, w * size))


@reads("SpaceToDepth", attributes=["blocksize", "mode"])
def _space_to_depth(call: Call) -> Read:
    make, x, size = call.make, call.input(0), int(call.attribute("blocksize"))
    n, c, h, w = call.shape(0)
    mode = call.choice("mode", "DCR", ("DCR", "CRD"))
    split = make.reshape(x, (n, c, h // size, size, w // size, size))
    axes = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return make.reshape(make.transpose(split, axes), (n, c * size**2, h // size, w // size))


# ---- parts ----------------------------------------------------------------------------------------------------------
@reads("Concat", attributes=["axis"])
def _concat(call: Call) -> Read:
    parts = [call.input(i) for i in range(len(call.inputs))]
    shapes = [call.make.shape_of(p) for p in parts]
    axis = call.axis("axis", 1, len(shapes[0]))
    if any(len(s) != len(shapes[0]) or resized(s, axis) != resized(shapes[0], axis) for s in shapes):
        raise call.refused(
            f"puts {', '.join(str(list(s)) for s in shapes)} together along axis {axis}, which does not go"
        )
    parts = [p for p, s in zip(parts, shapes, strict=True) if s[axis]] or parts[:1]
    return call.make.concat(parts, axis)


@reads("Split", attributes=["axis", "split", "num_outputs"])
def _split(call: Call) -> Sequence[Read]:
    before = call.shape(0)
    axis = call.axis("axis", 0, len(before))
    lengths = call.numbers("split", 1, "parts")
    if lengths is None:
        num = int(call.attribute("num_outputs", call.outputs))
        each = math.ceil(before[axis] / num)
        lengths = (*[each] * (num - 1), before[axis] - each * (num - 1))
    return parts(call, axis, lengths)


def parts(call: Call, axis: int, lengths: Sequence[int]) -> list[Read]:
    """Parts of the first input along an axis, of these lengths.

    Raises:
        ModelError: their sum is another one than the input's extent.
    """
    extent = call.shape(0)[axis]
    if sum(lengths) != extent:
        raise call.refused(f"cuts {extent} into {list(lengths)}, which is another sum")
    begins = itertools.accumulate(lengths, initial=0)
    return [call.make.slice(call.input(0), axis, b, n) for b, n in zip(begins, lengths, strict=False)]


@reads("Slice", attributes=["starts", "ends", "axes"])
def _slice(call: Call) -> Read:
    make, x = call.make, call.input(0)
    before = call.shape(0)
    starts, ends = call.numbers("starts", 1, "starts") or (), call.numbers("ends", 2, "ends") or ()
    axes = call.numbers("axes", 3, "axes") or tuple(range(len(starts)))
    steps = call.whole(4, "steps") if call.has(4) else (1,) * len(starts)
    if 0 in steps:
        raise call.refused("has a step of 0")
    parts = [range(e) for e in before]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = call.in_range(axis, len(before))
        parts[axis] = range(before[axis])[start : _end(end, step, before[axis]) : step]
    return make.part(x, parts)


def _end(end: int, step: int, extent: int) -> int | None:
    """The end of a Python slice for one of ONNX's: backwards, a number before the first one means all."""
    return None if step < 0 and end < -extent else end


@reads("Pad", attributes=["pads", "paddings", "mode", "value"])
def _pad(call: Call) -> Read:
    make, x = call.make, call.input(0)
    mode = call.choice("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    rank = len(call.shape(0))
    pads = call.numbers("pads", 1, "padding") or call.attribute("paddings", ())
    axes = [call.in_range(a, rank) for a in (call.whole(3, "axes") if call.has(3) else range(rank))]
    if len(pads) != 2 * len(axes):
        raise call.refused(f"has {len(pads)} numbers of padding for {len(axes)} axes")
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = int(pads[i]), int(pads[i + len(axes)])
    value: Read = call.input(2) if call.has(2) else make.number(float(call.attribute("value", 0.0)), x)
    return make.pad(x, before, after, make.reshape(value, ()), mode)


@reads("CenterCropPad", attributes=["axes"])
def _center_crop_pad(call: Call) -> Read:
    """The middle of axes of a wanted length, zeros around where they are shorter."""
    make, x = call.make, call.input(0)
    shape = call.shape(0)
    axes = [call.in_range(a, len(shape)) for a in call.attribute("axes", range(len(shape)))]
    before, after = [0] * len(shape), [0] * len(shape)
    for axis, wanted in zip(axes, call.whole(1, "shape"), strict=True):
        extra = wanted - shape[axis]
        before[axis] = extra // 2 if extra > 0 else -(-extra // 2)
        after[axis] = extra - before[axis]
    return make.pad(x, before, after, make.number(0.0, x))


@reads("ConstantOfShape", attributes=["value"])
def _constant_of_shape(call: Call) -> Read:
    value = np.asarray(call.attribute("value", np.zeros(1, np.float32)))
    return Constant(np.full(call.whole(0, "shape"), value.ravel()[0]))


@reads("Range", attributes=["stash_type"])
def _range(call: Call) -> Read:
    start, limit, step = (call.known(i, what).ravel()[0] for i, what in enumerate(("start", "limit", "step")))
    return Constant(np.arange(start, limit, step, dtype=start.dtype))


# ---- copies ---------------------------------------------------------------------------------------------------------
@reads("Tile")
def _tile(call: Call) -> Read:
    make, x, before = call.make, call.input(0), call.shape(0)
    if len(call.inputs) == 3:  # before operator set 6: how often, along which axis
        times = [1] * len(before)
        times[call.known_number(2, "axis")] = call.known_number(1, "repeats")
    else:
        times = list(call.whole(1, "repeats"))
    return make.tile(x, times)


@reads("Trilu", attributes=["upper"])
def _trilu(call: Call) -> Read:
    make, x = call.make, call.input(0)
    k = int(call.known_or(1, "diagonal", np.zeros(1, np.int64)).ravel()[0])
    ones = np.ones(call.shape(0)[-2:], bool)
    mask = np.triu(ones, k) if call.attribute("upper", 1) else np.tril(ones, k)
    return make.each("where", constant(mask, "bool"), x, make.number(0, x))


@reads("EyeLike", attributes=["dtype", "k"])
def _eye_like(call: Call) -> Read:
    number = call.attribute("dtype")
    dtype = call.make.dtype_of(call.input(0)) if number is None else type_of(call, number)
    rows, columns = call.shape(0)
    return constant(np.eye(rows, columns, int(call.attribute("k", 0))), dtype)


@reads("OneHot", attributes=["axis"])
def _one_hot(call: Call) -> Read:
    make, numbers, values = call.make, call.input(0), call.input(2)
    depth = call.known_number(1, "depth")
    before = call.shape(0)
    axis = call.axis("axis", -1, len(before) + 1)
    numbers = make.cast(numbers, "int64")
    is_negative = make.each("less", numbers, make.number(0, numbers))
    numbers = make.each("where", is_negative, make.scaled(numbers, shift=depth), numbers)
    places = make.along(constant(np.arange(depth), "int64"), axis, len(before) + 1)
    is_hot = make.each("equal", make.reshape(numbers, (*before[:axis], 1, *before[axis:])), places)
    off, on = (make.reshape(make.slice(values, 0, i, 1), ()) for i in (0, 1))
    return make.each("where", is_hot, on, off)
