"""The loss: which cells answer for an object, and that nothing is wrong with a perfect answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from loss import detection_loss, match

from .planting import planted

TRUTH = torch.tensor([[0.0, 1.0, 40.0, 40.0, 70.0, 70.0], [1.0, 3.0, 8.0, 16.0, 128.0, 136.0]])


def test_the_cell_of_the_centre_and_its_two_nearest_neighbours_answer() -> None:
    found = match(torch.tensor([[0.0, 1.0, 42.0, 42.0, 66.0, 66.0]]), 16, 10)  # centre 54, 54: cell 3.375
    cells = set(zip(found.row.tolist(), found.column.tolist(), strict=True))
    assert cells == {(3, 3), (2, 3), (3, 2)}
    assert set(found.anchor.tolist()) == {0, 1}  # 24 and 36, not 54


def test_at_the_border_only_cells_of_the_map_answer() -> None:
    found = match(torch.tensor([[0.0, 0.0, 0.0, 0.0, 12.5, 20.0], [0.0, 0.0, 140.0, 140.0, 160.0, 160.0]]), 16, 10)
    assert len(found.label) > 0
    for index in (found.row, found.column):
        assert int(index.min()) >= 0
        assert int(index.max()) <= 9


def test_large_objects_are_answered_for_by_the_coarse_map_and_small_ones_by_the_fine_map() -> None:
    assert set(match(TRUTH, 32, 5).image.tolist()) == {1}
    assert set(match(TRUTH, 16, 10).image.tolist()) == {0}


def test_a_perfect_answer_has_no_loss() -> None:
    heads = [
        torch.cat([torch.from_numpy(map_of_image) for map_of_image in maps])
        for maps in zip(
            *(planted(TRUTH[i : i + 1, 2:].numpy(), TRUTH[i : i + 1, 1].numpy(), 4, 160) for i in range(2)),
            strict=True,
        )
    ]
    assert float(detection_loss(heads, TRUTH, 160)) < 1e-3


@pytest.mark.parametrize("channel", [0, 2, 4, 5])
def test_each_part_of_a_wrong_answer_has_its_loss(channel: int) -> None:
    heads = [torch.from_numpy(head) for head in planted(TRUTH[:1, 2:].numpy(), np.array([1]), 4, 160)]
    found = match(TRUTH[:1], 16, 10)
    heads[1][0, 9 * found.anchor[0] + channel, found.row[0], found.column[0]] += 20.0 if channel == 5 else -20.0
    heads[1][0, 9 * found.anchor[0] + 5, found.row[0], found.column[0]] += 30.0 * (channel == 5)
    assert float(detection_loss(heads, TRUTH[:1], 160)) > 0.05


def test_an_image_without_objects_has_the_loss_of_what_is_seen_in_it() -> None:
    nothing = torch.zeros(0, 6)
    heads = [torch.full((1, 27, grid, grid), value) for grid, value in ((5, -30.0), (10, -30.0))]
    assert float(detection_loss(heads, nothing, 160)) < 1e-6
    heads[0][0, 4] = 3.0
    assert float(detection_loss(heads, nothing, 160)) > 1.0
