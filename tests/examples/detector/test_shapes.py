"""Images of shapes: the same again from the same seed, with boxes around what was drawn, in COCO's format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from shapes import CLASSES, LEAST_SIDE, MOST_SIDE, draw, paint, random_outline, write_coco

SEEN = [draw("train", 0, number, 128) for number in range(40)]


def test_an_image_is_the_same_again() -> None:
    first, again = draw("val", 3, 7, 160), draw("val", 3, 7, 160)
    np.testing.assert_array_equal(first.pixels, again.pixels)
    np.testing.assert_array_equal(first.boxes, again.boxes)
    np.testing.assert_array_equal(first.labels, again.labels)


@pytest.mark.parametrize("other", [("train", 0, 5), ("val", 1, 5), ("val", 0, 6)])
def test_another_split_seed_or_number_is_another_image(other: tuple[str, int, int]) -> None:
    assert (draw("val", 0, 5, 96).pixels != draw(*other, 96).pixels).any()


def test_every_class_is_drawn_and_every_image_has_an_object() -> None:
    assert {int(label) for scene in SEEN for label in scene.labels} == set(range(len(CLASSES)))
    assert min(len(scene.labels) for scene in SEEN) >= 1


def test_boxes_lie_in_the_image_and_have_the_sizes_that_are_drawn() -> None:
    for scene in SEEN:
        assert scene.pixels.shape == (128, 128, 3)
        assert scene.boxes.shape == (len(scene.labels), 4)
        assert scene.boxes.min() >= 0.0
        assert scene.boxes.max() <= 127.0
        longer = (scene.boxes[:, 2:] - scene.boxes[:, :2]).max(axis=1)
        assert longer.min() > LEAST_SIDE - 0.01
        assert longer.max() < MOST_SIDE


def test_larger_images_have_more_objects_of_the_same_sizes() -> None:
    large = [draw("train", 0, number, 416) for number in range(20)]
    assert np.mean([len(s.labels) for s in large]) > 1.5 * np.mean([len(s.labels) for s in SEEN])
    sides = [np.median(np.concatenate([s.boxes[:, 2] - s.boxes[:, 0] for s in scenes])) for scenes in (SEEN, large)]
    assert 0.7 < sides[1] / sides[0] < 2.0  # 3.25 if they grew with the image


@pytest.mark.parametrize("name", CLASSES)
def test_a_shape_is_painted_from_edge_to_edge_of_its_box(name: str, rng: np.random.Generator) -> None:
    for _ in range(20):
        image = Image.new("RGB", (160, 160))
        corners = random_outline(rng, name, 160)
        paint(rng, image, name, corners)
        rows, columns = np.nonzero(np.asarray(image).any(axis=2))
        edges = np.array([columns.min(), rows.min(), columns.max(), rows.max()])
        np.testing.assert_allclose(edges, [*corners.min(axis=0), *corners.max(axis=0)], atol=1.5)


def test_pycocotools_reads_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = COCO(str(write_coco(tmp_path, "val", 0, 3, 96)))
    assert [c["name"] for c in truth.loadCats(truth.getCatIds())] == list(CLASSES)
    for number, image in enumerate(truth.loadImgs(sorted(truth.getImgIds()))):
        scene = draw("val", 0, number, 96)
        annotations = truth.loadAnns(truth.getAnnIds(image["id"]))
        assert [a["category_id"] - 1 for a in annotations] == scene.labels.tolist()
        x, y, width, height = np.array([a["bbox"] for a in annotations]).T
        np.testing.assert_allclose(np.stack([x, y, x + width, y + height], axis=1), scene.boxes, rtol=1e-6)
        with Image.open(tmp_path / "images" / image["file_name"]) as file:
            assert file.size == (image["width"], image["height"]) == (96, 96)
            assert np.abs(np.asarray(file, np.float32) - scene.pixels).mean() < 12.0
    assert "index created" in capsys.readouterr().out
