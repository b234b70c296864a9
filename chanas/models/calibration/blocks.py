"""A searched network calibrated for int8 with images, block by block, with numbers rounded as they are there: what they
stand for, and the biases of its operators, as parameters of its blocks.

The steps are those of `calibrate`; what an operator reads after those before it were corrected is computed once, on the
way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from chanas.compiler.emulation import (
    Parameters,
    block_values,
    converted,
    emulated_logits,
    float_values,
    in_parts,
    rounded_value,
)
from chanas.core.arrays import Float32Array
from chanas.core.blocks import BlockConfig, computing
from chanas.core.statistics import spread
from chanas.models.calibration.mixed import mean_sums
from chanas.models.calibration.ranges import METHODS, Histogram
from chanas.network.folding import (
    GRIDS,
    SHIFT,
    BlockOperator,
    block_operators,
    quantise_operators,
    with_parameters,
)
from chanas.operators.precision import INT8
from chanas.operators.quantised import Grid

NUM_COMPARED, NUM_FOR_BIASES = 64, 64
"""Images that methods are compared with, and that biases are corrected with."""


def calibrated_blocks(
    blocks: Sequence[BlockConfig], parameters: Parameters, images: Float32Array, dtype: str
) -> list[Mapping[str, Float32Array]]:
    """The parameters of each block that computes, with those of int8 among them (`GRIDS`, `SHIFT`) where it is in it.

    Args:
        parameters: PyTorch's by name of each.
        images: float32[N, C, R, R] such as the network is for.
        dtype: of blocks without one of their own.
    """
    seen = _seen(computing(blocks), parameters, images)
    few, for_biases = (images[spread(len(images), most)] for most in (NUM_COMPARED, NUM_FOR_BIASES))
    in_float32 = [replace(block, dtype="") for block in computing(blocks)]
    expected = emulated_logits(in_float32, parameters, few)

    def error(found: Parameters) -> float:
        return float(((emulated_logits(blocks, found, few, dtype) - expected) ** 2).sum())

    grids = ([[find(h) for h in own] for own in seen] for find in METHODS.values())
    best = min((_with_grids(blocks, parameters, own, dtype) for own in grids), key=error)
    return min(best, _corrected(blocks, best, for_biases, dtype), key=error)


def _seen(blocks: Sequence[BlockConfig], parameters: Parameters, images: Float32Array) -> list[list[Histogram]]:
    """The numbers of each block's input and of what each of its operators gives."""
    operators = [block_operators(block, own) for block, own in zip(blocks, parameters, strict=True)]
    seen = [[Histogram() for _ in range(1 + len(own))] for own in operators]
    for x in in_parts(images):
        for own, histograms in zip(operators, seen, strict=True):
            values = [x, *float_values(own, x)]
            for histogram, value in zip(histograms, values, strict=True):
                histogram.add(value)
            x = values[-1]
    return seen


def _with_grids(
    blocks: Sequence[BlockConfig], parameters: Parameters, grids: Sequence[Sequence[Grid]], dtype: str
) -> list[Mapping[str, Float32Array]]:
    """Parameters with grids, of blocks in int8. A block's input has that of the block before."""
    found, before = [], grids[0][0]
    for block, own, (_, *written) in zip(computing(blocks), parameters, grids, strict=True):
        numbers = [(grid.step, grid.zero) for grid in (before, *written)]
        is_int8 = (block.dtype or dtype) == INT8.dtype
        found.append({**own, GRIDS: np.array(numbers, np.float32)} if is_int8 else own)
        before = written[-1]
    return found


def _corrected(
    blocks: Sequence[BlockConfig], parameters: Parameters, images: Float32Array, dtype: str
) -> list[Mapping[str, Float32Array]]:
    """Parameters with shifts of biases of operators in int8: what rounding takes from the mean sum of each channel."""
    found: list[Mapping[str, Float32Array]] = []
    x, rounded = images, images
    for block, own, grid in with_parameters(blocks, parameters):
        if block.converts:
            rounded = converted(block, grid, rounded)
            continue
        shifts = {}
        floats = [x, *float_values(block_operators(block, own, dtype), x)]
        if (block.dtype or dtype) != INT8.dtype:
            values = [rounded, *block_values(block, own, rounded, dtype)]
        else:
            values = [rounded]
            for number, operator in enumerate(quantise_operators(block, own), 1):
                by = operator.numbers
                if by is not None and by.steps is not None and by.bias is not None:
                    plain, given = ([values_[r] for r in operator.step.reads] for values_ in (floats, values))
                    shift = _shift(operator, plain, given)
                    shifts[SHIFT.format(number)] = shift
                    operator = replace(operator, numbers=replace(by, bias=by.bias + shift))
                values.append(rounded_value(operator, [values[read] for read in operator.step.reads]))
        found.append({**own, **shifts})
        x, rounded = floats[-1], values[-1]
    return found


def _shift(operator: BlockOperator, plain: Sequence[Float32Array], given: Sequence[Float32Array]) -> Float32Array:
    """float32[C_out]: the mean sum of each channel of maps in float32, less that of the rounded ones."""
    workload, by, weight = operator.step.workload, operator.numbers, operator.weight
    assert by is not None
    assert by.numbers is not None
    assert by.steps is not None
    assert weight is not None
    rounded = by.numbers * by.steps.reshape(-1, 1, 1, 1)
    sums = mean_sums(workload, weight, _means(workload.scaled, plain))
    return (sums - mean_sums(workload, rounded, _means(workload.scaled, given))).astype(np.float32)


def _means(is_scaled: bool, given: Sequence[Float32Array]) -> Float32Array:
    """float64[C]: the mean of each channel that is multiplied with weights."""
    means = given[0].mean(axis=(2, 3), dtype=np.float64)
    found: Float32Array = (means * given[1].reshape(means.shape) if is_scaled else means).mean(axis=0)
    return found
