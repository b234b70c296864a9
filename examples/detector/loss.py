"""The loss of the detector: which cells answer for which object, and how wrong they are.

An object is answered for by every anchor of similar size, in the cell around its centre and in the two nearest
neighbours, as in Scaled-YOLOv4: more answers for each object, sooner trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from boxes import ANCHORS, centres, sides
from torch import Tensor
from torchvision.ops import complete_box_iou_loss

MOST_RATIO = 2.0
"""An anchor answers for boxes whose sides are at most this many times larger or smaller."""
_STEPS = ((0.0, 0.0), (-0.5, 0.0), (0.5, 0.0), (0.0, -0.5), (0.0, 0.5))
BOX_WEIGHT, CLASS_WEIGHT = 2.0, 1.0


@dataclass(frozen=True)
class Matches:
    """Cells of one map that answer for objects, m of them."""

    image: Tensor
    """int64[m], as are the other indices"""
    anchor: Tensor
    row: Tensor
    column: Tensor
    label: Tensor
    box: Tensor
    """float32[m, 4]: the object's"""


def match(truth: Tensor, stride: int, grid: int) -> Matches:
    """The cells of one map that answer for objects.

    Args:
        truth: float32[n, 6]: image, label, x1, y1, x2, y2 in pixels.
        stride: pixels for each cell of the map.
        grid: cells on each side of the map.
    """
    anchors = torch.tensor(ANCHORS[stride], dtype=torch.float32)
    extent = truth[:, 4:6] - truth[:, 2:4]
    ratio = extent[:, None, :] / anchors[None, :, None]  # [n, A, 2]
    fits = torch.maximum(ratio, 1.0 / ratio).amax(dim=2) < MOST_RATIO
    middle = (truth[:, 2:4] + truth[:, 4:6]) / (2.0 * stride)
    cells = (middle[:, None, :] + torch.tensor(_STEPS)).floor().long()  # [n, 5, 2]
    near = (cells != cells[:, :1]).any(dim=2) & (cells >= 0).all(dim=2) & (cells < grid).all(dim=2)
    near[:, 0] = True
    of, anchor, step = (fits[:, :, None] & near[:, None, :]).nonzero(as_tuple=True)
    column, row = cells[of, step].unbind(dim=1)
    return Matches(truth[of, 0].long(), anchor, row, column, truth[of, 1].long(), truth[of, 2:])


def detection_loss(heads: Sequence[Tensor], truth: Tensor, image_size: int) -> Tensor:
    """A scalar: complete IoU, objectness and classes of all maps, divided by the number of cells that answer.

    Args:
        heads: raw maps, float32[N, A·(5 + C), S/stride, S/stride].
        truth: float32[n, 6]: image, label, x1, y1, x2, y2 in pixels.
        image_size: S, in pixels.
    """
    total, answers = truth.new_zeros(()), 0
    for head in heads:
        num_images, channels, grid, _ = head.shape
        stride = image_size // grid
        anchors = torch.tensor(ANCHORS[stride], dtype=torch.float32)
        values = head.float().reshape(num_images, len(anchors), channels // len(anchors), grid, grid)
        found = match(truth, stride, grid)
        sure = torch.zeros(num_images, len(anchors), grid, grid)
        answers += len(found.label)
        if len(found.label):
            mine = values[found.image, found.anchor, :, found.row, found.column]  # [m, 5 + C]
            middle = centres(mine[:, 0:2].sigmoid(), torch.stack([found.column, found.row], dim=1), stride)
            half = sides(mine[:, 2:4].sigmoid(), anchors[found.anchor, None]) / 2.0
            wrong = complete_box_iou_loss(torch.cat([middle - half, middle + half], dim=1), found.box)
            classes = F.one_hot(found.label, mine.shape[1] - 5).float()
            total = total + BOX_WEIGHT * wrong.sum()
            total = total + CLASS_WEIGHT * F.binary_cross_entropy_with_logits(mine[:, 5:], classes, reduction="sum")
            sure[found.image, found.anchor, found.row, found.column] = (1.0 - wrong.detach()).clamp(0.0, 1.0)
        total = total + F.binary_cross_entropy_with_logits(values[:, :, 4], sure, reduction="sum")
    return total / max(answers, 1)
