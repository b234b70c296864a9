"""Steps of others' schedules as rows of our primitives (`primitives` says what ours hold).

The names are Ansor's, as ours are. Numbers stand where ours have the same ones: the factors of a split and its extent,
loops that are fused, lanes, threads, tensor cores. Where ours is the number of a choice in our own spaces (`RE`, `CA`,
`CHR`, `PR`), that place is zero and theirs stands beside it. An operator's row (`WL`) is not there: its shapes are not
in the records. What our schedules never do is a row `AN other`, with a place for each kind.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from chanas.prescheduler.tuning.offline.primitives import Primitive, factor_numbers

OTHERS = ("block", "thread", "vthread", "align", "root", "scope", "layout", "rest")
"""Kinds of steps that our schedules don't have, in the order of their places: loops bound to a GPU's blocks, threads
and virtual threads, strides of storage, a producer at the root, where a buffer lies, its layout, and all others."""


def split(factors: Sequence[int | None]) -> Primitive:
    """A loop that is split, its factors from outer to inner; unknown ones count as one."""
    return "SP other", factor_numbers([factor or 1 for factor in factors])


def fused(num: int) -> Primitive:
    """Loops that become one: how many."""
    return "FU", (float(num),)


def reordered(order: Sequence[int]) -> Primitive:
    """Loops in another order, by their places before: how many, and the share of pairs that changed sides."""
    pairs = list(itertools.combinations(order, 2))
    return "RE order", (0.0, float(len(order)), sum(a > b for a, b in pairs) / max(1, len(pairs)))


def vectorised(lanes: int) -> Primitive:
    return "AN vec", (math.log2(max(1, lanes)),)


def parallel(threads: int) -> Primitive:
    return "AN vec", (0.0, math.log2(max(1, threads)))


def unrolled(steps: int) -> Primitive:
    """A loop that is written out, or up to so many steps of the loops inside."""
    return "PR unroll", (0.0, math.log2(1 + max(0, steps)))


def inside(depth: int) -> Primitive:
    """A producer that is computed inside a loop, the `depth`-th from outside; zero where it is not known."""
    return "CA pad", (0.0, float(depth))


def inlined() -> Primitive:
    return "CI pad", (1.0,)


def loaded(scope: str, readers: int) -> Primitive:
    """An input that is copied to a scope of memory first, for so many readers."""
    return ("CHR shared" if scope.startswith("shared") else "CHR input"), (0.0, float(readers))


def written() -> Primitive:
    """Sums that are kept elsewhere until they are whole."""
    return "CHW", ()


def shared_sum() -> Primitive:
    """A sum that becomes several, which are added up."""
    return "RF", ()


def tensorised() -> Primitive:
    return "AN mma", (1.0,)


def other(kind: str, extent: int | None = None) -> Primitive:
    """A step of one of `OTHERS`; 1 in its place, and the logarithm of a loop's extent more where that is known."""
    values = [0.0] * len(OTHERS)
    values[OTHERS.index(kind)] = 1.0 + math.log2(max(1, extent or 1))
    return "AN other", tuple(values)
