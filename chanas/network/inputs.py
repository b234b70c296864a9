"""Inputs of a network to compare and to time it with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def random_inputs(shapes: Iterable[tuple[Sequence[int], str]], seed: int = 0) -> list[npt.NDArray[Any]]:
    """Standard normal numbers for inputs of floats, zeros for whole numbers (any index is in range then).

    Args:
        shapes: shape and dtype of each input.
    """
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(shape).astype(dtype) if "float" in dtype else np.zeros(shape, dtype)
        for shape, dtype in shapes
    ]
