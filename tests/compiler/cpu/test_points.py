"""chanas/compiler/cpu/points.py: points for people."""

from __future__ import annotations

import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.cpu.points import LoopOrder, Padding, in_words
from chanas.compiler.space import Named
from chanas.core.arch import SearchSpace
from chanas.operators.steps import tuned_workloads

from ..workbench import HOST


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (
            {"split_m": (7, 7), "split_n": (2, 2), "split_k": (5, 8), "order": (LoopOrder.PIXELS_OUTSIDE,)},
            "tiles of 7 pixels × 2 channel blocks, 8 input channels written out, pixels outside",
        ),
        (
            {"split_h": (7, 2), "split_w": (2, 7), "fuse": (2,), "unroll": (1,), "pad_at": (Padding.IN_LOADS,)},
            "tiles of 2 × 7 pixels, the kernel written out, padded as values are loaded, 2 outer loops shared out",
        ),
        (
            {"split_h": (4, 2, 1), "split_w": (2, 7), "split_n": (2, 1), "reduce": (1,), "pad_at": (Padding.BY_BAND,)},
            "tiles of 1 × 7 pixels × 1 channel block, 4 bands of rows, taps outside channels, padded by bands of rows",
        ),
        ({"split_c": (1, 3), "split_m": (49, 1)}, "tiles of 1 pixel × 3 channel blocks"),
    ],
)
def test_a_point_in_words(named: Named, words: str) -> None:
    assert in_words(named) == words


def test_every_operator_of_a_space_has_words_for_its_points(tiny_space: SearchSpace) -> None:
    for workload in tuned_workloads(tiny_space.all_blocks(5), HOST):
        space = schedule_space(workload, HOST)
        for point in space.points[:3]:
            assert in_words(space.groups(point)).startswith("tiles of ")
