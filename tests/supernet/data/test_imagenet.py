"""chanas/supernet/data/imagenet.py: folders of ImageNet's classes, however they are called, and none at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chanas.errors import DataError
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.imagenet import NUM_CLASSES
from chanas.supernet.data.images import load_data
from chanas.supernet.data.sources import load_source
from chanas.supernet.data.splits import MIN_DRAWN, SPLITS, load_splits, save_splits

from ..tars import png, write_shard


def config(root: Path | None) -> DataConfig:
    return DataConfig(dataset="imagenet", root=root)


def folders(root: Path, names: Sequence[str], num_images: int = 1) -> Path:
    for shade, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(num_images):
            Image.new("RGB", (20, 24 + number), (shade % 256, shade // 256, 0)).save(root / name / f"{number}.png")
    return root


@pytest.mark.parametrize(
    ("names", "labels"),
    [(["10", "2", "0999"], {2, 10, 999}), (["goldfish", "Great_White_Shark"], {1, 2})],
    ids=["numbers", "names"],
)
def test_folders_are_called_by_number_or_name(names: list[str], labels: set[int], tmp_path: Path) -> None:
    source = load_source(config(folders(tmp_path, names)))
    assert set(source.labels.tolist()) == labels
    assert len(source.class_names) == NUM_CLASSES
    assert source.class_names[1] == "goldfish"


def test_all_synsets_are_in_order(tmp_path: Path) -> None:
    names = [f"n{number:08d}" for number in range(NUM_CLASSES)]
    source = load_source(config(folders(tmp_path, names)))
    assert source.labels.tolist() == list(range(NUM_CLASSES))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "there is none"),
        (["train/7", "val/7"], "val is the test split.* name the folder of one of them"),
        (["n01443537"], "'n01443537' is not"),
        (["1000"], "'1000' is not"),
        (["7", "07"], "two are of one class"),
        (["cardigan"], "'cardigan' is not"),
    ],
)
def test_other_folders_are_refused(names: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        load_source(config(folders(tmp_path, names)))
    with pytest.raises(DataError, match="does not exist"):
        load_source(config(tmp_path / "nowhere"))


def test_shards_with_numbers_or_names_as_labels_are_such_images(tmp_path: Path) -> None:
    for name, labels in {"numbers": ("1", "340"), "names": ("goldfish", "zebra")}.items():
        members = {f"{i}.{ending}": data for i in range(4) for ending, data in _sample(labels[i % 2]).items()}
        source = load_source(config(write_shard(tmp_path / f"{name}.tar", members)))
        assert source.labels.tolist() == [1, 340, 1, 340]
        assert source.class_names[340] == "zebra"
    with pytest.raises(DataError, match="'gnu' is not"):
        load_source(config(write_shard(tmp_path / "odd.tar", {f"1.{k}": v for k, v in _sample("gnu").items()})))


def _sample(label: str) -> dict[str, bytes]:
    return {"png": png(7), "cls": label.encode()}


def test_images_are_split_whatever_their_classes(tmp_path: Path) -> None:
    data = load_data(config(folders(tmp_path / "images", ["0", "7"], MIN_DRAWN // 2)), seed=0)
    sizes = {name: len(data.indices(name)) for name in SPLITS}
    assert sizes == {"train": 19, "gap": 1, "holdout": 20, "test": 10}
    assert sorted(np.concatenate([data.indices(name) for name in SPLITS])) == list(range(MIN_DRAWN))
    with pytest.raises(DataError, match="at least 50"):
        load_data(config(folders(tmp_path / "few", ["0", "7"])), seed=0)


def test_no_images_are_a_data_set_too(tmp_path: Path) -> None:
    data = load_data(config(None), seed=0)
    assert data.num_classes == NUM_CLASSES
    assert not any(len(data.indices(name)) for name in SPLITS)
    save_splits(tmp_path / "splits.json", data.splits)
    assert load_splits(tmp_path / "splits.json", data.source).digest == data.splits.digest
