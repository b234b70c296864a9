"""Products with weights: on rows, and with what they take over from their neighbours: scales, shifts and padding."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from chanas.core.arrays import Array
from chanas.models.graph import MAP_PRODUCTS, PRODUCTS, Constant, Graph, Node, Read, Rewriter, numbered, per_channel

# Activations that give no negative number.
_NEVER_NEGATIVE = ("relu", "relu6", "sigmoid", "hsigmoid")
_SUMS = ("add", "subtract")


def name_transposed(node: Node, new: Rewriter) -> Node:
    """A transposed convolution without groups and dilation as `upconv`, its weights [C_out, C_in, kh, kw]; attributes
    `strides` and `crop`: rows and columns that are cut off at the top, left, bottom and right (negative: added)."""
    weight, a = node.constant(1), node.attributes
    if node.op != "conv_transpose" or weight is None or len(node.shape) != 4:
        return node
    if a["groups"] != 1 or set(a["dilation"]) != {1}:
        return node
    before = a["padding"][:2]
    extents = zip(new.shape_of(node.reads[0])[2:], a["strides"], weight.shape[2:], before, node.shape[2:], strict=True)
    after = ((e - 1) * s + k - b - out for e, s, k, b, out in extents)
    facts = {"strides": a["strides"], "crop": (*before, *after)}
    turned = Constant(np.ascontiguousarray(weight.value.transpose(1, 0, 2, 3)))
    return dataclasses.replace(node, op="upconv", reads=(node.reads[0], turned), attributes=facts)


def fold_scales(graph: Graph) -> Graph:
    """Products with constants and sums with constants after a convolution or a product of matrices: into its weights
    and a bias, its third read. Both are there afterwards as `conv2d` or `matmul` of three reads."""
    new = Rewriter(graph.inputs)
    read_once = {v for v, who in graph.readers().items() if len(who) == 1}
    may_change: set[Read] = set()  # new values of products that nothing else reads
    for value, node in numbered(graph):
        node = new.renewed(node)
        before = node.reads[0] if node.reads else None
        changed = None
        if isinstance(before, int) and before in may_change:
            changed = _absorbed(new.nodes[before - len(new.inputs)], node)
        if changed is not None and isinstance(before, int):
            number = before
            new.nodes[number - len(new.inputs)] = changed
        else:
            number = new.add(_with_bias(node))
        new.let(value, number)
        may_change.discard(number)
        if new.nodes[number - len(new.inputs)].op in PRODUCTS and value in read_once:
            may_change.add(number)
    return new.graph(graph.outputs)


def _with_bias(node: Node) -> Node:
    """A convolution or product of matrices with its bias as third read, zeros where it had none."""
    weight = node.constant(1)
    if node.op not in PRODUCTS or weight is None or len(node.reads) == 3:
        return node
    num = node.shape[1] if node.op in MAP_PRODUCTS else node.shape[-1]
    return dataclasses.replace(node, reads=(*node.reads, Constant(np.zeros(num, np.float32))))


def _absorbed(product: Node, node: Node) -> Node | None:
    """A product with a node after it in its weights; None where that can't be."""
    weight, bias, is_map = product.constant(1), product.constant(2), product.op in MAP_PRODUCTS
    numbers = _numbers(node, 1 if is_map else -1)
    if numbers is None or weight is None or bias is None or node.shape != product.shape:
        return None
    if node.op in _SUMS:
        return _with_weights(product, weight.value, bias.value + numbers, name=node.name)
    factor = np.broadcast_to(numbers, bias.shape)
    by_output = factor.reshape(-1, *[1] * (weight.value.ndim - 1)) if is_map else factor
    return _with_weights(product, weight.value * by_output, bias.value * factor, name=node.name)


def _numbers(node: Node, axis: int) -> Array | None:
    """The known numbers that a node adds to what it reads, or multiplies it by, by channel along an axis."""
    second = node.constant(1)
    if second is None or node.op not in (*_SUMS, "multiply", "divide"):
        return None
    numbers = per_channel(second.value, len(node.shape), axis)
    if numbers is None or node.op in ("add", "multiply"):
        return numbers
    return np.asarray(-numbers if node.op == "subtract" else 1 / numbers)


def _with_weights(product: Node, weight: Array, bias: Array, **changes: Any) -> Node:
    constants = (Constant(np.asarray(value, dtype=np.float32)) for value in (weight, bias))
    return dataclasses.replace(product, reads=(product.reads[0], *constants), **changes)


def fold_scale_before(node: Node, new: Rewriter) -> Node:
    """A convolution or a product of matrices with products with constants before it in its weights, sums with constants
    in its bias: sums only where it pads nothing, since what is padded is 0 after the sum. For graphs of `fold_scales`.
    """
    while (changed := _absorbed_before(node, new)) is not None:
        node = changed
    return node


