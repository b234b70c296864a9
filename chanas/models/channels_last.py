"""Maps in NHWC, as Keras and TensorFlow have them, in the order in which operators are computed here: NCHW.

A file of such a network has a transposition before each convolution and pooling and another one behind it. What lies
between the second one and the next first one (biases, normalisation, activations, sums, padding, means) is computed
before the second one instead, on NCHW. So transpositions move on until two meet that undo each other.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from chanas.models.elementwise import ELEMENTWISE
from chanas.models.graph import Constant, Graph, Node, Read, Rewriter, Values, rewritten

Axes = tuple[int, ...]
_BY_NUMBER = frozenset([*ELEMENTWISE, "activation", "clip", "astype"])
_FOLDS = ("sum", "mean", "max", "min", "prod")


def channels_first(graph: Graph) -> Graph:
    """Transpose to NHWC behind what reads a map in it, inputs in NHWC before what comes first; of means any axes."""
    new = Rewriter(graph.inputs)
    for value in range(len(graph.inputs)):
        axes = _first_transposition(graph, value)
        if axes is not None:
            turned = new.add(_transposed(new, value, axes))
            new.let(value, new.add(_transposed(new, turned, _inverse(axes))))
    return rewritten(graph, _turn_later, new)


def _turn_later(node: Node, new: Rewriter) -> Node | Read:
    """A node that reads transposed values, before they are transposed, and the transposition behind it."""
    axes = next((a for r in node.reads if (a := _axes_of(new, r)) is not None), None)
    before = None if axes is None else _before(node, axes, new)
    if axes is None or before is None:
        return node
    return _transposed(new, new.add(before), axes, node.name) if isinstance(before, Node) else before


def _transposed(graph: Rewriter, value: int, axes: Axes, name: str = "") -> Node:
    shape = graph.shape_of(value)
    return Node("permute_dims", (value,), tuple(shape[a] for a in axes), graph.dtype_of(value), {"axes": axes}, name)


def _inverse(axes: Axes) -> Axes:
    return tuple(map(int, np.argsort(axes)))


def _is_to_last(axes: Axes) -> bool:
    """True of transpositions that make channels the last axis of maps."""
    return len(axes) > 3 and axes == (0, *range(2, len(axes)), 1)


def _axes_of(graph: Values, read: Read) -> Axes | None:
    """The axes of the transposition that gives a value, if one does."""
    node = graph.node_of(read)
    axes = None if node is None or node.op != "permute_dims" else node.attributes.get("axes")
    return None if axes is None else tuple(map(int, axes))


def _first_transposition(graph: Graph, value: int) -> Axes | None:
    """The axes of the transposition to NCHW that an input meets behind what reads nothing else."""
    readers = graph.readers()
    while len(readers[value]) == 1 and readers[value][0] >= 0:
        index = readers[value][0]
        node, value = graph.nodes[index], len(graph.inputs) + index
        axes = _axes_of(graph, value)
        if axes is not None:
            return axes if _is_to_last(_inverse(axes)) else None
        if node.op not in (*_BY_NUMBER, "pad") or any(isinstance(r, int) for r in node.reads[1:]):
            return None
    return None


def _before(node: Node, axes: Axes, graph: Rewriter) -> Node | Read | None:
    """The node that computes the same on values as they were before they were transposed so, or the value itself where
    it is transposed back; None where neither can be."""
    facts, rank, inverse = dict(node.attributes), len(node.shape), _inverse(axes)
    if node.op == "permute_dims" and tuple(facts["axes"] or ()) == inverse:
        return _as_before(node.reads[0], axes, graph)
    if rank != len(axes) or not (_is_to_last(axes) or node.op == "mean"):
        return None
    num_maps = len(node.reads)
    if node.op in _FOLDS and facts["keepdims"]:
        facts["axis"] = tuple(sorted(axes[i] for i in facts["axis"]))
    elif node.op in ("concat", "slice"):
        facts["axis"] = axes[facts["axis"]]
    elif node.op == "pad":
        facts["before"], num_maps = tuple(facts["before"][i] for i in inverse), 1
    elif node.op not in _BY_NUMBER:
        return None
    reads = [_as_before(r, axes, graph) for r in node.reads[:num_maps]]
    if None in reads:
        return None
    every = (*(r for r in reads if r is not None), *node.reads[num_maps:])
    return dataclasses.replace(
        node, reads=every, shape=tuple(node.shape[i] for i in inverse), attributes=facts, name=""
    )


def _as_before(read: Read, axes: Axes, graph: Rewriter) -> Read | None:
    """A value as it was before it was transposed so, or would have been: a constant, and numbers along one axis."""
    if isinstance(read, int) and _axes_of(graph, read) == axes:
        return graph.nodes[read - len(graph.inputs)].reads[0]
    shape, inverse = graph.shape_of(read), _inverse(axes)
    whole = (1,) * (len(axes) - len(shape)) + tuple(shape)
    if isinstance(read, Constant):
        value = read.value
        return read if value.size == 1 else Constant(np.ascontiguousarray(value.reshape(whole).transpose(inverse)))
    if sum(extent > 1 for extent in whole) > 1 or graph.node_of(read) is None:
        return None
    return graph.add(Node("reshape", (read,), tuple(whole[i] for i in inverse), graph.dtype_of(read)))
