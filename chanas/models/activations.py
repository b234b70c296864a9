"""Activations that are spelled out, as one node each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from chanas.models.graph import Node, Read, Rewriter

Pattern = tuple[Any, ...]
"""A way to compute a value: `X`, whatever stands there; the product of two patterns; a pattern plus a number, or times
one; or a function of a pattern, by its name."""
X: Pattern = ("x",)
_CLIPPED: dict[tuple[float, float], tuple[str, Pattern]] = {
    (0.0, math.inf): ("relu", X),
    (0.0, 6.0): ("relu6", X),
    (0.0, 1.0): ("hsigmoid", ("plus", ("times", X, 1 / 6), 1 / 2)),
}
"""Activations that end in a clip, by its bounds, and what is clipped."""
_SPELLED: tuple[tuple[str, float, Pattern], ...] = (
    ("hsigmoid", 1 / 6, ("relu6", ("plus", X, 3.0))),
    ("hswish", 1 / 6, ("product", X, ("relu6", ("plus", X, 3.0)))),
    ("hswish", 1.0, ("product", X, ("hsigmoid", X))),
    ("swish", 1.0, ("product", X, ("sigmoid", X))),
    ("gelu", 1 / 2, ("product", X, ("plus", ("erf", ("times", X, math.sqrt(1 / 2))), 1.0))),
)
"""The others: a number, which may be multiplied at any place, times a pattern."""
_TOLERANCE = 1e-5


def name_activation(node: Node, new: Rewriter) -> Node:
    """One node for an activation that is spelled out, `activation` with its name as attribute `name`."""
    found = _activation(node, new) if node.dtype == "float32" else None
    if found is None or new.shape_of(found[1]) != node.shape:
        return node
    name, source = found
    return Node("activation", (source,), node.shape, node.dtype, {"name": name}, node.name)


def _activation(node: Node, graph: Rewriter) -> tuple[str, Read] | None:
    """The name of the activation that ends in a node, and what it is applied to."""
    if node.op in ("sigmoid", "tanh"):
        return node.op, node.reads[0]
    if node.op == "clip":
        bounds, source = _clip(node, graph)
        name, pattern = _CLIPPED.get(bounds, ("", X))
        return next(((name, x) for x, factor in _matches(pattern, source, graph) if name and factor == 1.0), None)
    return next(
        (
            (name, x)
            for name, number, pattern in _SPELLED
            for x, factor in _node_matches(pattern, node, graph)
            if math.isclose(factor, number, rel_tol=_TOLERANCE)
        ),
        None,
    )


def _clip(node: Node, graph: Rewriter) -> tuple[tuple[float, float], Read]:
    """The bounds of a clip and what it clips; a clip at one end and then at the other, or behind a relu, is one."""
    (low, high), source = _bounds(node), node.reads[0]
    before = graph.node_of(source)
    if before is not None and before.op == "clip":
        inner_low, inner_high = _bounds(before)
        return (max(low, inner_low), min(high, inner_high)), before.reads[0]
    if before is not None and before.function == "relu" and low <= 0.0:
        return (0.0, high), before.reads[0]
    return (low, high), source


def _bounds(clip: Node) -> tuple[float, float]:
    low, high = clip.attributes["low"], clip.attributes["high"]
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def _matches(pattern: Pattern, read: Read, graph: Rewriter) -> Iterator[tuple[Read, float]]:
    """Each way in which a value is a number times a pattern: what `X` stands for, and the number."""
    match pattern:
        case ("times", inner, number):
            found = _matches(inner, read, graph)
            yield from ((x, 1.0) for x, factor in found if math.isclose(factor, number, rel_tol=_TOLERANCE))
            return
        case ("x",):
            yield read, 1.0
    node = graph.node_of(read)
    if node is not None:
        yield from _node_matches(pattern, node, graph)


def _node_matches(pattern: Pattern, node: Node, graph: Rewriter) -> Iterator[tuple[Read, float]]:
    """The same of the value that a node gives."""
    second = node.constant(1)
    number = None if second is None else second.scalar
    if node.factor:
        yield from ((x, factor * node.factor) for x, factor in _matches(pattern, node.reads[0], graph))
    match pattern:
        case ("product", first, second) if node.op == "multiply":
            for left, right in (node.reads, node.reads[::-1]):
                for x, factor in _matches(first, left, graph):
                    yield from ((x, factor * f) for other, f in _matches(second, right, graph) if other == x)
        case ("plus", inner, added) if node.op == "add" and number is not None and math.isclose(number, added):
            yield from ((x, 1.0) for x, factor in _matches(inner, node.reads[0], graph) if factor == 1.0)
        case (name, inner) if name == node.function:
            yield from ((x, 1.0) for x, factor in _matches(inner, node.reads[0], graph) if factor == 1.0)
