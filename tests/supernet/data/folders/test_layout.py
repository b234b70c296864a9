"""Parts are parts, classes are classes, and what can be read in two ways is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from chanas.errors import DataError
from chanas.supernet.data.folders.layout import Layout, find_layout, parts_of, parts_of_files


def made(root: Path, *names: str) -> Path:
    """Images of these names; folders where a name ends with a slash."""
    for name in names:
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            Image.new("RGB", (2, 2)).save(path)
    return root


def classes(*folders: str) -> tuple[str, ...]:
    """An image in each of two classes in each of the folders."""
    return tuple(f"{folder}/{name}/0.png" for folder in folders for name in ("cat", "dog"))


def shown(layout: Layout) -> dict[str, list[str]]:
    """Folders of the classes of each part."""
    return {part: [str(p.relative_to(layout.root)) for p in found.values()] for part, found in layout.parts.items()}


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (("train", "valid"), "train holdout"),
        (("Training", "Testing"), "train test"),
        (("training_set", "test_set"), "train test"),
        (("TRAIN", "VAL", "TEST"), "train holdout test"),
        (("trainSet", "DevSet", "testset"), "train holdout test"),
        (("train2017", "val2017"), "train holdout"),
        (("01-train", "02-eval"), "train holdout"),
        (("Training Images", "validation.images"), "train holdout"),
        (("seg_train", "seg_test", "seg_pred"), "train test"),
        (("train_data", "Test Data"), "train test"),
        (("cat", "dog"), ""),
        (("train_station", "bus_station"), ""),
        (("evaluator", "trainer", "contest", "valley", "tested"), ""),
    ],
)
def test_names_stand_for_parts(names: tuple[str, ...], roles: str) -> None:
    assert " ".join(parts_of(names).values()) == roles


def test_of_three_parts_the_second_is_the_holdout_and_of_two_the_test_part(tmp_path: Path) -> None:
    three = find_layout(made(tmp_path / "3", *classes("train", "valid", "test")))
    folders = {"train": "train", "holdout": "valid", "test": "test"}
    assert shown(three) == {part: [f"{name}/cat", f"{name}/dog"] for part, name in folders.items()}
    assert "valid is the holdout split" in three.notes[0]
    two = find_layout(made(tmp_path / "2", *classes("train", "valid")))
    assert list(two.parts) == ["train", "test"]
    assert "valid is the test split" in two.notes[0]


def test_classes_next_to_one_part_are_the_training_part(tmp_path: Path) -> None:
    layout = find_layout(made(tmp_path, "cat/0.png", "dog/0.png", *classes("test")))
    assert shown(layout) == {"train": ["cat", "dog"], "test": ["test/cat", "test/dog"]}


@pytest.mark.parametrize("folder", ["set", "set/set", "set/images/train"])
def test_a_folder_in_a_folder_is_opened(tmp_path: Path, folder: str) -> None:
    layout = find_layout(made(tmp_path, *classes(folder), "sample.png"))
    assert layout.left_out == {f"next to {folder.partition('/')[0]}": 1}
    assert shown(layout) == {"train": [f"{folder}/cat", f"{folder}/dog"]}
    assert folder in layout.notes[0]


def test_parts_are_opened_likewise(tmp_path: Path) -> None:
    layout = find_layout(made(tmp_path, *classes("seg_train/seg_train", "seg_test/seg_test"), "seg_pred/0.png"))
    assert shown(layout)["test"] == ["seg_test/seg_test/cat", "seg_test/seg_test/dog"]
    assert layout.left_out == {"in seg_pred": 1}


def test_a_vehicle_may_be_a_train(tmp_path: Path) -> None:
    layout = find_layout(made(tmp_path, "bus/0.png", "train/0.png"))
    assert shown(layout) == {"train": ["bus", "train"]}
    assert "'train' is taken for a class" in layout.notes[0]


def test_what_lies_next_to_the_folders_is_counted(tmp_path: Path) -> None:
    layout = find_layout(made(tmp_path, *classes("train", "test"), "a.png", "b.png", "train/c.png", "extra/d.png"))
    assert layout.left_out == {"next to the folders": 2, "next to the classes of train": 1, "in extra": 1}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("train/0.png", "test/0.png"), "train holds 1 images but no class folders"),
        (("cat/0.png", "dog/0.png", "test/0.png"), "test holds 1 images but no class folders"),
        ((*classes("train"), "val/0.png"), "val holds 1 images but no class folders"),
        ((*classes("train", "val", "validation"),), "both val and validation"),
        ((*classes("val", "test"),), "no part to train on"),
        ((*classes("train"), "extra/0.png"), "extra next to it"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(tmp_path: Path, names: tuple[str, ...], words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        find_layout(made(tmp_path, *names))
    assert "\n" not in str(caught.value)


def test_files_are_of_parts_by_a_word_of_their_names() -> None:
    assert parts_of_files(["set-train-000.tar", "set-train-001.tar", "set-val-000.tar"]) == {
        "set-train-000.tar": "train",
        "set-train-001.tar": "train",
        "set-val-000.tar": "test",
    }
    assert parts_of_files(["train-000.tar", "train-001.tar"]) == {}
    assert parts_of_files(["000.tar", "001.tar"]) == {}
    with pytest.raises(DataError, match=r"001\.tar is not"):
        parts_of_files(["train-000.tar", "val-000.tar", "001.tar"])
