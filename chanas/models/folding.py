"""Rewriting of a graph before it is tuned: all passes in order, and the small ones among them.

Each pass is a function from graph to graph. Their seeds in the literature of compilers: folding of batch normalisation
(`products`), dead and common code (`without_unread`), algebraic identities.
"""

from __future__ import annotations

import dataclasses

from chanas.models.activations import name_activations
from chanas.models.channels_last import channels_first
from chanas.models.graph import Constant, Graph, Node, Rewriter, numbered, with_constant_second, without_unread
from chanas.models.moves import drop_moves
from chanas.models.products import fold_padding, fold_scales, fold_scales_before, name_transposed
from chanas.models.rows import flatten_rows


def simplify(graph: Graph) -> Graph:
    """All passes, in the order in which each finds what the one before has left."""
    first = (drop_identities, name_activations, name_transposed, flatten_rows, drop_identities)
    for step in (
        keep_axes,
        channels_first,
        drop_moves,
        *first,
        fold_scales,
        fold_scales_before,
        name_activations,
        fold_padding,
        name_shuffles,
    ):
        graph = without_unread(step(graph))
    return graph


def _is_identity(node: Node, before: tuple[int, ...]) -> bool:
    """True if the output is the first input, number for number and of the same shape."""
    if node.shape != before or len(node.reads) > 2:
        return False
    other = node.constant(1)
    scalar = None if other is None else other.scalar
    if node.op in ("add", "subtract"):
        return scalar == 0.0
    if node.op in ("multiply", "divide"):
        return scalar == 1.0
    window = node.attributes.get("pool_size")
    return node.op in ("reshape", "broadcast_to") or (window is not None and set(window) == {1})


def drop_identities(graph: Graph) -> Graph:
    """Leave out what changes nothing: sums with 0, products with 1, a reshape to the same shape; two reshapes in a row
    become one."""
    new = Rewriter(graph.inputs)
    for value, node in numbered(graph):
        node = with_constant_second(node)
        node = _reshape_of_source(dataclasses.replace(node, reads=new.reads(node)), new)
        if _is_identity(node, new.shape_of(node.reads[0]) if node.reads else ()):
            new.let(value, node.reads[0])
        else:
            new.let(value, new.add(node))
    return new.graph(graph.outputs)


def _reshape_of_source(node: Node, graph: Rewriter) -> Node:
    """A reshape, of what was there before another one."""
    before = graph.node_of(node.reads[0]) if node.op == "reshape" else None
    return node if before is None or before.op != "reshape" else dataclasses.replace(node, reads=before.reads)


def keep_axes(graph: Graph) -> Graph:
    """Means and the like that leave their axes out as such that keep them, a reshape after each."""
    new = Rewriter(graph.inputs)
    for value, node in numbered(graph):
        if node.op != "mean" or node.attributes["keepdims"]:
            new.copy(value, node)
            continue
        read = new.reads(node)[0]
        shape = tuple(1 if a in node.attributes["axis"] else e for a, e in enumerate(new.shape_of(read)))
        kept = new.add(Node(node.op, (read,), shape, node.dtype, {**node.attributes, "keepdims": True}))
        new.let(value, new.add(Node("reshape", (kept,), node.shape, node.dtype, name=node.name)))
    return new.graph(graph.outputs)


def name_shuffles(graph: Graph) -> Graph:
    """One node `shuffle` for channels of maps that are split into `groups`, transposed, and put together again."""
    new = Rewriter(graph.inputs)
    for value, node in numbered(graph):
        found = _shuffled(graph, node)
        if found is None:
            new.copy(value, node)
        else:
            source, groups = found
            facts = {"groups": groups}
            new.let(value, new.add(Node("shuffle", (new.read(source),), node.shape, node.dtype, facts, node.name)))
    return new.graph(graph.outputs)


def _shuffled(graph: Graph, node: Node) -> tuple[int, int] | None:
    """The map of shuffled channels, and the number of groups."""
    transposed = graph.node_of(node.reads[0]) if node.op == "reshape" and len(node.shape) == 4 else None
    if transposed is None or transposed.op != "permute_dims" or len(transposed.shape) != 5:
        return None
    grouped, source = graph.node_of(transposed.reads[0]), transposed.reads[0]
    if grouped is None or grouped.op != "reshape" or tuple(transposed.attributes["axes"] or ()) != (0, 2, 1, 3, 4):
        return None
    source = grouped.reads[0]
    n, groups, each, *size = grouped.shape
    if isinstance(source, Constant) or graph.shape_of(source) != node.shape or (n, groups * each, *size) != node.shape:
        return None
    return source, groups
