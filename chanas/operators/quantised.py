"""Operators in whole numbers of eight bits: what the numbers stand for, and what kernels compute with them, to the bit.

A number q of a map stands for step · (q − zero), q = 0 … 255, with one step and zero for the whole map (a `Grid`);
a weight for its channel's step times a whole number of −127 … 127. Sums of products are whole numbers of 32 bits. What
follows is float32, each operation rounded once and in this order:

    sum · (input's step · weight's step) + bias         one fused multiply-add
    epilogue, and the residual times its step added     one fused multiply-add, before or after
    · 1 / output's step + output's zero                 one fused multiply-add, then the nearest number of 0 … 255

The scheme is that of Jacob et al., Quantization and Training of Neural Networks, CVPR 2018, with float32 in place of
fixed-point multipliers.

Pairs of neighbouring weights are kept so small that 255 times both fits in 16 bits: processors without instructions for
four products of bytes add them up two by two in so many (`vpmaddubsw`), and numbers are the same on every processor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chanas.core.arrays import Array, Float32Array, FloatArray
from chanas.operators.epilogues import Epilogue, leaky_slope
from chanas.operators.precision import INT8
from chanas.operators.workload import Workload

NUM_GRID_NUMBERS = 6
"""Numbers of the three grids of an operator, as kernels read them (`Quantised.grid_numbers`)."""
_MOST, _MOST_WEIGHT = 255, 127
# The largest sum of two weights before they are rounded to whole numbers: 255 · 128 fits in 16 bits.
_MOST_PAIR = 127.5
_LEAST_STEP = float(np.finfo(np.float32).tiny)
# More than a quotient of float32 is off of a whole number of seven bits; weights of a channel that are tried first.
_NEARLY_WHOLE, _SAMPLED = 1e-4, 16

WholeWeights = tuple[Float32Array, Float32Array]
"""Whole numbers, as float32, of the shape of weights, and the step of each output channel, float32[C_out]."""


@dataclass(frozen=True)
class Grid:
    """The numbers that a map may have: step · (q − zero), q = 0 … 255."""

    step: float
    zero: int

    @classmethod
    def of_range(cls, low: float, high: float) -> Grid:
        """The grid from `low` to `high`, and 0, which it has exactly."""
        low, high = min(0.0, float(low)), max(0.0, float(high))
        step = float(np.float32(max(_LEAST_STEP, (high - low) / _MOST)))
        return cls(step, round(min(-low / step, _MOST)))

    @property
    def inverse(self) -> np.float32:
        """Numbers for each 1, as kernels multiply by it."""
        return np.float32(1.0) / np.float32(self.step)

    def encode(self, values: Float32Array) -> Array:
        """uint8 of the nearest numbers."""
        return INT8.encode(fused_multiply_add(values, self.inverse, np.float32(self.zero)))

    def decode(self, numbers: Array) -> Float32Array:
        """The float32 that each number stands for."""
        found: Float32Array = (numbers.astype(np.float32) - np.float32(self.zero)) * np.float32(self.step)
        return found

    def rounded(self, values: Float32Array) -> Float32Array:
        """The nearest number's float32 of each value; where two are equally near, kernels may have the other."""
        zero, found = np.float32(self.zero), np.asarray(values * self.inverse, np.float32)
        np.rint(found, out=found)
        np.clip(found, -zero, _MOST - zero, out=found)
        found *= np.float32(self.step)
        return found

    def conversion_numbers(self, *, encodes: bool) -> Float32Array:
        """float32[2], as a conversion reads them: numbers for each 1, or the step, and the zero."""
        return np.array([self.inverse if encodes else self.step, self.zero], np.float32)


IDENTITY = Grid(1.0, 0)
"""The grid of what an operator does not have."""


