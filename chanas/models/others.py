"""Expressions of the operations that have no schedule space of their own, in Relax.

Blocked values are [N · B, M, l] (`program`). What an operator computes on values as the framework has them is in
`definitions`; what is done in channel blocks is written here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from chanas.compiler.cpu.changes import changing
from chanas.compiler.cpu.generic import MIN_PARALLEL, OPAQUE
from chanas.compiler.program import Form, FormChange, OtherOperation, Value
from chanas.core.target import HardwareTarget
from chanas.errors import ModelError, describe
from chanas.models.definitions import define, normal
from chanas.models.graph import Node
from chanas.models.loops import IN_ORDER
from chanas.operators.layout import Blocks, num_blocks
from chanas.operators.precision import precision_of
from chanas.operators.quantised import Grid


def pack(builder: Any, reads: Sequence[Any], _lanes: int, *, value: Value) -> Any:
    """A plain value in the channel blocks of `value`."""
    lanes, blocks = value.lanes, value.blocks
    (x,), images, channels, pixels = reads, value.images, value.channels, value.pixels
    by_channel, rows_in_memory = len(value.shape) == 4, value.pixels_in_memory
    rows = builder.emit(relax.op.reshape(x, (images * channels, pixels) if by_channel else (pixels, channels)))

    def compute(source: Any) -> Any:
        def element(b: Any, m: Any, v: Any) -> Any:
            image, b = (b // blocks, b % blocks) if images > 1 else (0, b)
            c, m = b * lanes + v, tirx.min(m, pixels - 1) if rows_in_memory > pixels else m
            inside = source[image * channels + c, m] if by_channel else source[m, c]
            if channels % lanes == 0:
                return inside
            return tirx.if_then_else(c < channels, inside, tirx.const(0, value.dtype))

        return te.compute(value.memory_shape, element, name="packed")

    return builder.emit_te(compute, rows, primfunc_name_hint="pack")


def unpack(builder: Any, reads: Sequence[Any], _lanes: int, *, value: Value) -> Any:
    """`value`, which is in channel blocks, as the framework has it."""
    images, channels, pixels, by_channel = value.images, value.channels, value.pixels, len(value.shape) == 4
    lanes, blocks = value.lanes, value.blocks

    def compute(source: Any) -> Any:
        if by_channel:
            shape = (images, channels, pixels)
            return te.compute(shape, lambda n, c, m: source[n * blocks + c // lanes, m, c % lanes], name="unpacked")
        return te.compute((pixels, channels), lambda m, c: source[c // lanes, m, c % lanes], name="unpacked")

    flat = builder.emit_te(compute, reads[0], primfunc_name_hint="unpack")
    return builder.emit(relax.op.reshape(flat, value.shape))


def in_form(number: int, value: Value, form: Form, target: HardwareTarget, grid: Grid | None = None) -> OtherOperation:
    """The change of a value in channel blocks to another form.

    Args:
        grid: of the numbers in int8, where it is from or to these.
    """
    change = value.change(value.form, form)
    grids = [change.grid_numbers(grid)] if grid is not None and change.reads_grid else []
    emit = functools.partial(_change_form, change=change, target=target)
    return OtherOperation(f"to blocks of {form}", (number, *grids), value.in_form(form), emit, True)


def _change_form(builder: Any, reads: Sequence[Any], _lanes: int, *, change: FormChange, target: HardwareTarget) -> Any:
    """A value in channel blocks of other lanes, or in another type."""
    function = changing(change, target).without_attr("global_symbol")
    marked = function.with_attr("tirx.is_scheduled", True).with_attr("op_pattern", OPAQUE)
    shape = Blocks(change.after.lanes).shape(change.channels, change.pixels, change.images)
    result = relax.TensorType(shape, precision_of(change.after.dtype).storage)
    return builder.emit(relax.call_tir(builder.add_func(marked, "form_change"), [*reads], result))


def reshape(builder: Any, reads: Sequence[Any], lanes: int, *, shape: tuple[int, ...]) -> Any:
    """The same numbers in another shape."""
    (x,) = reads
    return x if tuple(int(e) for e in x.ty.shape) == tuple(shape) else builder.emit(relax.op.reshape(x, shape))


def gather_channels(
    builder: Any,
    reads: Sequence[Any],
    _lanes: int,
    *,
    places: Sequence[tuple[int, int]],
    value: Value,
    parallel: bool,
) -> Any:
    """A map whose channels stand in other ones, in the form of these: `places` has the map and the channel there of
    each.

    Pixel by pixel, whole blocks at once, all else one number after the other with all indices known, which compilers
    make shuffles of vectors of.
    """
    lanes, dtype = int(reads[0].ty.shape[2]), str(reads[0].ty.dtype)
    num, images, pixels = num_blocks(len(places), lanes), value.images, value.pixels

    def stores(sources: Sequence[Any], out: Any, image: Any, m: Any) -> list[Any]:
        blocks = [int(source.shape[0]) // images for source in sources]
        found = []
        for b in range(num):
            own = places[b * lanes : (b + 1) * lanes]
            source, first = own[0]
            if first % lanes == 0 and list(own) == [(source, first + i) for i in range(len(own))]:
                lane = tirx.Var("v", "int32")
                copied = tirx.BufferLoad(sources[source], [image * blocks[source] + first // lanes, m, lane])
                store = tirx.BufferStore(out, copied, [image * num + b, m, lane])
                found.append(tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, store))
                continue
            for v, (source, channel) in enumerate(own):
                place = [image * blocks[source] + channel // lanes, m, channel % lanes]
                moved = tirx.BufferLoad(sources[source], place)
                found.append(tirx.BufferStore(out, moved, [image * num + b, m, v]))
        return found

    def compute(*values: Any) -> Any:
        def body(sources: Sequence[Any], outs: Sequence[Any]) -> Any:
            image, m = tirx.Var("image", "int32"), tirx.Var("m", "int32")
            kind = tirx.ForKind.PARALLEL if parallel and len(places) * pixels >= MIN_PARALLEL else tirx.ForKind.SERIAL
            found = stores(sources, outs[0], image, m)
            pixel = tirx.For(m, 0, pixels, kind, tirx.SeqStmt(found) if len(found) > 1 else found[0])
            return tirx.For(image, 0, images, tirx.ForKind.SERIAL, pixel)

        return te.extern((images * num, pixels, lanes), list(values), body, name="channels", dtype=dtype)

    done = {"tirx.is_scheduled": True, "op_pattern": OPAQUE}
    return builder.emit_te(compute, *reads, primfunc_name_hint="channels", primfunc_attrs=done)


def repeat_pixels(
    builder: Any, reads: Sequence[Any], _lanes: int, *, times: tuple[int, int], height: int, width: int
) -> Any:
    """Each pixel of a map repeated, in the form of the map."""

    def compute(x: Any) -> Any:
        shape = (x.shape[0], height * width, x.shape[2])
        inner = width // times[1]
        return te.compute(
            shape, lambda b, m, v: x[b, m // width // times[0] * inner + m % width // times[1], v], name="repeated"
        )

    return builder.emit_te(compute, reads[0], primfunc_name_hint="repeat")


def plain(builder: Any, reads: Sequence[Any], lanes: int, *, node: Node) -> Any:
    """A node by its definition, on what it reads now: values as the framework has them, or numbers one by one in
    channel blocks.

    Raises:
        ModelError: TVM does not take the definition.
    """
    if node.op == "reshape":
        return reshape(builder, reads[:1], lanes, shape=node.shape)
    facts = {"op_pattern": OPAQUE, "tirx.is_scheduled": True} if node.op in IN_ORDER else None
    hint = node.function.replace(".", "_")
    compute = functools.partial(define, node, lanes)
    try:
        return builder.emit_te(compute, *reads, primfunc_name_hint=hint, primfunc_attrs=facts)
    except Exception as error:  # TVM's own are of many kinds
        shapes = ", ".join(str(list(map(int, read.ty.shape))) for read in reads)
        raise ModelError(
            f"node {node.name or '(of the rewritten graph)'} of operator {node.op}, which reads {shapes} and gives "
            f"{list(node.shape)}, is nothing that TVM takes ({describe(error)}); export it without"
        ) from error


def layer_norm(builder: Any, reads: Sequence[Any], lanes: int, *, channels: int, epsilon: float) -> Any:
    """Rows in channel blocks, normalised, times a scale, plus a shift, [B, 1, l] each."""

    def compute(x: Any, scale: Any, shift: Any) -> Any:
        found = normal(lambda m, c: x[c // lanes, m, c % lanes], [x.shape[1]], channels, lanes, epsilon)

        def scaled(b: Any, m: Any, v: Any) -> Any:
            return found(m, b * lanes + v) * scale[b, 0, v] + shift[b, 0, v]

        return te.compute(x.shape, scaled, name="normal")

    return builder.emit_te(compute, *reads, primfunc_name_hint="layer_norm")
