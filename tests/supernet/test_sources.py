"""Images come from where a name says, and what cannot be used is refused in one line that names it."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chanas.errors import DataError
from chanas.supernet.data_config import DataConfig
from chanas.supernet.sources import ArraySource, load_source


def folder_config(root: Path, convert_rgb: bool = False) -> DataConfig:
    return DataConfig(dataset="imagefolder", root=root, convert_rgb=convert_rgb)


def test_digits_are_32_pixel_rgb_images_of_ten_classes() -> None:
    source = load_source(DataConfig(dataset="digits"))
    assert isinstance(source, ArraySource)
    assert source.pixels.shape == (1797, 32, 32, 3)
    assert source.pixels.dtype == np.uint8
    assert source.class_names == tuple("0123456789")
    assert source.image(5).mode == "RGB"
    assert source.pixels.max() == 255


def test_an_image_folder_gives_its_classes_in_order(image_folder: Path) -> None:
    source = load_source(folder_config(image_folder))
    assert source.class_names == ("dark", "light")
    assert source.labels.tolist() == [0] * 8 + [1] * 8
    assert np.asarray(source.image(0)).mean() < np.asarray(source.image(15)).mean()
    assert source.is_test is None


def test_an_image_folder_with_train_and_val_keeps_val_as_test(image_folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "official"
    shutil.copytree(image_folder, root / "train")
    shutil.copytree(image_folder, root / "val")
    source = load_source(folder_config(root))
    assert source.class_names == ("dark", "light")
    assert source.is_test is not None
    assert source.is_test.tolist() == [False] * 16 + [True] * 16
    (root / "val" / "grey").mkdir()
    with pytest.raises(DataError, match=r"class folder 'grey' that .*train lacks"):
        load_source(folder_config(root))


def test_the_digest_of_a_folder_notices_a_new_image(image_folder: Path) -> None:
    before = load_source(folder_config(image_folder)).digest()
    assert load_source(folder_config(image_folder)).digest() == before
    shutil.copy(image_folder / "dark" / "0.png", image_folder / "dark" / "9.png")
    assert load_source(folder_config(image_folder)).digest() != before


def test_an_unknown_data_set_lists_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"unknown data set 'digit'; known: cifar10, .*digits, .*imagefolder"):
        load_source(DataConfig(dataset="digit"))


def test_a_torchvision_set_that_is_not_there_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"cifar10 does not lie in {tmp_path}.*downloads nothing") as caught:
        load_source(DataConfig(dataset="cifar10", root=tmp_path))
    assert "\n" not in str(caught.value)


def test_an_image_folder_needs_a_root() -> None:
    with pytest.raises(DataError, match="needs `root`"):
        load_source(DataConfig(dataset="imagefolder"))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent does not exist"):
        load_source(folder_config(tmp_path / "absent"))


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no class folders"):
        load_source(folder_config(tmp_path))


def test_an_empty_class_is_named(image_folder: Path) -> None:
    (image_folder / "empty").mkdir()
    with pytest.raises(DataError, match=r"class folder .*empty holds no images"):
        load_source(folder_config(image_folder))


def test_one_class_is_not_enough(image_folder: Path) -> None:
    shutil.rmtree(image_folder / "light")
    with pytest.raises(DataError, match=r"has 1 class \(dark\).*at least 2"):
        load_source(folder_config(image_folder))


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n then nothing"])
def test_a_corrupt_image_is_named(image_folder: Path, content: bytes) -> None:
    (image_folder / "dark" / "3.png").write_bytes(content)
    with pytest.raises(DataError, match=r"dark/3\.png is not an image that can be read"):
        load_source(folder_config(image_folder))


def test_a_truncated_image_is_named(image_folder: Path) -> None:
    whole = (image_folder / "light" / "2.png").read_bytes()
    (image_folder / "light" / "2.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"light/2\.png is not an image that can be read"):
        load_source(folder_config(image_folder))


def test_an_image_of_one_channel_is_refused_unless_it_may_be_converted(image_folder: Path) -> None:
    Image.new("L", (20, 20)).save(image_folder / "dark" / "grey.png")
    with pytest.raises(DataError, match=r"mode L \(1 channels\) in .*grey\.png"):
        load_source(folder_config(image_folder))
    source = load_source(folder_config(image_folder, convert_rgb=True))
    assert source.image(8).mode == "RGB"


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten random images a batch in CIFAR-10's own file format."""
    from torchvision.datasets import CIFAR10

    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, _ in [*CIFAR10.train_list, *CIFAR10.test_list]:
        content = {"data": rng.integers(0, 256, (10, 3072), dtype=np.uint8), "labels": list(range(10))}
        (folder / name).write_bytes(pickle.dumps(content))
    classes = [f"thing {i}" for i in range(10)]
    (folder / CIFAR10.meta["filename"]).write_bytes(pickle.dumps({CIFAR10.meta["key"]: classes}))
    return tmp_path


def test_a_torchvision_set_on_disk_keeps_its_official_test_split(cifar10: Path) -> None:
    source = load_source(DataConfig(dataset="cifar10", root=cifar10))
    assert isinstance(source, ArraySource)
    assert source.pixels.shape == (60, 32, 32, 3)
    assert source.is_test is not None
    assert source.is_test.sum() == 10
    assert source.class_names[3] == "thing 3"
