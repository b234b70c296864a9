"""One piece of memory for tensors of which not all are needed at once: an offset for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chanas.compiler.cpu.c_kernels import CallList, Place, aligned


@dataclass(frozen=True)
class Lifetime:
    """A tensor, and the first and the last step at which it has to be in memory."""

    num_bytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class MemoryPlan:
    """Offsets of tensors in `num_bytes` of memory."""

    offsets: dict[Place, int]
    num_bytes: int


def plan_memory(calls: CallList, input_bytes: Sequence[int]) -> MemoryPlan:
    """Memory for all buffers of a network, and for a copy of each input."""
    lifetimes = tensor_lifetimes(calls, input_bytes)
    offsets = place_tensors(list(lifetimes.values()))
    return MemoryPlan(dict(zip(lifetimes, offsets, strict=True)), _end(list(lifetimes.values()), offsets))


def tensor_lifetimes(calls: CallList, input_bytes: Sequence[int]) -> dict[Place, Lifetime]:
    """Lifetimes in calls: inputs are there from the first one on, outputs until all are over."""
    first = {Place("input", i): 0 for i in range(len(input_bytes))}
    last = dict(first)
    for step, call in enumerate(calls.calls):
        for place in call.arguments:
            first.setdefault(place, step)
            last[place] = step
    last |= dict.fromkeys(calls.outputs, len(calls.calls))
    sizes = {"input": input_bytes, "buffer": calls.buffer_bytes}
    return {p: Lifetime(sizes[p.kind][p.index], first[p], last[p]) for p in first if p.kind in sizes}


def place_tensors(tensors: Sequence[Lifetime]) -> list[int]:
    """An offset for each tensor, so that no two that meet share a byte, each as low as it fits.

    The better of two orders: the largest first, or first those that begin at even steps. A chain, of which each tensor
    meets its neighbours alone, takes no more in the latter than two buffers that are written in turns.
    """
    by_size = sorted(range(len(tensors)), key=lambda i: -aligned(tensors[i].num_bytes))
    in_turns = sorted(by_size, key=lambda i: tensors[i].first % 2)
    return min((_placed(tensors, order) for order in (by_size, in_turns)), key=lambda offsets: _end(tensors, offsets))


def _placed(tensors: Sequence[Lifetime], order: Sequence[int]) -> list[int]:
    offsets = [0] * len(tensors)
    sizes = [aligned(t.num_bytes) for t in tensors]
    placed: list[int] = []
    for i in order:
        taken = sorted((offsets[k], offsets[k] + sizes[k]) for k in placed if tensors[k].meets(tensors[i]))
        for begin, end in taken:
            if begin - offsets[i] >= sizes[i]:
                break
            offsets[i] = max(offsets[i], end)
        placed.append(i)
    return offsets


def _end(tensors: Sequence[Lifetime], offsets: Sequence[int]) -> int:
    return max((offset + aligned(t.num_bytes) for offset, t in zip(offsets, tensors, strict=True)), default=0)
