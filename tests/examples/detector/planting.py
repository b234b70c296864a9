"""Raw maps in which known objects stand: what a perfect network would give."""

from __future__ import annotations

import numpy as np
import torch
from boxes import ANCHORS, Floats
from loss import match

SURE, NEVER = 12.0, -30.0


def planted(boxes: Floats, labels: np.ndarray, num_classes: int, image_size: int) -> list[Floats]:
    """Maps whose every answering cell gives its object: the inverse of `boxes.decode`.

    Args:
        boxes: [n, 4], x1, y1, x2, y2 in pixels.
        labels: [n], from 0.
    """
    truth = torch.from_numpy(np.column_stack([np.zeros(len(labels)), labels, boxes]).astype(np.float32))
    heads = []
    for stride, anchors in ANCHORS.items():
        grid = image_size // stride
        values = torch.full((len(anchors), 5 + num_classes, grid, grid), NEVER)
        found = match(truth, stride, grid)
        middle = (found.box[:, :2] + found.box[:, 2:]) / 2.0 / stride
        cells = torch.stack([found.column, found.row], dim=1)
        shares = (found.box[:, 2:] - found.box[:, :2]) / torch.tensor(anchors)[found.anchor, None]
        sigmoids = torch.cat([(middle - cells + 0.5) / 2.0, shares.sqrt() / 2.0], dim=1)
        values[found.anchor, 0:4, found.row, found.column] = torch.logit(sigmoids)
        values[found.anchor, 4, found.row, found.column] = SURE
        values[found.anchor, 5:, found.row, found.column] = NEVER
        values[found.anchor, 5 + found.label, found.row, found.column] = SURE
        heads.append(values.reshape(1, -1, grid, grid).numpy())
    return heads
