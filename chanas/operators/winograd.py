"""Convolution with fewer multiplications: Winograd's minimal filtering by Toom and Cook's matrices
(Lavin and Gray, Fast algorithms for convolutional neural networks, CVPR 2016), in one dimension (along rows, or down
columns where the kernel is longer that way) or in both. Said of rows:

A tile of m outputs of a row needs t = m + n − 1 products for n taps, where the plain sum needs m · n: with transforms
A, G, B, outputs = Aᵀ[(G taps) ⊙ (Bᵀ inputs)]. A row of stride s is s rows of stride 1 (every s-th input and tap), whose
products are summed before Aᵀ. Sums over channels and kernel rows come before Aᵀ too, so the transforms cost little; the
taps are transformed once, when weights are packed. In both dimensions t·t products make m·m outputs: each transform is
done by rows and then by columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from chanas.errors import ScheduleError

# Where polynomials are evaluated, besides infinity: small numbers and their inverses (on which: Barabasz et al.,
# Error analysis and improving the accuracy of Winograd convolution, TOMS 2020; the last two: the best of those tried).
# float32 results lie within some 4e-6 of the largest for eight products, 2e-5 for ten; the plain sum's within 1e-6.
_POINTS = tuple(
    Fraction(*p) for p in ((0, 1), (1, 1), (-1, 1), (2, 1), (-2, 1), (1, 2), (-1, 2), (-1, 4), (4, 1))
)  # enough for four outputs of seven taps
_OUTPUTS = 4

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Transforms:
    """Tile of a row: `outputs` m from `products` t, `taps` n of each of the `stride` phases; exact matrices.

    output [m, t] is Aᵀ, taps_in [t, n] is G, input [t, t] is Bᵀ.
    """

    outputs: int
    taps: int
    products: int
    stride: int
    output: Matrix
    taps_in: Matrix
    input: Matrix


def _from_roots(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients of Π (x − root), the constant first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *coefficients], [*(root * c for c in coefficients), Fraction(0)]
        coefficients = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return coefficients


@cache
def transforms(kernel_size: int, stride: int) -> Transforms:
    """The tile of a kernel of at most seven taps in each phase: four outputs.

    Raises:
        ScheduleError: there are more taps.
    """
    n = -(-kernel_size // stride)
    m, t = _OUTPUTS, _OUTPUTS + n - 1
    if t - 1 > len(_POINTS):
        raise ScheduleError(f"expected a kernel of at most {len(_POINTS) + 2 - m} taps a stride for winograd, got {n}")
    points = _POINTS[: t - 1]
    output = [[*(p**j for p in points), Fraction(j == m - 1)] for j in range(m)]
    taps, inputs = [], []
    for p in points:
        others = [q for q in points if q != p]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        taps.append([p**j / scale for j in range(n)])
        inputs.append([*_from_roots(others), Fraction(0)])
    taps.append([Fraction(j == n - 1) for j in range(n)])
    inputs.append(_from_roots(list(points)))

    def frozen(rows: list[list[Fraction]]) -> Matrix:
        return tuple(tuple(row) for row in rows)

    return Transforms(m, n, t, stride, frozen(output), frozen(taps), frozen(inputs))


def saved_multiplications(kernel_size: int, stride: int) -> float:
    """Multiplications of the plain sum for each one of Winograd's, in a tile; 0 for a kernel of too many taps."""
    n = -(-kernel_size // stride)
    products = _OUTPUTS + n - 1
    if products - 1 > len(_POINTS):
        return 0.0
    return _OUTPUTS * kernel_size / (products * stride)


def as_array(matrix: Matrix) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """float64 of an exact matrix."""
    return np.array([[float(v) for v in row] for row in matrix])
