"""Data sets that Hugging Face's library has saved, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chanas.errors import DataError
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.images import ImageData, load_data
from chanas.supernet.data.sources import load_source, named_images
from chanas.supernet.data.splits import SPLITS

datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the library, and of what it imports


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def images(num: int, mode: str = "RGB") -> list[Image.Image]:
    return [Image.new("RGB", (9, 7), (i, i, i)).convert(mode) for i in range(num)]


def make(num: int, labels: Sequence[Any] | None = None, label: Any = None, **columns: Any) -> Any:
    """A data set of cats and dogs in turns."""
    label = label or datasets.ClassLabel(names=["cat", "dog"])
    features = {"image": datasets.Image(), "label": label, **{name: kind for name, (kind, _) in columns.items()}}
    values = {"image": images(num), "label": labels or [i % 2 for i in range(num)]}
    values |= {name: value for name, (_, value) in columns.items()}
    return datasets.Dataset.from_dict(values, features=datasets.Features(features))


def load(root: Path) -> ImageData:
    return load_data(DataConfig(**named_images(root)), seed=0)


def check(data: ImageData, num: int) -> None:
    assert data.class_names == ("cat", "dog")
    assert sorted(np.concatenate([data.indices(split) for split in SPLITS]).tolist()) == list(range(num))
    assert np.asarray(data.source.image(17))[0, 0, 0] == 17
    assert data.source.labels[17] == 1


def test_a_saved_set_is_split(tmp_path: Path) -> None:
    make(40).with_format("torch").save_to_disk(tmp_path / "set")
    data = load(tmp_path / "set")
    check(data, 40)
    assert data.source.is_test is None
    assert load(tmp_path / "set").splits.digest == data.splits.digest


def test_an_official_test_part_stays_one(tmp_path: Path) -> None:
    secret = make(6, labels=6 * [-1])
    datasets.DatasetDict(validation=make(10), train=make(40), test=secret).save_to_disk(tmp_path / "set")
    data = load(tmp_path / "set")
    check(data, 50)
    assert data.indices("test").tolist() != []
    assert set(data.indices("test").tolist()) == set(range(40, 50))


def test_parquet_files_are_a_set(tmp_path: Path) -> None:
    (tmp_path / "set/data").mkdir(parents=True)
    for name, num in {"train-00000-of-00002": 20, "train-00001-of-00002": 20, "test-00000-of-00001": 10}.items():
        make(num).to_parquet(tmp_path / f"set/data/{name}.parquet")
    data = load(tmp_path / "set")
    assert data.source.is_test is not None
    assert (len(data.source.labels), data.source.is_test.sum()) == (50, 10)
    make(40).to_parquet(tmp_path / "alone.parquet")
    check(load(tmp_path / "alone.parquet"), 40)


@pytest.mark.parametrize(
    ("kind", "values", "names"), [("int64", [3, 7], ("3", "7")), ("string", ["dog", "cat"], ("cat", "dog"))]
)
def test_plain_labels_are_classes(kind: str, values: list[Any], names: tuple[str, ...], tmp_path: Path) -> None:
    make(20, 10 * values, datasets.Value(kind)).save_to_disk(tmp_path / "set")
    assert load(tmp_path / "set").class_names == names


def test_images_may_lie_in_files_of_their_own(tmp_path: Path) -> None:
    for i, image in enumerate(images(20)):
        image.save(tmp_path / f"{i}.png")
    paths = [{"path": str(tmp_path / f"{i}.png"), "bytes": None} for i in range(20)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    dataset = datasets.Dataset.from_dict({"image": paths, "label": 10 * [0, 1]}, features=features)
    dataset.to_parquet(tmp_path / "set.parquet")
    data = load(tmp_path / "set.parquet")
    check(data, 20)
    (tmp_path / "7.png").unlink()
    with pytest.raises(DataError, match=r"image .*7\.png"):
        load(tmp_path / "set.parquet")


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    text = datasets.Value("string")
    faults = {
        "has no column of images, or several; its columns: label .*, note": make(
            20, note=(text, 20 * ["x"])
        ).remove_columns("image"),
        r"no column of images, or several; its columns: a \(.*b \(": make(
            20, b=(datasets.Image(), images(20))
        ).rename_column("image", "a"),
        "no column of labels, or several; its columns: image .*note": make(
            20, note=(datasets.Value("float32"), 20 * [1.0])
        ).remove_columns("label"),
        "2 images of data set .* have no label; the first: row 3": make(20, [0, 1, 0, None, None] + 5 * [0, 1, 0]),
        "has 1 class": make(20, 20 * [0], datasets.ClassLabel(names=["cat"])),
        "class 'dog' of .* has 1 images": make(20, [*19 * [0], 1]),
        "row 0 of .* is not an image": datasets.Dataset.from_dict(
            {"image": 8 * [{"bytes": b"GIF", "path": None}], "label": 4 * [0, 1]}, features=make(2).features
        ),
        "row 2 of .* has no image": datasets.Dataset.from_dict(
            {"image": [*images(2), None, *images(5)], "label": 4 * [0, 1]}, features=make(2).features
        ),
    }
    for number, (says, dataset) in enumerate(faults.items()):
        dataset.save_to_disk(tmp_path / str(number))
        with pytest.raises(DataError, match=says):
            load(tmp_path / str(number))


def test_folders_that_hold_none_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected what save_to_disk writes"):
        load_source(DataConfig(dataset="hf", root=tmp_path))
    with pytest.raises(DataError, match="does not exist"):
        load_source(DataConfig(dataset="hf", root=tmp_path / "none"))
    make(8).save_to_disk(tmp_path / "set")
    (tmp_path / "set/dataset_info.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read by datasets"):
        load(tmp_path / "set")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot be read by datasets"):
        load(tmp_path / "x.parquet")
    datasets.DatasetDict(a=make(8), b=make(8)).save_to_disk(tmp_path / "parts")
    with pytest.raises(DataError, match="no part 'train'; its parts: a, b"):
        load(tmp_path / "parts")
