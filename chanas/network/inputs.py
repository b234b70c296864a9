"""Inputs of a network to compare and to time it with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def random_inputs(
    shapes: Iterable[tuple[Sequence[int], str]], seed: int = 0, num_indices: int = 1
) -> list[npt.NDArray[Any]]:
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
