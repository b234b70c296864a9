"""The computation of each family as TVM tensor expressions; `schedules` decides how it is carried out. Those whose sums
are not outputs yet are in `transformed`.

Each function gives the output tensor of an operator from the lanes of a vector, the prefix of its stages' names, its
input, its parameters (weights and bias) and its extras (gate, shift and residual, those that it has).

Notation: l lanes of a vector, B = ceil(C / l) channel blocks, M = pixels of a square map.
    activations [B, M, l], images [C, M], pointwise weights [B_out, K, l], depthwise weights [B, k·k, l],
    convolution weights [B_out, C / groups · k·k, l], biases [B, l], gates and shifts [B, 1, l]
Activations and gates are numbers of the operator's precision, weights words of it (`chanas.operators.layout`): where
these are of two or four numbers, as many products are added up at a time. Sums, biases and epilogues are float32; each
output is rounded once. In int8 sums are whole numbers, and gates float32 (`chanas.operators.quantised`).
Channels beyond C in the last block are zero everywhere (but in gates), because their weights and biases are.
Windowed operators (depthwise, conv) write [B, H, W, l], the same memory, because tiles are rectangles there; `pixel`
reads either, and `flatten_output` gives a block's last operator the flat shape.
Stage names start with a prefix, so that the operators of a block can stand in one function.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import te, tirx

from chanas.compiler.cpu.arithmetic import (
    arithmetic_of,
    half_of,
    join,
    neighbours,
    pair,
    round_pair,
    rounded_bits,
)
from chanas.compiler.cpu.dots import four, quad
from chanas.compiler.cpu.intrinsics import repeated, turned
from chanas.compiler.cpu.maps import (
    Read,
    Tensors,
    grids,
    is_inside,
    loader,
    output,
    padded,
    pixel,
    store,
    unpadded,
    window_output,
)
from chanas.compiler.cpu.tiles import ROW_BYTES
from chanas.compiler.expressions import epilogue, float32, fused_multiply_add
from chanas.operators.grouped import abreast
from chanas.operators.layout import Blocks, Shape, input_shape, num_blocks, output_shape
from chanas.operators.precision import BFLOAT16, INT8
from chanas.operators.workload import (
    Axis,
    Workload,
    scales_weights,
    spreads_input,
)


def _input_pixel(workload: Workload, m: Any) -> Any:
    """The input pixel that a 1×1 convolution's output pixel is computed from."""
    rows, columns = workload.axes
    if (rows.stride, columns.stride) == (1, 1):
        return m
    return m // columns.output * (rows.stride * columns.size) + m % columns.output * columns.stride


