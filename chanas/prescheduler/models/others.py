"""Expressions of the operations that have no schedule space of their own, in Relax.

Blocked values are [B, M, l] (`program`). What TVM defines is taken from its definition; what it does not know of
channel blocks is written here as a tensor expression.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from chanas.core.layouts import num_blocks
from chanas.errors import ModelError
from chanas.prescheduler.models.graph import Node
from chanas.prescheduler.models.program import Value
from chanas.prescheduler.models.reading import holds_tensors
from chanas.prescheduler.workloads.expressions import epilogue, exp

OPAQUE = 8
"""TVM's mark of functions that are fused with nothing (`relay.OpPatternKind.kOpaque`)."""
MIN_PARALLEL = 16384
"""Outputs below which threads cost more than they bring."""


def pack(builder: Any, reads: Sequence[Any], lanes: int, *, value: Value) -> Any:
    """A plain value in channel blocks."""
    (x,), channels, pixels = reads, value.channels, value.pixels
    by_channel = value.channel_axis == 1 and len(value.shape) == 4
    rows = builder.emit(relax.op.reshape(x, (channels, pixels) if by_channel else (pixels, channels)))

    def compute(source: Any) -> Any:
        def element(b: Any, m: Any, v: Any) -> Any:
            c = b * lanes + v
            inside = source[c, m] if by_channel else source[m, c]
            if channels % lanes == 0:
                return inside
            return tirx.if_then_else(c < channels, inside, tirx.const(0, value.dtype))

        return te.compute((num_blocks(channels, lanes), pixels, lanes), element, name="packed")

    return builder.emit_te(compute, rows, primfunc_name_hint="pack")


