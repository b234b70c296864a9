"""The distance that two programs of one network may have which round differently.

An output is right if each of its numbers is within

    2⁻²⁴ · (growth · largest + own)  +  max(32 · moved by one step, moved by 32 steps)

of the framework's. `largest` is the largest magnitude of that output alone. `growth` is summed along the longest path
to it: 8 for each node that computes, and 4 · √K for one that sums K terms (rounding errors of sums in any order grow
with √K; Higham & Mary, SIAM J. Sci. Comput. 41, 2019), which Winograd's transforms stay within. `own` is 8 for a
sigmoid, 0 for others: as 1 / 2 + tanh(x / 2) / 2 it is exact to a share of 1, however small it is. What a number is
`moved` by is the difference in the framework's own answer when every number of the inputs moves by one or 32 units in
the last place, up or down at random: where numbers cancel each other, or a threshold is near, the framework's answer is
as uncertain as ours. A number that moves less than 99 in 100 do counts as moving like these: where a network rounds to
few bits, it may be any number whose rounding falls otherwise. Whole numbers and truths are equal, but where they move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chanas.compiler.comparison import largest_of
from chanas.core.arrays import Array
from chanas.models.graph import MAP_PRODUCTS, Constant, Graph, Node, numbered
from chanas.models.sources.model import Answer

STEPS = (1, 1, 1, 32, 32)
"""Units in the last place that inputs are moved by, in one answer of the framework each."""
_UNIT, _EACH, _SUM, _FACTOR = 2.0**-24, 8.0, 4.0, 32.0
_TYPICAL = 0.99
"""The share of an output's numbers that move by less than what all may be apart: a few that jump allow no others to."""
_UNMOVED = 1e-3
"""Allowed share of the largest, where there was no time to move inputs: a hundred layers of sums in
another order, some by Winograd's transforms, are within 2e-4."""
_MOVES = frozenset(
    [
        *("reshape", "permute_dims", "shuffle", "slice", "strided_slice", "concat", "repeat", "tile", "pad", "where"),
        *("broadcast_to", "take", "gather_elements", "gather_nd", "reverse_sequence"),
        *("max", "min", "maximum", "minimum", "clip", "max_pool2d", "abs", "negative"),
    ]
)
"""Operators that pass numbers on as they are."""


@dataclass(frozen=True)
class Growth:
    """Rounding errors up to a value, in units of 2⁻²⁴: as a share of its largest number, and of 1."""

    of_largest: float = 0.0
    of_one: float = 0.0


def growths(graph: Graph) -> list[Growth]:
    """The growth of rounding errors up to each value: there are none in inputs."""
    found = [Growth()] * len(graph.inputs)
    for _, node in numbered(graph):
        before = [found[r] for r in node.reads if not isinstance(r, Constant)]
        of_largest = max((g.of_largest for g in before), default=0.0)
        if node.op in _MOVES:
            found.append(Growth(of_largest, max((g.of_one for g in before), default=0.0)))
        else:
            own = _EACH + _SUM * math.sqrt(_num_terms(graph, node))
            found.append(Growth(of_largest + own, _EACH if node.function == "sigmoid" else 0.0))
    return found


def _num_terms(graph: Graph, node: Node) -> float:
    """The numbers that one of a node's output is summed from."""
    shapes = [graph.shape_of(r) for r in node.reads]
    sizes, a = [math.prod(s) for s in shapes], node.attributes
    if node.op in (*MAP_PRODUCTS, "conv", "conv_transpose"):
        return sizes[1] / node.shape[1]
    if node.op == "matmul":
        return float(shapes[0][-1])
    if node.op == "einsum" and len(sizes) > 1:
        return float(max(1.0, sizes[0] * sizes[1] / max(1, math.prod(node.shape))) ** 0.5)
    if node.op in ("softmax", "log_softmax", "cumsum", "cumprod"):
        return float(shapes[0][a["axis"]])
    if node.op == "layer_norm":
        return float(math.prod(node.shape[-a["num_axes"] :]))
    if "pool_size" in a:
        return float(math.prod(a["pool_size"]))
    return max([1.0, *(s / max(1, math.prod(node.shape)) for s in sizes[:1])])


def moved_inputs(inputs: Sequence[Array], steps: int, rng: np.random.Generator) -> list[Array]:
    """Inputs whose floats are so many units in the last place larger or smaller."""

    def moved(x: Array) -> Array:
        if x.dtype.kind != "f":
            return x.copy()
        signs = rng.choice(np.array([-steps, steps], x.dtype), x.shape)
        return np.asarray(x + np.where(x == 0, 0, signs * np.spacing(x)), x.dtype)

    return [moved(x) for x in inputs]


def moved_answers(answer: Answer, inputs: Sequence[Array], seed: int = 0) -> Iterator[list[Array]]:
    """A framework's outputs for inputs moved by each of the `STEPS`, of which each is asked for when it is taken."""
    rng = np.random.default_rng(seed)
    for steps in STEPS:
        yield answer(moved_inputs(inputs, steps, rng))


def allowed(expected: Array, moved: Sequence[Array], growth: Growth, are_fixed: bool = False) -> Array:
    """Distance that another program's number may have from each number of an output: float32, of its shape.

    Args:
        expected: the framework's output.
        moved: its outputs for inputs moved by the `STEPS`, as far as there was time for.
        growth: of its rounding errors (`growths`).
        are_fixed: inputs are whole numbers alone, which do not move.
    """
    if expected.dtype.kind != "f":
        jumps = np.zeros(expected.shape, bool)
        for other in moved:
            jumps |= other != expected
        return np.where(jumps, np.float32(np.inf), np.float32(0.0))
    largest = largest_of(expected)
    found = np.full(expected.shape, _UNIT * (growth.of_largest * largest + growth.of_one))
    if not moved:
        if not are_fixed:
            found = np.maximum(found, _UNMOVED * largest)
        return found.astype(np.float32)
    near, far = np.zeros(expected.shape), np.zeros(expected.shape)
    for steps, other in zip(STEPS, moved, strict=False):
        with np.errstate(all="ignore"):
            apart = np.abs(np.subtract(other, expected, dtype=np.float64))
        same = (other == expected) | (np.isnan(other) & np.isnan(expected))
        apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
        near, far = (np.maximum(near, apart), far) if steps == 1 else (near, np.maximum(far, apart))
    near, far = (np.maximum(moves, _typical(moves)) for moves in (near, far))
    return (found + np.maximum(_FACTOR * near, far)).astype(np.float32)


def _typical(moves: Array) -> float:
    """The move that all but a few numbers are below."""
    return float(np.quantile(moves, _TYPICAL, method="higher")) if moves.size else 0.0
