"""Reference cases as CPU kernels read them: tensors packed in channel blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from chanas.compiler.cases import (
    BFLOAT16_BLOCK_TOLERANCE,
    BFLOAT16_NETWORK_TOLERANCE,
    FLOAT32_TOLERANCE,
    Array,
    ReferenceCase,
    Stored,
    operator_tensors,
    operator_tolerance,
    random_block,
)
from chanas.core.arch import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.network.bfloat16 import to_bits
from chanas.network.folding import pack_block, pack_channels, pack_operator
from chanas.operators.epilogues import value_at_zero
from chanas.operators.steps import block_workloads
from chanas.operators.workload import Workload


def case_of(what: Workload | BlockConfig, target: HardwareTarget) -> ReferenceCase:
    """The case of an operator, or of a whole block on a target."""
    if isinstance(what, Workload):
        return operator_case(what, target.vector_lanes)
    return block_case(what, target.vector_lanes, target.dtype)


def operator_case(workload: Workload, lanes: int, odd: Sequence[float] = ()) -> ReferenceCase:
    """`operator_tensors` as processors' kernels read them, one image after the other."""
    tensors = operator_tensors(workload, odd)

    def stored(images: Array) -> Stored:
        packed = np.concatenate([pack_channels(image.reshape(image.shape[0], -1), lanes) for image in images])
        return to_bits(packed) if workload.input_storage == "uint16" else packed

    x = tensors.x
    arguments: list[Stored] = [x.reshape(-1, workload.input_pixels) if workload.reads_image else stored(x)]
    weights: tuple[int, ...] = ()
    if tensors.weight is not None and tensors.bias is not None:
        arguments += pack_operator(workload, tensors.weight, tensors.bias, lanes)
        weights = (1, 2)
    arguments += [stored(extra) for extra in (tensors.gate, tensors.shift, tensors.residual) if extra is not None]
    expected = np.concatenate([_packed_output(image, lanes, workload.epilogue) for image in tensors.out])
    return ReferenceCase(tuple(arguments), weights, _as_stored(expected, workload), operator_tolerance(workload))


def _as_stored(expected: Array, workload: Workload) -> Stored:
    return to_bits(expected) if workload.output_storage == "uint16" else expected


def _packed_output(value: Array, lanes: int, epilogue: str) -> Array:
    packed = pack_channels(value.reshape(value.shape[0], -1), lanes)
    if value.shape[0] % lanes:
        packed[-1, :, value.shape[0] % lanes :] = value_at_zero(epilogue)
    return packed


def block_case(block: BlockConfig, lanes: int, dtype: str = "float32") -> ReferenceCase:
    """Random input and weights of a whole block, and PyTorch's answer (batch normalisation folded in ours).

    PyTorch computes in float32 whatever the dtype, from an input that is rounded where ours is.
    """
    operators = block_workloads(block, dtype)
    in_bits = operators[0].input_storage == "uint16"
    x, out, tensors = random_block(block, in_bits)
    flat = x.reshape(block.in_channels, -1)
    expected = pack_channels(out.reshape(block.out_channels, -1), lanes)
    packed = flat if block.kind == "stem" else pack_channels(flat, lanes)
    first: Stored = to_bits(packed) if in_bits else packed
    tolerance = FLOAT32_TOLERANCE if dtype == "float32" else BFLOAT16_BLOCK_TOLERANCE
    parameters = pack_block(block, tensors, lanes, dtype)
    return ReferenceCase((first, parameters), (1,), _as_stored(expected, operators[-1]), tolerance)


def network_case(
    blocks: Sequence[BlockConfig],
    parameters: Sequence[Mapping[str, Array]],
    images: Array,
    logits: Array,
    target: HardwareTarget,
) -> ReferenceCase:
    """A whole network for one image: the image, packed parameters of each block in call order, and packed logits."""
    lanes, dtype = target.vector_lanes, target.dtype
    packed = [pack_block(b, tensors, lanes, dtype) for b, tensors in zip(blocks, parameters, strict=True)]
    tolerance = FLOAT32_TOLERANCE if dtype == "float32" else BFLOAT16_NETWORK_TOLERANCE
    image = images[0].reshape(images.shape[1], -1)
    weights = tuple(range(1, 1 + len(packed)))
    return ReferenceCase((image, *packed), weights, pack_channels(logits[0][:, None], lanes), tolerance)