@dataclass(frozen=True, eq=False)
class Quantised:
    """The meaning of the whole numbers of an operator.

    input, output, residual  grids of its maps; `IDENTITY` of those that it does not have
    numbers                  whole numbers float32[C_out, C_in / groups, kh, kw]; of an operator that reads an image the
                             weight as it is; None where there is none
    steps                    float32[C_out], of the weight; None where there are none
    bias                     float32[C_out], or None
    """

    input: Grid = IDENTITY
    output: Grid = IDENTITY
    residual: Grid = IDENTITY
    numbers: Float32Array | None = None
    steps: Float32Array | None = None
    bias: Float32Array | None = None

    def is_like(self, other: Quantised | None) -> bool:
        """True of the same numbers of another operator: the same arrays, and equal biases."""
        if other is None or self.numbers is not other.numbers or self.steps is not other.steps:
            return False
        if self.bias is None or other.bias is None:
            has_same_bias = self.bias is other.bias
        else:
            has_same_bias = np.array_equal(self.bias, other.bias)
        grids, others = ((by.input, by.output, by.residual) for by in (self, other))
        return has_same_bias and grids == others

    @property
    def grid_numbers(self) -> Float32Array:
        """float32[1, 6]: step and zero of the input, numbers for each 1 and zero of the output, step and zero of the
        residual."""
        of = (self.input.step, self.input.zero, self.output.inverse, self.output.zero)
        return np.array([[*of, self.residual.step, self.residual.zero]], np.float32)

    @property
    def scale(self) -> Float32Array:
        """float32[C_out]: what a sum of 1 stands for."""
        assert self.steps is not None
        return np.float32(self.input.step) * self.steps


def quantised(
    workload: Workload,
    weight: Float32Array | None,
    bias: Float32Array | None,
    input: Grid = IDENTITY,
    output: Grid = IDENTITY,
    residual: Grid = IDENTITY,
    whole: WholeWeights | None = None,
) -> Quantised:
    """An operator of these grids, whose weights are the nearest whole numbers by output channel, or those given."""
    if weight is None or workload.reads_image:
        return Quantised(input, output, residual, weight, None, bias)
    numbers, steps = whole_weights(weight, in_pairs=not workload.is_channelwise) if whole is None else whole
    return Quantised(input, output, residual, numbers, steps, bias)


def whole_weights(weight: Float32Array, *, in_pairs: bool = True) -> WholeWeights:
    """Whole numbers of −127 … 127, as float32, and the step of each output channel, float32[C_out].

    Args:
        in_pairs: neighbouring input channels are multiplied two by two.
    """
    rows = weight.reshape(*weight.shape[:2], -1)
    steps = np.abs(rows).max(axis=(1, 2)) / _MOST_WEIGHT
    if in_pairs and weight.shape[1] > 1:
        even = weight.shape[1] // 2 * 2
        first, second = rows[:, 0:even:2], rows[:, 1:even:2]
        both = np.abs(first + second) * (np.sign(first) == np.sign(second))
        steps = np.maximum(steps, both.max(axis=(1, 2)) / _MOST_PAIR)
    steps = np.maximum(steps, _LEAST_STEP).astype(np.float32)
    numbers = np.rint(weight / steps.reshape(-1, *[1] * (weight.ndim - 1)))
    return np.clip(numbers, -_MOST_WEIGHT, _MOST_WEIGHT).astype(np.float32), steps