def _block_sums(
    workload: Workload, shape: Shape, prefix: str, read: Read, weights: Any, side_by_side: int | None = None
) -> Any:
    """Sums over input channels, one vector for each pixel and channel block; `read` is of the input, of so many
    channels side by side (those of a block)."""
    own, per_word = arithmetic_of(workload.input_precision), workload.input_precision.per_word
    words = (side_by_side or shape[-1]) // per_word
    k = te.reduce_axis((0, -(-workload.in_channels // per_word)), name="k")

    def total(b: Any, m: Any, v: Any) -> Any:
        values = [read(k // words, m, k % words * per_word + i) for i in range(per_word)]
        return own.sum(own.products(values, weights[b, k, v]), axis=k)

    return te.compute(shape, total, name=f"{prefix}acc")


def _half_block_sums(workload: Workload, shape: Shape, prefix: str, read: Read, weights: Any) -> Read:
    """The same where the last channel block is half empty (`ends_in_half_a_block`).

    Full blocks as ever. The half block takes two words of input channels at once, one in lanes 0, 2, …, the other in
    lanes 1, 3, …, and adds neighbours in the end: half as many multiply-adds.
    """
    blocks, pixels, lanes = shape
    last = blocks - 1
    acc = _block_sums(workload, (last, pixels, lanes), prefix, read, weights)
    in_pairs = workload.input_precision.per_word == 1
    tail = (_tail_of_pairs if in_pairs else _tail_of_words)(workload, shape, prefix, read, weights)

    def total(b: Any, m: Any, v: Any) -> Any:
        first = v * 2 % lanes
        halves = tirx.Select(v < lanes // 2, tail[m, first] + tail[m, first + 1], float32(0.0))
        return tirx.Select(b == last, halves, acc[tirx.min(b, last - 1), m, v])

    return total


def _tail_of_pairs(workload: Workload, shape: Shape, prefix: str, read: Read, weights: Any) -> Any:
    """Sums of the half block from vectors of two values, again and again."""
    blocks, pixels, lanes = shape
    pairs, last, half = workload.in_channels // 2, blocks - 1, lanes // 2
    mixed = te.compute((pairs, lanes), lambda p, v: weights[last, 2 * p + v % 2, v // 2], name=f"{prefix}mixed")
    twice = te.compute(
        (pairs, pixels, lanes), lambda p, m, v: read(p // half, m, p % half * 2 + v % 2), name=f"{prefix}twice"
    )
    p = te.reduce_axis((0, pairs), name="p")
    return te.compute((pixels, lanes), lambda m, v: te.sum(twice[p, m, v] * mixed[p, v], axis=p), name=f"{prefix}tail")


def _tail_of_words(workload: Workload, shape: Shape, prefix: str, read: Read, weights: Any) -> Any:
    """The same from two words that one load has in all lanes."""
    own, (blocks, pixels, lanes) = arithmetic_of(workload.input_precision), shape
    at_once = 2 * workload.input_precision.per_word
    quads, last, per_block = workload.in_channels // at_once, blocks - 1, lanes // at_once
    mixed = te.compute((quads, lanes), lambda q, v: weights[last, 2 * q + v % 2, v // 2], name=f"{prefix}mixed")
    q = te.reduce_axis((0, quads), name="q")

    def total(m: Any, v: Any) -> Any:
        values = [read(q // per_block, m, q % per_block * at_once + i) for i in range(at_once)]
        return own.sum(own.products(values, mixed[q, v]), axis=q)

    return te.compute((pixels, lanes), total, name=f"{prefix}tail")


def _packed(workload: Workload, name: str, shape: Shape, read: Read) -> Any:
    """[stretches, *places, channels]: of an input [B, *places, l] as many channels side by side as a row of a matrix
    register has. Beyond the last block are those of the last one, which no sum takes."""
    *places, lanes = shape
    blocks = num_blocks(workload.in_channels, lanes)
    side_by_side = ROW_BYTES // workload.input_precision.item_bytes

    def value(s: Any, *place: Any) -> Any:
        block = tirx.min(s * (side_by_side // lanes) + place[-1] // lanes, blocks - 1)
        return read(block, *place[:-1], place[-1] % lanes)

    return te.compute((-(-blocks * lanes // side_by_side), *places, side_by_side), value, name=name)


def _packed_sums(workload: Workload, shape: Shape, prefix: str, read: Read, weights: Any) -> Any:
    """The same of an input that is packed first."""
    packed = _packed(workload, f"{prefix}pack", shape[1:], read)
    return _block_sums(workload, shape, prefix, lambda *place: packed[place], weights, int(packed.shape[-1]))


def pointwise(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    return _pointwise(_block_sums, workload, lanes, prefix, x, parameters, extras)


def half_block_pointwise(
    workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors
) -> Any:
    """The same with sums of their own for a last channel block that is half empty."""
    return _pointwise(_half_block_sums, workload, lanes, prefix, x, parameters, extras)


def packed_pointwise(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    """The same of an input that is packed for matrix registers first."""
    return _pointwise(_packed_sums, workload, lanes, prefix, x, parameters, extras)


def _pointwise(
    sums: Callable[..., Any],
    workload: Workload,
    lanes: int,
    prefix: str,
    x: Any,
    parameters: Tensors,
    extras: Tensors,
) -> Any:
    weights = parameters[0]
    rest, shape = list(extras), output_shape(workload, Blocks(lanes))
    own, per_word = arithmetic_of(workload.input_precision), workload.input_precision.per_word
    if workload.scaled:
        gate, x_in, unscaled = rest.pop(0), x, weights
        if scales_weights(workload):

            def scaled_weights(b: Any, k: Any, v: Any) -> Any:
                channels = [k * per_word + i for i in range(per_word)]
                return own.scaled(unscaled[b, k, v], [gate[c // lanes, 0, c % lanes] for c in channels])

            weights = te.compute(Blocks(lanes).parameters(workload)[0].shape, scaled_weights, name=f"{prefix}scale")
        else:
            prologue = workload.prologue
            shift: Any = rest.pop(0) if prologue else None

            def scaled(b: Any, m: Any, v: Any) -> Any:
                if workload.is_quantised:  # on the grid of the input: gates are at most 1
                    taken = loader(workload, parameters)(pixel(x_in, b, m, v))
                    return own.store(fused_multiply_add(taken, gate[b, 0, v], grids(parameters)[0].zero))
                value = own.load(pixel(x_in, b, m, v)) * own.load(gate[b, 0, v])
                value = value if prologue is None else epilogue(prologue, value + own.load(shift[b, 0, v]))
                return own.store(value)

            x = te.compute(input_shape(workload, Blocks(lanes)), scaled, name=f"{prefix}scale")

    def read(b: Any, m: Any, v: Any) -> Any:
        return pixel(x, b, _input_pixel(workload, m), v)

    total = sums(workload, shape, prefix, read, weights)

    def value(b: Any, m: Any, v: Any) -> Any:
        residual = pixel(rest[-1], b, m, v) if workload.residual else None
        return output(workload, parameters, total(b, m, v), residual, b, v)

    return te.compute(shape, value, name=f"{prefix}out")


def _window_sums(workload: Workload, lanes: int, prefix: str, read: Read, weights: Any) -> Any:
    """[B, H, W, l]: sums over channels of a group and taps; `read` gives what lane v of block b of the output takes
    of a channel of its group, at a row and a column of the padded input."""
    rows, columns = workload.axes
    own, per_word = arithmetic_of(workload.weight_precision), workload.weight_precision.per_word
    rc = te.reduce_axis((0, -(-workload.channels_per_group // per_word)), name="rc")
    rh, rw = te.reduce_axis((0, rows.kernel), name="rh"), te.reduce_axis((0, columns.kernel), name="rw")
    c, axes = (0, [rh, rw]) if workload.is_channelwise else (rc, [rc, rh, rw])

    def total(b: Any, h: Any, w: Any, v: Any) -> Any:
        place = _tap(rows, h, rh), _tap(columns, w, rw), v
        values = [read(b, c * per_word + i, *place) for i in range(per_word)]
        tap = rh * columns.kernel + rw
        at = tap * rc.dom.extent + c if per_word > 1 else c * workload.kernel_area + tap
        return own.sum(own.products(values, weights[b, at, v]), axis=axes)

    shape = (num_blocks(workload.out_channels, lanes), rows.output, columns.output, lanes)
    return te.compute(shape, total, name=f"{prefix}acc")


def depthwise(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    rows, columns = workload.axes
    if workload.weight_precision.per_word > 1:
        acc = _sums_of_paired_taps(workload, lanes, prefix, x, parameters[0])
    else:
        size = rows.read_by(rows.output), columns.read_by(columns.output)
        padding = _pad_outputs(workload, lanes, prefix, x, parameters, *size)
        acc = _window_sums(workload, lanes, prefix, padding, parameters[0])
    return window_output(workload, lanes, prefix, acc, parameters, extras)


def widened_depthwise(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    """A depthwise convolution of bfloat16 in float32: the map is widened as it is padded, weights as they are read."""
    weights = parameters[0]
    rows, columns = workload.axes
    pairs = -(-columns.kernel // workload.weight_precision.per_word)
    size = rows.read_by(rows.output), columns.read_by(columns.output)
    widened = padded(workload, lanes, prefix, x, *size, load=loader(workload, parameters))
    rh, rw = te.reduce_axis((0, rows.kernel), name="rh"), te.reduce_axis((0, columns.kernel), name="rw")

    def total(b: Any, h: Any, w: Any, v: Any) -> Any:
        weight = half_of(weights[b, rh * pairs + rw // 2, v], rw % 2)
        return te.sum(widened[b, _tap(rows, h, rh), _tap(columns, w, rw), v] * weight, axis=[rh, rw])

    shape = (num_blocks(workload.out_channels, lanes), rows.output, columns.output, lanes)
    acc = te.compute(shape, total, name=f"{prefix}acc")
    return window_output(workload, lanes, prefix, acc, parameters, extras)


def dotted_depthwise(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    """A depthwise convolution in int8 as dot products: the taps of a kernel's row four by four, the last ones with
    zero. What the zero of the input adds to a channel's sums is taken away from them."""
    weights, zero = parameters[0], _zero(workload, x, parameters)
    rows, columns = workload.axes
    per_word, blocks = INT8.per_word, num_blocks(workload.out_channels, lanes)
    in_row = -(-columns.kernel // per_word)
    width = columns.read_by(columns.output) + in_row * per_word - columns.kernel
    pad = padded(workload, lanes, prefix, x, rows.read_by(rows.output), width, zero=zero)

    def word(b: Any, t: Any, v: Any) -> Any:
        first, numbers = t % in_row * per_word, []
        for i in range(per_word):
            is_there, tap = first + i < columns.kernel, tirx.min(first + i, columns.kernel - 1)
            weight = weights[b, t // in_row * columns.kernel + tap, v].astype("int32")
            number = tirx.if_then_else(is_there, weight, tirx.const(0, "int32"))
            numbers.append(tirx.shift_left(number & tirx.const(255, "int32"), tirx.const(8 * i, "int32")))
        return tirx.reinterpret("float32", functools.reduce(operator.or_, numbers))

    words = te.compute((blocks, rows.kernel * in_row, lanes), word, name=f"{prefix}words")
    zeros = tirx.reinterpret("float32", zero.astype("uint32") * tirx.const(0x01010101, "uint32"))
    t = te.reduce_axis((0, rows.kernel * in_row), name="t")
    own = arithmetic_of(INT8)
    less = te.compute((blocks, lanes), lambda b, v: own.sum(four(zeros, words[b, t, v]), axis=t), name=f"{prefix}less")
    rh, rw = te.reduce_axis((0, rows.kernel), name="rh"), te.reduce_axis((0, in_row), name="rw")

    def total(b: Any, h: Any, w: Any, v: Any) -> Any:
        row, column = _tap(rows, h, rh), w * columns.stride + rw * per_word
        taken = quad(*(pad[b, row, column + i, v] for i in range(per_word)))
        return own.sum(four(taken, words[b, rh * in_row + rw, v]), axis=[rh, rw])

    acc = te.compute((blocks, rows.output, columns.output, lanes), total, name=f"{prefix}acc")
    return window_output(workload, lanes, prefix, lambda b, h, w, v: acc[b, h, w, v] - less[b, v], parameters, extras)


def _sums_of_paired_taps(workload: Workload, lanes: int, prefix: str, x: Any, weights: Any) -> Any:
    """Sums of a depthwise convolution in bfloat16: the taps of a kernel's row two by two, the last one with zero.

    Neighbouring pixels become words as they are loaded, both at once except at the borders, where one of them is zero;
    at every column for stride 1, at every second for stride 2.
    """
    size, kernel, stride, pad = workload.input_size, workload.kernel_size, workload.stride, workload.kernel_size // 2
    out_size, blocks, pairs = workload.output_size, num_blocks(workload.in_channels, lanes), -(-kernel // 2)
    own, step = arithmetic_of(workload.input_precision), 2 if stride == 2 else 1  # columns from word to word

    def load(b: Any, h: Any, w: Any, v: Any) -> Any:
        return x[b, (h - pad) * size + (w - pad), v]

    def load_if_inside(b: Any, h: Any, w: Any, v: Any) -> Any:
        return tirx.if_then_else(tirx.all(w >= pad, w < size + pad), load(b, h, w, v), tirx.const(0, "uint16"))

    def word(b: Any, h: Any, q: Any, v: Any) -> Any:
        w = q * step
        both = neighbours(load(b, h, w, v), load(b, h, w + 1, v))
        at_border = join(load_if_inside(b, h, w, v), load_if_inside(b, h, w + 1, v))
        row = tirx.if_then_else(tirx.all(w >= pad, w + 1 < size + pad), both, at_border)
        return tirx.if_then_else(tirx.all(h >= pad, h < size + pad), row, float32(0.0))

    words = te.compute(
        (blocks, (out_size - 1) * stride + kernel, ((out_size - 1) * stride + 2 * pairs - 2) // step + 1, lanes),
        word,
        name=f"{prefix}pad",
    )
    rh, rp = te.reduce_axis((0, kernel), name="rh"), te.reduce_axis((0, pairs), name="rp")

    def total(b: Any, h: Any, w: Any, v: Any) -> Any:
        taken = words[b, h * stride + rh, (w * stride + rp * 2) // step, v]
        return own.sum(pair(taken, weights[b, rh * pairs + rp, v]), axis=[rh, rp])

    return te.compute((blocks, out_size, out_size, lanes), total, name=f"{prefix}acc")


def _tap(axis: Axis, output: Any, tap: Any) -> Any:
    """The row (or column) of the padded input under a tap of the kernel at a row of the output."""
    return output * axis.stride + tap * axis.dilation


def conv(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    axes, channels = workload.axes, workload.in_channels
    rows, columns = axes
    padding = te.compute(
        (channels, rows.read_by(rows.output), columns.read_by(columns.output)),
        lambda c, h, w: tirx.if_then_else(is_inside(axes, h, w), x[c, unpadded(axes, h, w)], float32(0.0)),
        name=f"{prefix}pad",
    )
    read: Read = lambda b, c, h, w, v: padding[c, h, w]  # noqa: E731
    acc = _window_sums(workload, lanes, prefix, read, parameters[0])
    return window_output(workload, lanes, prefix, acc, parameters, extras)


def packed_conv(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    """The same in bfloat16, for matrix registers: image and weights are rounded first. As the image is padded the
    channels of a pixel are put side by side, with zeros that fill the last word: [1, height, width, channels]."""
    axes, weights, in_words = workload.axes, parameters[0], replace(workload, op="blockconv")
    inputs, per_word = workload.in_channels, BFLOAT16.per_word
    rows, columns = axes
    words = -(-inputs // per_word)

    def number(_: Any, h: Any, w: Any, c: Any) -> Any:
        is_there = tirx.all(is_inside(axes, h, w), c < inputs)
        return rounded_bits(tirx.if_then_else(is_there, x[c, unpadded(axes, h, w)], float32(0.0)))

    def word(b: Any, t: Any, v: Any) -> Any:
        tap, channels = t // words, [t % words * per_word + i for i in range(per_word)]
        taken = [weights[b, c * workload.kernel_area + tap, v] for c in channels]
        pairs = zip(channels, taken, strict=True)
        return round_pair(*(tirx.if_then_else(c < inputs, value, float32(0.0)) for c, value in pairs))

    size = rows.read_by(rows.output), columns.read_by(columns.output)
    packed = te.compute((1, *size, words * per_word), number, name=f"{prefix}pad")
    shape = (num_blocks(workload.out_channels, lanes), workload.kernel_area * words, lanes)
    rounded = te.compute(shape, word, name=f"{prefix}words")
    acc = _window_sums(in_words, lanes, prefix, lambda b, c, h, w, v: packed[0, h, w, c], rounded)
    return window_output(workload, lanes, prefix, acc, parameters, extras)


def _pad_outputs(
    workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, height: int, width: int
) -> Read:
    """The padded input as (b, c, h, w, v): what lane v of block b of the output takes of channel c of its group.

    Where lanes of a vector read neighbouring channels (`spreads_input`), inputs are stored as often as they are read,
    so that sums load vectors: [B_out, height, width, l].
    """
    inputs, outputs = workload.channels_per_group, workload.outputs_per_group
    if spreads_input(workload):
        axes = workload.axes

        def value(b: Any, h: Any, w: Any, v: Any) -> Any:
            channel = tirx.min((b * lanes + v) // outputs, workload.in_channels - 1)  # beyond: only fill a vector
            taken = x[channel // lanes, unpadded(axes, h, w), channel % lanes]
            return tirx.if_then_else(is_inside(axes, h, w), taken, float32(0.0))

        shape = (num_blocks(workload.out_channels, lanes), height, width, lanes)
        spread = te.compute(shape, value, name=f"{prefix}pad")
        return lambda b, c, h, w, v: spread[b, h, w, v]
    if workload.is_channelwise:
        padding = padded(workload, lanes, prefix, x, height, width, load=loader(workload, parameters))
        return lambda b, c, h, w, v: padding[b, h, w, v]
    padding = padded(workload, lanes, prefix, x, height, width, zero=_zero(workload, x, parameters))
    if workload.groups == 1:
        return lambda b, c, h, w, v: padding[c // lanes, h, w, c % lanes]

    def of_group(b: Any, c: Any, h: Any, w: Any, v: Any) -> Any:
        channel = b // (outputs // lanes) * inputs + c
        return padding[channel // lanes, h, w, channel % lanes]

    return of_group


def _zero(workload: Workload, x: Any, parameters: Tensors) -> Any:
    """The number of an input that stands for zero."""
    return grids(parameters)[0].zero.astype("uint8") if workload.is_quantised else tirx.const(0, x.dtype)


def packed_blockconv(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    """The input is packed for matrix registers as it is padded."""
    axes, zero = workload.axes, _zero(workload, x, parameters)

    def number(b: Any, h: Any, w: Any, v: Any) -> Any:
        return tirx.if_then_else(is_inside(axes, h, w), x[b, unpadded(axes, h, w), v], zero)

    size = (axis.read_by(axis.output) for axis in axes)
    packed = _packed(workload, f"{prefix}pad", (*size, lanes), number)
    side_by_side = int(packed.shape[-1])
    read: Read = lambda b, c, h, w, v: packed[c // side_by_side, h, w, c % side_by_side]  # noqa: E731
    acc = _window_sums(workload, lanes, prefix, read, parameters[0])
    return window_output(workload, lanes, prefix, acc, parameters, extras)


def blockconv(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    rows, columns = workload.axes
    size = rows.read_by(rows.output), columns.read_by(columns.output)
    padding = _pad_outputs(workload, lanes, prefix, x, parameters, *size)
    acc = _window_sums(workload, lanes, prefix, padding, parameters[0])
    return window_output(workload, lanes, prefix, acc, parameters, extras)


def groupconv(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    """Groups abreast (`chanas.operators.grouped`): their inputs are put side by side where they are padded, sums have
    their outputs side by side, and outputs are stored in the order of channels."""
    weights = parameters[0]
    axes, shared = workload.axes, abreast(workload, lanes)
    rows, columns = axes
    inputs = workload.channels_per_group
    in_blocks, (read, ragged) = num_blocks(workload.in_channels, lanes), divmod(inputs * shared.groups, lanes)

    def side_by_side(s: Any, h: Any, w: Any, e: Any) -> Any:
        m, zero = unpadded(axes, h, w), float32(0.0)
        if ragged:  # sets of groups don't begin with a vector of inputs
            group = tirx.min(s * shared.groups + e % shared.groups, workload.num_groups - 1)
            channel = group * inputs + e // shared.groups
            return tirx.if_then_else(is_inside(axes, h, w), x[channel // lanes, m, channel % lanes], zero)
        vectors = [x[tirx.min(s * read + i, in_blocks - 1), m, e % lanes] for i in range(read)]  # beyond: only fill
        return tirx.if_then_else(is_inside(axes, h, w), turned(shared.groups, e // lanes, vectors), zero)

    size = (rows.read_by(rows.output), columns.read_by(columns.output))
    padding = te.compute((shared.sets, *size, inputs * shared.groups), side_by_side, name=f"{prefix}pad")
    rc = te.reduce_axis((0, inputs), name="rc")
    rh, rw = te.reduce_axis((0, rows.kernel), name="rh"), te.reduce_axis((0, columns.kernel), name="rw")

    def term(b: Any, h: Any, w: Any, v: Any) -> Any:
        place = b // shared.vectors, _tap(rows, h, rh), _tap(columns, w, rw)
        value = repeated(v, [padding[*place, rc * shared.groups + g] for g in range(shared.groups)])
        return te.sum(value * weights[b, (rc * rows.kernel + rh) * columns.kernel + rw, v], axis=[rc, rh, rw])

    acc = te.compute((shared.sets * shared.vectors, rows.output, columns.output, lanes), term, name=f"{prefix}acc")
    sums = te.compute(acc.shape, lambda *indices: acc[indices], name=f"{prefix}sums")

    def total(b: Any, h: Any, w: Any, v: Any) -> Any:
        first, position = b // shared.vectors * shared.vectors, b % shared.vectors
        found = turned(workload.outputs_per_group, position, [sums[first + i, h, w, v] for i in range(shared.vectors)])
        if workload.out_channels % lanes == 0:
            return found
        return tirx.Select(b * lanes + v < workload.out_channels, found, float32(0.0))

    return window_output(workload, lanes, prefix, total, parameters, extras)


def pool(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Tensors, extras: Tensors) -> Any:
    pixels, shape = workload.input_pixels, output_shape(workload, Blocks(lanes))
    m = te.reduce_axis((0, pixels), name="m")
    loaded = loader(workload, parameters)
    acc = te.compute(shape, lambda b, o, v: te.sum(loaded(pixel(x, b, o + m, v)), axis=m), name=f"{prefix}acc")
    share = float32(1.0 / pixels)
    if workload.is_quantised:
        share = grids(parameters)[0].step * share
    return te.compute(shape, lambda b, o, v: store(workload, acc[b, o, v] * share, parameters), name=f"{prefix}out")