def unpack(builder: Any, reads: Sequence[Any], lanes: int, *, value: Value) -> Any:
    """A value in channel blocks as the framework has it."""
    channels, pixels = value.channels, value.pixels
    by_channel = value.channel_axis == 1 and len(value.shape) == 4

    def compute(source: Any) -> Any:
        if by_channel:
            shape = (channels, pixels)
            return te.compute(shape, lambda c, m: source[c // lanes, m, c % lanes], name="unpacked")
        return te.compute((pixels, channels), lambda m, c: source[c // lanes, m, c % lanes], name="unpacked")

    flat = builder.emit_te(compute, reads[0], primfunc_name_hint="unpack")
    return builder.emit(relax.op.reshape(flat, value.shape))


def reshape(builder: Any, reads: Sequence[Any], lanes: int, *, shape: tuple[int, ...]) -> Any:
    """The same numbers in another shape."""
    (x,) = reads
    return x if tuple(int(e) for e in x.ty.shape) == tuple(shape) else builder.emit(relax.op.reshape(x, shape))


def activation(builder: Any, reads: Sequence[Any], lanes: int, *, node: Node) -> Any:
    """An activation of blocked or plain values, as in the operators that have one at their end."""
    name = str(node.attributes["name"])

    def compute(x: Any) -> Any:
        return te.compute(x.shape, lambda *i: epilogue(name, x[i]), name=name.replace(".", "_"))

    return builder.emit_te(compute, reads[0], primfunc_name_hint=name.replace(".", "_"))


def binary(builder: Any, reads: Sequence[Any], lanes: int, *, op: str) -> Any:
    return builder.emit(getattr(relax.op, op)(*reads))


def gather_channels(
    builder: Any,
    reads: Sequence[Any],
    lanes: int,
    *,
    places: Sequence[tuple[int, int]],
    pixels: int,
    parallel: bool,
) -> Any:
    """A map whose channels stand in other ones: `places` has the map and the channel there of each.

    Pixel by pixel, whole blocks at once, all else one number after the other with all indices known, which compilers
    make shuffles of vectors of.
    """
    num = num_blocks(len(places), lanes)

    def stores(sources: Sequence[Any], out: Any, m: Any) -> list[Any]:
        found = []
        for b in range(num):
            own = places[b * lanes : (b + 1) * lanes]
            source, first = own[0]
            if first % lanes == 0 and list(own) == [(source, first + i) for i in range(len(own))]:
                lane = tirx.Var("v", "int32")
                copied = tirx.BufferLoad(sources[source], [first // lanes, m, lane])
                found.append(
                    tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, tirx.BufferStore(out, copied, [b, m, lane]))
                )
                continue
            for v, (source, channel) in enumerate(own):
                moved = tirx.BufferLoad(sources[source], [channel // lanes, m, channel % lanes])
                found.append(tirx.BufferStore(out, moved, [b, m, v]))
        return found

    def compute(*values: Any) -> Any:
        def body(sources: Sequence[Any], outs: Sequence[Any]) -> Any:
            m = tirx.Var("m", "int32")
            kind = tirx.ForKind.PARALLEL if parallel and len(places) * pixels >= MIN_PARALLEL else tirx.ForKind.SERIAL
            found = stores(sources, outs[0], m)
            return tirx.For(m, 0, pixels, kind, tirx.SeqStmt(found) if len(found) > 1 else found[0])

        return te.extern((num, pixels, lanes), list(values), body, name="channels", dtype="float32")

    done = {"tirx.is_scheduled": True, "op_pattern": OPAQUE}
    return builder.emit_te(compute, *reads, primfunc_name_hint="channels", primfunc_attrs=done)


def window_pool(builder: Any, reads: Sequence[Any], lanes: int, *, node: Node, height: int, width: int) -> Any:
    """The largest value or the mean of each window; a mean counts the padding only if the network says so."""
    a, (_, _, rows, columns) = node.attributes, node.shape
    (kh, kw), (sh, sw) = a["pool_size"], a["strides"]
    top, left, bottom, right = a["padding"]
    is_max = node.op == "max_pool2d"

    def compute(x: Any) -> Any:
        rh, rw = te.reduce_axis((0, kh), name="rh"), te.reduce_axis((0, kw), name="rw")
        nothing = tirx.const(-math.inf if is_max else 0.0, "float32")

        def tap(b: Any, m: Any, v: Any) -> Any:
            h, w = m // columns * sh + rh - top, m % columns * sw + rw - left
            inside = tirx.all(h >= 0, h < height, w >= 0, w < width)
            return tirx.if_then_else(inside, x[b, h * width + w, v], nothing)

        shape = (x.shape[0], rows * columns, lanes)
        total = te.max if is_max else te.sum
        found = te.compute(shape, lambda b, m, v: total(tap(b, m, v), axis=[rh, rw]), name="window")
        if is_max:
            return found
        extents = (
            ((height + bottom, -top), (width + right, -left)) if a["count_include_pad"] else ((height, 0), (width, 0))
        )

        def share(m: Any) -> Any:
            sizes = []
            for position, kernel, stride, before, (high, low) in zip(
                (m // columns, m % columns), (kh, kw), (sh, sw), (top, left), extents, strict=True
            ):
                start = position * stride - before
                sizes.append(tirx.min(start + kernel, high) - tirx.max(start, low))
            return tirx.const(1.0, "float32") / (sizes[0] * sizes[1]).astype("float32")

        return te.compute(shape, lambda b, m, v: found[b, m, v] * share(m), name="mean")

    return builder.emit_te(compute, reads[0], primfunc_name_hint=node.op)


def repeats_pixels(node: Node, before: tuple[int, ...]) -> tuple[int, int] | None:
    """Find the whole numbers of times that rows and columns are repeated, if a node does nothing else."""
    if (
        node.op not in ("resize2d", "image.resize2d")
        or node.attributes.get("method") != "nearest_neighbor"
        or len(before) != 4
    ):
        return None
    times = (node.shape[2] // before[2], node.shape[3] // before[3])
    exact = node.shape[2:] == (times[0] * before[2], times[1] * before[3])
    mode = node.attributes.get("coordinate_transformation_mode")
    rounding = node.attributes.get("rounding_method") or "round"
    floors = mode == "asymmetric" and rounding == "floor"
    centred = mode == "half_pixel"  # (i + ½) / n − ½ rounds to i // n, by any rule that rounds to the nearest
    return times if exact and min(times) >= 1 and (floors or (centred and max(times) <= 2)) else None


def repeat_pixels(
    builder: Any, reads: Sequence[Any], lanes: int, *, times: tuple[int, int], height: int, width: int
) -> Any:
    def compute(x: Any) -> Any:
        shape = (x.shape[0], height * width, lanes)
        inner = width // times[1]
        return te.compute(
            shape, lambda b, m, v: x[b, m // width // times[0] * inner + m % width // times[1], v], name="repeated"
        )

    return builder.emit_te(compute, reads[0], primfunc_name_hint="repeat")


def plain(builder: Any, reads: Sequence[Any], lanes: int, *, node: Node) -> Any:
    """A node by TVM's own definition, on what it reads now.

    Raises:
        ModelError: rewriting left a node that has none.
    """
    if node.op == "activation":
        return activation(builder, reads, lanes, node=node)
    if node.op == "slice":
        axis, begin = node.attributes["axis"], node.attributes["begin"]
        end = begin + node.shape[axis]
        return builder.emit(relax.op.strided_slice(reads[0], axes=[axis], begin=[begin], end=[end]))
    if node.op == "upconv":
        raise ModelError(
            f"a transposed convolution with an output {list(node.shape)} is not there for its type or batch; export "
            "the network for one image in float32"
        )
    if node.op == "conv2d" and len(reads) == 3:
        out = builder.emit(_call(node, reads[:2]))
        return builder.emit(relax.op.add(out, builder.emit(relax.op.reshape(reads[2], (1, node.shape[1], 1, 1)))))
    if node.op == "matmul" and len(reads) == 3:
        return builder.emit(relax.op.add(builder.emit(_call(node, reads[:2])), reads[2]))
    if node.call is None:
        return builder.emit(getattr(relax.op, node.op)(*reads))
    return builder.emit(_call(node, reads))


def _call(node: Node, reads: Sequence[Any]) -> Any:
    """The call that a node was read from, on other arguments."""
    left = list(reads)

    def replaced(argument: Any) -> Any:
        if not holds_tensors(argument):
            return argument
        if isinstance(argument, relax.Tuple):
            return relax.Tuple([replaced(part) for part in argument.fields])
        found = getattr(argument, "ty", None)
        if isinstance(found, relax.TupleType):
            return relax.Tuple([left.pop(0) for _ in found.fields])
        return left.pop(0)

    if node.call is None:
        raise ModelError(f"operator {node.op} has no definition")
    arguments = [replaced(argument) for argument in node.call.args]
    return relax.Call(node.call.op, arguments, node.call.attrs, node.call.ty_args)


# ---- definitions in place of TVM's, whose exponentials are calls for each value of a vector ------------------------
_UNARY = {"sigmoid": "sigmoid", "tanh": "tanh", "nn.silu": "swish", "nn.gelu": "gelu"}


def definitions() -> dict[str, Any]:
    """Definitions of operators that have an exponential in them, for `LegalizeOps`."""
    found = {f"relax.{op}": functools.partial(_elementwise, function=name) for op, name in _UNARY.items()}
    return found | {"relax.exp": functools.partial(_elementwise, function="exp"), "relax.nn.softmax": _softmax}


def _is_float32(call: Any) -> bool:
    return str(call.args[0].ty.dtype) == "float32"


def _elementwise(builder: Any, call: Any, *, function: str) -> Any:
    if not _is_float32(call):
        return call

    def compute(x: Any) -> Any:
        of = exp if function == "exp" else functools.partial(epilogue, function)
        return te.compute(x.shape, lambda *i: of(x[i]), name=function)

    return builder.call_te(compute, call.args[0], primfunc_name_hint=function)


def _softmax(builder: Any, call: Any) -> Any:
    """e^(x − max) as a share of its sum along an axis."""
    if not _is_float32(call):
        return call
    axis = int(call.attrs.axis) % len(call.args[0].ty.shape)

    def compute(x: Any) -> Any:
        rest = [extent for i, extent in enumerate(x.shape) if i != axis]
        k, j = te.reduce_axis((0, x.shape[axis]), name="k"), te.reduce_axis((0, x.shape[axis]), name="j")

        def at(i: Sequence[Any], position: Any) -> tuple[Any, ...]:
            return (*i[:axis], position, *i[axis:]) if rest else (position,)

        def without(i: Sequence[Any]) -> tuple[Any, ...]:
            return (*i[:axis], *i[axis + 1 :]) if rest else (0,)

        largest = te.compute(rest or [1], lambda *i: te.max(x[at(i, k)], axis=k), name="largest")
        powers = te.compute(x.shape, lambda *i: exp(x[i] - largest[without(i)]), name="powers")
        total = te.compute(rest or [1], lambda *i: te.sum(powers[at(i, j)], axis=j), name="total")
        return te.compute(x.shape, lambda *i: powers[i] / total[without(i)], name="softmax")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="softmax")
