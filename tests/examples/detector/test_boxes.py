"""Boxes in maps: what is planted comes out, and of boxes on each other the surest stays."""

from __future__ import annotations

import numpy as np
import pytest
from boxes import ANCHORS, decode, detect
from shapes import CLASSES, draw

from .planting import NEVER, SURE, planted


@pytest.mark.parametrize("box", [(100.0, 40.0, 130.0, 66.0), (200.5, 210.25, 330.0, 340.0), (0.0, 0.0, 21.0, 24.0)])
def test_a_planted_box_comes_out(box: tuple[float, ...]) -> None:
    found = detect(planted(np.array([box], np.float32), np.array([2]), 4, 416), 416)
    np.testing.assert_allclose(found.boxes, [box], atol=0.01)
    assert found.labels.tolist() == [2]
    assert found.scores[0] > 0.999


@pytest.mark.parametrize("number", range(5))
def test_all_objects_of_an_image_come_out(number: int) -> None:
    scene = draw("val", 0, number)
    found = detect(planted(scene.boxes, scene.labels, len(CLASSES), 416), 416, most_iou=0.9)
    for box, label in zip(scene.boxes, scene.labels, strict=True):
        of_class = found.boxes[found.labels == label]
        assert np.abs(of_class - box).max(axis=1).min() < 0.01


def test_the_order_of_maps_does_not_matter() -> None:
    heads = planted(np.array([(100.0, 40.0, 150.0, 90.0)], np.float32), np.array([1]), 4, 160)
    np.testing.assert_allclose(detect(heads, 160).boxes, detect(heads[::-1], 160).boxes, atol=1e-4)


def test_channels_are_x_y_width_height_objectness_and_classes() -> None:
    head = np.full((1, 3 * 7, 2, 2), NEVER, np.float32)
    head[0, 7:14, 1, 0] = [0.0, 0.0, 0.0, 0.0, SURE, NEVER, SURE]  # the second anchor, row 1, column 0
    boxes, scores = decode([head], 64)
    assert scores.shape == (12, 2)
    best = int(scores.max(axis=1).argmax())
    assert int(scores[best].argmax()) == 1
    side = ANCHORS[32][1]
    np.testing.assert_allclose(boxes[best], [16 - side / 2, 48 - side / 2, 16 + side / 2, 48 + side / 2])


def maps_of(entries: list[tuple[int, float, int]]) -> list[np.ndarray]:
    """Boxes of 80 pixels, all in one place but for the column, as (column, objectness, class)."""
    head = np.full((1, 3 * 7, 8, 8), NEVER, np.float32)
    for column, objectness, label in entries:
        head[0, 0:4, 3, column] = 0.0
        head[0, 4, 3, column] = objectness
        head[0, 5 + label, 3, column] = SURE
    return [head]


def test_of_two_boxes_of_a_class_on_each_other_the_surer_stays() -> None:
    found = detect(maps_of([(3, 0.5, 0), (4, 2.0, 0)]), 256, most_iou=0.4)
    assert len(found.boxes) == 1
    assert found.boxes[0, 0] == 144 - 40  # the centre of column 4


def test_boxes_of_two_classes_may_lie_on_each_other() -> None:
    assert len(detect(maps_of([(3, 0.5, 0), (4, 2.0, 1)]), 256, most_iou=0.4).boxes) == 2


def test_boxes_that_share_less_stay_and_the_surest_comes_first() -> None:
    found = detect(maps_of([(3, 0.5, 0), (4, 2.0, 0), (5, 1.0, 0)]), 256, most_iou=0.5)
    assert len(found.boxes) == 3
    assert (np.diff(found.scores) < 0).all()
    assert len(detect(maps_of([(3, 0.5, 0), (4, 2.0, 0)]), 256, most_iou=0.5, most=1).boxes) == 1


def test_unsure_boxes_are_dropped() -> None:
    assert len(detect(maps_of([(3, -3.0, 0)]), 256, least_score=0.1).boxes) == 0
