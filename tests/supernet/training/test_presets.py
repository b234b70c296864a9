"""The preset follows what the images are; nothing of another data set's is taken over."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from chanas.supernet.data.data_config import IMAGENET_MEAN, IMAGENET_STD
from chanas.supernet.data.image_source import ArraySource
from chanas.supernet.data.inspection.inspect import inspect_sample
from chanas.supernet.data.inspection.summary import Inspection
from chanas.supernet.training.presets import config_for, describe_choice, preset_for


def inspection(side: int, **changes: Any) -> Inspection:
    """Forty reddish images of one size in two classes, with other facts where they are given."""
    pixels = np.random.default_rng(0).integers(0, 100, (40, side, side, 3), dtype=np.uint8)
    pixels[..., 0] += 100
    labels = np.arange(40, dtype=np.int64) % 2
    return dataclasses.replace(inspect_sample(ArraySource("set", ("a", "b"), labels, pixels)), **changes)


@pytest.mark.parametrize(("side", "preset"), [(8, "small-images"), (64, "small-images"), (65, "photos")])
def test_the_size_chooses_the_preset(side: int, preset: str) -> None:
    assert preset_for(inspection(8, median_size=(400, side))) == preset


def test_small_images_have_their_own_mean_and_are_decoded_once() -> None:
    found = inspection(16)
    data = config_for(found).data
    np.testing.assert_allclose(data.mean, found.mean, atol=1e-3)
    np.testing.assert_allclose(data.std, found.std, atol=1e-3)
    assert 0.5 < data.mean[0] < 0.65
    assert (data.in_memory, data.augment.flip) == (True, True)
    assert not config_for(dataclasses.replace(found, is_one_size=False)).data.in_memory
    assert "measured" in describe_choice(found, config_for(found))


def test_photos_have_imagenets_mean_and_stay_in_their_files() -> None:
    found = inspection(8, median_size=(320, 256))
    data = config_for(found).data
    assert (data.mean, data.std, data.in_memory) == (IMAGENET_MEAN, IMAGENET_STD, False)
    assert "ImageNet" in describe_choice(found, config_for(found))


@pytest.mark.parametrize("side", [28, 300])
def test_grey_images_are_not_mirrored_and_have_their_own_mean(side: int) -> None:
    found = inspection(8, median_size=(side, side), grey_share=1.0)
    data = config_for(found).data
    assert not data.augment.flip
    assert data.mean != IMAGENET_MEAN
    assert "not mirrored" in describe_choice(found, config_for(found))


def test_images_of_a_single_colour_have_a_deviation_to_divide_by() -> None:
    assert min(config_for(inspection(8, std=(0.0, 0.0, 0.0))).data.std) > 0
