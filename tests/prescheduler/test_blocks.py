"""chanas/prescheduler/blocks.py: what surrounds a block. How blocks are timed: `tables/test_lut.py`."""

from __future__ import annotations

import dataclasses

from chanas.core.arch import SearchSpace
from chanas.operators.steps import block_workloads
from chanas.prescheduler.blocks import Surroundings, surroundings

from ..compiler.workbench import NANO, NUM_CLASSES


def test_surroundings_are_those_of_the_mean_network(tiny_space: SearchSpace) -> None:
    around = surroundings(tiny_space, 10)
    smallest, largest = (
        sum(w.weight_bytes for b in a.blocks(tiny_space, 10) for w in block_workloads(b))
        for a in (tiny_space.smallest, tiny_space.largest)
    )
    assert smallest < around.weight_bytes < largest
    assert 4 + tiny_space.num_stages <= around.num_blocks <= 4 + tiny_space.num_stages * tiny_space.max_depth
    assert surroundings(tiny_space, 10) == around


def test_surroundings_of_a_space_of_one_depth() -> None:
    one = dataclasses.replace(NANO, width_multipliers=(1.0,))
    some = one.smallest.blocks(one, NUM_CLASSES)
    weights = sum(w.weight_bytes for b in some for w in block_workloads(b))
    assert surroundings(one, NUM_CLASSES) == Surroundings(weights, len(some))
