"""chanas/prescheduler/tuning/default_points.py: every block has legal schedules on every device; they fill
registers."""

from __future__ import annotations

import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.cpu.space import max_accumulators
from chanas.core.arch import SearchSpace
from chanas.core.target import HardwareTarget
from chanas.operators.steps import block_workloads
from chanas.prescheduler.tuning.default_points import default_points

from ...compiler.workbench import DEVICES


@pytest.mark.parametrize("target", DEVICES.values(), ids=DEVICES)
def test_default_points_are_legal_and_fill_the_registers(tiny_space: SearchSpace, target: HardwareTarget) -> None:
    shares = []
    for block in dict.fromkeys(tiny_space.largest.blocks(tiny_space, 5)):
        for workload, point in zip(block_workloads(block), default_points(block, target), strict=True):
            space = schedule_space(workload, target)
            named = space.groups(point)  # raises where it is not legal
            if workload.op == "pointwise" and workload.output_size > 1 and "order" in named:
                tiles = [space.groups(p)["split_m"][-1] * space.groups(p)["split_n"][-1] for p in space.points]
                tile = named["split_m"][-1] * named["split_n"][-1]
                assert tile == max(tiles) <= max_accumulators(target)
                shares.append(tile / max_accumulators(target))
    assert max(shares) > 0.5
    assert default_points(block, target) == default_points(block, target)
