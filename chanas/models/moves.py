"""Numbers that only move: where each one of a value was in the value that it comes from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chanas.models.graph import Constant, Graph, Node, Rewriter, numbered
from chanas.models.sources.model import Array


def _taken(places: Array, node: Node) -> Array:
    number = node.constant(1)
    assert number is not None
    return places.take(number.value, axis=node.attributes.get("axis"), mode="clip")


def _sliced(places: Array, node: Node) -> Array:
    axis, begin = node.attributes["axis"], node.attributes["begin"]
    return places.take(range(begin, begin + node.shape[axis]), axis=axis)


_MOVED: dict[str, Callable[[Array, Node], Array]] = {
    "reshape": lambda places, node: places.reshape(node.shape),
    "permute_dims": lambda places, node: np.transpose(places, node.attributes.get("axes")),
    "slice": _sliced,
    "take": _taken,
}


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


def moved_from(graph: Graph | Rewriter, read: int, scaled: bool = False) -> Moved:
    """Find where the numbers of a value come from: the nearest value that does more than move them; with `scaled` the
    nearest one that does more than move and scale them."""
    chain: list[Node] = []
    factor = 1.0
    while (node := graph.node_of(read)) is not None and isinstance(node.reads[0] if node.reads else None, int):
        second = node.constant(1)
        number = None if second is None or node.op not in ("multiply", "divide") else second.scalar
        if scaled and number is not None and graph.shape_of(node.reads[0]) == node.shape:
            factor *= number if node.op == "multiply" else 1 / number
        elif node.op in _MOVED and (node.op != "take" or second is not None):
            chain.append(node)
        else:
            break
        assert isinstance(node.reads[0], int)
        read = node.reads[0]
    shape = graph.shape_of(read)
    places = np.arange(math.prod(shape)).reshape(shape)
    for node in reversed(chain):
        places = _MOVED[node.op](places, node)
    return Moved(read, places, factor)


def drop_moves(graph: Graph) -> Graph:
    """Transpositions that leave all numbers where they are in memory, or that others undo, as reshapes."""
    new = Rewriter(graph.inputs)
    for value, node in numbered(graph):
        read = new.read(node.reads[0]) if node.reads else None
        if node.op not in ("permute_dims", "reshape") or isinstance(read, Constant) or read is None:
            new.copy(value, node)
            continue
        number = new.add(dataclasses.replace(node, reads=(read, *node.reads[1:])))
        before = new.node_of(read)
        if node.op == "permute_dims" or (before is not None and before.op == "permute_dims"):
            moved = moved_from(new, number)
            places = moved.places.ravel()
            if places.size == math.prod(new.shape_of(moved.source)) and (np.diff(places) == 1).all():
                new.let(value, new.add(Node("reshape", (moved.source,), node.shape, node.dtype, name=node.name)))
                continue
        new.let(value, number)
    return new.graph(graph.outputs)
