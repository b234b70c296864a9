"""Expected results of GPU programs, by PyTorch: the cases of `compiler.cases` in the layout of `graph`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.compiler.cases import FLOAT32_TOLERANCE, ReferenceCase, operator_tensors, operator_tolerance, random_block
from chanas.core.arch import BlockConfig
from chanas.core.layouts import num_rows
from chanas.core.target import HardwareTarget
from chanas.network.folding import Array, pack_block_rows, pack_rows
from chanas.operators.steps import device_workloads
from chanas.operators.workload import Workload

Stored = npt.NDArray[Any]

HALF_BLOCK_TOLERANCE, HALF_NETWORK_TOLERANCE = 1e-2, 2e-2
"""Tolerance of float16 and TF32 against PyTorch in float32: every operator rounds by up to 2⁻¹¹, at most sixty in a
row."""


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
    target: HardwareTarget,
) -> ReferenceCase:
    """A whole network: images float32[B, 3, R, R], PyTorch's parameters by name of each block, its logits
    float32[B, classes]."""
    dtype, packed = target.dtype, zip(blocks, parameters, strict=True)
    weights = [part for block, own in packed for part in pack_block_rows(block, own, dtype)]
    tolerance = FLOAT32_TOLERANCE if dtype == "float32" else HALF_NETWORK_TOLERANCE
    return ReferenceCase((image_planes(images), *weights), tuple(range(1, 1 + len(weights))), logits, tolerance)


def gpu_case(workload: Workload, odd: Sequence[float] = ()) -> ReferenceCase:
    """`operator_tensors` as GPU kernels read them (`cuda.operators`); what is expected is float32."""
    tensors, stored = operator_tensors(workload, odd), workload.input_storage
    arguments: list[Stored] = [image_planes(tensors.x) if workload.reads_image else as_rows(tensors.x, stored)]
    weights: tuple[int, ...] = ()
    if tensors.weight is not None and tensors.bias is not None:
        arguments += pack_rows(workload, tensors.weight, tensors.bias)
        weights = (1, 2)
    arguments += [as_rows(extra, stored) for extra in (tensors.gate, tensors.residual) if extra is not None]
    return ReferenceCase(tuple(arguments), weights, pixel_rows(tensors.out), operator_tolerance(workload))


def image_planes(images: Array) -> Array:
    """float32[B, C, H, W] -> [B·C, H·W], as the first convolution reads them."""
    return np.ascontiguousarray(images.reshape(images.shape[0] * images.shape[1], -1))


def pixel_rows(values: Array) -> Array:
    """float32[B, C, …] -> [B·pixels, C]"""
    by_image = values.reshape(*values.shape[:2], -1)
    return np.ascontiguousarray(by_image.transpose(0, 2, 1)).reshape(-1, values.shape[1])


def as_rows(values: Array, dtype: str = "float32") -> Stored:
    """float32[B, C, H, W] (or [B, C]) -> [R, C]; the rows beyond the pixels are not a number, to be found out if they
    are used."""
    pixels = pixel_rows(values)
    rows = np.full((num_rows(values.shape[2] if values.ndim > 2 else 1, len(values)), values.shape[1]), np.nan, dtype)
    rows[: len(pixels)] = pixels
    return rows
