"""Evaluation images are exactly what the deployed bundle would make of the same files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from chanas.errors import DataError
from chanas.network.pictures import read_picture
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.images import ImageData, export_images, load_data


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return load_data(DataConfig(dataset="digits", mean=(0.3, 0.3, 0.3), std=(0.4, 0.4, 0.4)), seed=0)


@pytest.mark.parametrize("resolution", [24, 32])
def test_exported_images_give_the_same_numbers(digits: ImageData, tmp_path: Path, resolution: int) -> None:
    paths = export_images(digits, "test", tmp_path, limit=12)
    indices = [int(path.stem.split("-")[1]) for path in paths]
    from_files = np.stack([digits.preprocess(resolution)(read_picture(path, path.name).image) for path in paths])
    np.testing.assert_array_equal(from_files, digits.images(indices, resolution))


def test_exported_images_take_classes_in_turn_and_are_named_by_them(digits: ImageData, tmp_path: Path) -> None:
    paths = export_images(digits, "test", tmp_path / "images", limit=20)
    assert Counter(path.stem.split("-")[0] for path in paths) == Counter(dict.fromkeys("0123456789", 2))
    assert {int(p.stem.split("-")[1]) for p in paths} <= set(digits.indices("test").tolist())


def test_without_a_limit_the_whole_split_is_exported(digits: ImageData, tmp_path: Path) -> None:
    assert len(export_images(digits, "gap", tmp_path)) == len(digits.indices("gap")) == len(list(tmp_path.iterdir()))


def test_images_are_normalised_by_the_configured_mean_and_deviation(digits: ImageData) -> None:
    images = digits.images(digits.indices("holdout"), 32)
    assert images.dtype == np.float32
    assert images.min() == pytest.approx((0 - 0.3) / 0.4)
    assert images.max() == pytest.approx((1 - 0.3) / 0.4)


def test_an_unknown_split_lists_the_known_ones(digits: ImageData) -> None:
    with pytest.raises(DataError, match="'val'"):
        digits.indices("val")


def test_images_of_an_image_folder_are_cropped_to_squares(image_folder: Path) -> None:
    data = load_data(DataConfig(dataset="imagefolder", root=image_folder, crop_ratio=0.875), seed=0)
    assert data.images(data.indices("train"), 16).shape == (len(data.indices("train")), 3, 16, 16)
