"""Rewriting of a graph before it is tuned: what is known is computed, and what follows a product goes into its weights.

Each pass is a function from graph to graph; `simplify` is all of them in order. Their purpose, and the seed of each in
the literature of compilers: constant folding, folding of batch normalisation, dead and common code (`without_unread`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from chanas.models.channels_last import channels_first
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
    without_unread,
)
from chanas.models.moves import drop_moves
from chanas.models.rows import flatten_rows
from chanas.models.sources.model import Array

# Activations that give no negative number.
_NEVER_NEGATIVE = ("relu", "relu6", "sigmoid", "hsigmoid")


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


# --- activations --------------------------------------------------------------------------------------------------


def name_activations(graph: Graph) -> Graph:
    """One node for each activation that is spelled out, `activation` with its name as attribute `name`.

    relu6 = clip(x, 0, 6); hsigmoid = clip(x + 3, 0, 6) / 6 or clip(x / 6 + 1 / 2, 0, 1); hswish = x · hsigmoid(x);
    swish = x · sigmoid(x); clips with one end are two nodes at times.
    """
    new = Rewriter(graph.inputs)
    for value, node in numbered(graph):
        node = with_constant_second(dataclasses.replace(node, reads=new.reads(node)))
        found = _activation(node, new)
        if found is None:
            new.let(value, new.add(node))
        else:
            name, source = found
            named = Node("activation", (source,), node.shape, node.dtype, {"name": name}, node.name)
            new.let(value, new.add(named))
    return new.graph(graph.outputs)


def _activation(node: Node, graph: Rewriter) -> tuple[str, Read] | None:
    """The name of the activation that ends in a node, and what it is applied to."""
    if node.dtype != "float32":
        return None
    if node.op in ("sigmoid", "tanh"):
        return node.op, node.reads[0]
    if node.op == "clip":
        return _clip(node, graph)
    if node.op in ("divide", "multiply"):
        return _ends_in_product(node, graph)
    return None


def _clip(node: Node, graph: Rewriter) -> tuple[str, Read] | None:
    low, high = _bounds(node)
    source = node.reads[0]
    before = graph.node_of(source)
    if before is not None and before.op == "clip":  # a clip at one end, then at the other
        inner_low, inner_high = _bounds(before)
        low, high, source = max(low, inner_low), min(high, inner_high), before.reads[0]
    elif before is not None and _name(before) == "relu" and low <= 0.0:
        low, source = 0.0, before.reads[0]
    if (low, high) == (0.0, math.inf):
        return "relu", source
    if (low, high) == (0.0, 6.0):
        return "relu6", source
    if (low, high) == (0.0, 1.0):
        inner = _affine(graph, source)
        if inner is not None and np.allclose(inner[1:], (1 / 6, 1 / 2), rtol=1e-6):
            return "hsigmoid", inner[0]
    return None


def _bounds(clip: Node) -> tuple[float, float]:
    low, high = clip.attributes["low"], clip.attributes["high"]
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def _ends_in_product(node: Node, graph: Rewriter) -> tuple[str, Read] | None:
    factor = node.constant(1)
    scalar = None if factor is None else factor.scalar
    if scalar is not None:
        if node.op == "multiply" and math.isclose(scalar, 0.5):
            return _gelu(node.reads[0], graph, 0.5)
        is_sixth = math.isclose(scalar, 6.0 if node.op == "divide" else 1 / 6, rel_tol=1e-6)
        return _sixth(node.reads[0], graph) if is_sixth else None
    if node.op == "multiply":
        found = _gelu_of(node, graph, 1.0)
        if found is not None:
            return found
        for x, gate in (node.reads, node.reads[::-1]):
            inner = graph.node_of(gate)
            if inner is not None and inner.reads == (x,) and _name(inner) in ("hsigmoid", "sigmoid"):
                return ("hswish" if _name(inner) == "hsigmoid" else "swish"), x
    return None


def _gelu(read: Read, graph: Rewriter, factor: float) -> tuple[str, Read] | None:
    product = graph.node_of(read)
    return _gelu_of(product, graph, factor) if product is not None and product.op == "multiply" else None


def _gelu_of(product: Node, graph: Rewriter, factor: float) -> tuple[str, Read] | None:
    """x · (1 + erf(x / √2)) · 1 / 2, with the half at any place; `factor` is what the product is multiplied by."""
    for left, right in (product.reads, product.reads[::-1]):
        x, half = _scaled(left, graph)
        gate, gate_half = _scaled(right, graph)
        shifted = _affine(graph, gate)
        inner = None if shifted is None or shifted[1:] != (1.0, 1.0) else graph.node_of(shifted[0])
        if inner is None or inner.op != "erf" or not math.isclose(factor * half * gate_half, 0.5, rel_tol=1e-6):
            continue
        source, scale = _scaled(inner.reads[0], graph)
        if source == x and math.isclose(scale, math.sqrt(0.5), rel_tol=1e-5):
            return "gelu", x
    return None


def _scaled(read: Read, graph: Rewriter) -> tuple[Read, float]:
    """A value and the number that it is multiplied by."""
    node = graph.node_of(read)
    number = None if node is None or node.op not in ("multiply", "divide") else _second_number(node)
    if node is None or number is None:
        return read, 1.0
    return node.reads[0], number if node.op == "multiply" else 1 / number


def _sixth(read: Read, graph: Rewriter) -> tuple[str, Read] | None:
    """relu6(x + 3) / 6 and x · relu6(x + 3) / 6, of the value before the division."""
    clipped = _clipped_after_shift(read, graph)
    if clipped is not None:
        return "hsigmoid", clipped
    product = graph.node_of(read)
    if product is not None and product.op == "multiply":
        for x, gate in (product.reads, product.reads[::-1]):
            if not isinstance(x, Constant) and _clipped_after_shift(gate, graph) == x:
                return "hswish", x
    return None


def _clipped_after_shift(read: Read, graph: Rewriter) -> Read | None:
    """x of a value that is relu6(x + 3)."""
    clipped = graph.node_of(read)
    shifted = _affine(graph, clipped.reads[0]) if clipped is not None and _name(clipped) == "relu6" else None
    return shifted[0] if shifted is not None and shifted[1:] == (1.0, 3.0) else None


def _name(node: Node) -> str | None:
    return node.attributes["name"] if node.op == "activation" else None


def _affine(graph: Rewriter, read: Read) -> tuple[Read, float, float] | None:
    """x, a, b of a value that is x·a + b with numbers a and b."""
    factor, shift = 1.0, 0.0
    node = graph.node_of(read)
    if node is not None and node.op == "add" and (number := _second_number(node)) is not None:
        shift, read = number, node.reads[0]
        node = graph.node_of(read)
    if node is not None and node.op in ("multiply", "divide") and (number := _second_number(node)) is not None:
        factor, read = (number if node.op == "multiply" else 1 / number), node.reads[0]
    return (read, factor, shift) if (factor, shift) != (1.0, 0.0) else None


def _second_number(node: Node) -> float | None:
    """The number that a node reads second, if it is one."""
    second = node.constant(1)
    return None if second is None else second.scalar


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
    is_least = number == 0.0 and source is not None and _name(source) in _NEVER_NEGATIVE
    takes_part = zip(node.shape[2:], a["pool_size"], a["strides"], a["dilation"], whole, shape[2:], strict=False)
    is_in_all = all(k > b and (o - 1) * s - b < e and d == 1 for o, k, s, d, b, e in takes_part)
    return {**a, "padding": whole} if number == -math.inf or (is_least and is_in_all) else None


# --- channels -----------------------------------------------------------------------------------------------------


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


# --- products -----------------------------------------------------------------------------------------------------


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
