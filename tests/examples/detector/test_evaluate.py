"""Mean average precision: 1 for perfect predictions, 0 for none, and what lies between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from boxes import Floats
from evaluate import Predict, evaluate, open_predict, read_image
from network import Detector
from shapes import CLASSES, draw, write_coco

from .planting import NEVER, planted

SIZE, NUM_IMAGES = 160, 12


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coco(tmp_path_factory.mktemp("val"), "val", 0, NUM_IMAGES, SIZE).parent


def in_turns(shift: float = 0.0, known: int = NUM_IMAGES) -> Predict:
    """A network that knows the objects of the first images, and sees them so many pixels beside their places."""
    scenes = (draw("val", 0, number, SIZE) for number in range(known))

    def predict(_: Floats) -> list[Floats]:
        scene = next(scenes, None)
        if scene is None:
            return [np.full((1, 27, grid, grid), NEVER, np.float32) for grid in (5, 10)]
        return planted(scene.boxes + np.float32(shift), scene.labels, len(CLASSES), SIZE)

    return predict


def test_perfect_predictions_have_a_precision_of_one(data: Path) -> None:
    scores = evaluate(in_turns(), data)
    assert scores.map == pytest.approx(1.0)
    assert scores.map50 == pytest.approx(1.0)


def test_no_predictions_have_a_precision_of_zero(data: Path) -> None:
    scores = evaluate(in_turns(known=0), data)
    assert (scores.map, scores.map50) == (0.0, 0.0)


def test_boxes_beside_their_places_count_where_half_is_enough(data: Path) -> None:
    scores = evaluate(in_turns(shift=2.0), data)
    assert scores.map50 > 0.95
    assert scores.map < 0.95


def test_objects_that_are_not_found_cost_precision(data: Path) -> None:
    assert 0.2 < evaluate(in_turns(known=NUM_IMAGES // 2), data).map50 < 0.8


def test_the_first_images_alone_can_be_asked_for(data: Path) -> None:
    half = NUM_IMAGES // 2
    assert evaluate(in_turns(known=half), data, num_images=half).map50 == pytest.approx(1.0)


def test_both_numbers_are_told(data: Path) -> None:
    assert evaluate(in_turns(), data).describe() == "mAP50 100.0%, mAP50-95 100.0%"


def test_an_image_is_red_green_blue_between_zero_and_one(data: Path) -> None:
    image = read_image(data / "images" / "000000.jpg")
    assert image.shape == (1, 3, SIZE, SIZE)
    assert image.dtype == np.float32
    drawn = draw("val", 0, 0, SIZE).pixels.transpose(2, 0, 1)[None] / 255.0
    assert np.abs(image - drawn).mean() < 0.05
    assert np.abs(image[:, ::-1] - drawn).mean() > 0.05


def test_a_program_of_torch_export_is_opened(data: Path, tmp_path: Path) -> None:
    network = Detector(len(CLASSES), width=0.125).eval()
    image = torch.rand(1, 3, SIZE, SIZE)
    torch.export.save(torch.export.export(network, (image,)), tmp_path / "net.pt2")
    predict = open_predict(tmp_path / "net.pt2")
    with torch.inference_mode():
        for given, expected in zip(predict(image.numpy()), network(image), strict=True):
            np.testing.assert_allclose(given, expected.numpy(), atol=1e-5)
    assert evaluate(predict, data, num_images=2).map50 <= 0.5
