"""chanas/network/preprocess.py: an image gives the same numbers in training's evaluation and in the deployed bundle."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from chanas.errors import ConfigError, DataError
from chanas.network.preprocess import Preprocess, check_crop, preprocess_of

PLAIN = Preprocess(16, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_an_image_of_the_right_size_is_only_scaled_and_transposed() -> None:
    image = noise(16, 16)
    expected = np.asarray(image, np.float32).transpose(2, 0, 1) / 255
    np.testing.assert_array_equal(PLAIN(image), expected)


def test_channels_are_normalised_one_by_one() -> None:
    pre = Preprocess(8, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 0.125))
    out = pre(Image.new("RGB", (8, 8), (255, 0, 51)))
    assert out[:, 0, 0] == pytest.approx([(1 - 0.1) / 0.5, (0 - 0.2) / 0.25, (0.2 - 0.3) / 0.125], rel=1e-5)


def test_the_centre_is_kept() -> None:
    image = Image.new("RGB", (48, 16), (0, 0, 0))
    image.paste((255, 255, 255), (16, 0, 32, 16))
    assert PLAIN(image).min() == 1.0


def test_a_crop_ratio_leaves_a_border_out() -> None:
    image = Image.new("RGB", (64, 64), (255, 0, 0))
    image.paste((0, 255, 0), (8, 8, 56, 56))
    whole = Preprocess(32, PLAIN.mean, PLAIN.std)(image)
    cropped = Preprocess(32, PLAIN.mean, PLAIN.std, crop_ratio=0.5)(image)
    assert whole[0].max() == 1.0
    assert cropped[0].max() == 0.0


@settings(max_examples=50)
@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 64), st.floats(0.5, 1.0))
def test_any_image_gives_an_input_of_the_resolution(
    width: int, height: int, resolution: int, crop_ratio: float
) -> None:
    pixels = Preprocess(resolution, PLAIN.mean, PLAIN.std, crop_ratio)(noise(width, height))
    assert pixels.shape == (3, resolution, resolution)
    assert pixels.dtype == np.float32
    assert pixels.flags.c_contiguous
    assert 0.0 <= pixels.min() <= pixels.max() <= 1.0


def test_resize_and_crop_are_those_of_torchvision() -> None:
    from torchvision import transforms

    theirs = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()])
    ours = Preprocess(32, PLAIN.mean, PLAIN.std, crop_ratio=0.8)
    image = noise(120, 80)
    np.testing.assert_allclose(ours(image), theirs(image).numpy(), atol=1e-6)


def test_an_image_of_one_channel_is_refused_in_memory() -> None:
    with pytest.raises(DataError, match="expected an RGB image, got mode L"):
        PLAIN(Image.new("L", (16, 16)))


def test_a_thread_of_pixels_is_refused() -> None:
    with pytest.raises(DataError, match="1 × 5000 pixels"):
        PLAIN(Image.new("RGB", (1, 5000)))


def test_preprocessing_survives_json() -> None:
    pre = Preprocess(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 0.875)
    assert Preprocess.from_json(json.loads(json.dumps(pre.to_json()))) == pre


@pytest.mark.parametrize(
    "change",
    [{"mean": [0.5]}, {"std": [0, 1, 1]}, {"resolution": 0}, {"crop_ratio": 2}, {"mean": "abc"}, {"std": None}],
    ids=str,
)
def test_preprocessing_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Preprocess.from_json({**PLAIN.to_json(), **change})


COLOUR, GREY = (1, 3, 8, 12), (1, 8, 8, 1)


def test_an_input_of_any_sides_is_the_centre_of_the_picture() -> None:
    image = Image.new("RGB", (48, 16), (0, 0, 0))
    image.paste((255, 255, 255), (12, 0, 36, 16))
    pixels = preprocess_of((1, 3, 16, 24), {})(image)
    assert pixels.shape == (3, 16, 24)
    assert pixels.min() == 1.0
    assert preprocess_of((1, 3, 24, 16), {})(image).shape == (3, 24, 16)


def test_a_stretched_picture_loses_nothing() -> None:
    image = noise(24, 20)
    expected = np.asarray(image.resize((12, 8), Image.Resampling.BICUBIC), np.float32).transpose(2, 0, 1) / 255
    found = preprocess_of(COLOUR, {"resize": "stretch", "filter": "bicubic"})(image)
    np.testing.assert_array_equal(found, expected)


def test_a_range_and_one_number_for_all_channels() -> None:
    image = noise(12, 8)
    found = preprocess_of(COLOUR, {"white": 255.0, "mean": (127.0,), "std": (128.0,)})(image)
    np.testing.assert_array_equal(found, (np.asarray(image, np.float32).transpose(2, 0, 1) - 127) / 128)


def test_blue_comes_first_with_the_numbers_of_its_preset() -> None:
    image = noise(12, 8)
    rgb = preprocess_of(COLOUR, {"preset": "imagenet", "crop_ratio": 1.0})
    bgr = preprocess_of(COLOUR, {"preset": "imagenet", "crop_ratio": 1.0, "channels": "bgr"})
    assert bgr.mean == rgb.mean[::-1]
    np.testing.assert_array_equal(bgr(image), rgb(image)[::-1])


def test_channels_are_last_where_the_network_has_them_last() -> None:
    image = noise(12, 8)
    last, first = preprocess_of((1, 8, 12, 3), {"preset": "inception"}), preprocess_of(COLOUR, {"preset": "inception"})
    np.testing.assert_array_equal(last(image), first(image).transpose(1, 2, 0))
    assert last(image).flags.c_contiguous


def test_one_channel_is_grey() -> None:
    image = noise(8, 8)
    expected = np.asarray(image.convert("L"), np.float32)[:, :, None]
    np.testing.assert_array_equal(preprocess_of(GREY, {"preset": "raw"})(image), expected)


def test_what_is_said_changes_what_was_stored() -> None:
    stored = preprocess_of(COLOUR, {"preset": "imagenet", "resize": "stretch"})
    changed = preprocess_of(COLOUR, {"std": (2.0,)}, stored)
    assert (changed.mean, changed.std, changed.resize) == (stored.mean, (2.0, 2.0, 2.0), "stretch")
    assert preprocess_of(COLOUR, {}, stored) == stored
    assert preprocess_of(COLOUR, {"preset": "unit"}, stored) == preprocess_of(COLOUR, {})


@pytest.mark.parametrize("shape", [COLOUR, GREY, (1, 8, 12, 3)], ids=str)
def test_any_preprocessing_survives_json(shape: tuple[int, ...]) -> None:
    pre = preprocess_of(shape, {"white": 255.0, "resize": "stretch", "filter": "bicubic"})
    assert Preprocess.from_json(json.loads(json.dumps(pre.to_json()))) == pre


def test_that_of_a_bundle_is_written_as_it_always_was() -> None:
    assert list(PLAIN.to_json()) == ["resolution", "mean", "std", "crop_ratio"]


@pytest.mark.parametrize(
    ("shape", "changes", "message"),
    [
        ((1, 4, 8, 8), {}, "expected an input"),
        ((2, 3, 8, 8), {}, "expected an input"),
        ((1, 3), {}, "expected an input"),
        (GREY, {"channels": "rgb"}, "has 1 channels, which are not rgb"),
        (COLOUR, {"mean": (1.0, 2.0)}, "expected 3 means"),
        (COLOUR, {"white": 0.0}, "a range above zero"),
        (COLOUR, {"filter": "lanczos"}, "unknown filter of pictures 'lanczos'"),
        (COLOUR, {"preset": "none"}, "unknown preset of pictures 'none'"),
    ],
)
def test_what_no_network_takes_is_refused(shape: tuple[int, ...], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        preprocess_of(shape, changes)


def test_what_is_stretched_is_not_to_be_cropped() -> None:
    stretched = preprocess_of(COLOUR, {"preset": "imagenet", "resize": "stretch"})
    check_crop({"preset": "imagenet", "resize": "stretch"}, stretched)
    check_crop({"crop_ratio": 0.9}, PLAIN)
    with pytest.raises(ConfigError, match="--crop goes with --resize crop"):
        check_crop({"crop_ratio": 0.9}, stretched)
