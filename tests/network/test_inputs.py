"""chanas/network/inputs.py: numbers that a network can be called with."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.network.inputs import KINDS, drawn_inputs, random_inputs


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


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_of_a_kind_are_what_networks_get(kind: str) -> None:
    shapes = [((8, 64), "float32"), ((8, 64), "int64"), ((8, 64), "bool"), ((8, 64), "int32")]
    x, ids, mask, numbers = drawn_inputs(kind, shapes, [None, 50, None, None])
    assert [str(a.dtype) for a in (x, ids, mask, numbers)] == [dtype for _, dtype in shapes]
    assert 0 <= ids.min() <= ids.max() < 50
    assert set(np.unique(numbers)) <= {0, 1}
    assert mask.any(axis=1).all()  # no row is left out altogether
    assert mask.all() == (not kind.startswith("0"))
    assert (ids.min() == ids.max()) == kind.endswith("flat")
    again = drawn_inputs(kind, shapes, [None, 50, None, None])
    assert all(map(np.array_equal, again, (x, ids, mask, numbers)))


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("0 to 255", 0, 255), ("0 to 1", 0, 1), ("flat", 1, 1), ("nearly flat", 19, 21)]
)
def test_floats_of_a_kind_are_within_its_range(kind: str, low: float, high: float) -> None:
    [x] = drawn_inputs(kind, [((64, 64), "float32")], [None])
    assert low <= x.min() <= x.max() <= high
    assert (x.std() == 0.0) == (kind == "flat")
