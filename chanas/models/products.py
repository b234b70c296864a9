"""Products with weights that take over their neighbours: scales and shifts before and after them, and padding."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from chanas.models.graph import (
    MAP_PRODUCTS,
    PRODUCTS,
    Constant,
    Graph,
    Node,
    Read,
    Rewriter,
    numbered,
    per_channel,
    with_constant_second,
)
from chanas.models.sources.model import Array

# Activations that give no negative number.
_NEVER_NEGATIVE = ("relu", "relu6", "sigmoid", "hsigmoid")


def name_transposed(graph: Graph) -> Graph:
    """Transposed convolutions without groups and dilation as `upconv`, their weights [C_out, C_in, kh, kw]; attributes
    `strides` and `crop`: rows and columns that are cut off at the top, left, bottom and right (negative: added)."""
    new = Rewriter(graph.inputs)
    for value, node in numbered(graph):
        weight, a = node.constant(1), node.attributes
        is_known = node.op == "conv_transpose" and weight is not None and len(node.shape) == 4
        if not is_known or weight is None or a["groups"] != 1 or set(a["dilation"]) != {1}:
            new.copy(value, node)
            continue
        before = a["padding"][:2]
        extents = zip(
            graph.shape_of(node.reads[0])[2:], a["strides"], weight.shape[2:], before, node.shape[2:], strict=True
        )
        after = ((e - 1) * s + k - b - out for e, s, k, b, out in extents)
        facts = {"strides": a["strides"], "crop": (*before, *after)}
        turned = Constant(np.ascontiguousarray(weight.value.transpose(1, 0, 2, 3)))
        new.let(
            value, new.add(Node("upconv", (new.read(node.reads[0]), turned), node.shape, node.dtype, facts, node.name))
        )
    return new.graph(graph.outputs)


def fold_scales(graph: Graph) -> Graph:
    """Products with constants and sums with constants after a convolution or a product of matrices: into its weights
    and a bias, its third read. Both are there afterwards as `conv2d` or `matmul` of three reads."""
    new = Rewriter(graph.inputs)
    read_once = {v for v, who in graph.readers().items() if len(who) == 1}
    may_change: set[Read] = set()  # new values of products that nothing else reads
    for value, node in numbered(graph):
        node = with_constant_second(dataclasses.replace(node, reads=new.reads(node)))
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
    second, (weight, bias) = node.constant(1), (product.constant(1), product.constant(2))
    if node.op not in ("add", "subtract", "multiply", "divide") or node.shape != product.shape:
        return None
    if second is None or weight is None or bias is None:
        return None
    numbers = _by_output(second.value, product)
    if numbers is None:
        return None
    new_weight, new_bias = weight.value, bias.value
    if node.op in ("add", "subtract"):
        new_bias = new_bias + (numbers if node.op == "add" else -numbers)
    else:
        factor = np.broadcast_to(numbers if node.op == "multiply" else 1 / numbers, new_bias.shape)
        by_output = factor.reshape(-1, *[1] * (new_weight.ndim - 1)) if product.op in MAP_PRODUCTS else factor
        new_weight, new_bias = new_weight * by_output, new_bias * factor
    constants = (Constant(np.asarray(value, dtype=np.float32)) for value in (new_weight, new_bias))
    return dataclasses.replace(product, reads=(product.reads[0], *constants), name=node.name)


def _by_output(value: Array, product: Node) -> Array | None:
    """A constant by output of a product: float32[out] or [1]."""
    if product.op in MAP_PRODUCTS:
        return per_channel(value, len(product.shape))
    if value.size == 1:
        return np.asarray(value.reshape(1), dtype=np.float32)
    return (
        np.asarray(value.reshape(-1), dtype=np.float32) if value.shape[-1] == value.size == product.shape[-1] else None
    )


def fold_scales_before(graph: Graph) -> Graph:
    """Products with constants before a convolution or a product of matrices into its weights, sums with constants into
    its bias: sums only where it pads nothing, since what is padded is 0 after the sum. For graphs of `fold_scales`."""
    new = Rewriter(graph.inputs)
    for value, node in numbered(graph):
        node = dataclasses.replace(node, reads=new.reads(node))
        while (changed := _absorbed_before(node, new)) is not None:
            node = changed
        new.let(value, new.add(node))
    return new.graph(graph.outputs)


def _absorbed_before(product: Node, graph: Rewriter) -> Node | None:
    """A product with the node before it in its weights; None where that can't be."""
    before = graph.node_of(product.reads[0]) if product.op in ("conv2d", "matmul") else None
    weight, bias = product.constant(1), product.constant(2)
    second = None if before is None else before.constant(1)
    if before is None or second is None or weight is None or bias is None:
        return None
    if product.op == "matmul" and weight.value.ndim != 2:
        return None
    if before.op not in ("add", "subtract", "multiply", "divide") or before.shape != graph.shape_of(before.reads[0]):
        return None
    numbers = _by_input(second.value, product, before)
    if numbers is None:
        return None
    new_weight, new_bias = weight.value, bias.value
    if before.op in ("multiply", "divide"):
        new_weight = new_weight * (numbers if before.op == "multiply" else 1 / numbers)
    elif any(product.attributes.get("padding", ())):
        return None
    else:
        axes = tuple(range(1, new_weight.ndim)) if product.op == "conv2d" else (0,)
        shift = (new_weight * numbers).sum(axes, dtype=np.float64)
        new_bias = new_bias + (shift if before.op == "add" else -shift)
    constants = (Constant(np.asarray(value, dtype=np.float32)) for value in (new_weight, new_bias))
    return dataclasses.replace(product, reads=(before.reads[0], *constants))


