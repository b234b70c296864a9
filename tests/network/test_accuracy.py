"""chanas/network/accuracy.py: intervals of accuracies, and what images can tell apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.network.accuracy import describe_saturation, images_to_tell_apart, interval_of, wilson_interval


# ---- intervals ------------------------------------------------------------------------------------------------------
def test_intervals_are_those_of_the_literature() -> None:
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)  # Newcombe, 1998, table I
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


@given(num_images=st.integers(1, 100_000), share=st.floats(0, 1))
def test_an_interval_holds_the_share_and_is_narrower_with_more_images(num_images: int, share: float) -> None:
    num_correct = round(share * num_images)
    low, high = wilson_interval(num_correct, num_images)
    assert 0.0 <= low <= num_correct / num_images + 1e-12
    assert num_correct / num_images - 1e-12 <= high <= 1.0
    more = wilson_interval(4 * num_correct, 4 * num_images)
    assert more[1] - more[0] < high - low


def test_the_interval_of_an_accuracy_is_that_of_its_count() -> None:
    assert interval_of(0.95, 60) == wilson_interval(57, 60)
    assert interval_of(1.0, 80) == pytest.approx((0.9542, 1.0), abs=5e-5)


def test_as_many_images_as_said_tell_two_accuracies_apart(rng: np.random.Generator) -> None:
    num = images_to_tell_apart(0.95, 0.90)
    for size, few, many in ((num, 0.4, 0.6), (4 * num, 0.95, 1.0)):  # half of all draws at the border
        counts = rng.binomial(size, (0.95, 0.90), size=(4000, 2)) / size
        error = np.sqrt((counts * (1.0 - counts)).sum(axis=1) / size)
        assert few <= np.mean(counts[:, 0] - counts[:, 1] > 1.96 * error) <= many


@pytest.mark.parametrize(
    ("best", "fastest", "num_images", "is_saturated"),
    [
        (1.0, 1.0, 60, True),
        (0.9, 0.9, 60, True),
        (1.0, 59 / 60, 60, False),
        (0.7, 0.7, None, True),
        (0.7, 0.69, None, False),
    ],
)
def test_accuracies_that_differ_by_less_than_an_image_are_told(
    best: float, fastest: float, num_images: int | None, is_saturated: bool
) -> None:
    said = describe_saturation(best, fastest, num_images)
    assert bool(said) == is_saturated
    assert not said or num_images is None or said.startswith(f"{num_images} holdout images")
