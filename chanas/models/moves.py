"""Numbers that only move: where each one of a value was in the value that it comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from chanas.core.arrays import Array
from chanas.models.graph import Constant, Node, Read, Rewriter, Values
from chanas.models.known import computed

_MOVES = ("reshape", "permute_dims", "slice", "take")


@dataclass(frozen=True, eq=False)
class Moved:
    """The places that the numbers of a value come from.

    source  a value
    places  int[shape of the value]: the place of each number in the source, as it lies in memory
    factor  the number that all are multiplied by
    """

    source: int
    places: Array
    factor: float


def moved_from(graph: Values, read: int, scaled: bool = False) -> Moved:
    """Find where the numbers of a value come from: the nearest value that does more than move them; with `scaled` the
    nearest one that does more than move and scale them."""
    chain: list[Node] = []
    factor = 1.0
    while (node := graph.node_of(read)) is not None and isinstance(node.reads[0] if node.reads else None, int):
        if scaled and node.factor is not None and graph.shape_of(node.reads[0]) == node.shape:
            factor *= node.factor
        elif node.op in _MOVES and all(isinstance(r, Constant) for r in node.reads[1:]):
            chain.append(node)
        else:
            break
        assert isinstance(node.reads[0], int)
        read = node.reads[0]
    shape = graph.shape_of(read)
    places = np.arange(math.prod(shape)).reshape(shape)
    for node in reversed(chain):
        places = computed(node, [places, *(r.value for r in node.reads if isinstance(r, Constant))])
    return Moved(read, places, factor)


def drop_move(node: Node, new: Rewriter) -> Node | Read:
    """A transposition that leaves all numbers where they are in memory, or that others undo, as a reshape."""
    if node.op not in ("permute_dims", "reshape") or isinstance(node.reads[0], Constant):
        return node
    before, number = new.node_of(node.reads[0]), new.add(node)
    if node.op == "permute_dims" or (before is not None and before.op == "permute_dims"):
        moved = moved_from(new, number)
        places = moved.places.ravel()
        if places.size == math.prod(new.shape_of(moved.source)) and (np.diff(places) == 1).all():
            return Node("reshape", (moved.source,), node.shape, node.dtype, name=node.name)
    return number
