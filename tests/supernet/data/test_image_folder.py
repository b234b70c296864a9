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
from chanas.supernet.data.image_source import EncodedSource
from chanas.supernet.data.sources import inspect_source, load_source


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
    with pytest.raises(DataError, match="class light is missing"):
        load_source(folder_config(official))
    (official / "val" / "light").mkdir()
    with pytest.raises(DataError, match="no images in class light"):
        load_source(folder_config(official))


def test_of_three_parts_val_is_the_holdout_split(official: Path) -> None:
    (official / "val").rename(official / "Validation")
    shutil.copytree(official / "train", official / "test")
    source = load_source(folder_config(official))
    assert source.is_holdout is not None
    assert source.is_test is not None
    assert source.is_holdout.tolist() == [False] * 16 + [True] * 16 + [False] * 16
    assert source.is_test.tolist() == [False] * 32 + [True] * 16


def test_parts_may_lie_in_the_class_folders(image_folder: Path) -> None:
    for folder in image_folder.iterdir():
        for part, number in (("train", 6), ("test", 2)):
            (folder / part).mkdir()
            for file in sorted(folder.glob("*.png"))[:number]:
                file.rename(folder / part / file.name)
    source = load_source(folder_config(image_folder))
    assert source.class_names == ("dark", "light")
    assert source.is_test is not None
    assert source.is_test.tolist() == [False] * 12 + [True] * 4
    assert source.labels.tolist() == [0] * 6 + [1] * 6 + [0] * 2 + [1] * 2
    (image_folder / "light" / "test").rename(image_folder / "light" / "more")
    with pytest.raises(DataError, match="dark holds test, train, light holds train"):
        load_source(folder_config(image_folder))


def test_images_are_in_the_order_of_their_paths_part_by_part(tmp_path: Path) -> None:
    for number, name in enumerate(("a/x.png", "a/x/z.png", "a/x-y.png", "a.b/1.PNG", "a.b/notes.txt")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path, "png")
    source = load_source(folder_config(tmp_path))
    assert isinstance(source, EncodedSource)
    assert tuple(source.keys) == ("a/x/z.png", "a/x-y.png", "a/x.png", "a.b/1.PNG")
    assert source.labels.tolist() == [0, 0, 0, 1]
    assert source.left_out == {".txt": 1}


# ---- what a digest notices ----------------------------------------------------------------------------------------
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


def test_other_pixels_in_a_file_of_the_same_name_size_and_time_are_noticed(image_folder: Path) -> None:
    one = image_folder / "dark" / "a.bmp"
    Image.new("RGB", (9, 9)).save(one)
    before, status = load_source(folder_config(image_folder)).digest(), one.stat()
    Image.new("RGB", (9, 9), (0, 0, 99)).save(one)
    os.utime(one, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = one.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (status.st_ino, status.st_size, status.st_mtime_ns)
    assert load_source(folder_config(image_folder)).digest() != before


def test_the_digest_stays_when_the_folder_moves(image_folder: Path) -> None:
    before = load_source(folder_config(image_folder)).digest()
    moved = image_folder.rename(image_folder.with_name("elsewhere"))
    assert load_source(folder_config(moved)).digest() == before


def test_a_name_that_is_not_unicode_has_a_digest(image_folder: Path) -> None:
    try:
        shutil.copy(image_folder / "dark" / "0.png", os.fsencode(image_folder / "dark") + b"/\xff.png")
    except OSError:
        pytest.skip("this file system has Unicode names only")
    assert len(load_source(folder_config(image_folder)).digest()) == 16


# ---- what cannot be used ------------------------------------------------------------------------------------------
CORRUPT = (b"", b"not an image", b"\x89PNG\r\n\x1a\n then nothing")


def test_all_images_that_cannot_be_used_are_named_at_once(image_folder: Path) -> None:
    for number, content in enumerate(CORRUPT):
        (image_folder / "dark" / f"{number}.png").write_bytes(content)
    whole = (image_folder / "light" / "2.png").read_bytes()
    (image_folder / "light" / "2.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="4 of 16 images") as caught:
        load_source(folder_config(image_folder))
    assert all(name in str(caught.value) for name in ("dark/0.png", "dark/1.png", "dark/2.png", "light/2.png"))
    assert "\n" not in str(caught.value)


def test_the_first_ten_of_many_are_named(image_folder: Path) -> None:
    for number in range(14):
        (image_folder / "dark" / f"bad-{number:02}.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"14 of 30 images .* and 4 more") as caught:
        load_source(folder_config(image_folder))
    assert "bad-09.png" in str(caught.value)
    assert "bad-10.png" not in str(caught.value)


def test_images_that_cannot_be_used_are_left_out_when_asked(image_folder: Path) -> None:
    (image_folder / "dark" / "3.png").write_bytes(b"")
    config = folder_config(image_folder).model_copy(update={"skip_bad": True})
    source, inspection = inspect_source(config)
    assert source.labels.tolist() == [0] * 7 + [1] * 8
    assert [source.key(i) for i in range(5)] == [f"dark/{i}.png" for i in (0, 1, 2, 4, 5)]
    assert np.asarray(source.image(6)).mean() < np.asarray(source.image(7)).mean()
    assert list(inspection.bad) == ["dark/3.png"]
    assert any("dark/3.png" in line for line in inspection.lines())


def test_a_grey_image_is_used(image_folder: Path) -> None:
    Image.new("L", (20, 20)).save(image_folder / "dark" / "grey.png")
    assert load_source(folder_config(image_folder)).image(8).mode == "RGB"
