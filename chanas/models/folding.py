"""Rewriting of a graph before it is tuned: all passes in order, and the small ones among them.

Each pass is a rule for a node, or a function from graph to graph. Their seeds in the literature of compilers: folding
of batch normalisation (`products`), dead and common code (`without_unread`), algebraic identities.
"""

from __future__ import annotations

import dataclasses

from chanas.models.activations import name_activation
from chanas.models.channels_last import channels_first
from chanas.models.graph import Constant, Graph, Node, Read, Rewriter, rewritten
from chanas.models.moves import drop_move
from chanas.models.products import flatten_row, fold_padding, fold_scale_before, fold_scales, name_transposed


def simplify(graph: Graph) -> Graph:
    """All passes, in the order in which each finds what the one before has left."""
    graph = channels_first(rewritten(graph, keep_axes))
    for rule in (drop_move, drop_identity, name_activation, name_transposed, flatten_row, drop_identity):
        graph = rewritten(graph, rule)
    graph = fold_scales(graph)
    for rule in (fold_scale_before, name_activation, fold_padding, name_shuffle):
        graph = rewritten(graph, rule)
    return graph


def keep_axes(node: Node, new: Rewriter) -> Node:
    """A mean that leaves its axes out as one that keeps them, and a reshape."""
    if node.op != "mean" or node.attributes["keepdims"]:
        return node
    shape = tuple(1 if a in node.attributes["axis"] else e for a, e in enumerate(new.shape_of(node.reads[0])))
    kept = dataclasses.replace(node, shape=shape, attributes={**node.attributes, "keepdims": True}, name="")
    return Node("reshape", (new.add(kept),), node.shape, node.dtype, name=node.name)


def drop_identity(node: Node, new: Rewriter) -> Node | Read:
    """Leave out a node that changes nothing: a sum with 0, a product with 1, a reshape to the same shape. Two reshapes
    in a row become one."""
    before = new.node_of(node.reads[0]) if node.op == "reshape" else None
    if before is not None and before.op == "reshape":
        node = dataclasses.replace(node, reads=before.reads)
    return node.reads[0] if _is_identity(node, new.shape_of(node.reads[0]) if node.reads else ()) else node


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


def name_shuffle(node: Node, new: Rewriter) -> Node:
    """One node `shuffle` for channels of maps that are split into `groups`, transposed, and put together again."""
    transposed = new.node_of(node.reads[0]) if node.op == "reshape" and len(node.shape) == 4 else None
    if transposed is None or transposed.op != "permute_dims" or len(transposed.shape) != 5:
        return node
    grouped = new.node_of(transposed.reads[0])
    if grouped is None or grouped.op != "reshape" or tuple(transposed.attributes["axes"] or ()) != (0, 2, 1, 3, 4):
        return node
    source = grouped.reads[0]
    n, groups, each, *size = grouped.shape
    if isinstance(source, Constant) or new.shape_of(source) != node.shape or (n, groups * each, *size) != node.shape:
        return node
    return Node("shuffle", (source,), node.shape, node.dtype, {"groups": groups}, node.name)
