"""chanas/prescheduler/tuning/transfer/encoding.py: distances between configurations mean the same however they are
written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.prescheduler.tuning.transfer.encoding import encode

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.sampled_from(["NHWC", "NCHW", "", "True", "False", "nan", "inf", "1e", "x y", "é"])


def distances2(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    out: np.ndarray = ((x[:, None] - x[None]) ** 2).sum(axis=2)  # type: ignore[type-arg]
    return out


@given(st.lists(NUMBERS, min_size=1, max_size=30))
def test_numbers_become_one_standardised_column_or_none(values: list[float]) -> None:
    x = encode(np.array(values)[:, None])
    assert x.shape[0] == len(values)
    assert x.shape[1] <= 1
    assert np.isfinite(x).all()
    if x.shape[1]:
        assert x.mean() == pytest.approx(0.0, abs=1e-6)
        assert x.std() == pytest.approx(1.0)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=30, unique=True))
def test_the_order_of_numbers_is_kept(values: list[int]) -> None:
    np.testing.assert_array_equal(np.argsort(encode(np.array(values)[:, None])[:, 0]), np.argsort(values))


@given(st.lists(WORDS, min_size=2, max_size=30))
def test_two_words_are_as_far_apart_as_any_other_two(words: list[str]) -> None:
    d = distances2(encode(np.array(words)[:, None]))
    same = np.equal.outer(words, words)
    assert (d[same] < 1e-12).all()
    assert np.ptp(d[~same]) < 1e-9 if (~same).any() else True


@given(st.lists(st.tuples(WORDS, st.integers(1, 5), st.booleans(), st.just("K20")), min_size=2, max_size=30))
def test_every_parameter_that_varies_counts_alike(rows: list[tuple[str, int, bool, str]]) -> None:
    varies = sum(len(set(column)) > 1 for column in zip(*rows, strict=True))
    x = encode([[str(cell) for cell in row] for row in rows])
    assert distances2(x).mean() == pytest.approx(2.0 * varies)


@given(st.lists(st.booleans(), min_size=2, max_size=20))
def test_a_flag_is_the_same_in_words_and_in_numbers(flags: list[bool]) -> None:
    as_words = encode(np.array([str(flag) for flag in flags])[:, None])
    as_flags = encode(np.array(flags)[:, None])
    as_numbers = encode(np.array(flags, dtype=float)[:, None])
    np.testing.assert_allclose(distances2(as_words), distances2(as_numbers), atol=1e-9)
    np.testing.assert_array_equal(as_words, as_flags)


@given(st.lists(st.tuples(WORDS, st.integers(1, 5)), min_size=2, max_size=20))
def test_the_order_of_rows_does_not_matter(rows: list[tuple[str, int]]) -> None:
    table = np.array([[word, str(number)] for word, number in rows])
    order = np.random.default_rng(0).permutation(len(rows))
    np.testing.assert_allclose(encode(table[order]), encode(table)[order], atol=1e-9)


def test_doublings_are_equal_steps() -> None:
    x = encode(np.array([["1"], ["2"], ["4"], ["8"]]))
    assert np.diff(x[:, 0]) == pytest.approx(np.full(3, np.diff(x[:, 0])[0]))


def test_a_table_without_anything_that_varies_has_no_columns() -> None:
    assert encode([["15", "K20", "True"]] * 3).shape == (3, 0)


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((0, 2)), 1.0])
def test_what_is_no_table_is_refused(values: object) -> None:
    with pytest.raises(ValueError, match="expected a table"):
        encode(np.asarray(values))
