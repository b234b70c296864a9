"""Columns of tables whose cells are numbers or words."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chanas.core.genome import FloatArray


def as_numbers(column: npt.ArrayLike) -> FloatArray | None:
    """float64[N] from N numbers, or words that are read as such; None where one is no finite number.

    `True` and `False` are words, as they are in files.
    """
    cells = np.asarray(column)
    if cells.dtype == np.bool_:
        return None
    if cells.dtype == object:
        cells = cells.astype(str)
    try:
        numbers = cells.astype(np.float64)
    except ValueError:
        return None
    return numbers if bool(np.isfinite(numbers).all()) else None
