"""The operators that compute in bfloat16: 1×1 and depthwise convolutions, two products at a time (`bf16_intrinsics`).

Activations are uint16 [B, M, l], weights words (`chanas.operators.layout`): pointwise float32[B_out, ceil(K / 2), l],
depthwise float32[B, k·ceil(k / 2), l]. Sums, biases and epilogues are float32; each output is rounded once.
Stage names are those of `operators`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from chanas.compiler.cpu.bf16_intrinsics import (
    broadcast_pair,
    broadcast_quad,
    dot_reducer,
    halves,
    join,
    neighbours,
    pair,
    round_bits,
    round_pair,
    widen,
)
from chanas.compiler.cpu.operators import pixel
from chanas.compiler.expressions import epilogue
from chanas.core.layouts import num_blocks
from chanas.operators.workload import Workload, ends_in_half_a_block, scales_weights


def pointwise(
    workload: Workload,
    lanes: int,
    prefix: str,
    x: Any,
    parameters: Sequence[Any],
    extras: Sequence[Any],
) -> Any:
    """Output of a 1×1 convolution."""
    weights, bias = parameters
    rest = list(extras)
    if workload.scaled and scales_weights(workload):
        gate, unscaled = rest.pop(0), weights
        weights = te.compute(
            (num_blocks(workload.out_channels, lanes), -(-workload.in_channels // 2), lanes),
            lambda b, k, v: _scaled(unscaled[b, k, v], [gate[c // lanes, 0, c % lanes] for c in (k * 2, k * 2 + 1)]),
            name=f"{prefix}scale",
        )
    elif workload.scaled:
        gate, x_in = rest.pop(0), x
        x = te.compute(
            (num_blocks(workload.in_channels, lanes), workload.input_size**2, lanes),
            lambda b, m, v: round_bits(widen(pixel(x_in, b, m, v)) * widen(gate[b, 0, v])),
            name=f"{prefix}scale",
        )
    shape = (num_blocks(workload.out_channels, lanes), workload.output_size**2, lanes)
    sums = _half_block_sums if ends_in_half_a_block(workload, lanes) else _block_sums
    total = sums(workload, shape, prefix, functools.partial(pixel, x), weights)
    residual = rest.pop(0) if workload.residual else None

    def value(b: Any, m: Any, v: Any) -> Any:
        out = epilogue(workload.epilogue, total(b, m, v) + bias[b, v])
        out = out if residual is None else out + widen(residual[b, m, v])
        return out if workload.wide else round_bits(out)

    return te.compute(shape, value, name=f"{prefix}out")


def _block_sums(workload: Workload, shape: tuple[int, int, int], prefix: str, x: Any, weights: Any) -> Any:
    """Sums over input channels: `x` reads activations, `shape` is that of the sums, one vector for each pixel."""
    half = shape[2] // 2
    k = te.reduce_axis((0, -(-workload.in_channels // 2)), name="k")

    def term(b: Any, m: Any, v: Any) -> Any:
        low, high = (x(k // half, m, k % half * 2 + i) for i in range(2))
        return dot_reducer()(broadcast_pair(low, high, weights[b, k, v]), axis=k)

    return te.compute(shape, term, name=f"{prefix}acc")


def _half_block_sums(workload: Workload, shape: tuple[int, int, int], prefix: str, x: Any, weights: Any) -> Any:
    """The same where the last channel block is half empty (`ends_in_half_a_block`): it takes four input channels at
    once, two in even lanes, two in odd ones, and adds neighbours in the end."""
    blocks, pixels, lanes = shape
    last, quads, per_block = blocks - 1, workload.in_channels // 4, lanes // 4
    acc = _block_sums(workload, (last, pixels, lanes), prefix, x, weights)
    mixed = te.compute((quads, lanes), lambda q, v: weights[last, 2 * q + v % 2, v // 2], name=f"{prefix}mixed")
    q = te.reduce_axis((0, quads), name="q")

    def term(m: Any, v: Any) -> Any:
        values = [x(q // per_block, m, q % per_block * 4 + i) for i in range(4)]
        return dot_reducer()(broadcast_quad(values, mixed[q, v]), axis=q)

    tail = te.compute((pixels, lanes), term, name=f"{prefix}tail")

    def total(b: Any, m: Any, v: Any) -> Any:
        first = v * 2 % lanes
        added = tirx.Select(v < lanes // 2, tail[m, first] + tail[m, first + 1], tirx.const(0.0, "float32"))
        return tirx.Select(b == last, added, acc[tirx.min(b, last - 1), m, v])

    return total


def _scaled(word: Any, gates: Sequence[Any]) -> Any:
    """A word of two weights, each times its gate."""
    low, high = (half * widen(gate) for half, gate in zip(halves(word), gates, strict=True))
    return round_pair(low, high)


def depthwise(
    workload: Workload, lanes: int, prefix: str, x: Any, parameters: Sequence[Any], extras: Sequence[Any]
) -> Any:
    """Output [B, H, W, l] of a depthwise convolution: the taps of a kernel's row two by two, the last one with zero.

    Neighbouring pixels become words as they are loaded, both at once except at the borders, where one of them is zero;
    at every column for stride 1, at every second for stride 2.
    """
    weights, bias = parameters
    size, kernel, stride, pad = workload.input_size, workload.kernel_size, workload.stride, workload.kernel_size // 2
    out_size, blocks, pairs = workload.output_size, num_blocks(workload.in_channels, lanes), -(-kernel // 2)
    step = 2 if stride == 2 else 1  # columns from word to word

    def load(b: Any, h: Any, w: Any, v: Any) -> Any:
        return x[b, (h - pad) * size + (w - pad), v]

    def load_if_inside(b: Any, h: Any, w: Any, v: Any) -> Any:
        return tirx.if_then_else(tirx.all(w >= pad, w < size + pad), load(b, h, w, v), tirx.const(0, "uint16"))

    def word(b: Any, h: Any, q: Any, v: Any) -> Any:
        w = q * step
        both = neighbours(load(b, h, w, v), load(b, h, w + 1, v))
        at_border = join(load_if_inside(b, h, w, v), load_if_inside(b, h, w + 1, v))
        row = tirx.if_then_else(tirx.all(w >= pad, w + 1 < size + pad), both, at_border)
        return tirx.if_then_else(tirx.all(h >= pad, h < size + pad), row, tirx.const(0.0, "float32"))

    words = te.compute(
        (blocks, (out_size - 1) * stride + kernel, ((out_size - 1) * stride + 2 * pairs - 2) // step + 1, lanes),
        word,
        name=f"{prefix}pad",
    )
    rh, rp = te.reduce_axis((0, kernel), name="rh"), te.reduce_axis((0, pairs), name="rp")

    def term(b: Any, h: Any, w: Any, v: Any) -> Any:
        word = words[b, h * stride + rh, (w * stride + rp * 2) // step, v]
        return dot_reducer()(pair(word, weights[b, rh * pairs + rp, v]), axis=[rh, rp])

    shape = (blocks, out_size, out_size, lanes)
    acc = te.compute(shape, term, name=f"{prefix}acc")

    def out(b: Any, h: Any, w: Any, v: Any) -> Any:
        return round_bits(epilogue(workload.epilogue, acc[b, h, w, v] + bias[b, v]))

    return te.compute(shape, out, name=f"{prefix}out")