def exact_weights(weight: Float32Array) -> WholeWeights | None:
    """The least whole numbers of −128 … 127, as float32, and steps by output channel, float32[C_out], that weights are
    the products of already, as far as float32 tells; None where they are not: what a quantiser has rounded."""
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    largest = np.abs(rows).max(axis=1)
    sample = rows[:, :: max(1, rows.shape[1] // _SAMPLED)]
    most, left = np.zeros(len(rows), int), largest > 0.0
    for number in range(1, _MOST_WEIGHT + 2):
        likely = np.flatnonzero(left)
        for columns in (sample, rows):  # few of them tell most of the others
            whole = columns[likely] * (number / largest[likely, None])
            likely = likely[(np.abs(whole - np.rint(whole)) < _NEARLY_WHOLE).all(axis=1)]
        most[likely], left[likely] = number, False
    numbers = np.rint(rows * (most / np.maximum(largest, _LEAST_STEP))[:, None])
    if left.any() or numbers.max() > _MOST_WEIGHT:
        return None
    steps = np.maximum(largest / np.maximum(most, 1), _LEAST_STEP).astype(np.float32)
    near = np.stack([steps, np.nextafter(steps, np.float32(0.0)), np.nextafter(steps, np.float32(np.inf))])
    same = [(numbers.astype(np.float32) * s[:, None] == rows).sum(axis=1) for s in near]
    return numbers.astype(np.float32).reshape(weight.shape), near[np.argmax(same, axis=0), np.arange(len(steps))]


def fits_pairs(numbers: Float32Array) -> bool:
    """True if 255 times each pair of neighbouring whole weights fits in 16 bits."""
    even = numbers.shape[1] // 2 * 2
    return bool((np.abs(numbers[:, 0:even:2] + numbers[:, 1:even:2]) <= _MOST_WEIGHT + 1).all())


# ---- what kernels compute --------------------------------------------------------------------------------------------
def fused_multiply_add(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> Float32Array:
    """float32 of a · b + c, rounded once.

    A product of two float32 is exact in float64. Their sum with c is rounded to odd there, which leaves the nearest
    float32 what it would be of the exact sum (Boldo and Melquiond, IEEE Transactions on Computers 57, 2008).
    """
    product = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32).astype(np.float64)
    addend = np.asarray(c, np.float32).astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    is_even = (total.view(np.int64) & 1) == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    odd = np.where((error != 0) & is_even, np.nextafter(total, towards), total)
    return odd.astype(np.float32)


def computed(
    workload: Workload,
    by: Quantised,
    x: Array,
    convolve: Callable[[Array, Float32Array], Array],
    gate: Float32Array | None = None,
    residual: Array | None = None,
) -> Array:
    """An operator's output, numbers uint8[B, C_out, H, W], or float32 of a wide one, as every kernel computes it.

    Args:
        x: numbers uint8[B, C, H, W], or an image float32.
        convolve: the exact sums of a map and weights, whole numbers float64, without bias.
        gate: float32[B, C].
        residual: numbers uint8 of the output's shape.
    """
    zero = np.float32(by.input.zero)
    if gate is not None:
        x = INT8.encode(fused_multiply_add(x.astype(np.float32) - zero, gate[:, :, None, None], zero))
    centred = x.astype(np.float64) - by.input.zero
    if workload.op == "pool":
        share = np.float32(by.input.step) * np.float32(1.0 / workload.input_pixels)
        value = centred.sum(axis=(2, 3), keepdims=True).astype(np.float32) * share
    else:
        value = _scaled_sums(workload, by, centred, convolve)
    return finished(workload, by, value, residual)


def finished(workload: Workload, by: Quantised, value: Float32Array, residual: Array | None) -> Array:
    """Array numbers of sums with their bias, float32, and of the numbers of a residual."""
    added = None if residual is None else residual.astype(np.float32) - np.float32(by.residual.zero)
    step = np.float32(by.residual.step)
    if added is not None and workload.residual_first:
        value = fused_multiply_add(added, step, value)
    value = _activated(workload.epilogue, value)
    if added is not None and not workload.residual_first:
        value = fused_multiply_add(added, step, value)
    return value if workload.wide else by.output.encode(value)


def _scaled_sums(
    workload: Workload, by: Quantised, centred: FloatArray, convolve: Callable[..., Array]
) -> Float32Array:
    """Sums times their scale plus the bias. Products of four bytes are summed with the input's zero in them, which the
    bias takes away again."""
    assert by.numbers is not None
    assert by.bias is not None
    by_channel = (1, -1, 1, 1)
    sums, bias = convolve(centred, by.numbers), kernel_bias(workload, by).reshape(by_channel)
    if by.steps is None:
        plain: Float32Array = sums.astype(np.float32) + bias
        return plain
    if not workload.is_channelwise:
        whole = by.numbers.reshape(len(by.numbers), -1).sum(axis=1, dtype=np.float64)
        sums = sums + by.input.zero * whole.reshape(by_channel)
    return fused_multiply_add(sums.astype(np.float32), by.scale.reshape(by_channel), bias)


def kernel_bias(workload: Workload, by: Quantised) -> Float32Array:
    """float32[C_out]: the bias as kernels add it, less what the input's zero adds to each sum."""
    assert by.numbers is not None
    assert by.bias is not None
    if by.steps is None or workload.is_channelwise:
        return by.bias
    whole = by.numbers.reshape(len(by.numbers), -1).sum(axis=1, dtype=np.float64)
    found: Float32Array = (by.bias - by.input.zero * whole * by.scale.astype(np.float64)).astype(np.float32)
    return found


def _activated(epilogue: Epilogue, value: Float32Array) -> Float32Array:
    """An epilogue of float32, in the operations that kernels have."""
    slope = leaky_slope(epilogue)
    if slope is not None:
        leaky: Float32Array = np.maximum(value, value * np.float32(slope))
        return leaky
    if epilogue == "none":
        return value
    if epilogue in ("relu", "relu6"):
        limited: Float32Array = np.clip(value, np.float32(0.0), np.float32(6.0 if epilogue == "relu6" else np.inf))
        return limited
    gate: Float32Array = np.clip(value + np.float32(3.0), np.float32(0.0), np.float32(6.0)) * np.float32(1.0 / 6.0)
    return gate if epilogue == "hsigmoid" else value * gate
