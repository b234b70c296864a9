"""A searched network calibrated for int8 with images, block by block, by an emulation: what its numbers stand for, and
the biases of its operators, as parameters of its blocks.

The steps are those of `calibrate`; what an operator reads after those before it were corrected is computed once, on the
way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from chanas.compiler.cases import float_values, in_parts, quantised_logits, quantised_value
from chanas.core.arch import BlockConfig
from chanas.core.statistics import spread
from chanas.models.calibration.mixed import mean_sums
from chanas.models.calibration.ranges import METHODS, Histogram
from chanas.network.folding import GRIDS, SHIFT, BlockOperator, block_operators, quantise_operators
from chanas.operators.precision import Array, Stored
from chanas.operators.quantised import Grid

NUM_COMPARED, NUM_FOR_BIASES = 12, 16
"""Images that methods are compared with, and that biases are corrected with: emulations take their time."""
Parameters = Sequence[Mapping[str, Array]]


def calibrated_blocks(blocks: Sequence[BlockConfig], parameters: Parameters, images: Array) -> list[dict[str, Array]]:
    """The parameters of each block with those of int8 among them (`GRIDS`, `SHIFT`).

    Args:
        parameters: PyTorch's by name of each block.
        images: float32[N, C, R, R] such as the network is for.
    """
    seen = _seen(blocks, parameters, images)
    few, for_biases = (images[spread(len(images), most)] for most in (NUM_COMPARED, NUM_FOR_BIASES))
    expected = _float_logits(blocks, parameters, few)

    def error(found: Parameters) -> float:
        return float(((quantised_logits(blocks, found, few) - expected) ** 2).sum())

    tried = [_with_grids(parameters, [[find(h) for h in own] for own in seen]) for find in METHODS.values()]
    best = min(tried, key=error)
    return min(best, _corrected(blocks, best, for_biases), key=error)


def _float_logits(blocks: Sequence[BlockConfig], parameters: Parameters, images: Array) -> Array:
    found = []
    for part in in_parts(images):
        for block, own in zip(blocks, parameters, strict=True):
            part = float_values(block_operators(block, own), part)[-1]
        found.append(part.reshape(len(part), -1))
    return np.concatenate(found)


def _seen(blocks: Sequence[BlockConfig], parameters: Parameters, images: Array) -> list[list[Histogram]]:
    """The numbers of each block's input and of what each of its operators gives."""
    operators = [block_operators(block, own) for block, own in zip(blocks, parameters, strict=True)]

    def values() -> Iterator[list[list[Array]]]:
        for part in in_parts(images):
            found, x = [], part
            for own in operators:
                found.append([x, *float_values(own, x)])
                x = found[-1][-1]
            yield found

    ends = [[(0.0, 0.0)] * (1 + len(own)) for own in operators]
    for found in values():
        ends = [
            [(min(low, float(v.min())), max(high, float(v.max()))) for (low, high), v in zip(own, vs, strict=True)]
            for own, vs in zip(ends, found, strict=True)
        ]
    seen = [[Histogram.between(*end) for end in own] for own in ends]
    for found in values():
        for histograms, vs in zip(seen, found, strict=True):
            for histogram, value in zip(histograms, vs, strict=True):
                histogram.add(value)
    return seen


def _with_grids(parameters: Parameters, grids: Sequence[Sequence[Grid]]) -> list[dict[str, Array]]:
    """Parameters with grids. A block's input has that of the block before."""
    found, before = [], grids[0][0]
    for own, (_, *written) in zip(parameters, grids, strict=True):
        numbers = [(grid.step, grid.zero) for grid in (before, *written)]
        found.append({**own, GRIDS: np.array(numbers, np.float32)})
        before = written[-1]
    return found


def _corrected(blocks: Sequence[BlockConfig], parameters: Parameters, images: Array) -> list[dict[str, Array]]:
    """Parameters with shifts of biases: what rounding takes from the mean sum of each channel."""
    found = []
    x, q = images, images
    for block, own in zip(blocks, parameters, strict=True):
        operators, whole = block_operators(block, own), quantise_operators(block, own)
        floats, values, shifts = [x, *float_values(operators, x)], [q], dict[str, Array]()
        for number, operator in enumerate(whole, 1):
            by = operator.numbers
            if by is not None and by.steps is not None and by.bias is not None:
                plain, given = ([values_[r] for r in operator.step.reads] for values_ in (floats, values))
                shift = _shift(operator, plain, given)
                shifts[SHIFT.format(number)] = shift
                operator = dataclasses.replace(operator, numbers=dataclasses.replace(by, bias=by.bias + shift))
            values.append(quantised_value(operator, [values[read] for read in operator.step.reads]))
        found.append({**own, **shifts})
        x, q = floats[-1], values[-1]
    return found


def _shift(operator: BlockOperator, plain: Sequence[Array], given: Sequence[Stored]) -> Array:
    """float32[C_out]: the mean sum of each channel of maps in float32, less that of the numbers that stand for them."""
    workload, by, weight = operator.step.workload, operator.numbers, operator.weight
    assert by is not None
    assert by.numbers is not None
    assert by.steps is not None
    assert weight is not None
    rounded = by.numbers * by.steps.reshape(-1, 1, 1, 1)
    sums = mean_sums(workload, weight, _means(workload.scaled, plain[0], plain))
    in_int8 = _means(workload.scaled, by.input.decode(given[0]), given)
    return (sums - mean_sums(workload, rounded, in_int8)).astype(np.float32)


def _means(is_scaled: bool, x: Array, given: Sequence[Array]) -> Array:
    """float64[C]: the mean of each channel that is multiplied with weights."""
    means = x.mean(axis=(2, 3), dtype=np.float64)
    found: Array = (means * given[1].reshape(means.shape) if is_scaled else means).mean(axis=0)
    return found
