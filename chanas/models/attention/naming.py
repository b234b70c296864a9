"""Attention found in a graph: products of computed matrices around a softmax, as one node on rows of tokens.

    attention   reads queries, keys and values, each rows [B·T, C] of all heads, then what is added to the scores,
                [B or 1, H or 1, T or 1, S]; gives rows [B·T, H·E]. Attribute `heads`: how they lie in the rows

Which numbers of which rows a product reads is known from the places of all numbers, moved as the graph moves values.
Notation as in `kernel`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chanas.core.arrays import Array
from chanas.models.attention.kernel import Heads
from chanas.models.folding import drop_identity
from chanas.models.graph import Constant, Graph, Node, Read, Rewriter, Values, rewritten
from chanas.models.moves import drop_move, moved_from


def name_attention(graph: Graph, lanes: int) -> Graph:
    """The graph with a node `attention` for each one whose heads are whole blocks of so many channels."""
    named = rewritten(rewritten(graph, turn_after_product), functools.partial(_named, lanes))
    if any(node.op == "attention" for node in named.nodes):
        graph = rewritten(named, turn_after_product)
    return rewritten(rewritten(graph, drop_move), drop_identity)


def _named(lanes: int, node: Node, new: Rewriter) -> Node:
    found = _attention(new, node)
    if found is None or not found.heads.fits(lanes):
        return node
    a = found.heads
    terms = [_term(term, shape, a, new) for term, shape in found.added]
    rows = (a.sequences * a.queries, a.out_channels)
    made = new.add(Node("attention", (*found.reads, *terms), rows, attributes={"heads": a}))
    split = new.add(Node("reshape", (made,), (a.sequences, a.queries, a.heads, a.value_channels)))
    shape = (a.sequences, a.heads, a.queries, a.value_channels)
    turned = new.add(Node("permute_dims", (split,), shape, attributes={"axes": (0, 2, 1, 3)}))
    return Node("reshape", (turned,), node.shape, name=node.name)


Term = tuple[Read, tuple[int, ...]]
"""A value that is added to scores, and the shape of these there."""


@dataclass(frozen=True, eq=False)
class _Attention:
    heads: Heads
    reads: tuple[int, int, int]
    added: Sequence[Term]


def _attention(graph: Values, node: Node) -> _Attention | None:
    """The attention that ends in a product of computed matrices."""
    if node.op != "matmul" or node.dtype != "float32" or any(isinstance(r, Constant) for r in node.reads):
        return None
    softmax, zero_if_masked = _softmax(graph, node.reads[0])
    scores = None if softmax is None else _scores(graph, softmax.reads[0])
    if scores is None:
        return None
    product, factor, added = scores
    if len(product.shape) < 3 or any(isinstance(r, Constant) for r in product.reads):
        return None
    q, k, v = (moved_from(graph, r, scaled=True) for r in (*product.reads, node.reads[1]) if isinstance(r, int))
    places = [m.places.reshape(-1, *m.places.shape[-2:]) for m in (q, k, v)]
    places[1] = places[1].swapaxes(1, 2)
    found = [_heads(p, graph.shape_of(m.source)) for p, m in zip(places, (q, k, v), strict=True)]
    if None in found or len(set(found)) != 1 or v.factor != 1.0 or found[0] is None:
        return None
    num = found[0]
    heads = Heads(
        len(places[0]) // num,
        num,
        *(places[0].shape[1], places[1].shape[1]),
        *(places[0].shape[2], places[2].shape[2]),
        (int(places[0][0, 0, 0]), int(places[1][0, 0, 0]), int(places[2][0, 0, 0])),
        factor * q.factor * k.factor,
        zero_if_masked,
    )
    if not all(_is_known_term(graph, term, shape, heads) for term, shape in added):
        return None
    return _Attention(heads, (q.source, k.source, v.source), added)


def _softmax(graph: Values, read: Read) -> tuple[Node | None, bool]:
    """The softmax along rows that gives a value, and whether with zeros for rows that are masked altogether."""
    node = _unshaped(graph, read)
    zero_if_masked = False
    if node is not None and node.op == "where" and len(node.reads) == 3:
        zeros = node.constant(1)
        inner = graph.node_of(node.reads[2])
        if zeros is None or zeros.value.any() or inner is None or not _is_all_masked(graph, node.reads[0], inner):
            return None, False
        node, zero_if_masked = inner, True
    if node is None or node.op != "softmax" or node.attributes["axis"] % len(node.shape) != len(node.shape) - 1:
        return None, False
    return node, zero_if_masked


def _is_all_masked(graph: Values, read: Read, softmax: Node) -> bool:
    """True of a value that says whether all scores of a row are -inf, which PyTorch's exporter writes in three ways:
    not any(not(scores == -inf)), the smallest of these truths as numbers, or that the softmax is NaN."""
    names: list[str] = []
    node = graph.node_of(read)
    if node is not None and node.op == "isnan":
        return graph.node_of(node.reads[0]) is softmax
    while node is not None and node.op in ("logical_not", "astype", "max", "min"):
        names += [node.op] if node.op != "astype" else []
        node = graph.node_of(node.reads[0])
    limit = None if node is None or node.op != "equal" else node.constant(1)
    if node is None or limit is None or names not in (["logical_not", "max", "logical_not"], ["min"]):
        return False
    return limit.scalar == -math.inf and node.reads[0] == softmax.reads[0]


def _unshaped(graph: Values, read: Read) -> Node | None:
    """The node that gives a value, before reshapes that keep its matrices."""
    node = graph.node_of(read)
    while node is not None and node.op == "reshape" and node.shape[-2:] == graph.shape_of(node.reads[0])[-2:]:
        node = graph.node_of(node.reads[0])
    return node


def _scores(graph: Values, read: Read) -> tuple[Node, float, list[Term]] | None:
    """The product q·k that scores come from, the number that it is multiplied by, and what is added then."""
    factor, added = 1.0, list[Term]()
    while (node := _unshaped(graph, read)) is not None and node.op in ("add", "multiply", "divide"):
        if node.op == "add" and factor == 1.0:
            own = [r for r in node.reads if isinstance(r, int) and graph.shape_of(r) == node.shape]
            if not own:
                return None
            read = own[0]
            added.append((node.reads[1] if node.reads[0] == read else node.reads[0], node.shape))
        elif node.factor is not None and graph.shape_of(node.reads[0]) == node.shape:
            factor, read = factor * node.factor, node.reads[0]
        else:
            return None
    return None if node is None or node.op != "matmul" else (node, factor, added)


def _heads(places: Array, shape: tuple[int, ...]) -> int | None:
    """The number of heads if matrices, int[B·H, T, D], are those of heads in rows of a shape […, C]; None otherwise."""
    num, tokens, size = places.shape
    columns, first = shape[-1], int(places[0, 0, 0])
    steps = places[:, 0, 0] - first
    heads = int((steps == np.arange(num) * size).cumprod().sum())
    heads = min(heads, columns // size)
    if not heads or first >= columns or num % heads or len(shape) > 3:
        return None
    each = np.arange(num // heads)[:, None, None, None] * (tokens * columns) + np.arange(heads)[:, None, None] * size
    expected = each + np.arange(tokens)[:, None] * columns + np.arange(size) + first
    return heads if np.array_equal(expected.reshape(places.shape), places) else None


def _is_known_term(graph: Values, term: Read, shape: tuple[int, ...], a: Heads) -> bool:
    """True of what is added to scores of a shape if it can be read as [B or 1, H or 1, T or 1, S]."""
    if isinstance(term, Constant):
        return True
    is_whole = shape == (a.sequences, a.heads, a.queries, a.keys) and graph.shape_of(term)[-1:] == (a.keys,)
    return is_whole and graph.dtype_of(term) == "float32"


def _term(term: Read, shape: tuple[int, ...], a: Heads, graph: Rewriter) -> Read:
    """A term that is added to scores of a shape, as [B or 1, H or 1, T or 1, S]."""
    if isinstance(term, Constant):
        value = np.broadcast_to(term.value, shape).reshape(a.sequences, a.heads, a.queries, a.keys)
        for axis in range(3):
            first = value.take([0], axis=axis)
            value = first if (value == first).all() else value
        return Constant(np.ascontiguousarray(value, dtype=np.float32))
    given = graph.shape_of(term)
    return graph.add(Node("reshape", (term,), (1,) * (4 - len(given)) + given))


# ---- sequences that are stored by turns ------------------------------------------------------------------------------
def turn_after_product(node: Node, new: Rewriter) -> Node:
    """A product of rows that were put in another order, [S, T, C] to [T, S, C], as a product of the rows as they were,
    and the order changed after it.

    What PyTorch's attention does to several sequences is undone after its last product, and with this at no place.
    """
    found = _turned(node, new)
    if found is None:
        return node
    source, sequences, tokens = found
    columns, out = new.shape_of(node.reads[1])
    num = sequences * tokens
    rows = new.add(Node("reshape", (source,), (num, columns)))
    product = new.add(dataclasses.replace(node, reads=(rows, *node.reads[1:]), shape=(num, out), name=""))
    split = new.add(Node("reshape", (product,), (sequences, tokens, out)))
    turned = new.add(Node("permute_dims", (split,), (tokens, sequences, out), attributes={"axes": (1, 0, 2)}))
    return Node("reshape", (turned,), node.shape, name=node.name)


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
