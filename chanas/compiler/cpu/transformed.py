"""Convolutions whose sums are not outputs yet: those of Winograd's products, and of the phases of transposed ones.

The functions are like those of `operators`, in the same notation; weights are [B_out, t·C·k·s, l] of `winograd`,
[B_out, t·t·C, l] of `winograd2`. Sums are kept until a band of them is there, and outputs are made of several of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import te

from chanas.compiler.cpu.maps import Tensors, padded, window_output
from chanas.compiler.expressions import chosen, combined
from chanas.operators.layout import num_blocks
from chanas.operators.transposed import first_row, num_rows, num_taps, phase_of
from chanas.operators.winograd import transforms
from chanas.operators.workload import Workload, winograd_axis, winograd_plans


def upconv(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    """Each phase a convolution of the small map (`chanas.operators.transposed`); outputs are read from their phase."""
    weights = parameters[0]
    rows, columns = workload.axes
    phase, taps = phase_of(workload), (num_taps(rows), num_taps(columns))
    num_h, num_w = num_rows(rows), phase.axes[1].output
    shift = [axis.before % axis.stride for axis in (rows, columns)]
    axes = (replace(rows, before=-first_row(rows)), replace(columns, before=-first_row(columns)))
    # One more than a phase reads: that of some begins a pixel later.
    padding = padded(workload, lanes, prefix, x, num_h + taps[0], num_w + taps[1], axes)
    rc = te.reduce_axis((0, workload.in_channels), name="rc")
    rh, rw = te.reduce_axis((0, taps[0]), name="rh"), te.reduce_axis((0, taps[1]), name="rw")

    def term(p: Any, b: Any, h: Any, w: Any, v: Any) -> Any:
        phase_h, phase_w = p // columns.stride, p % columns.stride
        y, z = h + (phase_h + shift[0]) // rows.stride + rh, w + (phase_w + shift[1]) // columns.stride + rw
        place = ((p * workload.in_channels + rc) * taps[0] + rh) * taps[1] + rw
        return te.sum(padding[rc // lanes, y, z, rc % lanes] * weights[b, place, v], axis=[rc, rh, rw])

    shape = (rows.stride * columns.stride, num_blocks(workload.out_channels, lanes), num_h, num_w, lanes)
    acc = te.compute(shape, term, name=f"{prefix}acc")
    sums = te.compute(shape, lambda *indices: acc[indices], name=f"{prefix}sums")

    def total(b: Any, h: Any, w: Any, v: Any) -> Any:
        place = h % rows.stride * columns.stride + w % columns.stride
        return sums[place, b, h // rows.stride, w // columns.stride, v]

    return window_output(workload, lanes, prefix, total, parameters, extras)


def winograd(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    """Inputs of tiles along one axis to t products each, their sums over channels and across the tiles, then t to m
    outputs. Along columns of the map, rows and columns of everything change places."""
    weights = parameters[0]
    axis, channels = winograd_axis(workload), workload.in_channels
    along, across = workload.axes[axis], workload.axes[1 - axis]
    plan, stride, in_blocks = transforms(along.kernel, along.stride), along.stride, num_blocks(channels, lanes)
    m, t, num_tiles = plan.outputs, plan.products, -(-along.output // plan.outputs)
    places = across.output

    def ordered(of_across: Any, of_along: Any) -> tuple[Any, Any]:
        return (of_across, of_along) if axis == 1 else (of_along, of_across)

    padding = padded(workload, lanes, prefix, x, *ordered(across.read_by(places), ((num_tiles - 1) * m + t) * stride))

    def product(i: Any, b: Any, h: Any, s: Any, w: Any, v: Any) -> Any:
        place, tile = ordered(h, w)
        reads = [padding[(b, *ordered(place, (tile * m + j) * stride + s), v)] for j in range(t)]
        return chosen(i, [combined(row, reads) for row in plan.input])

    height, width = ordered(across.read_by(places), num_tiles)
    tiles = te.compute((t, in_blocks, height, stride, width, lanes), product, name=f"{prefix}tiles")
    rc = te.reduce_axis((0, channels), name="rc")
    rh, rs = te.reduce_axis((0, across.kernel), name="rh"), te.reduce_axis((0, stride), name="rs")
    shape = (t, num_blocks(workload.out_channels, lanes), *ordered(places, num_tiles), lanes)

    def term(i: Any, b: Any, h: Any, w: Any, v: Any) -> Any:
        place, tile = ordered(h, w)
        h_in, w_in = ordered(place * across.stride + rh, tile)
        weight = weights[b, ((i * channels + rc) * across.kernel + rh) * stride + rs, v]
        return te.sum(tiles[i, rc // lanes, h_in, rs, w_in, rc % lanes] * weight, axis=[rc, rh, rs])

    acc = te.compute(shape, term, name=f"{prefix}acc")
    sums = te.compute(shape, lambda *indices: acc[indices], name=f"{prefix}sums")

    def total(b: Any, h: Any, w: Any, v: Any) -> Any:
        place, output = ordered(h, w)
        terms = [sums[(i, b, *ordered(place, output // m), v)] for i in range(t)]
        return chosen(output % m, [combined(row, terms) for row in plan.output])

    return window_output(workload, lanes, prefix, total, parameters, extras)


def winograd2(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    """Inputs of square tiles to t·t products, by rows and then by columns, their sums over channels, then t·t to m·m
    outputs, by columns and then by rows."""
    weights = parameters[0]
    channels, in_blocks = workload.in_channels, num_blocks(workload.in_channels, lanes)
    down, along = winograd_plans(workload)
    tall, wide = (-(-axis.output // plan.outputs) for axis, plan in zip(workload.axes, (down, along), strict=True))
    m, t = along.outputs, along.products
    height, width = (tall - 1) * down.outputs + down.products, (wide - 1) * m + t
    padding = padded(workload, lanes, prefix, x, height, width)

    def by_rows(i: Any, b: Any, h: Any, w: Any, v: Any) -> Any:
        reads = [padding[b, h * down.outputs + j, w, v] for j in range(down.products)]
        return chosen(i, [combined(row, reads) for row in down.input])

    rows = te.compute((down.products, in_blocks, tall, width, lanes), by_rows, name=f"{prefix}rows")

    def by_columns(p: Any, b: Any, h: Any, w: Any, v: Any) -> Any:
        reads = [rows[p // t, b, h, w * m + j, v] for j in range(t)]
        return chosen(p % t, [combined(row, reads) for row in along.input])

    tiles = te.compute((down.products * t, in_blocks, tall, wide, lanes), by_columns, name=f"{prefix}tiles")
    rc = te.reduce_axis((0, channels), name="rc")
    out_blocks = num_blocks(workload.out_channels, lanes)
    shape = (down.products * t, out_blocks, tall, wide, lanes)
    acc = te.compute(
        shape,
        lambda p, b, h, w, v: te.sum(
            tiles[p, rc // lanes, h, w, rc % lanes] * weights[b, p * channels + rc, v], axis=[rc]
        ),
        name=f"{prefix}acc",
    )
    sums = te.compute(shape, lambda *indices: acc[indices], name=f"{prefix}sums")

    def to_columns(i: Any, b: Any, h: Any, w: Any, v: Any) -> Any:
        terms = [sums[i * t + j, b, h, w // m, v] for j in range(t)]
        return chosen(w % m, [combined(row, terms) for row in along.output])

    columns = te.compute((down.products, out_blocks, tall, wide * m, lanes), to_columns, name=f"{prefix}columns")

    def total(b: Any, h: Any, w: Any, v: Any) -> Any:
        terms = [columns[i, b, h // down.outputs, w, v] for i in range(down.products)]
        return chosen(h % down.outputs, [combined(row, terms) for row in down.output])

    return window_output(workload, lanes, prefix, total, parameters, extras)
