"""chanas/core/task.py: what all stages are about, and limits as bundles store them."""

from __future__ import annotations

from chanas.core.arch import SearchSpace
from chanas.core.task import NO_LIMITS, Limits, Task


def test_a_task_has_the_blocks_of_its_space(tiny_space: SearchSpace) -> None:
    task = Task(tiny_space, 7)
    assert task.blocks() == tiny_space.all_blocks(7)
    some = tiny_space.sub_spaces[:1]
    assert task.blocks(some) == tiny_space.all_blocks(7, some)


def test_a_table_has_what_converts_to_and_from_its_dtype(tiny_space: SearchSpace) -> None:
    task, some = Task(tiny_space, 7), tiny_space.sub_spaces[:1]
    for dtype in ("float32", "float16", "tf32"):
        assert task.table_blocks(dtype, some) == task.blocks(some)
    for dtype in ("bfloat16", "int8"):
        blocks = task.table_blocks(dtype, some)
        assert blocks[: len(task.blocks(some))] == task.blocks(some)
        assert {(b.kind, b.dtype) for b in blocks if b.converts} == {("encode", dtype), ("decode", dtype)}
        assert set(blocks) < set(task.table_blocks(dtype))


def test_limits_are_stored_with_their_units() -> None:
    assert Limits(macs=1e6, peak_memory=2e3).to_json() == {"macs": 1e6, "peak_memory_bytes": 2e3}
    assert NO_LIMITS.to_json() == {}
