"""What GPU programs must compute, according to PyTorch: the cases of `reference` as `cuda_graph` takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from chanas.arch import BlockConfig
from chanas.folding import Array, pack_block_rows
from chanas.prescheduler.cuda_sequential import as_rows, gpu_case
from chanas.prescheduler.reference import FLOAT32_TOLERANCE, ReferenceCase, random_block
from chanas.prescheduler.workload import Workload, block_workloads

HALF_BLOCK_TOLERANCE, HALF_NETWORK_TOLERANCE = 1e-2, 2e-2
"""Of float16 and TF32 against PyTorch in float32: every operator rounds by up to 2⁻¹¹, up to sixty in a row."""


def gpu_case_of(what: Workload | BlockConfig, dtype: str) -> ReferenceCase:
    """The case of an operator, or of a whole block in `dtype`."""
    return gpu_case(what) if isinstance(what, Workload) else gpu_block_case(what, dtype)


def gpu_block_case(block: BlockConfig, dtype: str = "float32") -> ReferenceCase:
    """Random input and weights of a whole block (batch normalisation folded in ours), and PyTorch's answer."""
    x, out, tensors = random_block(block)
    size = block.input_size if block.kind != "classifier" else 1
    image = np.ascontiguousarray(x[0].reshape(block.in_channels, -1))
    first = image if block.kind == "stem" else as_rows(image, size, block_workloads(block, dtype)[0].input_storage)
    weights = pack_block_rows(block, tensors, dtype)
    expected = np.ascontiguousarray(out.reshape(block.out_channels, -1).T)
    tolerance = FLOAT32_TOLERANCE if dtype == "float32" else HALF_BLOCK_TOLERANCE
    return ReferenceCase((first, *weights), tuple(range(1, 1 + len(weights))), expected, tolerance)


def gpu_network_case(
    blocks: Sequence[BlockConfig],
    parameters: Sequence[Mapping[str, Array]],
    image: Array,
    logits: Array,
    dtype: str = "float32",
) -> ReferenceCase:
    """A whole network: image float32[3, R, R], PyTorch's parameters by name of each block, and its logits."""
    packed = zip(blocks, parameters, strict=True)
    weights = [part for block, own in packed for part in pack_block_rows(block, own, dtype)]
    flat = np.ascontiguousarray(image.reshape(image.shape[0], -1))
    tolerance = FLOAT32_TOLERANCE if dtype == "float32" else HALF_NETWORK_TOLERANCE
    return ReferenceCase((flat, *weights), tuple(range(1, 1 + len(weights))), logits[None], tolerance)
