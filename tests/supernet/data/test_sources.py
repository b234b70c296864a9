"""Images come from where a name says, and what cannot be used is refused in one line that names it."""

from __future__ import annotations

import inspect
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torchvision.datasets

from chanas.errors import DataError
from chanas.supernet.data import hugging_face
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.image_source import ArraySource, EncodedSource
from chanas.supernet.data.sources import TORCHVISION_SETS, check_classes, load_source, named_images


def test_digits_are_32_pixel_rgb_images_of_ten_classes() -> None:
    source = load_source(DataConfig(dataset="digits"))
    assert isinstance(source, ArraySource)
    assert source.pixels.shape == (1797, 32, 32, 3)
    assert source.pixels.dtype == np.uint8
    assert source.class_names == tuple("0123456789")
    assert source.image(5).mode == "RGB"
    assert source.pixels.max() == 255


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


def made_up(labels: list[int], num_classes: int, is_test: list[bool] | None = None) -> ArraySource:
    pixels = np.zeros((len(labels), 2, 2, 3), np.uint8)
    names = tuple(f"c{i}" for i in range(num_classes))
    return ArraySource(
        "made up", names, np.array(labels), pixels, is_test=None if is_test is None else np.array(is_test)
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (made_up([0, 0], 1), r"made up has 1 class \(c0\); classification needs at least 2"),
        (made_up([0, 1], 3), r"made up has 2 images for 3 classes; every class needs several"),
        (
            made_up([0, 1, 0], 2, [False, False, True]),
            r"class 'c1' of data set made up has images in its training part, but none in its official test part",
        ),
        (
            made_up([0, 0, 1], 2, [False, True, True]),
            r"class 'c1' of data set made up has images in its official test part, but none in its training part",
        ),
    ],
)
def test_classes_that_cannot_be_learned_or_judged_are_refused(source: ArraySource, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        check_classes(source)
    assert "\n" not in str(caught.value)


# ---- torchvision's sets in files ----------------------------------------------------------------------------------
@pytest.fixture
def eurosat(tmp_path: Path, image_folder: Path) -> DataConfig:
    """The two classes of images as EuroSAT would lie on disk."""
    (tmp_path / "eurosat").mkdir()
    image_folder.rename(tmp_path / "eurosat" / "2750")
    return DataConfig(dataset="eurosat", root=tmp_path)


def first_image(config: DataConfig) -> Path:
    assert config.root is not None
    return config.root / "eurosat" / "2750" / "dark" / "0.png"


def test_a_set_in_files_is_read_image_by_image(eurosat: DataConfig) -> None:
    source = load_source(eurosat)
    assert isinstance(source, EncodedSource)
    assert source.labels.tolist() == [0] * 8 + [1] * 8
    assert source.image(9).size == (24, 21)


@pytest.mark.parametrize("change", ["add", "remove", "replace"])
def test_the_digest_of_a_set_in_files_notices_a_change(eurosat: DataConfig, change: str) -> None:
    before, path = load_source(eurosat).digest(), first_image(eurosat)
    assert load_source(eurosat).digest() == before
    if change == "add":
        path.with_name("new.png").write_bytes(path.read_bytes())
    elif change == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + b"0")
    assert load_source(eurosat).digest() != before


def test_the_digest_of_a_set_in_files_stays_when_it_moves(eurosat: DataConfig) -> None:
    before = load_source(eurosat).digest()
    assert eurosat.root is not None
    moved = eurosat.root / "elsewhere"
    moved.mkdir()
    (eurosat.root / "eurosat").rename(moved / "eurosat")
    assert load_source(DataConfig(dataset="eurosat", root=moved)).digest() == before


def test_a_damaged_image_of_a_set_in_files_is_named(eurosat: DataConfig) -> None:
    source = load_source(eurosat)
    first_image(eurosat).write_bytes(b"gone")
    with pytest.raises(DataError, match=r"dark/0\.png of eurosat"):
        source.image(0)
    first_image(eurosat).unlink()
    with pytest.raises(DataError, match=r"dark/0\.png of eurosat"):
        source.image(0)


def test_a_set_in_files_still_lists_them_where_it_is_looked_for() -> None:
    """The attributes are torchvision's own business: an upgrade that renames one is noticed here."""
    for known in TORCHVISION_SETS.values():
        text = inspect.getsource(getattr(torchvision.datasets, known.class_name))
        names = ("self._image_files", "self._images", "self._samples", "DatasetFolder", "ImageFolder")
        assert known.in_memory or any(name in text for name in names), known.class_name


def test_opening_a_saved_set_changes_nothing_for_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", ModuleType("datasets"))
    before = dict(os.environ)
    hugging_face._library()
    assert dict(os.environ) == before


def test_a_set_by_its_name_is_no_path(tmp_path: Path) -> None:
    assert named_images("cifar10") == {"dataset": "cifar10"}
    assert named_images(tmp_path) == {"dataset": "imagefolder", "root": str(tmp_path)}
    with pytest.raises(DataError, match="nowhere does not exist"):
        named_images(tmp_path / "nowhere")
