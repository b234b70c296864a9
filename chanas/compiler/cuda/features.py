"""Features of a schedule point on a GPU: how many blocks and threads there are and how the GPU is filled by them, what
a thread keeps in registers, what a block takes into shared memory, and how much is computed for what is loaded."""

from __future__ import annotations

import math
from typing import Any

from chanas.compiler.space import Named, ScheduleSpace
from chanas.core.target import HardwareTarget

_SPLITS = ("m", "n", "h", "w", "c", "k", "tap")
_CHOICES = ("cache", "load_input", "load_weights", "order", "unroll", "stages", "shares", "mma")


def gpu_features(space: ScheduleSpace[Any], named: Named, target: HardwareTarget) -> list[float]:
    """One point's features, as many for every workload: logarithms of counts, and the choices as they are.

    A coordinate that the space does not have counts as one factor, or as the choice 0.
    """
    workload, gpu = space.workload, target.required_gpu
    splits = {name: named.get(f"split_{name}", (1, 1, 1)) for name in _SPLITS}
    outputs = [splits[name] for name in ("m", "n", "h", "w") if len(splits[name]) == 3]
    outputs += [splits["c"]] if workload.op == "depthwise" else []
    blocks = math.prod(s[0] for s in outputs)
    threads, values = math.prod(s[1] for s in outputs), math.prod(s[2] for s in outputs)
    if len(splits["n"]) == 2:  # sums that threads share: columns of a block, threads of a sum
        blocks, threads = splits["n"][0], splits["n"][1] * splits["k"][1]
        values = splits["k"][2]
    blocks *= 1 if "split_m" in named else workload.batch  # rows are those of all images
    if any(named.get("mma", ())):  # warps stand where threads do
        threads, values = threads * gpu.warp_size, max(1, values // gpu.warp_size)
    threads *= math.prod(named.get("shares", (1,)))
    depth = splits["tap"][-1] * (splits["c"][-1] if workload.op != "depthwise" else 1)
    heights = [s[1] * s[2] for s in outputs]
    loaded = depth * sum(heights)
    waves = blocks / gpu.num_sms
    counts = (
        blocks,
        threads,
        values,
        threads / gpu.warp_size,
        math.ceil(waves) / waves,
        depth,
        loaded,
        math.prod(heights) * depth / loaded if heights else 1.0,
        max(heights, default=1),
        min(heights, default=1),
        *(splits[name][-1] for name in _SPLITS),
        workload.output_size,
        workload.in_channels,
        workload.out_channels,
        workload.kernel_size,
        workload.stride,
        workload.batch,
    )
    choices = [math.log2(1.0 + named[name][0]) if name in named else 0.0 for name in _CHOICES]
    return [math.log2(count) for count in counts] + choices
