"""What GPU programs must compute, according to PyTorch: the cases of `reference` as `cuda_graph` takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chanas.arch import BlockConfig
from chanas.folding import Array, pack_block_rows
from chanas.prescheduler.cuda_sequential import as_rows, gpu_case, image_planes, pixel_rows
from chanas.prescheduler.reference import FLOAT32_TOLERANCE, ReferenceCase, random_block
from chanas.prescheduler.workload import Workload, device_workloads
from chanas.target import HardwareTarget

HALF_BLOCK_TOLERANCE, HALF_NETWORK_TOLERANCE = 1e-2, 2e-2
"""Of float16 and TF32 against PyTorch in float32: every operator rounds by up to 2⁻¹¹, up to sixty in a row."""


def gpu_case_of(what: Workload | BlockConfig, target: HardwareTarget) -> ReferenceCase:
    """The case of an operator, or of a whole block on a target."""
    return gpu_case(what) if isinstance(what, Workload) else gpu_block_case(what, target)


def gpu_block_case(block: BlockConfig, target: HardwareTarget) -> ReferenceCase:
    """Random input and weights of a whole block (batch normalisation folded in ours), and PyTorch's answer."""
    dtype = target.dtype
    x, out, tensors = random_block(block, batch=target.batch)
    stored = device_workloads(block, target)[0].input_storage
    first = image_planes(x) if block.kind == "stem" else as_rows(x, stored)
    weights = pack_block_rows(block, tensors, dtype)
    expected = pixel_rows(out)
    tolerance = FLOAT32_TOLERANCE if dtype == "float32" else HALF_BLOCK_TOLERANCE
    return ReferenceCase((first, *weights), tuple(range(1, 1 + len(weights))), expected, tolerance)


def gpu_network_case(
    blocks: Sequence[BlockConfig],
    parameters: Sequence[Mapping[str, Array]],
    images: Array,
    logits: Array,
    dtype: str = "float32",
) -> ReferenceCase:
    """A whole network: images float32[B, 3, R, R], PyTorch's parameters by name of each block, its logits
    float32[B, classes]."""
    packed = zip(blocks, parameters, strict=True)
    weights = [part for block, own in packed for part in pack_block_rows(block, own, dtype)]
    tolerance = FLOAT32_TOLERANCE if dtype == "float32" else HALF_NETWORK_TOLERANCE
    return ReferenceCase((image_planes(images), *weights), tuple(range(1, 1 + len(weights))), logits, tolerance)
