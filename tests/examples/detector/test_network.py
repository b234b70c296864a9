"""The detector's network: YOLOv4-tiny's shapes and sizes, and files that others can open."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from boxes import decode
from network import PRIOR, Detector
from torch import nn

FLOATS_OF_YOLOV4_TINY = (24_251_276 - 20) // 4
"""Of the authors' yolov4-tiny.weights, whose header has 20 bytes: weights, biases, means and variances, 80 classes."""


def test_full_width_has_as_many_weights_as_yolov4_tiny() -> None:
    network = Detector(num_classes=80)
    floats = [value for name, value in network.state_dict().items() if not name.endswith("num_batches_tracked")]
    assert sum(value.numel() for value in floats) == FLOATS_OF_YOLOV4_TINY


@pytest.mark.parametrize(("image_size", "grids"), [(416, (13, 26)), (160, (5, 10))])
def test_two_maps_come_out_the_coarse_one_first(image_size: int, grids: tuple[int, int]) -> None:
    coarse, fine = Detector(num_classes=4, width=0.125)(torch.zeros(2, 3, image_size, image_size))
    assert coarse.shape == (2, 27, grids[0], grids[0])
    assert fine.shape == (2, 27, grids[1], grids[1])


def test_width_is_a_factor_of_channels() -> None:
    def channels(width: float) -> list[int]:
        network = Detector(num_classes=4, width=width)
        return [m.num_features for m in network.modules() if isinstance(m, nn.BatchNorm2d)]

    assert [2 * c for c in channels(0.5)] == channels(1.0)
    assert min(channels(0.01)) == 4  # half of the eight that a block has at least


def test_an_untrained_network_expects_few_objects() -> None:
    torch.manual_seed(0)
    with torch.inference_mode():
        heads = Detector(num_classes=1, width=0.125).eval()(torch.rand(1, 3, 64, 64))
    _, scores = decode([head.numpy() for head in heads], 64)
    assert abs(scores.mean() / (PRIOR * 0.5) - 1.0) < 0.2


def test_the_exported_program_gives_the_same_maps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Detector(num_classes=2, width=0.125).eval()
    image = torch.rand(1, 3, 96, 96)
    torch.export.save(torch.export.export(network, (image,)), tmp_path / "net.pt2")
    opened = torch.export.load(tmp_path / "net.pt2").module()
    with torch.inference_mode():
        for expected, given in zip(network(image), opened(image), strict=True):
            torch.testing.assert_close(given, expected)
