"""chanas/core/task.py: what all stages are about, and limits as bundles store them."""

from __future__ import annotations

from chanas.core.arch import SearchSpace
from chanas.core.task import NO_LIMITS, Limits, Task


def test_a_task_has_the_blocks_of_its_space(tiny_space: SearchSpace) -> None:
    task = Task(tiny_space, 7)
    assert task.blocks() == tiny_space.all_blocks(7)
    some = tiny_space.sub_spaces[:1]
    assert task.blocks(some) == tiny_space.all_blocks(7, some)


def test_limits_are_stored_with_their_units() -> None:
    assert Limits(macs=1e6, peak_memory=2e3).to_json() == {"macs": 1e6, "peak_memory_bytes": 2e3}
    assert NO_LIMITS.to_json() == {}
