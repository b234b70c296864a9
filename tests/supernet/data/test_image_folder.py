"""An image folder is read in one pass, and what cannot be used is refused in one line that names it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chanas.errors import DataError
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.image_folder import FileSource, content_digest
from chanas.supernet.data.sources import load_source


def folder_config(root: Path) -> DataConfig:
    return DataConfig(dataset="imagefolder", root=root)


def test_an_image_folder_gives_its_classes_in_order(image_folder: Path) -> None:
    source = load_source(folder_config(image_folder))
    assert source.class_names == ("dark", "light")
    assert source.labels.tolist() == [0] * 8 + [1] * 8
    assert np.asarray(source.image(0)).mean() < np.asarray(source.image(15)).mean()
    assert source.is_test is None


@pytest.fixture
def official(image_folder: Path, tmp_path: Path) -> Path:
    """The same images under `train` and as an official test part under `val`."""
    for part in ("train", "val"):
        shutil.copytree(image_folder, tmp_path / "official" / part)
    return tmp_path / "official"


def test_an_image_folder_with_train_and_val_keeps_val_as_test(official: Path) -> None:
    source = load_source(folder_config(official))
    assert source.class_names == ("dark", "light")
    assert source.is_test is not None
    assert source.is_test.tolist() == [False] * 16 + [True] * 16


def test_classes_may_be_called_train_and_test(image_folder: Path) -> None:
    (image_folder / "dark").rename(image_folder / "train")
    (image_folder / "light").rename(image_folder / "test")
    assert load_source(folder_config(image_folder)).class_names == ("test", "train")


def test_without_an_official_test_part_train_alone_is_the_set(image_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(image_folder, tmp_path / "official" / "train")
    source = load_source(folder_config(tmp_path / "official"))
    assert source.class_names == ("dark", "light")
    assert source.is_test is None


def test_a_test_folder_without_classes_gives_way_to_val(official: Path) -> None:
    (official / "test").mkdir()
    shutil.copy(official / "val" / "dark" / "0.png", official / "test")
    source = load_source(folder_config(official))
    assert source.is_test is not None
    assert source.is_test.sum() == 16


def test_a_class_that_the_official_test_part_lacks_is_named(official: Path) -> None:
    shutil.rmtree(official / "val" / "light")
    with pytest.raises(DataError, match="'light'"):
        load_source(folder_config(official))
    (official / "val" / "light").mkdir()
    with pytest.raises(DataError, match=r"class folder .*val/light holds no images"):
        load_source(folder_config(official))


# ---- what a digest notices ----------------------------------------------------------------------------------------
def test_the_digest_of_a_folder_is_of_paths_and_sizes_in_order_of_their_parts(tmp_path: Path) -> None:
    for name in ("a/x.png", "a/x/z.png", "a/x-y.png", "a.b/1.PNG", "a.b/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path, "png")
    source = load_source(folder_config(tmp_path))
    assert isinstance(source, FileSource)
    assert source.names == ("a/x/z.png", "a/x-y.png", "a/x.png", "a.b/1.PNG")
    assert source.labels.tolist() == [0, 0, 0, 1]
    by_hand = [f"{name} {(tmp_path / name).stat().st_size}\n".encode() for name in source.names]
    assert source.digest() == content_digest(by_hand)


@pytest.mark.parametrize("change", ["add", "remove", "replace", "rename", "move"])
def test_the_digest_of_a_folder_notices_a_change(image_folder: Path, change: str) -> None:
    before = load_source(folder_config(image_folder)).digest()
    assert load_source(folder_config(image_folder)).digest() == before
    one = image_folder / "dark" / "0.png"
    if change == "add":
        shutil.copy(one, image_folder / "dark" / "9.png")
    elif change == "remove":
        one.unlink()
    elif change == "replace":
        Image.new("RGB", (9, 9)).save(one)
    elif change == "rename":
        one.rename(one.with_name("a.png"))
    else:
        one.rename(image_folder / "light" / "a.png")
    assert load_source(folder_config(image_folder)).digest() != before


def test_the_digest_stays_when_the_folder_moves(image_folder: Path) -> None:
    before = load_source(folder_config(image_folder)).digest()
    moved = image_folder.rename(image_folder.with_name("elsewhere"))
    assert load_source(folder_config(moved)).digest() == before


def test_links_are_followed_to_images_but_not_to_folders(image_folder: Path) -> None:
    (image_folder / "dark" / "again.png").symlink_to(image_folder / "light" / "0.png")
    (image_folder / "dark" / "up").symlink_to(image_folder)
    (image_folder / "dark" / "up.png").symlink_to(image_folder)
    source = load_source(folder_config(image_folder))
    assert isinstance(source, FileSource)
    assert [name for name in source.names if "again" in name or "up" in name] == ["dark/again.png"]
    assert source.sizes[8] == (image_folder / "light" / "0.png").stat().st_size


def test_a_name_that_is_not_unicode_has_a_digest(image_folder: Path) -> None:
    try:
        shutil.copy(image_folder / "dark" / "0.png", os.fsencode(image_folder / "dark") + b"/\xff.png")
    except OSError:
        pytest.skip("this file system has Unicode names only")
    assert len(load_source(folder_config(image_folder)).digest()) == 16


# ---- what is refused ----------------------------------------------------------------------------------------------
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


def test_a_grey_image_is_used(image_folder: Path) -> None:
    Image.new("L", (20, 20)).save(image_folder / "dark" / "grey.png")
    assert load_source(folder_config(image_folder)).image(8).mode == "RGB"
