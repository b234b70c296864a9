"""Expressions of the operations that have no schedule space of their own, in Relax.

Blocked values are [B, M, l] (`program`). What TVM defines is taken from its definition; what it does not know of
channel blocks is written here as a tensor expression.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from chanas.core.layouts import num_blocks
from chanas.prescheduler.models.graph import MAP_PRODUCTS, Node
from chanas.prescheduler.models.program import Value, tiled_rows
from chanas.prescheduler.models.reading import holds_tensors
from chanas.prescheduler.workloads.expressions import epilogue, exp, maximum

OPAQUE = 8
"""TVM's mark of functions that are fused with nothing (`relay.OpPatternKind.kOpaque`)."""
MIN_PARALLEL = 16384
"""Outputs below which threads cost more than they bring."""


def pack(builder: Any, reads: Sequence[Any], lanes: int, *, value: Value) -> Any:
    """A plain value in channel blocks."""
    (x,), channels, pixels = reads, value.channels, value.pixels
    by_channel, rows_in_memory = len(value.shape) == 4, value.pixels_in_memory
    rows = builder.emit(relax.op.reshape(x, (channels, pixels) if by_channel else (pixels, channels)))

    def compute(source: Any) -> Any:
        def element(b: Any, m: Any, v: Any) -> Any:
            c, m = b * lanes + v, tirx.min(m, pixels - 1) if rows_in_memory > pixels else m
            inside = source[c, m] if by_channel else source[m, c]
            if channels % lanes == 0:
                return inside
            return tirx.if_then_else(c < channels, inside, tirx.const(0, value.dtype))

        return te.compute((num_blocks(channels, lanes), rows_in_memory, lanes), element, name="packed")

    return builder.emit_te(compute, rows, primfunc_name_hint="pack")


def unpack(builder: Any, reads: Sequence[Any], lanes: int, *, value: Value) -> Any:
    """A value in channel blocks as the framework has it."""
    channels, pixels, by_channel = value.channels, value.pixels, len(value.shape) == 4

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
    hint = name.replace(".", "_")
    return builder.emit_te(
        functools.partial(_mapped, functools.partial(epilogue, name), hint), reads[0], primfunc_name_hint=hint
    )


def _mapped(function: Callable[[Any], Any], name: str, x: Any) -> Any:
    """A function of each number."""
    return te.compute(x.shape, lambda *i: function(x[i]), name=name)


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


_LARGEST = te.comm_reducer(maximum, lambda dtype: tirx.const(-math.inf, dtype), name="largest")
"""A reducer like `te.max`; NaN where any is, −∞ where all are."""


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
        total = _LARGEST if is_max else te.sum
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
    """A node by TVM's own definition, on what it reads now."""
    if node.op == "activation":
        return activation(builder, reads, lanes, node=node)
    if node.op == "reshape":
        return reshape(builder, reads[:1], lanes, shape=node.shape)
    if node.op == "slice":
        axis, begin = node.attributes["axis"], node.attributes["begin"]
        end = begin + node.shape[axis]
        return builder.emit(relax.op.strided_slice(reads[0], axes=[axis], begin=[begin], end=[end]))
    if node.op in MAP_PRODUCTS and len(reads) == 3:
        x, weight = reads[:2]
        if node.op == "upconv":  # TVM's weights have the inputs first
            weight = builder.emit(relax.op.permute_dims(weight, (1, 0, 2, 3)))
        out = builder.emit(_call(node, (x, weight)))
        return builder.emit(relax.op.add(out, builder.emit(relax.op.reshape(reads[2], (1, node.shape[1], 1, 1)))))
    if node.op == "matmul" and len(reads) == 3:
        return builder.emit(relax.op.add(builder.emit(_call(node, reads[:2])), reads[2]))
    if node.op == "permute_dims":
        return builder.emit(relax.op.permute_dims(reads[0], node.attributes["axes"]))
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

    assert node.call is not None
    arguments = [replaced(argument) for argument in node.call.args]
    return relax.Call(node.call.op, arguments, node.call.attrs, node.call.ty_args)


# ---- definitions in place of TVM's: exponentials without calls for each number, sums along rows as vectors ----------
KEPT = "chanas.kept"
"""Mark of stages that are computed once, before they are used, whatever reads them."""
_UNARY = {"sigmoid": "sigmoid", "tanh": "tanh", "nn.silu": "swish", "nn.gelu": "gelu"}


def definitions(lanes: int) -> dict[str, Any]:
    """Definitions of operators in float32, for `LegalizeOps`; TVM's own serve where one of these does not."""
    found: dict[str, Callable[[Any, Any, int], Any]]
    found = {op: functools.partial(_elementwise, function=name) for op, name in _UNARY.items()}
    found |= {"exp": functools.partial(_elementwise, function="exp"), "nn.softmax": _softmax}
    found |= {op: functools.partial(_folded, kind=op) for op in ("sum", "mean")}
    found |= {"matmul": _matmul, "nn.layer_norm": _layer_norm, "take": _take}
    return {f"relax.{op}": functools.partial(_defined, op, make, lanes) for op, make in found.items()}


