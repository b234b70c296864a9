"""The operators that compute in bfloat16: 1×1 and depthwise convolutions, two products at a time (`bf16_intrinsics`).

Activations are uint16 [B, M, l], weights words (`chanas.bfloat16`): pointwise float32[B_out, ceil(K / 2), l],
depthwise float32[B, k·ceil(k / 2), l]. Sums, biases and epilogues are float32; each output is rounded once.
Stage names are those of `operators`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from chanas.folding import num_blocks
from chanas.prescheduler.bf16_intrinsics import broadcast_pair, dot_reducer, join, pair, round_bits, widen
from chanas.prescheduler.workload import Workload

Pixel = Callable[[Any, Any, Any, Any], Any]
Finish = Callable[[Any], Any]


def pointwise(
    workload: Workload,
    lanes: int,
    prefix: str,
    x: Any,
    parameters: Sequence[Any],
    extras: Sequence[Any],
    pixel: Pixel,
    finish: Finish,
) -> Any:
    """Output of a 1×1 convolution; `pixel` reads activations (`operators.pixel`), `finish` is the epilogue."""
    weights, bias = parameters
    rest = list(extras)
    if workload.scaled:
        gate, x_in = rest.pop(0), x
        x = te.compute(
            (num_blocks(workload.in_channels, lanes), workload.input_size**2, lanes),
            lambda b, m, v: round_bits(widen(pixel(x_in, b, m, v)) * widen(gate[b, 0, v])),
            name=f"{prefix}scale",
        )
    shape = (num_blocks(workload.out_channels, lanes), workload.output_size**2, lanes)
    k = te.reduce_axis((0, -(-workload.in_channels // 2)), name="k")
    half = lanes // 2

    def term(b: Any, m: Any, v: Any) -> Any:
        low = pixel(x, k // half, m, k % half * 2)
        high = pixel(x, k // half, m, k % half * 2 + 1)
        return dot_reducer()(broadcast_pair(low, high, weights[b, k, v]), axis=k)

    acc = te.compute(shape, term, name=f"{prefix}acc")
    residual = rest.pop(0) if workload.residual else None

    def value(b: Any, m: Any, v: Any) -> Any:
        out = finish(acc[b, m, v] + bias[b, v])
        out = out if residual is None else out + widen(residual[b, m, v])
        return out if workload.wide else round_bits(out)

    return te.compute(shape, value, name=f"{prefix}out")


def depthwise(workload: Workload, lanes: int, prefix: str, x: Any, parameters: Sequence[Any], finish: Finish) -> Any:
    """Output [B, H, W, l] of a depthwise convolution: the taps of a kernel's row two by two, the last one with zero.

    Neighbouring pixels become words where zeros are added: at every column for stride 1, at every second for stride 2.
    """
    weights, bias = parameters
    size, kernel, stride, pad = workload.input_size, workload.kernel_size, workload.stride, workload.kernel_size // 2
    out, blocks, pairs = workload.output_size, num_blocks(workload.in_channels, lanes), -(-kernel // 2)
    step = 2 if stride == 2 else 1  # columns from word to word

    def load(b: Any, h: Any, w: Any, v: Any) -> Any:
        inside = tirx.all(h >= pad, h < size + pad, w >= pad, w < size + pad)
        return tirx.if_then_else(inside, x[b, (h - pad) * size + (w - pad), v], tirx.const(0, "uint16"))

    words = te.compute(
        (blocks, (out - 1) * stride + kernel, ((out - 1) * stride + 2 * pairs - 2) // step + 1, lanes),
        lambda b, h, q, v: join(load(b, h, q * step, v), load(b, h, q * step + 1, v)),
        name=f"{prefix}pad",
    )
    rh, rp = te.reduce_axis((0, kernel), name="rh"), te.reduce_axis((0, pairs), name="rp")

    def term(b: Any, h: Any, w: Any, v: Any) -> Any:
        word = words[b, h * stride + rh, (w * stride + rp * 2) // step, v]
        return dot_reducer()(pair(word, weights[b, rh * pairs + rp, v]), axis=[rh, rp])

    shape = (blocks, out, out, lanes)
    acc = te.compute(shape, term, name=f"{prefix}acc")
    return te.compute(shape, lambda b, h, w, v: round_bits(finish(acc[b, h, w, v] + bias[b, v])), name=f"{prefix}out")
