"""Boxes in the raw maps of the network: what channels mean, decoding, and non-maximum suppression.

A map has A·(5 + C) channels for each cell of its grid: for each of A anchors x, y, width, height, objectness, and C
classes, all before the sigmoid σ. A box lies around (2σ(x) - 0.5 + column)·stride and is (2σ(width))²·anchor wide, as
in Scaled-YOLOv4: the exponential of earlier versions has no bound. Boxes are x1, y1, x2, y2 in pixels of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.ops import batched_nms

Floats = NDArray[np.float32]

ANCHORS: dict[int, tuple[int, ...]] = {32: (80, 112, 152), 16: (24, 36, 54)}
"""Sides of the squares that boxes are measured in, in pixels, by the stride of the map."""


@dataclass(frozen=True)
class Detections:
    """The boxes of one image, the surest first."""

    boxes: Floats
    """[n, 4]"""
    scores: Floats
    """[n], in [0, 1]"""
    labels: NDArray[np.int64]
    """[n], from 0"""


def centres(sigmoids: Any, cells: Any, stride: int) -> Any:
    """Centres in pixels from σ(x), σ(y) and column, row: arrays and tensors alike."""
    return (2.0 * sigmoids - 0.5 + cells) * stride


def sides(sigmoids: Any, anchors: Any) -> Any:
    """Width and height in pixels from their sigmoids: arrays and tensors alike."""
    return (2.0 * sigmoids) ** 2 * anchors


def decode(heads: Sequence[Floats], image_size: int) -> tuple[Floats, Floats]:
    """All boxes of one image, [n, 4], and the probability of each class in each, [n, C].

    Args:
        heads: raw maps, [1, A·(5 + C), S/stride, S/stride], in any order.
        image_size: S, in pixels.
    """
    boxes, scores = [], []
    for head in heads:
        grid = head.shape[-1]
        stride = image_size // grid
        anchors = np.asarray(ANCHORS[stride], np.float32)[:, None, None, None]
        values = 1.0 / (1.0 + np.exp(-head.reshape(len(anchors), -1, grid, grid)))
        cells = np.stack(np.meshgrid(np.arange(grid), np.arange(grid)))  # column, row
        middle = centres(values[:, 0:2], cells, stride)
        half = sides(values[:, 2:4], anchors) / 2.0
        corners = np.concatenate([middle - half, middle + half], axis=1)
        boxes.append(np.moveaxis(corners, 1, -1).reshape(-1, 4))
        scores.append(np.moveaxis(values[:, 4:5] * values[:, 5:], 1, -1).reshape(len(boxes[-1]), -1))
    return np.concatenate(boxes).astype(np.float32), np.concatenate(scores).astype(np.float32)


def detect(
    heads: Sequence[Floats], image_size: int, least_score: float = 0.001, most_iou: float = 0.5, most: int = 100
) -> Detections:
    """Decode maps, keep the likeliest class of each box, and of boxes of a class that lie on each other the surest.

    Args:
        least_score: boxes below it are dropped; small, since mean average precision looks at unsure ones too.
        most_iou: two boxes of a class that share more (intersection over union) are one object.
        most: boxes to keep.
    """
    boxes, scores = decode(heads, image_size)
    best, labels = scores.max(axis=1), scores.argmax(axis=1)
    sure = best >= least_score
    boxes, best, labels = boxes[sure].clip(0.0, image_size), best[sure], labels[sure]
    tensors = [torch.from_numpy(np.ascontiguousarray(a)) for a in (boxes, best, labels)]
    kept = batched_nms(*tensors, most_iou)[:most].numpy()
    return Detections(boxes[kept], best[kept], labels[kept].astype(np.int64))