def _defined(op: str, make: Callable[[Any, Any, int], Any], lanes: int, builder: Any, call: Any) -> Any:
    is_ours = op == "take" or all(str(a.ty.dtype) == "float32" for a in call.args)
    own = make(builder, call, lanes) if is_ours else None
    return tvm.ir.Op.get(f"relax.{op}").get_attr("FLegalize")(builder, call) if own is None else own


def _elementwise(builder: Any, call: Any, lanes: int, *, function: str) -> Any:
    of = exp if function == "exp" else functools.partial(epilogue, function)
    return builder.call_te(functools.partial(_mapped, of, function), call.args[0], primfunc_name_hint=function)


_FOLDS = {"sum": te.sum, "mean": te.sum, "max": te.max}


def _row_fold(kind: str, at: Callable[..., Any], rest: Sequence[Any], length: int, lanes: int, name: str) -> Any:
    """The sum or the largest of `at(*i, k)` over k < length, for i in `rest`: whole vectors first, then what each of
    their lanes has and the numbers behind the last whole vector."""
    fold, whole = _FOLDS[kind], length // lanes
    k = te.reduce_axis((0, whole), name="k")
    parts = te.compute(
        (*rest, lanes), lambda *i: fold(at(*i[:-1], k * lanes + i[-1]), axis=k), name=f"{name}_parts", attrs={KEPT: 1}
    )
    j = te.reduce_axis((0, lanes + length % lanes if whole else length), name="j")

    def part(i: Sequence[Any]) -> Any:
        if not whole:
            return at(*i, j)
        inside = parts[(*i, tirx.min(j, lanes - 1))]
        if length % lanes == 0:
            return inside
        return tirx.Select(j < lanes, inside, at(*i, tirx.max(j + (whole - 1) * lanes, 0)))

    return te.compute(rest, lambda *i: fold(part(i), axis=j), name=name, attrs={KEPT: 1})


def _trailing(axes: Sequence[Any] | None, rank: int) -> int:
    """The number of axes, if they are the last ones and not all; 0 otherwise."""
    found = sorted(int(a) % rank for a in axes or ())
    return len(found) if found == list(range(rank - len(found), rank)) and len(found) < rank else 0


def _in_one(builder: Any, value: Any, num: int) -> Any:
    """A value whose last axes are one."""
    extents = [int(e) for e in value.ty.shape]
    shape = (*extents[:-num], math.prod(extents[-num:]))
    return value if num == 1 else builder.emit(builder.call_te(topi.reshape, value, shape))


def _folded(builder: Any, call: Any, lanes: int, *, kind: str) -> Any:
    """A sum or mean along the last axes."""
    (value,), attributes = call.args, call.attrs
    num = _trailing(attributes.axis, len(value.ty.shape))
    if num == 0:
        return None
    value = _in_one(builder, value, num)
    *rest, length = value.ty.shape

    def compute(x: Any) -> Any:
        found = _row_fold(kind, lambda *i: x[i], rest, int(length), lanes, kind)
        factor = tirx.const(1 / int(length) if kind == "mean" else 1.0, "float32")
        shape = [*rest, *[1] * num] if attributes.keepdims else rest
        return te.compute(shape, lambda *i: found[i[: len(rest)]] * factor, name="folded")

    return builder.call_te(compute, value, primfunc_name_hint=kind)


def _layer_norm(builder: Any, call: Any, lanes: int) -> Any:
    """(x − mean) / √(variance + ε) along the last axes, times a scale, plus a shift."""
    attributes, shape = call.attrs, call.args[0].ty.shape
    num = _trailing(attributes.axes, len(shape))
    if num == 0 or len(call.args) != 3:
        return None
    arguments = [_in_one(builder, value, num) for value in call.args]
    *rest, length = arguments[0].ty.shape

    def compute(x: Any, scale: Any, shift: Any) -> Any:
        normal = _normal(lambda *i: x[i], rest, int(length), lanes, float(attributes.epsilon))

        def scaled(*i: Any) -> Any:
            found = normal(*i)
            found = found * scale[i[-1]] if attributes.scale else found
            return found + shift[i[-1]] if attributes.center else found

        return te.compute(x.shape, scaled, name="normal")

    made = builder.call_te(compute, *arguments, primfunc_name_hint="layer_norm")
    return made if num == 1 else builder.call_te(topi.reshape, builder.emit(made), shape)


def _normal(at: Callable[..., Any], rest: Sequence[Any], length: int, lanes: int, epsilon: float) -> Callable[..., Any]:
    """(x − mean) / √(variance + ε) of `at(*i, k)` over k < length, as a function of the same arguments."""
    share = tirx.const(1 / length, "float32")
    total = _row_fold("sum", at, rest, length, lanes, "total")

    def centred(*i: Any) -> Any:
        return at(*i) - total[i[:-1]] * share

    squares = _row_fold("sum", lambda *i: centred(*i) * centred(*i), rest, length, lanes, "squares")
    shift = tirx.const(epsilon, "float32")
    inverse = te.compute(rest, lambda *i: 1.0 / tirx.sqrt(squares[i] * share + shift), "inverse", attrs={KEPT: 1})
    return lambda *i: centred(*i) * inverse[i[:-1]]


