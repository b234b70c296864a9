"""Products of rows: what is computed row by row is, however many axes the rows have in the framework."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from chanas.models.graph import Constant, Graph, Node, Read, Rewriter, numbered, with_constant_second, without_unread
from chanas.models.moves import moved_from


def flatten_rows(graph: Graph) -> Graph:
    """Products of […, C] with matrices of weights as products of rows, [T, C], and what is done to their numbers one by
    one before the next product as well: a reshape stands after all of it."""
    new = Rewriter(graph.inputs)
    for value, node in numbered(graph):
        node = with_constant_second(dataclasses.replace(node, reads=new.reads(node)))
        reads = _row_reads(node, new) if len(node.shape) > 3 and node.dtype == "float32" else None
        if reads is None:
            new.let(value, new.add(node))
            continue
        flat = new.add(dataclasses.replace(node, reads=reads, shape=(math.prod(node.shape[:-1]), node.shape[-1])))
        new.let(value, new.add(Node("reshape", (flat,), node.shape)))
    return new.graph(graph.outputs)


def _row_reads(node: Node, graph: Rewriter) -> tuple[Read, ...] | None:
    """Find what a node reads, as rows [T, C]; None if it is not computed row by row, or is on no rows yet."""
    first, second = node.reads[0] if node.reads else None, node.constant(1)
    if isinstance(first, Constant) or first is None:
        return None
    if node.op == "matmul" and second is not None and second.value.ndim == 2:
        return _rows_of(first, graph) or _flattened(first, second.shape[0], node, graph), second
    inner = _rows_of(first, graph)
    if node.op == "activation":
        return None if inner is None else (inner,)
    if node.op == "layer_norm" and node.attributes["num_axes"] == 1:
        return None if inner is None else (inner, *node.reads[1:])
    if node.op not in ("add", "subtract", "multiply", "divide") or graph.shape_of(first) != node.shape:
        return None
    if second is not None:
        by_row = second.value.size in (1, second.shape[-1] if second.shape else 1)
        return (inner, Constant(second.value.reshape(-1))) if inner is not None and by_row else None
    other = node.reads[1]
    if isinstance(other, Constant) or graph.shape_of(other) != node.shape:
        return None
    beside = _rows_of(other, graph)
    if inner is None and beside is None:
        return None
    columns = node.shape[-1]
    return tuple(
        r if r is not None else _flattened(o, columns, node, graph) for r, o in ((inner, first), (beside, other))
    )


def _rows_of(read: int, graph: Rewriter) -> int | None:
    """The rows [T, C] that a value is a reshape of."""
    node = graph.node_of(read)
    if node is None or node.op != "reshape" or not isinstance(node.reads[0], int):
        return None
    inner = graph.node_of(node.reads[0])
    found = inner is not None and len(inner.shape) == 2 and inner.shape[-1] == node.shape[-1]
    return node.reads[0] if found else None


def _flattened(read: int, columns: int, node: Node, graph: Rewriter) -> int:
    return graph.add(Node("reshape", (read,), (math.prod(node.shape[:-1]), columns)))


def turn_after_products(graph: Graph) -> Graph:
    """Products of rows that were put in another order, [S, T, C] to [T, S, C], as products of the rows as they were,
    and the order changed after each.

    What PyTorch's attention does to several sequences is undone after its last product, and with this at no place.
    """
    new = Rewriter(graph.inputs)
    for value, node in numbered(graph):
        node = dataclasses.replace(node, reads=new.reads(node))
        found = _turned(node, new)
        if found is None:
            new.let(value, new.add(node))
            continue
        source, sequences, tokens = found
        _, weight, *_ = node.reads
        columns, out = new.shape_of(weight)
        num = sequences * tokens
        rows = new.add(Node("reshape", (source,), (num, columns)))
        product = new.add(dataclasses.replace(node, reads=(rows, *node.reads[1:]), shape=(num, out), name=""))
        split = new.add(Node("reshape", (product,), (sequences, tokens, out)))
        turned = new.add(Node("permute_dims", (split,), (tokens, sequences, out), attributes={"axes": (1, 0, 2)}))
        new.let(value, new.add(Node("reshape", (turned,), node.shape, name=node.name)))
    return without_unread(new.graph(graph.outputs))


def _turned(node: Node, graph: Rewriter) -> tuple[int, int, int] | None:
    """The value whose rows, [S · T, C], a product reads in the order [T, S], and S and T; None of any other node."""
    weight, read = node.constant(1), node.reads[0] if node.reads else None
    if node.op != "matmul" or weight is None or weight.value.ndim != 2 or not isinstance(read, int):
        return None
    before = graph.node_of(read)
    while before is not None and before.op == "reshape" and isinstance(before.reads[0], int):
        before = graph.node_of(before.reads[0])
    if before is None or before.op != "permute_dims":
        return None
    moved, columns = moved_from(graph, read), weight.shape[0]
    rows = moved.places.reshape(-1, columns)
    order = rows[:, 0] // columns
    tokens = int(order[1]) if len(order) > 1 else 1
    if tokens < 2 or len(order) % tokens or math.prod(graph.shape_of(moved.source)) != rows.size:
        return None
    expected = np.arange(len(order)).reshape(-1, tokens).T.ravel()
    if not np.array_equal(rows, expected[:, None] * columns + np.arange(columns)):
        return None
    return moved.source, len(order) // tokens, tokens
