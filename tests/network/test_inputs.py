"""chanas/network/inputs.py: numbers that a network can be called with."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.network.inputs import random_inputs


def test_floats_are_drawn_and_differ_by_seed() -> None:
    (x,) = random_inputs([((64, 64), "float32")])
    assert (x.shape, x.dtype) == ((64, 64), np.float32)
    assert abs(float(x.mean())) < 0.1
    assert float(x.std()) == pytest.approx(1.0, abs=0.1)
    np.testing.assert_array_equal(x, random_inputs([((64, 64), "float32")])[0])
    assert not np.array_equal(x, random_inputs([((64, 64), "float32")], seed=1)[0])


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool"])
def test_whole_numbers_are_ids_of_any_vocabulary(dtype: str) -> None:
    ids, x = random_inputs([([1, 512], dtype), ([1, 4], "float32")])
    assert (ids.shape, str(ids.dtype)) == ((1, 512), dtype)
    assert not ids.any()  # the one id that a vocabulary of any size has
    assert x.any()


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool"])
def test_more_indices_may_be_asked_for(dtype: str) -> None:
    shapes = [([1, 4], "float32"), ([1, 512], dtype)]
    (x, zeros), (same, ids) = random_inputs(shapes), random_inputs(shapes, num_indices=2)
    np.testing.assert_array_equal(x, same)
    assert not zeros.any()
    assert set(ids.ravel().astype(int)) == {0, 1}
    assert str(ids.dtype) == dtype