def layer_norm(builder: Any, reads: Sequence[Any], lanes: int, *, channels: int, epsilon: float) -> Any:
    """Rows in channel blocks, normalised, times a scale, plus a shift, [B, 1, l] each."""

    def compute(x: Any, scale: Any, shift: Any) -> Any:
        normal = _normal(lambda m, c: x[c // lanes, m, c % lanes], [x.shape[1]], channels, lanes, epsilon)

        def scaled(b: Any, m: Any, v: Any) -> Any:
            return normal(m, b * lanes + v) * scale[b, 0, v] + shift[b, 0, v]

        return te.compute(x.shape, scaled, name="normal")

    return builder.emit_te(compute, *reads, primfunc_name_hint="layer_norm")


def _softmax(builder: Any, call: Any, lanes: int) -> Any:
    """e^(x − max) as a share of its sum along an axis."""
    axis = int(call.attrs.axis) % len(call.args[0].ty.shape)

    def compute(x: Any) -> Any:
        rest, length = [extent for i, extent in enumerate(x.shape) if i != axis] or [1], int(x.shape[axis])

        def at(*i: Any) -> tuple[Any, ...]:
            return (*i[:axis], i[-1], *i[axis:-1]) if x.ndim > 1 else (i[-1],)

        def without(i: Sequence[Any]) -> tuple[Any, ...]:
            return (*i[:axis], *i[axis + 1 :]) if x.ndim > 1 else (0,)

        def fold(kind: str, values: Any, name: str) -> Any:
            if axis == x.ndim - 1:
                return _row_fold(kind, lambda *i: values[at(*i)], rest, length, lanes, name)
            k = te.reduce_axis((0, length), name="k")
            return te.compute(rest, lambda *i: _FOLDS[kind](values[at(*i, k)], axis=k), name=name)

        largest = fold("max", x, "largest")
        powers = te.compute(x.shape, lambda *i: exp(x[i] - largest[without(i)]), name="powers", attrs={KEPT: 1})
        total = fold("sum", powers, "total")
        return te.compute(x.shape, lambda *i: powers[i] / total[without(i)], name="softmax")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="softmax")


def _take(builder: Any, call: Any, lanes: int) -> Any:
    """The parts of a table along an axis, by their numbers: negative ones count from the end, numbers beyond the ends
    stand for the ends."""
    if call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(call.args[0].ty.shape)

    def compute(table: Any, numbers: Any) -> Any:
        end, rank = tirx.const(int(table.shape[axis]), "int64"), numbers.ndim

        def part(*i: Any) -> Any:
            number = (numbers[i[axis : axis + rank]] if rank else numbers[()]).astype("int64")
            forward = tirx.Select(number < 0, number + end, number)
            inside = tirx.min(tirx.max(forward, 0), end - 1).astype("int32")
            return table[(*i[:axis], inside, *i[axis + rank :])]

        return te.compute((*table.shape[:axis], *numbers.shape, *table.shape[axis + 1 :]), part, name="taken")

    return builder.call_te(compute, *call.args, primfunc_name_hint="take")


def _matmul(builder: Any, call: Any, lanes: int) -> Any:
    """A product of matrices that are both computed, [..., M, K] by [..., K, N], where rows do not cut into tiles or
    columns do not fill vectors."""
    (*batch_a, rows, length), (*batch_b, _, columns) = ([int(e) for e in a.ty.shape] for a in call.args)
    batch = np.broadcast_shapes(batch_a, batch_b)
    tiled, padded = tiled_rows(rows), num_blocks(columns, lanes) * lanes
    if min(len(batch_a), len(batch_b)) == 0 or (tiled, padded) == (rows, columns):
        return None

    def one_of(index: Sequence[Any], extents: Sequence[int]) -> tuple[Any, ...]:
        own = index[len(index) - len(extents) :]
        return tuple(0 if extent == 1 else i for i, extent in zip(own, extents, strict=True))

    def compute(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, length), name="k")

        def column(*i: Any) -> Any:
            return tirx.if_then_else(
                i[-1] < columns, b[(*i[:-1], tirx.min(i[-1], columns - 1))], tirx.const(0.0, "float32")
            )

        wide = b if padded == columns else te.compute((*batch_b, length, padded), column, name="wide", attrs={KEPT: 1})

        def term(*i: Any) -> Any:
            left = a[(*one_of(i[:-2], batch_a), tirx.min(i[-2], rows - 1), k)]
            return te.sum(left * wide[(*one_of(i[:-2], batch_b), k, i[-1])], axis=k)

        product = te.compute((*batch, tiled, padded), term, name="product", attrs={KEPT: 1})
        return te.compute((*batch, rows, columns), lambda *i: product[i], name="matmul", attrs={KEPT: 1})

    return builder.call_te(compute, *call.args, primfunc_name_hint="matmul")
