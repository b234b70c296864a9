"""chanas/export/memory_plan.py: tensors that are needed at once never share a byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.compiler.cpu.c_kernels import ALIGNMENT, CallList, KernelCall, Place, aligned
from chanas.export.memory_plan import Lifetime, place_tensors, plan_memory, tensor_lifetimes

spans = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)
lifetimes = st.builds(lambda size, span: Lifetime(size, span[0], span[1]), st.integers(1, 1000), spans)
INPUT, FIRST, SECOND, THIRD = Place("input", 0), Place("buffer", 0), Place("buffer", 1), Place("buffer", 2)


def chain(outputs: tuple[Place, ...], *calls: tuple[Place, ...]) -> CallList:
    """Kernels called one after the other; buffers have 100, 200 and 300 bytes."""
    made = tuple(KernelCall(f"kernel{i}", arguments) for i, arguments in enumerate(calls))
    return CallList(made, outputs, (0,) * len(outputs), (100, 200, 300), (), (Path("kernel.o"),), 64, ())


@given(st.lists(lifetimes, max_size=12))
def test_tensors_that_meet_share_no_byte(tensors: list[Lifetime]) -> None:
    offsets = place_tensors(tensors)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    for i, (a, at) in enumerate(zip(tensors, offsets, strict=True)):
        for b, other in zip(tensors[:i], offsets[:i], strict=True):
            apart = at + a.num_bytes <= other or other + b.num_bytes <= at
            assert apart or a.last < b.first or b.last < a.first


@given(st.lists(lifetimes, min_size=1, max_size=12))
def test_memory_lies_between_what_is_needed_at_once_and_everything(tensors: list[Lifetime]) -> None:
    ends = [o + aligned(t.num_bytes) for o, t in zip(place_tensors(tensors), tensors, strict=True)]
    at_once = max(sum(aligned(t.num_bytes) for t in tensors if t.first <= step <= t.last) for step in range(10))
    assert at_once <= max(ends) <= sum(aligned(t.num_bytes) for t in tensors)


def test_a_tensor_takes_the_place_of_one_that_is_over() -> None:
    assert place_tensors([Lifetime(64, 0, 1), Lifetime(64, 1, 2), Lifetime(64, 2, 3)]) == [0, 64, 0]


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=20))
def test_a_chain_takes_no_more_than_two_buffers_in_turns(sizes: list[int]) -> None:
    tensors = [Lifetime(size, step, step + 1) for step, size in enumerate(sizes)]
    ends = [o + aligned(t.num_bytes) for o, t in zip(place_tensors(tensors), tensors, strict=True)]
    assert max(ends) <= sum(aligned(max(sizes[turn::2])) for turn in (0, 1))


def test_tensors_live_from_the_first_call_to_the_last_that_names_them() -> None:
    calls = chain((THIRD,), (INPUT, FIRST), (FIRST, SECOND), (SECOND, INPUT, THIRD), (THIRD, THIRD))
    assert tensor_lifetimes(calls, [50]) == {
        INPUT: Lifetime(50, 0, 2),
        FIRST: Lifetime(100, 0, 1),
        SECOND: Lifetime(200, 1, 2),
        THIRD: Lifetime(300, 2, 4),  # an output is there until all calls are over
    }


@pytest.mark.parametrize("weights", [Place("parameter", 0), Place("constant", 3)])
def test_weights_take_no_memory(weights: Place) -> None:
    plan = plan_memory(chain((FIRST, weights), (weights, FIRST)), [])
    assert plan.offsets == {FIRST: 0}
    assert plan.num_bytes == 128


def test_a_network_of_constants_takes_none() -> None:
    assert plan_memory(chain((Place("constant", 0),)), []).num_bytes == 0