def _absorbed_before(product: Node, new: Rewriter) -> Node | None:
    """A product with the node before it in its weights; None where that can't be."""
    before = new.node_of(product.reads[0]) if product.op in ("conv2d", "matmul") else None
    weight, bias = product.constant(1), product.constant(2)
    if before is None or weight is None or bias is None or before.shape != new.shape_of(before.reads[0]):
        return None
    if product.op == "matmul" and weight.value.ndim != 2:
        return None
    numbers = _by_input(product, before)
    if numbers is None or (before.op in _SUMS and any(product.attributes.get("padding", ()))):
        return None
    source = dataclasses.replace(product, reads=before.reads[:1])
    if before.op not in _SUMS:
        return _with_weights(source, weight.value * numbers, bias.value)
    axes = tuple(range(1, weight.value.ndim)) if product.op == "conv2d" else (0,)
    return _with_weights(source, weight.value, bias.value + (weight.value * numbers).sum(axes, dtype=np.float64))


def _by_input(product: Node, before: Node) -> Array | None:
    """The numbers that a node before a product adds or multiplies by, by input of the product, as its weights are
    multiplied with them: float32[out, in / groups, 1, 1], or of matrices float32[in, 1]."""
    axis = -1 if product.op == "matmul" else 1
    numbers = _numbers(before, axis)
    if numbers is None:
        return None
    every = np.broadcast_to(numbers, before.shape[axis])
    if product.op == "matmul":
        return every[:, None]
    groups = product.attributes["groups"]
    return np.repeat(every.reshape(groups, -1), product.shape[1] // groups, axis=0)[:, :, None, None]


# ---- padding ---------------------------------------------------------------------------------------------------------
def fold_padding(node: Node, new: Rewriter) -> Node:
    """A convolution or a pooling with the padding of rows and columns before it as its own, where that has the numbers
    that it leaves out: zeros of a convolution, zeros that a mean counts, −∞ of a maximum, or zeros where no number of
    the map is less."""
    padding = new.node_of(node.reads[0]) if node.reads else None
    facts = _with_padding(node, padding, new) if padding is not None and padding.op == "pad" else None
    if facts is None or padding is None:
        return node
    return dataclasses.replace(node, reads=(padding.reads[0], *node.reads[1:]), attributes=facts)


def _with_padding(node: Node, padding: Node, graph: Rewriter) -> dict[str, Any] | None:
    """The attributes of a node that pads by itself what a padding before it does; None where that is something else."""
    outside, before, shape = padding.constant(1), padding.attributes["before"], graph.shape_of(padding.reads[0])
    number = None if outside is None else outside.scalar
    after = [out - e - b for out, e, b in zip(padding.shape, shape, before, strict=True)]
    is_plain = padding.attributes["mode"] == "constant" and len(shape) == 4 and not any((*before[:2], *after[:2]))
    if not is_plain or min(*before, *after) < 0 or node.op not in ("conv2d", "max_pool2d", "avg_pool2d"):
        return None
    a = node.attributes
    whole = tuple(int(p + q) for p, q in zip(a["padding"], (*before[2:], *after[2:]), strict=True))
    if node.op == "conv2d":
        return {**a, "padding": whole} if number == 0.0 else None
    if node.op == "avg_pool2d":
        counts = a["count_include_pad"] or not any(a["padding"])
        return {**a, "padding": whole, "count_include_pad": True} if number == 0.0 and counts else None
    source = graph.node_of(padding.reads[0])
    is_least = number == 0.0 and source is not None and source.function in _NEVER_NEGATIVE
    takes_part = zip(node.shape[2:], a["pool_size"], a["strides"], a["dilation"], whole, shape[2:], strict=False)
    is_in_all = all(k > b and (o - 1) * s - b < e and d == 1 for o, k, s, d, b, e in takes_part)
    return {**a, "padding": whole} if number == -math.inf or (is_least and is_in_all) else None


# ---- rows ------------------------------------------------------------------------------------------------------------
def flatten_row(node: Node, new: Rewriter) -> Node:
    """A product of […, C] with a matrix of weights as one of rows, [T, C], and what is done to their numbers one by one
    before the next product as well: a reshape stands after all of it."""
    reads = _row_reads(node, new) if len(node.shape) > 3 and node.dtype == "float32" else None
    if reads is None:
        return node
    flat = new.add(dataclasses.replace(node, reads=reads, shape=(math.prod(node.shape[:-1]), node.shape[-1])))
    return Node("reshape", (flat,), node.shape)


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
        numbers = per_channel(second.value, len(node.shape), -1)
        return None if inner is None or numbers is None else (inner, Constant(numbers))
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
