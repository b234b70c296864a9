"""Configurations as points whose distances mean something."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chanas.core.cells import as_numbers
from chanas.core.genome import FloatArray

# Values that differ by less, as a share of the largest, are the same.
_SAME = 1e-9


def encode(values: npt.ArrayLike) -> FloatArray:
    """Encode parameters [N, P] of configurations, numbers or words, as float64[N, F].

    A parameter whose values are all finite numbers (or words that are read as such) becomes one standardised column, of
    its logarithm where all are positive. Any other becomes a column for each of its words, such that two different
    words are equally far apart whichever they are, and two random configurations on average as far as by a number:
    the squared distance of two points is 2 in the mean over all pairs, for each parameter. What is the same everywhere
    is left out.

    Raises:
        ValueError: `values` is no table with at least one row.
    """
    table = np.asarray(values)
    if table.ndim != 2 or len(table) == 0:
        raise ValueError(f"expected a table [configurations, parameters], got an array of shape {table.shape}")
    columns = [part for column in table.T for part in _encode_column(column)]
    return np.column_stack(columns) if columns else np.zeros((len(table), 0))


def _encode_column(column: npt.NDArray[np.generic]) -> list[FloatArray]:
    numbers = as_numbers(column)
    if numbers is None:
        return _encode_words(column)
    largest = float(np.abs(numbers).max())
    if largest == 0.0:
        return []
    scaled = numbers / largest  # no overflow of squares
    if scaled.min() > 0.0:
        scaled = np.log2(scaled)
    if np.ptp(scaled) <= _SAME:
        return []
    scaled = scaled - scaled.mean()
    return [scaled / scaled.std()]


def _encode_words(column: npt.NDArray[np.generic]) -> list[FloatArray]:
    words, codes = np.unique(column.astype(str), return_inverse=True)
    shares = np.bincount(codes) / len(codes)
    if len(words) < 2:
        return []
    spread = np.sqrt(1.0 - float((shares**2).sum()))
    return [((codes == code) - share) / spread for code, share in enumerate(shares)]