def _by_input(value: Array, product: Node, before: Node) -> Array | None:
    """A constant by input of a product, as its weights are multiplied with it: float32[out, in / groups, 1, 1], or of
    matrices float32[in, 1]."""
    if product.op == "matmul":
        is_row = value.size == 1 or value.shape[-1:] == (value.size,)
        return np.broadcast_to(value.reshape(-1, 1), (before.shape[-1], 1)) if is_row else None
    numbers = per_channel(value, len(before.shape))
    if numbers is None:
        return None
    groups = product.attributes["groups"]
    by_group = np.broadcast_to(numbers, before.shape[1:2]).reshape(groups, -1)
    return np.repeat(by_group, product.shape[1] // groups, axis=0)[:, :, None, None]


# --- padding ------------------------------------------------------------------------------------------------------
def fold_padding(graph: Graph) -> Graph:
    """Padding of rows and columns before a convolution or a pooling as that one's own, where it has the numbers that
    those leave out: zeros of a convolution, zeros that a mean counts, −∞ of a maximum, or zeros where no number of the
    map is less."""
    new = Rewriter(graph.inputs)
    for value, node in numbered(graph):
        node = dataclasses.replace(node, reads=new.reads(node))
        padding = new.node_of(node.reads[0]) if node.reads else None
        facts = _with_padding(node, padding, new) if padding is not None and padding.op == "pad" else None
        if facts is not None and padding is not None:
            node = dataclasses.replace(node, reads=(padding.reads[0], *node.reads[1:]), attributes=facts)
        new.let(value, new.add(node))
    return new.graph(graph.outputs)


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
    is_least = number == 0.0 and source is not None and source.attributes.get("name") in _NEVER_NEGATIVE
    takes_part = zip(node.shape[2:], a["pool_size"], a["strides"], a["dilation"], whole, shape[2:], strict=False)
    is_in_all = all(k > b and (o - 1) * s - b < e and d == 1 for o, k, s, d, b, e in takes_part)
    return {**a, "padding": whole} if number == -math.inf or (is_least and is_in_all) else None
