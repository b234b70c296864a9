"""An inspection says what there is, what is used, and what is not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.inspection import pictures
from chanas.supernet.data.inspection.summary import Inspection
from chanas.supernet.data.sources import inspect_source


def inspected(root: Path) -> Inspection:
    return inspect_source(DataConfig(dataset="imagefolder", root=root))[1]


def test_numbers_sizes_and_colours_are_told(image_folder: Path) -> None:
    Image.new("L", (24, 20), 255).save(image_folder / "light" / "grey.png")
    found = inspected(image_folder)
    assert found.num_by_class == {"dark": 8, "light": 9}
    assert found.num_by_part == {"train": 17}
    assert found.median_size == (24, 23)
    assert found.grey_share == pytest.approx(1 / 17)
    assert found.lines()[0] == ("17 images of 2 classes, 8 (dark) to 9 (light) each; 24 × 23 pixels (median), 6% grey")


def test_mean_and_deviation_are_those_of_the_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(12):
        pixels = rng.integers(0, 256, (64, 64, 3)) // (1, 2, 4)
        (tmp_path / f"c{number % 2}").mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"c{number % 2}" / f"{number}.png")
    found = inspected(tmp_path)
    np.testing.assert_allclose(found.mean, (0.5, 0.25, 0.125), atol=0.02)
    np.testing.assert_allclose(found.std, np.array([1, 0.5, 0.25]) / 12**0.5, atol=0.02)


def test_copies_and_contradictions_are_told(image_folder: Path) -> None:
    shutil.copy(image_folder / "dark" / "0.png", image_folder / "dark" / "again.png")
    shutil.copy(image_folder / "dark" / "1.png", image_folder / "light" / "wrong.png")
    found = inspected(image_folder)
    assert found.num_copies == 2
    assert any("dark/1.png and light/wrong.png" in line for line in found.lines())


def test_copies_in_an_official_part_are_told(image_folder: Path, tmp_path: Path) -> None:
    for part in ("train", "test"):
        shutil.copytree(image_folder, tmp_path / "set" / part)
    assert any(line.startswith("warning: copies in several parts: 16") for line in inspected(tmp_path / "set").lines())
    for folder in ("dark", "light"):
        for number in range(1, 8):
            (tmp_path / "set" / "test" / folder / f"{number}.png").unlink()
    assert any(line.startswith("copies in several parts: 2") for line in inspected(tmp_path / "set").lines())


def test_what_is_left_out_is_counted(image_folder: Path) -> None:
    for name in ("a.heic", "b.heic", ".c.png", "noending"):
        (image_folder / "dark" / name).touch()
    Image.new("RGB", (4, 4)).save(image_folder / "loose.png")
    lines = inspected(image_folder).lines()
    assert "left out: 5 files: .heic 2, hidden or generated 1, next to the folders 1, no ending 1" in lines


def test_images_that_are_known_are_not_read_again(image_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = inspected(image_folder)
    read: list[Sequence[int]] = []
    monkeypatch.setattr(pictures, "_facts", lambda source, index: read.append(index))
    image_folder.rename(image_folder.with_name("moved"))
    assert inspected(image_folder.with_name("moved")).mean == first.mean
    assert read == []


def test_images_in_memory_are_looked_at_too() -> None:
    found = inspect_source(DataConfig())[1]
    assert found.num_images == 1797
    assert found.median_size == (32, 32)
    assert found.grey_share == 1.0
