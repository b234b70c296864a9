"""Inputs of a network to compare and to time it with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from chanas.core.arrays import Array


def random_inputs(shapes: Iterable[tuple[Sequence[int], str]], seed: int = 0, num_indices: int = 1) -> list[Array]:
    """Standard normal numbers for inputs of floats; for whole numbers, which may be indices, some below `num_indices`:
    by default zeros, which are in range everywhere.

    Args:
        shapes: shape and dtype of each input.
    """
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal(shape) if "float" in dtype else rng.integers(0, num_indices, shape)).astype(dtype)
        for shape, dtype in shapes
    ]


KINDS = ("normal", "0 to 255", "0 to 1", "flat", "nearly flat")
"""Kinds of float inputs: standard normal numbers; pixels as they lie in a file; pixels as shares; one number
everywhere; 20 ± 0.1, of which a mean of squares leaves little."""
_MOST = 0.75
"""The share of truths that hold where they are mixed: few rows of a mask leave everything out."""


def drawn_inputs(
    kind: str, shapes: Iterable[tuple[Sequence[int], str]], num_indices: Sequence[int | None], seed: int = 0
) -> list[Array]:
    """Inputs of one of the `KINDS`. Whole numbers are below what they may be: of a flat kind all the same, else of any
    size. Truths, and numbers that stand for some, all hold in the first kind and in flat ones, and are mixed in others.

    Args:
        shapes: shape and dtype of each input.
        num_indices: what whole numbers of each input have to be below; None where they choose nothing.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    is_flat, is_mixed = kind.endswith("flat"), kind.startswith("0")

    def drawn(shape: Sequence[int], dtype: str, below: int | None) -> Array:
        if "float" in dtype:
            numbers = _floats(kind, shape, rng)
        elif below is not None:
            numbers = np.full(shape, below - 1) if is_flat else rng.integers(0, below, shape)
        elif dtype == "uint8":
            numbers = np.full(shape, 200) if is_flat else rng.integers(0, 256 if is_mixed else 2, shape)
        else:
            numbers = rng.random(shape) < _MOST if is_mixed else np.ones(shape)
        return np.asarray(numbers).astype(dtype)

    return [drawn(shape, dtype, below) for (shape, dtype), below in zip(shapes, num_indices, strict=True)]


def _floats(kind: str, shape: Sequence[int], rng: np.random.Generator) -> Array:
    if kind == "0 to 255":
        return rng.integers(0, 256, shape)
    if kind == "0 to 1":
        return rng.random(shape)
    if kind == "flat":
        return np.ones(shape)
    numbers = rng.standard_normal(shape)
    return numbers if kind == "normal" else 20 + numbers / 10
