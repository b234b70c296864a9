"""chanas/operators/precision.py: numbers as they are stored, and what is lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from chanas.core.arrays import Float32Array
from chanas.errors import ScheduleError
from chanas.operators.precision import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    PRECISIONS,
    TF32,
    Precision,
    from_bits,
    precision_of,
    to_bits,
)

finite = st.floats(width=32, allow_subnormal=False, min_value=-(2.0**126), max_value=2.0**126)
vectors = arrays(np.float32, st.integers(1, 40), elements=finite)
of_halves = arrays(np.float32, st.integers(1, 40), elements=st.floats(-60000, 60000, width=32))
each = pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
FLOATS = [precision for precision in PRECISIONS.values() if precision is not INT8]
each_float = pytest.mark.parametrize("precision", FLOATS, ids=lambda precision: precision.dtype)
# Of TF32 tensor cores round the factors; in memory it is float32.
TORCH = {BFLOAT16: torch.bfloat16, FLOAT16: torch.float16, FLOAT32: torch.float32, TF32: torch.float32}


@each_float
@given(values=of_halves)
def test_rounding_is_pytorchs(precision: Precision, values: Float32Array) -> None:
    expected = torch.from_numpy(values).to(TORCH[precision]).to(torch.float32).numpy()
    np.testing.assert_array_equal(precision.rounded(values), expected)


@each
def test_numbers_have_the_type_that_they_are_stored_in(precision: Precision) -> None:
    stored = precision.encode(np.ones((2, 3), np.float32))
    assert (str(stored.dtype), stored.itemsize) == (precision.storage, precision.item_bytes)
    assert precision.decode(stored).dtype == np.float32
    assert precision.per_word * precision.item_bytes == 4


@each_float
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_odd_numbers_stay_what_they_are(precision: Precision, odd: float) -> None:
    np.testing.assert_array_equal(precision.rounded(np.array([odd], np.float32)), [odd])


@given(values=vectors)
def test_whole_numbers_are_the_nearest_of_a_byte(values: Float32Array) -> None:
    np.testing.assert_array_equal(INT8.rounded(values), np.clip(np.rint(values), 0, 255))


@given(vectors)
def test_a_bfloat16_has_the_range_of_float32(values: Float32Array) -> None:
    tiny = np.float32(2.0**-126)
    assert np.all(np.abs(BFLOAT16.rounded(values) - values) <= np.maximum(np.abs(values) * 2.0**-8, tiny))


@given(arrays(np.uint16, st.integers(1, 40), elements=st.integers(0, 0x7F7F)))
def test_what_is_a_bfloat16_stays_what_it_is(bits: np.ndarray) -> None:
    np.testing.assert_array_equal(to_bits(from_bits(bits)), bits)


@given(arrays(np.uint32, st.integers(1, 40), elements=st.integers(0x7F800001, 0x7FFFFFFF)), st.booleans())
def test_nan_stays_nan_whatever_its_bits(bits: np.ndarray, is_negative: bool) -> None:
    assert np.isnan(BFLOAT16.rounded((bits | np.uint32(is_negative << 31)).view(np.float32))).all()


def test_a_precision_is_known_by_its_dtype() -> None:
    assert all(precision_of(dtype) is precision for dtype, precision in PRECISIONS.items())
    with pytest.raises(ScheduleError, match="float64"):
        precision_of("float64")
